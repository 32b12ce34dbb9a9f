//! Runs the reaper, a second process that briefly outlives Skein. It receives every process group and scope through a
//! pipe, which closes when Skein ends in any way. It then kills the remaining groups, and the processes that left their
//! groups, which it finds by their environment.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

use super::scope::{Children, ProcessScope, end_marked};

/// A handle on the reaper process, which starts before the first group that it watches.
#[derive(Debug, Clone)]
pub struct Reaper {
    shared: Arc<Shared>,
}

/// Shared by all handles. Dropping the last one ends the process.
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

    /// Starts the process if it does not run yet. Must precede the start of any group.
    #[expect(clippy::disallowed_methods, reason = "the reaper is started here, and must not be a tokio child")]
    pub(super) fn ready(&self) -> std::io::Result<()> {
        let mut process = self.process();
        if process.is_some() {
            return Ok(());
        }
        let mut children = Children::lock();
        let child = Command::new(&self.shared.program)
            .args(&self.shared.args)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group: a Ctrl-C in the terminal must not end it before its work is done.
            .process_group(0)
            // It needs neither the current folder nor a home folder.
            .current_dir("/")
            .env("HOME", "/dev/null")
            .spawn();
        let told = |error| std::io::Error::other(format!("the reaper cannot be started: {error}"));
        let child = child.map_err(told)?;
        if let Some(pid) = pid_of(&child) {
            children.add(pid);
        }
        drop(children);
        *process = Some(child);
        Ok(())
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.shared.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watch(&self, group: Pid, scope: &ProcessScope) {
        self.tell(&format!("+{}\n={}\n", group.as_raw_nonzero(), scope.marker()));
    }

    pub(super) fn forget(&self, group: Pid) {
        self.tell(&format!("-{}\n", group.as_raw_nonzero()));
    }

    /// Sends whole lines in one write, so that a crash of skein leaves no half line.
    fn tell(&self, lines: &str) {
        let mut process = self.process();
        let Some(pipe) = process.as_mut().and_then(|process| process.stdin.as_mut()) else { return };
        if let Err(error) = pipe.write_all(lines.as_bytes()) {
            tracing::error!(%error, "the reaper is gone: child processes may survive a crash of skein");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Closing the pipe ends the reaper; wait for it to avoid a zombie.
        if let Some(mut process) = process.take() {
            drop(process.stdin.take());
            drop(process.wait());
            if let Some(pid) = pid_of(&process) {
                Children::lock().remove(pid);
            }
        }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id().cast_signed())
}

/// The main loop of the reaper process. Reads `+group` and `-group` lines until the pipe closes. Then kills the
/// remaining groups and all processes of the scopes named with `=marker`.
pub fn run(input: impl std::io::Read) {
    let mut groups = HashSet::new();
    let mut markers = HashSet::new();
    for line in BufReader::new(input).lines().map_while(Result::ok) {
        let Some((sign, number)) = line.split_at_checked(1) else { continue };
        if sign == "=" {
            markers.insert(number.to_owned());
            continue;
        }
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
    end_marked(&markers);
}
