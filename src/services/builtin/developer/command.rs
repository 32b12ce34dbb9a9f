//! Runs one background command: the state that its task and its readers share, and the task that follows it to its
//! end.

use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::process::{Pipes, ProcessGroup};
use crate::sandbox::proxy::{CommandNetwork, HostRefusal};
use crate::services::sandboxes::CommandSandbox;
use crate::tool::CallContext;

use super::command_report::{code, status_text, with_verdict};
use super::output::{Capture, Keeps, Log};
use super::pump::Pump;
use super::sandbox_remarks::{CommandChoice, SandboxRemarks, error_sentences};
use crate::services::builtin::answer::{ToolReply, with_data};

/// Output is worth reading after a pause of this length.
const QUIET: Duration = Duration::from_millis(500);
/// Time between asking a command to end and killing it.
const GRACE: Duration = Duration::from_secs(2);
/// Time to wait for output after the group was killed.
const LINGER: Duration = Duration::from_millis(300);

/// A command that has started.
#[derive(Debug)]
pub(super) struct StartedCommand {
    pub(super) group: ProcessGroup,
    pub(super) pipes: Pipes,
    /// `None` if the command runs without one.
    pub(super) sandbox: Option<CommandSandbox>,
}

/// A background command, shared by its task and its readers.
#[derive(Debug)]
pub(super) struct BackgroundCommand {
    line: String,
    output: Mutex<Capture>,
    /// The command's task sends with every piece of output; `settle` and `stop` subscribe.
    state: watch::Sender<State>,
    /// Cancelled by `shell_stop`; the task watches it.
    stop: CancellationToken,
    started: Instant,
    refusals: Mutex<Refusals>,
    /// `None` if the command runs without one. Its network is in `refusals`.
    sandbox: Option<CommandSandbox>,
    choice: CommandChoice,
}

/// What the sandbox refused to a command.
#[derive(Debug)]
struct Refusals {
    /// `None` if the command has ended or has no network.
    network: Option<CommandNetwork>,
    /// The refusals of a command that has ended.
    kept: Vec<HostRefusal>,
    reported: usize,
}

impl Refusals {
    /// Returns the refusals since the last report.
    fn take_new(&mut self) -> Vec<String> {
        let all = self.network.as_ref().map_or_else(|| self.kept.clone(), CommandNetwork::refusals);
        let new = all.iter().skip(self.reported).map(ToString::to_string).collect();
        self.reported = all.len();
        new
    }

    /// Ends the consents that were given until the command ends.
    fn end(&mut self) {
        if let Some(network) = self.network.take() {
            self.kept = network.refusals();
        }
    }
}

/// How far a command is, in words and as an exit code.
pub(super) struct CommandVerdict {
    pub(super) text: String,
    /// `None` if there is none, as while it runs.
    pub(super) exit_code: Option<i32>,
    pub(super) running: bool,
}

#[derive(Debug, Clone)]
struct State {
    /// Exit status of the shell; processes that it started may still run.
    exited: Option<ExitStatus>,
    ended: Option<CommandEnd>,
    last_output: Instant,
}

#[derive(Debug, Clone, Copy)]
enum CommandEnd {
    Exited(ExitStatus),
    Stopped,
    TimedOut,
    Lost,
}

impl BackgroundCommand {
    pub(super) fn new(line: &str, scratch: &Path, mut sandbox: Option<CommandSandbox>, choice: CommandChoice) -> Self {
        let started = Instant::now();
        let network = sandbox.as_mut().and_then(|sandbox| sandbox.network.take());
        Self {
            line: line.to_owned(),
            output: Mutex::new(Capture::with_log(Log::new(scratch, Keeps::Everything))),
            state: watch::Sender::new(State { exited: None, ended: None, last_output: started }),
            stop: CancellationToken::new(),
            started,
            refusals: Mutex::new(Refusals { network, kept: Vec::new(), reported: 0 }),
            sandbox,
            choice,
        }
    }

    /// Follows the command to its end or the session's. This is the body of the command's task.
    pub(super) async fn run(
        &self,
        group: ProcessGroup,
        pipes: Pipes,
        limit: Option<Duration>,
        session_ends: CancellationToken,
    ) {
        let deadline = limit.map(|limit| self.started + limit);
        let end = tokio::select! {
            biased;
            () = session_ends.cancelled() => CommandEnd::Stopped,
            end = attend(self, group, Pump::new(pipes), deadline) => end,
        };
        self.refusals().end();
        self.state.send_modify(|state| state.ended = Some(end));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    /// Waits until the command has ended, has new output and pauses, or `deadline` has passed.
    pub(super) async fn settle(&self, deadline: Instant) {
        let mut state = self.state.subscribe();
        loop {
            let now = state.borrow_and_update().clone();
            if now.ended.is_some() {
                return;
            }
            // Output that still flows gets time to pause, so that a call does not return a single line.
            let settled = if self.output().is_empty() { deadline } else { (now.last_output + QUIET).min(deadline) };
            tokio::select! {
                biased;
                () = sleep_until(settled) => return,
                // Cannot fail: `self` owns the sender.
                _ = state.changed() => {}
            }
        }
    }

    /// Asks the command to end, kills it after a grace period, and waits until it has ended.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        // Cannot fail: `self` owns the sender.
        drop(self.state.subscribe().wait_for(|state| state.ended.is_some()).await);
    }

    fn output(&self) -> MutexGuard<'_, Capture> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.output().push(bytes);
        self.state.send_modify(|state| state.last_output = Instant::now());
    }

    /// Returns how far the command is.
    pub(super) fn verdict(&self, id: u32) -> CommandVerdict {
        let State { exited, ended: end, .. } = self.state.borrow().clone();
        let seconds = self.started.elapsed().as_secs();
        let (text, exit_code) = match end {
            None => match exited {
                None => (format!("command {id} runs since {seconds} s"), None),
                Some(status) => (
                    format!(
                        "command {id}: {}, but what it started still runs; `shell_stop` ends it",
                        status_text(status)
                    ),
                    code(status),
                ),
            },
            Some(CommandEnd::Exited(status)) => (format!("command {id}: {}", status_text(status)), code(status)),
            Some(CommandEnd::Stopped) => (format!("command {id} was stopped"), None),
            Some(CommandEnd::TimedOut) => (format!("command {id} timed out and was ended"), None),
            Some(CommandEnd::Lost) => (format!("command {id} has ended; it is not known how"), None),
        };
        CommandVerdict { text, exit_code, running: end.is_none() }
    }

    /// Returns the new output and the state of the command. After its end, also asks about new protected paths.
    pub(super) async fn report(&self, id: u32, call: &CallContext) -> ToolReply {
        let protected = match &self.sandbox {
            Some(sandbox) if self.has_ended() => sandbox.check_protected(call).await,
            Some(_) | None => Vec::new(),
        };
        // The state is read before the output, so that output before the end is never missed.
        let verdict = self.verdict(id);
        let mut output = self.output();
        let log_path = output.log_path().map(|path| path.to_string_lossy().into_owned());
        let shown = output.take();
        let mut refused = self.refusals().take_new();
        if let Some(sandbox) = &self.sandbox {
            refused.extend(error_sentences(sandbox, &shown.text, self.choice, call));
        }
        let remarks = SandboxRemarks { refused, protected };
        let mut data = json!({
            "id": id,
            "command": self.line,
            "output": shown.text,
            "running": verdict.running,
            "exit_code": verdict.exit_code,
            "truncated": shown.truncated,
            "log_path": log_path,
        });
        let text = if shown.text.is_empty() { "(no new output)".to_owned() } else { shown.text };
        let text = remarks.add_to(with_verdict(text, &verdict.text), &mut data);
        Ok(with_data(text, data))
    }
}

/// Follows a command to its end. Dropping the future kills the command.
async fn attend(
    command: &BackgroundCommand,
    mut group: ProcessGroup,
    mut pump: Pump,
    deadline: Option<Instant>,
) -> CommandEnd {
    let mut exited = None;
    let mut piped = true;
    let end = loop {
        if let Some(status) = exited
            && !piped
            && !group.alive()
        {
            break CommandEnd::Exited(status);
        }
        tokio::select! {
            biased;
            () = command.stop.cancelled() => break CommandEnd::Stopped,
            () = wait_until(deadline) => break CommandEnd::TimedOut,
            result = group.status(), if exited.is_none() => match result {
                Ok(status) => {
                    exited = Some(status);
                    command.state.send_modify(|state| state.exited = exited);
                }
                Err(_) => break CommandEnd::Lost,
            },
            piece = pump.next(), if piped => match piece {
                Some((_, bytes)) => command.push(&bytes),
                None => piped = false,
            },
            // No event reports the end of a process that is not a child of Skein and has no pipe, so this polls.
            () = sleep(QUIET), if exited.is_some() && !piped => {}
        }
    };
    match end {
        CommandEnd::Exited(_) => {}
        // A command that is asked to end may still print; its pipes must be read, or it blocks.
        CommandEnd::Stopped => {
            drop(tokio::join!(group.stop(GRACE), timeout(GRACE + LINGER, drain(command, &mut pump))))
        }
        CommandEnd::TimedOut | CommandEnd::Lost => {
            group.kill();
            drop(timeout(LINGER, drain(command, &mut pump)).await);
        }
    }
    for (_, bytes) in pump.rest() {
        command.push(&bytes);
    }
    end
}

/// Reads all output until the pipes are closed.
async fn drain(command: &BackgroundCommand, pump: &mut Pump) {
    while let Some((_, bytes)) = pump.next().await {
        command.push(&bytes);
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
