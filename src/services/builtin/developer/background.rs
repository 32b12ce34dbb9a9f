//! Runs commands in the background: `shell` with `background: true`, `shell_output`, `shell_stop`.
//!
//! Invariant: only the session holds background commands. When it is dropped, their process groups are killed. If the
//! session is opened again, it lists them as interrupted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use crate::task::TaskScope;
use crate::tool::{CallContext, StateEntries};

use super::command::{BackgroundCommand, StartedCommand};
use super::command_report::with_verdict;
use super::sandbox_remarks::CommandChoice;
use crate::services::builtin::answer::{ToolRefusal, ToolReply, with_data};

const MAX_RUNNING: usize = 16;
/// Maximum number of ended commands whose output stays readable.
const MAX_ENDED: usize = 32;
const MAX_WAIT: u64 = 60;
/// The beginning of the keys under which commands are stored.
const COMMAND: &str = "command/";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellOutput {
    /// Id from shell
    #[schemars(range(min = 1))]
    pub(super) id: u32,
    /// Seconds to wait for output
    #[schemars(range(max = 60))]
    wait_seconds: Option<u64>,
}

impl ShellOutput {
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds.unwrap_or(0).min(MAX_WAIT))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellStop {
    /// Id from shell
    #[schemars(range(min = 1))]
    pub(super) id: u32,
}

/// The background commands of a session.
#[derive(Debug, Default)]
pub(super) struct Commands {
    scope: TaskScope,
    by_id: Mutex<CommandTable>,
}

#[derive(Debug, Default)]
struct CommandTable {
    last: u32,
    commands: BTreeMap<u32, Arc<BackgroundCommand>>,
    /// The commands of earlier openings of the session.
    earlier: BTreeMap<u32, StoredCommand>,
    stored: StateEntries,
}

/// A command as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredCommand {
    line: String,
    /// `None` while it runs, and so if the session was closed before its end.
    end: Option<StoredEnd>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredEnd {
    verdict: String,
    exit_code: Option<i32>,
}

/// A command of this opening of the session, or of an earlier one.
enum FoundCommand {
    Current(Arc<BackgroundCommand>),
    Earlier(StoredCommand),
}

impl Drop for Commands {
    fn drop(&mut self) {
        // Each task drops its process group, which kills it.
        self.scope.cancelled().cancel();
    }
}

impl Commands {
    /// Returns the commands in `entries`, which earlier openings of the session stored.
    pub(super) fn load(stored: StateEntries, entries: &BTreeMap<String, Vec<u8>>) -> Self {
        let command = |(key, value): (&String, &Vec<u8>)| {
            let id = key.strip_prefix(COMMAND)?.parse().ok()?;
            Some((id, serde_json::from_slice(value).ok()?))
        };
        let mut earlier: BTreeMap<u32, StoredCommand> = entries.iter().filter_map(command).collect();
        let last = earlier.keys().next_back().copied().unwrap_or_default();
        while earlier.len() > MAX_ENDED
            && let Some((id, _)) = earlier.pop_first()
        {
            stored.remove(&command_key(id));
        }
        let table = CommandTable { last, earlier, stored, ..CommandTable::default() };
        Self { scope: TaskScope::new(), by_id: Mutex::new(table) }
    }

    fn lock(&self) -> MutexGuard<'_, CommandTable> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: u32) -> Result<FoundCommand, ToolRefusal> {
        let by_id = self.lock();
        let current = by_id.commands.get(&id).cloned().map(FoundCommand::Current);
        current.or_else(|| by_id.earlier.get(&id).cloned().map(FoundCommand::Earlier)).ok_or_else(|| {
            let interrupted = |command: &StoredCommand| if command.end.is_none() { " (interrupted)" } else { "" };
            let earlier = by_id.earlier.iter().map(|(id, command)| format!("{id}{}", interrupted(command)));
            let known: Vec<String> = earlier.chain(by_id.commands.keys().map(u32::to_string)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            ToolRefusal::new(format!("there is no background command {id} in this session; there are: {known}"))
        })
    }
}

impl CommandTable {
    fn check_room(&self) -> Result<(), ToolRefusal> {
        let running = self.commands.iter().filter(|(_, command)| !command.has_ended());
        let running: Vec<String> = running.map(|(id, _)| id.to_string()).collect();
        if running.len() < MAX_RUNNING {
            return Ok(());
        }
        Err(ToolRefusal::new(format!(
            "{MAX_RUNNING} background commands run already ({}); end one with `shell_stop`",
            running.join(", ")
        )))
    }

    fn add(&mut self, line: &str, command: Arc<BackgroundCommand>) -> Result<u32, ToolRefusal> {
        self.check_room()?;
        let ended = self.commands.iter().filter(|(_, command)| command.has_ended());
        let ended: Vec<u32> = ended.map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            self.commands.remove(id);
            self.stored.remove(&command_key(*id));
        }
        self.last += 1;
        self.commands.insert(self.last, command);
        self.stored.put_json(&command_key(self.last), &StoredCommand { line: line.to_owned(), end: None });
        Ok(self.last)
    }
}

/// Keys sort in the order of the commands.
fn command_key(id: u32) -> String {
    format!("{COMMAND}{id:010}")
}

impl StoredCommand {
    /// Reports a command of an earlier opening of the session.
    fn report(&self, id: u32) -> ToolReply {
        let verdict = match &self.end {
            None => format!(
                "command {id} (`{}`) was interrupted: the session was closed while it ran. Start it again if it is needed",
                self.line
            ),
            Some(end) => {
                format!("{}; the session was closed since, and the rest of its output is gone", end.verdict)
            }
        };
        let data = json!({
            "id": id,
            "command": self.line,
            "output": "",
            "running": false,
            "exit_code": self.end.as_ref().and_then(|end| end.exit_code),
            "truncated": false,
            "log_path": null,
            "interrupted": self.end.is_none(),
        });
        Ok(with_data(with_verdict("(no new output)".to_owned(), &verdict), data))
    }
}

/// Fails if no further command may run. Called before anything is started.
pub(super) fn check_room(commands: &Commands) -> Result<(), ToolRefusal> {
    commands.lock().check_room()
}

pub(super) fn start(
    call: &CallContext,
    commands: &Commands,
    line: &str,
    started: StartedCommand,
    choice: CommandChoice,
    limit: Option<Duration>,
) -> ToolReply {
    let StartedCommand { group, pipes, sandbox } = started;
    let command = Arc::new(BackgroundCommand::new(line, &call.session.scratch, sandbox, choice));
    let (id, stored) = {
        let mut table = commands.lock();
        (table.add(line, Arc::clone(&command))?, table.stored.clone())
    };
    // The task must not hold the session, or the session would never be dropped.
    let (session_ends, lifetime) = (commands.scope.cancelled().clone(), call.session.lifetime().clone());
    let line = line.to_owned();
    commands.scope.spawn(async move {
        command.run(group, pipes, limit, session_ends.clone()).await;
        // A command that ends because its session is closed stays stored as running: it was interrupted.
        if !session_ends.is_cancelled() && !lifetime.has_ended() {
            let verdict = command.verdict(id);
            let end = StoredEnd { verdict: verdict.text, exit_code: verdict.exit_code };
            stored.put_json(&command_key(id), &StoredCommand { line, end: Some(end) });
        }
    });
    let text = format!("started in the background with id {id}; read it with `shell_output`, end it with `shell_stop`");
    Ok(with_data(text, json!({"id": id})))
}

pub(super) async fn shell_output(call: &CallContext, commands: &Commands, request: &ShellOutput) -> ToolReply {
    let command = match commands.find(request.id)? {
        FoundCommand::Current(command) => command,
        FoundCommand::Earlier(command) => return command.report(request.id),
    };
    let deadline = Instant::now() + request.wait();
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => Err(ToolRefusal::new("the call was cancelled; the command keeps running")),
        () = command.settle(deadline) => command.report(request.id, call).await,
    }
}

pub(super) async fn shell_stop(call: &CallContext, commands: &Commands, request: &ShellStop) -> ToolReply {
    let command = match commands.find(request.id)? {
        FoundCommand::Current(command) => command,
        FoundCommand::Earlier(command) => return command.report(request.id),
    };
    tokio::select! {
        biased;
        () = command.stop() => command.report(request.id, call).await,
        () = call.cancel.cancelled() => Err(ToolRefusal::new("the call was cancelled; the command is being ended")),
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
