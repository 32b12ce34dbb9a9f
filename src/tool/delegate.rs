//! The way by which a tool hands work to another agent. Who gets it and what comes of it is the business of whoever
//! holds the session.

use futures::future::BoxFuture;
use serde::Serialize;

use super::CallContext;

/// Work to be handed over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskRequest {
    /// What to do, in words that need nothing else to be understood.
    pub text: String,
    /// Who is to do it, as `agent/mode`, or an agent's name; whoever fits best if left out.
    pub to: Option<String>,
    /// What it is called when another task waits for it.
    pub name: Option<String>,
    /// The tasks whose results it needs.
    pub after: Vec<String>,
    /// What else whoever does it must know.
    pub context: Option<String>,
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// For others, or for a place.
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

/// What is known of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskReport {
    /// Its name, or a number.
    pub id: String,
    /// Who does it, as `agent/mode`.
    pub mode: String,
    pub state: TaskState,
    pub task: String,
    /// The session in which it is done.
    pub session: Option<String>,
    /// What whoever did it said last, or why it came to nothing.
    pub result: String,
}

/// Whoever can hand work over. An `Err` says what is wrong with the request.
pub trait Delegator: Send + Sync {
    /// Returns when the task has ended, whichever way.
    fn delegate(&self, task: TaskRequest, context: CallContext) -> BoxFuture<'_, Result<TaskReport, String>>;

    /// Returns when the task has begun; it goes on until its end, or that of the session.
    fn begin(&self, task: TaskRequest, context: CallContext) -> BoxFuture<'_, Result<TaskReport, String>>;

    /// The tasks of this session, or one of them.
    fn tasks(&self, id: Option<&str>) -> Result<Vec<TaskReport>, String>;

    /// Returns when the task has ended.
    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<TaskReport, String>>;

    /// The session is over: tells every task to end.
    fn stop(&self);
}
