//! The reaper: a second process that outlives Skein by a moment. It is told of every process group on a pipe;
//! when the pipe closes, because Skein ended in whatever way, it kills the groups that are left.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// A handle on the reaper process, which is started before the first group that it is to watch.
#[derive(Debug, Clone)]
pub struct Reaper {
    shared: Arc<Shared>,
}

/// Shared by all handles; the last one ends the process.
#[derive(Debug)]
struct Shared {
    program: PathBuf,
    args: Vec<OsString>,
    process: Mutex<Option<Child>>,
}

impl Reaper {
    /// `program` with `args` must call [`run`] on its standard input.
    pub fn new(program: impl Into<PathBuf>, args: &[OsString]) -> Self {
        let shared = Shared { program: program.into(), args: args.to_owned(), process: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Starts the process if it does not run yet. No group may be started before.
    #[expect(clippy::disallowed_methods, reason = "the reaper is started here, and must not be a tokio child")]
    pub(super) fn ready(&self) -> std::io::Result<()> {
        let mut process = self.process();
        if process.is_some() {
            return Ok(());
        }
        let child = Command::new(&self.shared.program)
            .args(&self.shared.args)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group: a Ctrl-C in the terminal must not reach it before its work is done.
            .process_group(0)
            // It has no business in the folder we happen to be in, and nothing to keep anywhere.
            .current_dir("/")
            .env("HOME", "/dev/null")
            .spawn();
        let told = |error| std::io::Error::other(format!("the reaper cannot be started: {error}"));
        *process = Some(child.map_err(told)?);
        Ok(())
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.shared.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watch(&self, group: Pid) {
        self.tell('+', group);
    }

    pub(super) fn forget(&self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&self, sign: char, group: Pid) {
        let mut process = self.process();
        let Some(pipe) = process.as_mut().and_then(|process| process.stdin.as_mut()) else { return };
        if let Err(error) = writeln!(pipe, "{sign}{}", group.as_raw_nonzero()) {
            tracing::error!(%error, "the reaper is gone: child processes may survive a crash of skein");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The pipe closes, the reaper ends, and its exit is collected.
        if let Some(mut process) = process.take() {
            drop(process.stdin.take());
            drop(process.wait());
        }
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
