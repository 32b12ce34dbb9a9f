//! Starts child processes, each in its own process group and with a minimal environment. Ends each group as a whole,
//! even if Skein itself is killed.
//!
//! Invariant: no domain words. A process that leaves its group with `setsid` ends with its `ProcessScope`.

mod capture;
mod hardening;
mod helper;
mod launcher;
mod listeners;
mod memory;
mod output_limit;
#[cfg(target_os = "linux")]
mod proc_files;
#[cfg(not(target_os = "linux"))]
#[path = "process/no_proc_files.rs"]
mod proc_files;
mod program;
mod reaper;
mod scope;
mod table;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};

pub use capture::{CapturedCommand, CommandExit};
pub use hardening::{MAX_FILE_BYTES, confine, harden};
pub use helper::HelperProcess;
use launcher::GroupLeader;
pub use launcher::{LaunchedProcess, ProcessLauncher};
pub use memory::{limit_arenas, release_free_memory};
pub use output_limit::{DroppedOutput, OutputLimit, OutputVerdict};
pub use proc_files::read_proc;
pub use program::find_program;
pub use reaper::{Reaper, run as run_reaper};
use scope::Children;
pub use scope::{ProcessScope, adopt_orphans, end_all_scopes};
use table::{MARKER, Process, ProcessTable};

/// A program to start.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// All variables of the process; nothing is inherited.
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: Option<PathBuf>,
    pub stdin: Stdin,
    /// Starts the program elsewhere, such as in a sandbox. `None`: as a child of this process.
    pub launcher: Option<Arc<dyn ProcessLauncher>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    Piped,
    Closed,
}

impl Launch {
    /// Returns the command that starts this file as the program.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts processes")]
    fn command(&self, file: &OsStr, scope: &ProcessScope) -> Command {
        let mut command = Command::new(file);
        command.arg0(&self.program).args(&self.args).env_clear().envs(&self.env).env(MARKER, scope.marker());
        command.process_group(0).kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if self.stdin == Stdin::Piped { Stdio::piped() } else { Stdio::null() });
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command
    }
}

/// Variables that most programs need.
const INHERITED: [&str; 9] = ["PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ"];

/// Returns the base environment of every child, without variables that could contain a secret.
pub fn minimal_environment(ours: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
    ours.into_iter().filter(|(name, _)| INHERITED.iter().any(|known| name == *known)).collect()
}

/// A running child and all processes in its group. Dropping it kills the group.
#[derive(Debug)]
pub struct ProcessGroup {
    leader: GroupLeader,
    reaper: Option<Reaper>,
    /// Processes that left the group end when the last clone of this is dropped.
    _scope: ProcessScope,
}

/// Skein's ends of the child's pipes.
#[derive(Debug)]
pub struct Pipes {
    pub stdin: Option<ChildStdin>,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

impl ProcessGroup {
    /// Starts a program. With a reaper, its group ends with Skein, however Skein ends. Processes that leave the group
    /// end with it.
    pub fn spawn(launch: &Launch, reaper: Option<&Reaper>) -> std::io::Result<(Self, Pipes)> {
        Self::spawn_in(&ProcessScope::default(), launch, reaper)
    }

    /// Starts a program. Processes that leave the group, and that it does not wait for, end with the scope.
    pub fn spawn_in(scope: &ProcessScope, launch: &Launch, reaper: Option<&Reaper>) -> std::io::Result<(Self, Pipes)> {
        if let Some(launcher) = &launch.launcher {
            return Self::spawn_with(launcher.as_ref(), scope, launch);
        }
        if let Some(reaper) = reaper {
            reaper.ready()?;
        }
        // Given a name, the standard library copies this process to search the new PATH: every page that Skein writes
        // afterwards is copied. Given a path, it does not.
        let path = launch.env.get(OsStr::new("PATH")).map(OsString::as_os_str);
        let program = find_program(&launch.program, path, launch.cwd.as_deref().unwrap_or(Path::new("")));
        let mut children = Children::lock();
        let started = program.and_then(|program| launch.command(program.as_os_str(), scope).spawn().ok());
        // The error of the search says best why the program cannot start.
        let mut child = started.map_or_else(|| launch.command(&launch.program, scope).spawn(), Ok)?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            children.add_to(scope, pid);
        }
        drop(children);
        let (Some(pid), Some(stdout), Some(stderr)) = (pid, child.stdout.take(), child.stderr.take()) else {
            return Err(std::io::Error::other("the process ended before it could be watched"));
        };
        if let Some(reaper) = reaper {
            reaper.watch(pid, scope);
        }
        let stdin = child.stdin.take();
        let leader = GroupLeader::Child { child, pid };
        let group = Self { leader, reaper: reaper.cloned(), _scope: scope.clone() };
        Ok((group, Pipes { stdin, stdout, stderr }))
    }

    /// Starts a program elsewhere. Its environment still names the scope, in case the launcher cannot end it.
    fn spawn_with(
        launcher: &dyn ProcessLauncher,
        scope: &ProcessScope,
        launch: &Launch,
    ) -> std::io::Result<(Self, Pipes)> {
        let mut launch = launch.clone();
        launch.env.insert(MARKER.into(), scope.marker().into());
        let (process, pipes) = launcher::launch(launcher, &launch)?;
        Ok((Self { leader: GroupLeader::Launched(process), reaper: None, _scope: scope.clone() }, pipes))
    }

    /// Returns the process id of the first process. Zero if the launcher does not know it.
    pub fn id(&self) -> u32 {
        match &self.leader {
            GroupLeader::Child { pid, .. } => pid.as_raw_nonzero().get().cast_unsigned(),
            GroupLeader::Launched(process) => process.id().unwrap_or_default(),
        }
    }

    /// Waits until the first process of the group has ended. Returns its exit status as text.
    pub async fn wait(&mut self) -> String {
        match self.status().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Waits until the first process of the group has ended.
    pub async fn status(&mut self) -> std::io::Result<ExitStatus> {
        self.leader.wait().await
    }

    /// Sends SIGTERM, waits for `grace`, then kills the group.
    pub async fn stop(mut self, grace: Duration) {
        self.signal(Signal::TERM);
        drop(tokio::time::timeout(grace, self.leader.wait()).await);
        // The leader may have ended while others of the group still run.
        self.kill();
        drop(self.leader.wait().await);
    }

    /// Kills the group and, while its first process lives, all descendants of that process.
    pub fn kill(&self) {
        // Read the descendants first: orphans no longer count as descendants. Kill them after the group, which ends at
        // once, so that no shell reports the end of its children.
        let descendants = match &self.leader {
            GroupLeader::Child { child, pid } if child.id().is_some() => ProcessTable::read().descendants(*pid),
            GroupLeader::Child { .. } | GroupLeader::Launched(_) => Vec::new(),
        };
        self.signal(Signal::KILL);
        descendants.iter().for_each(Process::kill);
    }

    /// Returns whether any process of the group lives.
    pub fn alive(&self) -> bool {
        match &self.leader {
            GroupLeader::Child { pid, .. } => test_kill_process_group(*pid).is_ok(),
            GroupLeader::Launched(process) => !process.has_ended(),
        }
    }

    fn signal(&self, signal: Signal) {
        match &self.leader {
            // ESRCH means that no process is left, which is the goal.
            GroupLeader::Child { pid, .. } => _ = kill_process_group(*pid, signal),
            GroupLeader::Launched(process) => process.signal(signal),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
        let GroupLeader::Child { pid, .. } = &self.leader else { return };
        if let Some(reaper) = &self.reaper {
            reaper.forget(*pid);
        }
        Children::lock().remove(*pid);
    }
}

/// Kills all descendants of this process and collects their exits, until none is left. This process must be alone in
/// starting children, and must adopt orphans.
pub fn end_descendants() {
    scope::end_descendants();
}

/// Returns the resident memory of a process in bytes. `None` if the system does not report it: only Linux does.
pub fn resident_memory(pid: u32) -> Option<u64> {
    let status = String::from_utf8(read_proc(&format!("{pid}/status")).ok()?).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
