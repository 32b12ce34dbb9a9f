//! Reads the processes of this machine from `/proc`. Empty on systems other than Linux.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, kill_process};

use super::proc_files::{list_proc, read_proc};

/// The environment variable that names the scope of a process. Children inherit it.
pub(super) const MARKER: &str = "SKEIN_PROCESS_SCOPE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    /// It has ended, but its parent has not collected its exit.
    pub(super) is_zombie: bool,
    /// In clock ticks since boot.
    pub(super) start: u64,
}

impl Process {
    pub(super) fn read(pid: Pid) -> Option<Self> {
        let stat = read_proc(&format!("{}/stat", pid.as_raw_nonzero())).ok()?;
        Self::parse(pid, std::str::from_utf8(&stat).ok()?)
    }

    /// Parses a `stat` line. The program name is in parentheses and may contain any character, so parsing starts after
    /// the last one.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // The start time is field 22; the state is field 3.
        let start = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, parent, is_zombie: matches!(state, "Z" | "X"), start })
    }

    /// Returns the scope in the process's environment. `None` if there is none or it cannot be read: another user owns
    /// the process, or its memory is closed.
    pub(super) fn marker(&self) -> Option<String> {
        let environment = read_proc(&format!("{}/environ", self.pid.as_raw_nonzero())).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    pub(super) fn kill(&self) {
        // ESRCH means that it has already ended, which is the goal.
        _ = kill_process(self.pid, Signal::KILL);
    }
}

/// All processes at one point in time.
#[derive(Debug)]
pub(super) struct ProcessTable {
    children: HashMap<i32, Vec<Process>>,
}

impl ProcessTable {
    pub(super) fn read() -> Self {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        let paths = list_proc("").unwrap_or_default();
        let pids = paths.iter().filter_map(|path| Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?));
        for process in pids.filter_map(Process::read) {
            children.entry(process.parent).or_default().push(process);
        }
        Self { children }
    }

    pub(super) fn children(&self, parent: Pid) -> &[Process] {
        self.children.get(&parent.as_raw_nonzero().get()).map_or(&[], Vec::as_slice)
    }

    /// Returns all living descendants of a process.
    pub(super) fn descendants(&self, ancestor: Pid) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        let mut pending = vec![ancestor];
        while let Some(parent) = pending.pop() {
            for child in self.children(parent) {
                pending.push(child.pid);
                if !child.is_zombie {
                    found.push(*child);
                }
            }
        }
        found
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Process> {
        self.children.values().flatten().filter(|process| !process.is_zombie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_hold_anything() {
        let pid = Pid::from_raw(7).unwrap();
        let stat = "7 (a) Z 1 (b) S 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1234 5 6";
        let process = Process::parse(pid, stat).unwrap();
        assert_eq!(process, Process { pid, parent: 42, is_zombie: false, start: 1234 });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_in_the_table() {
        let own = rustix::process::getpid();
        assert!(ProcessTable::read().all().any(|process| process.pid == own));
    }
}
