//! Runs the commands of hooks: JSON on standard input, a time limit, and the sandbox of the call.
//!
//! Invariant: when a hook has ended, no process of its group is left.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Pool;
use super::sandboxes::{CommandSandbox, SandboxedCommand, SessionSandboxes};
use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope, Stdin, minimal_environment};
use crate::sandbox::{Enforcement, SandboxStartError};
use crate::tool::{CallContext, Notice};

/// Maximum bytes of each output that are kept.
const MAX_OUTPUT: u64 = 256 * 1024;
/// Time to wait for output after the command has exited.
const LINGER: Duration = Duration::from_millis(300);
/// The second name counts if the machine has no program of the first.
const SHELLS: [&str; 2] = ["bash", "sh"];

/// The command of a hook.
#[derive(Debug, Clone, Copy)]
pub struct HookProcess<'a> {
    /// A line for the shell.
    pub line: &'a str,
    /// The JSON for its standard input.
    pub input: &'a str,
    pub limit: Duration,
}

/// The result of a hook's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOutput {
    /// The exit code. `None` if a signal ended the command.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Why a hook's command has no result.
#[derive(Debug, thiserror::Error)]
pub enum HookProcessError {
    #[error("it could not be started: {0}")]
    Start(#[from] SandboxStartError),
    #[error("it did not end within {} s", .limit.as_secs())]
    Timeout { limit: Duration },
    #[error("how it ended is not known: {0}")]
    Lost(#[source] io::Error),
    #[error("it was cancelled")]
    Cancelled,
}

/// The processes of the hooks of one session.
#[derive(Debug, Default)]
pub(super) struct HookState {
    processes: ProcessScope,
    sandboxes: SessionSandboxes,
    /// Locked while a hook runs, so that each new protected path belongs to one hook.
    running: tokio::sync::Mutex<()>,
}

/// A hook's command that has started.
struct StartedHook {
    group: ProcessGroup,
    pipes: Pipes,
    /// `None` if the command runs without one.
    sandbox: Option<CommandSandbox>,
}

impl Pool {
    /// Runs the command of a hook to its end, in the sandbox of `call`. Fails if it cannot be started, takes too long or
    /// is cancelled.
    pub async fn run_hook(&self, hook: HookProcess<'_>, call: &CallContext) -> Result<HookOutput, HookProcessError> {
        let state = self.inner.hooks.of(&call.session);
        let _running = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(HookProcessError::Cancelled),
            running = state.running.lock() => running,
        };
        let StartedHook { mut group, pipes, sandbox } = self.start_hook(hook.line, call, &state).await?;
        let ended = {
            let work = follow(&mut group, pipes, hook.input);
            let limited = async {
                match sandbox.as_ref().and_then(|sandbox| sandbox.network.as_ref()) {
                    // A question about a host does not use up the time of the hook.
                    Some(network) => network.limit(hook.limit, work).await,
                    None => timeout(hook.limit, work).await.ok(),
                }
            };
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => return Err(HookProcessError::Cancelled),
                ended = limited => ended,
            }
        };
        // Needed also after a normal exit: a child may have closed its pipes and still run.
        group.kill();
        if let Some(sandbox) = &sandbox {
            for sentence in sandbox.check_protected(call).await {
                call.session.notices.send(Notice::new(format!("A hook {sentence}.")));
            }
        }
        match ended {
            None => Err(HookProcessError::Timeout { limit: hook.limit }),
            Some(output) => output.map_err(HookProcessError::Lost),
        }
    }

    /// Runs `work` on its own task, for hooks at the end of a session. [`Pool::stop`] waits for it. Without a runtime,
    /// nothing runs.
    pub fn run_last_hooks(&self, work: impl Future<Output = ()> + Send + 'static) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.inner.scope.spawn(work);
        }
    }

    /// Returns the folder for the user's hook scripts. `None` if there is none.
    pub fn hook_scripts(&self) -> Option<String> {
        let folder = self.inner.options.user.config.join("hooks");
        (folder.is_absolute() && folder.is_dir()).then(|| folder.to_string_lossy().into_owned())
    }

    async fn start_hook(
        &self,
        line: &str,
        call: &CallContext,
        state: &HookState,
    ) -> Result<StartedHook, SandboxStartError> {
        let [first, second] = SHELLS;
        match self.spawn_hook(first, line, call, state).await {
            Err(error) if error.is_not_found() => self.spawn_hook(second, line, call, state).await,
            result => result,
        }
    }

    async fn spawn_hook(
        &self,
        shell: &str,
        line: &str,
        call: &CallContext,
        state: &HookState,
    ) -> Result<StartedHook, SandboxStartError> {
        let options = &self.inner.options;
        let launch = Launch {
            program: shell.into(),
            args: vec!["-c".into(), line.into()],
            env: self.hook_environment(call),
            cwd: Some(call.session.cwd.clone()),
            stdin: Stdin::Piped,
            launcher: None,
        };
        match (call.sandbox(), &options.sandbox) {
            (Some(sandbox), Some(launcher)) => {
                let request = SandboxedCommand { launch, line, scope: &state.processes };
                let (group, pipes, sandbox) = state.sandboxes.spawn(launcher, sandbox, &call.session, request).await?;
                Ok(StartedHook { group, pipes, sandbox: Some(sandbox) })
            }
            (Some(sandbox), None) if sandbox.profile.enforce == Enforcement::Required => {
                Err(SandboxStartError::NoLauncher)
            }
            (Some(_) | None, _) => {
                let (group, pipes) = ProcessGroup::spawn_in(&state.processes, &launch, options.reaper.as_ref())?;
                Ok(StartedHook { group, pipes, sandbox: None })
            }
        }
    }

    fn hook_environment(&self, call: &CallContext) -> BTreeMap<OsString, OsString> {
        let mut environment = minimal_environment(self.inner.options.environment.variables());
        // Hooks that were written for Claude Code find their project by the second name.
        for name in ["SKEIN_PROJECT_DIR", "CLAUDE_PROJECT_DIR"] {
            environment.insert(name.into(), call.session.cwd.clone().into());
        }
        environment
    }
}

/// Writes the input, reads both outputs, and waits for the end of the command.
async fn follow(group: &mut ProcessGroup, pipes: Pipes, input: &str) -> io::Result<HookOutput> {
    let Pipes { stdin, stdout, stderr } = pipes;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = {
        let write = async move {
            if let Some(mut stdin) = stdin {
                // A hook need not read its input.
                drop(stdin.write_all(input.as_bytes()).await);
            }
        };
        let pump = async {
            tokio::join!(write, read(stdout, &mut out), read(stderr, &mut err));
        };
        tokio::pin!(pump);
        tokio::select! {
            status = group.status() => {
                // A process that the command left behind may hold the pipes open.
                drop(timeout(LINGER, &mut pump).await);
                status?
            }
            () = &mut pump => group.status().await?,
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(HookOutput { code: status.code(), stdout: text(out), stderr: text(err) })
}

/// Reads a pipe to its end, and keeps the first part.
async fn read(pipe: impl AsyncRead + Unpin, kept: &mut Vec<u8>) {
    let mut first = pipe.take(MAX_OUTPUT);
    // An error counts as the end of the pipe.
    drop(first.read_to_end(kept).await);
    drop(tokio::io::copy(&mut first.into_inner(), &mut tokio::io::sink()).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_output_of_a_hook_is_kept_up_to_the_limit() {
        let limit = usize::try_from(MAX_OUTPUT).unwrap();
        let output = vec![b'x'; limit + 1];
        let mut pipe = output.as_slice();
        let mut kept = Vec::new();
        read(&mut pipe, &mut kept).await;
        assert_eq!(kept.len(), limit);
        assert!(pipe.is_empty(), "the hook can write all of it");
    }
}
