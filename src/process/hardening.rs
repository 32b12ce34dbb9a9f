//! Hardens this process before it does anything else. Other processes of the user cannot read its memory, and it and
//! all its children have limits.
//!
//! Not covered: root, and processes with CAP_SYS_PTRACE. The environment of the program that started this one stays as
//! readable as before.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The largest file that this process and its children can write. A write beyond it fails or ends the process with
/// SIGXFSZ.
///
/// It is set here and inherited. Without `unsafe` no code runs between fork and exec, and a limit set from outside
/// takes effect after the child has started. It also applies to the log, which rotates long before, and to the
/// databases.
pub const MAX_FILE_BYTES: u64 = 8 << 30;

/// Closes the memory and environment of this process, which may contain keys, to other processes of the user. They
/// cannot open `/proc/PID/environ` and `/proc/PID/mem` or attach to it, and it leaves no core file.
///
/// Its children are readable again, because `execve` resets that; they inherit the limits.
pub fn harden() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, MAX_FILE_BYTES)?;
    Ok(())
}

/// Limits this process for work on untrusted data: memory in bytes, processor time in seconds, and no files to write.
/// Descriptors that are open stay usable.
pub fn confine(memory: u64, seconds: u64) -> std::io::Result<()> {
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, 0)?;
    lower(Resource::Data, memory)?;
    lower(Resource::Cpu, seconds)
}

/// Lowers the soft and the hard limit, so that a child cannot raise it again. Keeps a limit that is already lower.
fn lower(resource: Resource, max: u64) -> std::io::Result<()> {
    let now = getrlimit(resource);
    let at_most = |limit: Option<u64>| Some(limit.map_or(max, |limit| limit.min(max)));
    setrlimit(resource, Rlimit { current: at_most(now.current), maximum: at_most(now.maximum) })?;
    Ok(())
}
