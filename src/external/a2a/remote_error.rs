//! Errors of remote agents.

use std::time::Duration;

use crate::network::JsonClientError;
use crate::services::MissingVariableError;

/// Why a remote agent did not finish its work. Messages call the agent "it".
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    #[error(transparent)]
    Variable(#[from] MissingVariableError),
    #[error(transparent)]
    Http(#[from] JsonClientError),
    #[error("it did not answer within {} s", .limit.as_secs())]
    Timeout { limit: Duration },
    #[error("its card cannot be used: {problem}")]
    Card { problem: String },
    #[error("{message} (error {code})")]
    Refused { code: i64, message: String },
    #[error("{problem}")]
    Unexpected { problem: String },
    #[error("{reason}")]
    Failed { reason: String },
    #[error("it rejected the task: {reason}")]
    Rejected { reason: String },
    #[error("it cancelled the task")]
    Withdrawn,
    #[error("it wants you to log in first: {how}; set `headers` of `runtime.a2a` in its manifest")]
    LoginNeeded { how: String },
    #[error("its question was not answered, so its task was cancelled: {question}")]
    Unanswered { question: String },
    #[error("it asks a question, and there is no user to ask: {question}")]
    NoUser { question: String },
    #[error("it has made more than {limit} requests in one turn")]
    TooManyRequests { limit: usize },
    #[error("it sends more than {} MiB in one turn", .limit >> 20)]
    TooMuch { limit: usize },
    /// The user cancelled the turn.
    #[error("the turn was cancelled")]
    Cancelled,
}
