//! Commands that go on while the model does something else: `shell` with `background: true`, `shell_output`,
//! `shell_stop`.
//!
//! Invariant: they lie in the session and nowhere else; when it goes, their process groups are killed.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::process::{Group, Pipes};
use crate::task::Scope;
use crate::tool::CallContext;

use super::answer::{Answer, Refusal, structured};
use super::output::{Capture, Keeps, Log};
use super::pump::Pump;
use super::shell::{code, in_words, with_verdict};

const MAX_RUNNING: usize = 16;
/// Ended commands whose output can still be read.
const MAX_ENDED: usize = 32;
const MAX_WAIT: u64 = 60;
/// Output that pauses for so long is worth reading.
const QUIET: Duration = Duration::from_millis(500);
/// Between asking a command to end and making it.
const GRACE: Duration = Duration::from_secs(2);
/// How long output is waited for after the group has been killed.
const LINGER: Duration = Duration::from_millis(300);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellOutput {
    /// From shell
    id: u32,
    /// Wait for output or the end
    #[schemars(range(max = 60))]
    wait_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellStop {
    /// From shell
    id: u32,
}

/// The background commands of a session.
#[derive(Debug, Default)]
pub(super) struct Commands {
    scope: Scope,
    by_id: Mutex<ById>,
}

#[derive(Debug, Default)]
struct ById {
    last: u32,
    commands: BTreeMap<u32, Arc<Command>>,
}

impl Drop for Commands {
    fn drop(&mut self) {
        // Each task lets go of its group, which kills it.
        self.scope.cancelled().cancel();
    }
}

/// One command, as its task and its readers share it.
#[derive(Debug)]
struct Command {
    line: String,
    output: Mutex<Capture>,
    /// The task has the other end; it changes with every piece of output.
    state: watch::Sender<State>,
    /// Cancelled by `shell_stop`; the task watches it.
    stop: CancellationToken,
    started: Instant,
}

#[derive(Debug, Clone)]
struct State {
    /// How the shell ended; what it started may go on.
    exited: Option<ExitStatus>,
    ended: Option<End>,
    last_output: Instant,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Exited(ExitStatus),
    Stopped,
    TimedOut,
    Lost,
}

impl Commands {
    fn lock(&self) -> MutexGuard<'_, ById> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: u32) -> Result<Arc<Command>, Refusal> {
        let by_id = self.lock();
        by_id.commands.get(&id).cloned().ok_or_else(|| {
            let known: Vec<String> = by_id.commands.keys().map(u32::to_string).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Refusal::new(format!("there is no background command {id} in this session; there are: {known}"))
        })
    }
}

impl ById {
    fn add(&mut self, command: Arc<Command>) -> Result<u32, Refusal> {
        let (ended, running): (Vec<u32>, Vec<u32>) =
            self.commands.iter().map(|(id, _)| *id).partition(|id| self.commands[id].end().is_some());
        if running.len() >= MAX_RUNNING {
            let running: Vec<String> = running.iter().map(u32::to_string).collect();
            return Err(Refusal::new(format!(
                "{MAX_RUNNING} background commands run already ({}); end one with `shell_stop`",
                running.join(", ")
            )));
        }
        for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            self.commands.remove(id);
        }
        self.last += 1;
        self.commands.insert(self.last, command);
        Ok(self.last)
    }
}

impl Command {
    fn output(&self) -> MutexGuard<'_, Capture> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> Option<End> {
        self.state.borrow().ended
    }

    fn push(&self, bytes: &[u8]) {
        self.output().push(bytes);
        self.state.send_modify(|state| state.last_output = Instant::now());
    }

    /// The new output, and how the command is.
    fn report(&self, id: u32) -> Answer {
        // In this order: what comes before the end is never missed.
        let State { exited, ended: end, .. } = self.state.borrow().clone();
        let mut output = self.output();
        let log_path = output.log_path().map(ToOwned::to_owned);
        let shown = output.take();
        let seconds = self.started.elapsed().as_secs();
        let (verdict, exit_code) = match end {
            None => match exited {
                None => (format!("command {id} runs since {seconds} s"), None),
                Some(status) => (
                    format!("command {id}: {}, but what it started still runs; `shell_stop` ends it", in_words(status)),
                    code(status),
                ),
            },
            Some(End::Exited(status)) => (format!("command {id}: {}", in_words(status)), code(status)),
            Some(End::Stopped) => (format!("command {id} was stopped"), None),
            Some(End::TimedOut) => (format!("command {id} timed out and was ended"), None),
            Some(End::Lost) => (format!("command {id} has ended; it is not known how"), None),
        };
        let data = json!({
            "id": id,
            "command": self.line,
            "output": shown.text,
            "running": end.is_none(),
            "exit_code": exit_code,
            "truncated": shown.truncated,
            "log_path": log_path,
        });
        let text = if shown.text.is_empty() { "(no new output)".to_owned() } else { shown.text };
        Ok(structured(with_verdict(text, &verdict), data))
    }
}

pub(super) fn start(call: &CallContext, line: &str, group: Group, pipes: Pipes, limit: Option<Duration>) -> Answer {
    let commands = call.session.state::<Commands>();
    let started = Instant::now();
    let command = Arc::new(Command {
        line: line.to_owned(),
        output: Mutex::new(Capture::with_log(Log::new(&call.session.scratch, Keeps::Everything))),
        state: watch::Sender::new(State { exited: None, ended: None, last_output: started }),
        stop: CancellationToken::new(),
        started,
    });
    let id = commands.lock().add(Arc::clone(&command))?;
    let deadline = limit.map(|limit| started + limit);
    let session_ends = commands.scope.cancelled().clone();
    commands.scope.spawn(async move {
        let end = tokio::select! {
            biased;
            () = session_ends.cancelled() => End::Stopped,
            end = attend(&command, group, Pump::new(pipes), deadline) => end,
        };
        command.state.send_modify(|state| state.ended = Some(end));
    });
    let text = format!("started in the background with id {id}; read it with `shell_output`, end it with `shell_stop`");
    Ok(structured(text, json!({"id": id})))
}

/// Follows a command to its end. Dropping this kills it.
async fn attend(command: &Command, mut group: Group, mut pump: Pump, deadline: Option<Instant>) -> End {
    let mut exited = None;
    let mut piped = true;
    let end = loop {
        if let Some(status) = exited
            && !piped
            && !group.alive()
        {
            break End::Exited(status);
        }
        tokio::select! {
            biased;
            () = command.stop.cancelled() => break End::Stopped,
            () = at(deadline) => break End::TimedOut,
            result = group.status(), if exited.is_none() => match result {
                Ok(status) => {
                    exited = Some(status);
                    command.state.send_modify(|state| state.exited = exited);
                }
                Err(_) => break End::Lost,
            },
            piece = pump.next(), if piped => match piece {
                Some((_, bytes)) => command.push(&bytes),
                None => piped = false,
            },
            // Nothing tells of the end of a process that has neither a parent here nor a pipe.
            () = sleep(QUIET), if exited.is_some() && !piped => {}
        }
    };
    match end {
        End::Exited(_) => {}
        // Whoever is asked to end may have something to say, and must be able to.
        End::Stopped => drop(tokio::join!(group.stop(GRACE), timeout(GRACE + LINGER, drain(command, &mut pump)))),
        End::TimedOut | End::Lost => {
            group.kill();
            drop(timeout(LINGER, drain(command, &mut pump)).await);
        }
    }
    for (_, bytes) in pump.rest() {
        command.push(&bytes);
    }
    end
}

/// Takes all output until the pipes are closed.
async fn drain(command: &Command, pump: &mut Pump) {
    while let Some((_, bytes)) = pump.next().await {
        command.push(&bytes);
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pub(super) async fn shell_output(call: &CallContext, request: &ShellOutput) -> Answer {
    let command = call.session.state::<Commands>().find(request.id)?;
    let deadline = Instant::now() + Duration::from_secs(request.wait_seconds.unwrap_or(0).min(MAX_WAIT));
    let mut state = command.state.subscribe();
    loop {
        let now = state.borrow_and_update().clone();
        // Not one line at a time: output that still flows is given a moment.
        let settled = if command.output().is_empty() { deadline } else { (now.last_output + QUIET).min(deadline) };
        if now.ended.is_some() {
            break;
        }
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(Refusal::new("the call was cancelled")),
            () = sleep_until(settled) => break,
            // The sender lives as long as the command.
            _ = state.changed() => {}
        }
    }
    command.report(request.id)
}

pub(super) async fn shell_stop(call: &CallContext, request: &ShellStop) -> Answer {
    let command = call.session.state::<Commands>().find(request.id)?;
    command.stop.cancel();
    let mut state = command.state.subscribe();
    // The sender lives as long as the command.
    drop(state.wait_for(|state| state.ended.is_some()).await);
    command.report(request.id)
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
