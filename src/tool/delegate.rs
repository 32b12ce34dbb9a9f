//! Defines the port through which a tool delegates work to another agent. The orchestrator implements it for its
//! sessions.

use futures::future::BoxFuture;
use serde::Serialize;

use super::CallContext;

/// A task to delegate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskRequest {
    /// The task, in text that is complete on its own.
    pub text: String,
    /// The target, as `agent/mode` or an agent name. `None` for the mode that fits best.
    pub to: Option<String>,
    /// The name by which other tasks refer to it.
    pub name: Option<String>,
    /// Names of the tasks whose results it needs.
    pub after: Vec<String>,
    /// Further information for the agent that does it.
    pub context: Option<String>,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for other tasks or for a free slot.
    Waiting,
    Working,
    Done,
    Failed,
    Cancelled,
}

impl TaskState {
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// The state and result of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskReport {
    /// Its name, or a number.
    pub id: String,
    /// The working mode, as `agent/mode`.
    pub mode: String,
    pub state: TaskState,
    pub task: String,
    /// Id of the child session, once it exists.
    pub session: Option<String>,
    /// The last answer of the agent, or the reason for the failure.
    pub result: String,
}

/// Delegates tasks. Methods fail if the request is invalid.
pub trait Delegator: Send + Sync {
    /// Runs a task and returns when it has ended, successfully or not.
    fn delegate(&self, task: TaskRequest, context: CallContext) -> BoxFuture<'_, Result<TaskReport, String>>;

    /// Starts a task in the background and returns. The task runs until it ends or the session ends.
    fn begin(&self, task: TaskRequest, context: CallContext) -> BoxFuture<'_, Result<TaskReport, String>>;

    /// Returns the tasks of this session, or only the one with this id.
    fn tasks(&self, id: Option<&str>) -> Result<Vec<TaskReport>, String>;

    /// Cancels a task and returns when it has ended.
    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<TaskReport, String>>;

    /// Cancels every task because the session has ended.
    fn stop(&self);
}
