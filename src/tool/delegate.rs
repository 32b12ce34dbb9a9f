//! Defines the port through which a tool delegates work to another agent. The orchestrator implements it for its
//! sessions.

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::CallContext;
use crate::ids::AgentName;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for other tasks or for a free slot.
    Waiting,
    Working,
    Done,
    Failed,
    Cancelled,
    /// The session was closed before the end of the task, and then opened again.
    Interrupted,
}

impl TaskState {
    pub fn has_ended(self) -> bool {
        match self {
            Self::Waiting | Self::Working => false,
            Self::Done | Self::Failed | Self::Cancelled | Self::Interrupted => true,
        }
    }
}

/// The state and result of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Why a task cannot be delegated, found or cancelled. Each message says what the model can do.
#[derive(Debug, thiserror::Error)]
pub enum DelegateError {
    #[error("the session is over")]
    SessionEnded,
    #[error(
        "`{agent}` cannot hand work to `{to}`{} There are: {}",
        .near.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default(),
        .granted.join(", ")
    )]
    NotGranted { agent: AgentName, to: String, near: Option<String>, granted: Vec<String> },
    #[error("name the `agent` and the `mode` that should do the task")]
    NoMode,
    #[error("the dependencies of the tasks form a cycle: task `{task}` waits for itself")]
    Cycle { task: String },
    #[error("{limit} tasks of this session have not ended; wait until one ends, or cancel one")]
    TooManyTasks { limit: usize },
    #[error("there is no task `{name}` to wait for")]
    UnknownDependency { name: String },
    #[error("a task that it depends on did not start")]
    DependencyNotStarted,
    #[error(
        "there is no task `{id}`; there are: {}",
        if .known.is_empty() { "none was delegated yet".to_owned() } else { .known.join(", ") }
    )]
    UnknownTask { id: String, known: Vec<String> },
    /// The mode could not be chosen.
    #[error(transparent)]
    Routing(Box<dyn std::error::Error + Send + Sync>),
}

/// Delegates tasks. Methods fail if the request is invalid.
pub trait Delegator: Send + Sync {
    /// Runs a task and returns when it has ended, successfully or not.
    fn delegate(&self, task: TaskRequest, context: CallContext) -> BoxFuture<'_, Result<TaskReport, DelegateError>>;

    /// Starts a task in the background and returns. The task runs until it ends or the session ends.
    fn begin(&self, task: TaskRequest, context: CallContext) -> BoxFuture<'_, Result<TaskReport, DelegateError>>;

    /// Returns the tasks of this session, or only the one with this id.
    fn tasks(&self, id: Option<&str>) -> Result<Vec<TaskReport>, DelegateError>;

    /// Cancels a task and returns when it has ended.
    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<TaskReport, DelegateError>>;

    /// Cancels every task because the session has ended.
    fn stop(&self);
}
