//! What this process does to itself before it does anything else: other processes of the user cannot read its memory,
//! and it and all its children have limits.
//!
//! Not covered: root, and processes that may trace every process (CAP_SYS_PTRACE). The environment of the
//! program that started this one is as readable as before.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The largest file that this process and its children can write. A write beyond it fails, or ends the process with
/// SIGXFSZ. It is set here and inherited, not set for each child: without `unsafe` there is no code between fork and
/// exec, and a limit set from outside comes after the child has begun to run. It also holds for the log, which rotates
/// long before, and for the databases.
pub const MAX_FILE_BYTES: u64 = 8 << 30;

/// Closes the memory and the environment of this process, which may hold keys, to other processes of the user. They
/// cannot open `/proc/PID/environ` and `/proc/PID/mem` or attach to it, and it leaves no core file. Its children are readable again, as `execve` resets that; the limits are inherited.
pub fn harden() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, MAX_FILE_BYTES)?;
    Ok(())
}

/// Sets the soft and the hard limit, so that a child cannot raise it again. A limit that is lower already stays.
fn lower(resource: Resource, max: u64) -> std::io::Result<()> {
    let now = getrlimit(resource);
    let at_most = |limit: Option<u64>| Some(limit.map_or(max, |limit| limit.min(max)));
    setrlimit(resource, Rlimit { current: at_most(now.current), maximum: at_most(now.maximum) })?;
    Ok(())
}
