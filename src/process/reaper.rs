//! The reaper: a second process that outlives Skein by a moment. It is told of every process group on a pipe;
//! when the pipe closes, because Skein ended in whatever way, it kills the groups that are left.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// A handle on the running reaper process.
#[derive(Debug, Clone)]
pub struct Reaper {
    process: Arc<Process>,
}

/// Shared by all handles; the last one ends it.
#[derive(Debug)]
struct Process(Mutex<Child>);

impl Reaper {
    /// Starts `program` with `args`, which must call [`run`] on its standard input.
    #[expect(clippy::disallowed_methods, reason = "the reaper is started here, and must not be a tokio child")]
    pub fn start(program: &Path, args: &[OsString]) -> std::io::Result<Self> {
        let child = Command::new(program)
            .args(args)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group: a Ctrl-C in the terminal must not reach it before its work is done.
            .process_group(0)
            // It has no business in the folder we happen to be in, and nothing to keep anywhere.
            .current_dir("/")
            .env("HOME", "/dev/null")
            .spawn()?;
        Ok(Self { process: Arc::new(Process(Mutex::new(child))) })
    }

    pub(super) fn watch(&self, group: Pid) {
        self.tell('+', group);
    }

    pub(super) fn forget(&self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&self, sign: char, group: Pid) {
        let mut process = self.process.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pipe) = process.stdin.as_mut() else { return };
        if let Err(error) = writeln!(pipe, "{sign}{}", group.as_raw_nonzero()) {
            tracing::error!(%error, "the reaper is gone: child processes may survive a crash of skein");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The pipe closes, the reaper ends, and its exit is collected.
        let process = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(process.stdin.take());
        drop(process.wait());
    }
}

/// What the reaper process does: reads `+group` and `-group` lines until the pipe closes, then kills what is
/// left.
pub fn run(input: impl std::io::Read) {
    let mut groups = HashSet::new();
    for line in BufReader::new(input).lines().map_while(Result::ok) {
        let Some((sign, number)) = line.split_at_checked(1) else { continue };
        let Some(group) = number.parse().ok().and_then(Pid::from_raw) else { continue };
        match sign {
            "+" => groups.insert(group),
            "-" => groups.remove(&group),
            _ => false,
        };
    }
    for group in groups {
        _ = kill_process_group(group, Signal::KILL);
    }
}
