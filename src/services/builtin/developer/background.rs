//! Runs commands in the background: `shell` with `background: true`, `shell_output`, `shell_stop`.
//!
//! Invariant: only the session holds background commands. When it is dropped, their process groups are killed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::task::TaskScope;
use crate::tool::CallContext;

use super::command::{BackgroundCommand, StartedCommand};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, with_data};

const MAX_RUNNING: usize = 16;
/// Maximum number of ended commands whose output stays readable.
const MAX_ENDED: usize = 32;
const MAX_WAIT: u64 = 60;
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
    scope: TaskScope,
    by_id: Mutex<CommandTable>,
}

#[derive(Debug, Default)]
struct CommandTable {
    last: u32,
    commands: BTreeMap<u32, Arc<BackgroundCommand>>,
}

impl Drop for Commands {
    fn drop(&mut self) {
        // Each task drops its process group, which kills it.
        self.scope.cancelled().cancel();
    }
}

impl Commands {
    fn lock(&self) -> MutexGuard<'_, CommandTable> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: u32) -> Result<Arc<BackgroundCommand>, ToolRefusal> {
        let by_id = self.lock();
        by_id.commands.get(&id).cloned().ok_or_else(|| {
            let known: Vec<String> = by_id.commands.keys().map(u32::to_string).collect();
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

    fn add(&mut self, command: Arc<BackgroundCommand>) -> Result<u32, ToolRefusal> {
        self.check_room()?;
        let ended = self.commands.iter().filter(|(_, command)| command.has_ended());
        let ended: Vec<u32> = ended.map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            self.commands.remove(id);
        }
        self.last += 1;
        self.commands.insert(self.last, command);
        Ok(self.last)
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
    limit: Option<Duration>,
) -> ToolReply {
    let StartedCommand { group, pipes, network } = started;
    let command = Arc::new(BackgroundCommand::new(line, &call.session.scratch, network));
    let id = commands.lock().add(Arc::clone(&command))?;
    // The task must not hold the session, or the session would never be dropped.
    let session_ends = commands.scope.cancelled().clone();
    commands.scope.spawn(async move { command.run(group, pipes, limit, session_ends).await });
    let text = format!("started in the background with id {id}; read it with `shell_output`, end it with `shell_stop`");
    Ok(with_data(text, json!({"id": id})))
}

pub(super) async fn shell_output(call: &CallContext, commands: &Commands, request: &ShellOutput) -> ToolReply {
    let command = commands.find(request.id)?;
    let deadline = Instant::now() + Duration::from_secs(request.wait_seconds.unwrap_or(0).min(MAX_WAIT));
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => Err(ToolRefusal::new("the call was cancelled; the command keeps running")),
        () = command.settle(deadline) => command.report(request.id),
    }
}

pub(super) async fn shell_stop(call: &CallContext, commands: &Commands, request: &ShellStop) -> ToolReply {
    let command = commands.find(request.id)?;
    tokio::select! {
        biased;
        () = command.stop() => command.report(request.id),
        () = call.cancel.cancelled() => Err(ToolRefusal::new("the call was cancelled; the command is being ended")),
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
