//! Errors of runs, before a protocol writes them.

use crate::principal::GrantError;
use crate::session::{PromptError, SessionError};
use crate::store::StoreError;

/// Why a request about a run has no result.
#[derive(Debug)]
pub(in crate::serve) enum RunError {
    /// The request cannot be used as it is.
    Invalid(String),
    /// Two parts of the request contradict each other, or what the server has.
    Contradiction(String),
    /// The answer for an unknown id, and for one of another principal. It does not repeat the id.
    NotFound(&'static str),
    /// The token does not allow the request.
    Forbidden(String),
    /// The run has ended, or has no open question.
    WrongState(String),
    /// Another run uses the session.
    Busy(String),
    /// The token has too many sessions or turns now.
    Limit(String),
    /// Another replica has the session.
    Elsewhere(String),
    /// The server shuts down.
    Draining,
    Server(String),
}

impl RunError {
    /// The seconds after which a client may try again. `None` if that does not help.
    pub(in crate::serve) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Limit(_) | Self::Elsewhere(_) => Some(5),
            // Another server may have replaced this one.
            Self::Draining => Some(30),
            Self::Invalid(_)
            | Self::Contradiction(_)
            | Self::NotFound(_)
            | Self::Forbidden(_)
            | Self::WrongState(_)
            | Self::Busy(_)
            | Self::Server(_) => None,
        }
    }
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Invalid(message)
            | Self::Contradiction(message)
            | Self::Forbidden(message)
            | Self::WrongState(message)
            | Self::Busy(message)
            | Self::Limit(message)
            | Self::Elsewhere(message)
            | Self::Server(message) => message,
            Self::NotFound(message) => message,
            Self::Draining => "the server is shutting down; try again later",
        })
    }
}

impl From<GrantError> for RunError {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::Sessions { .. } | GrantError::Turns { .. } => Self::Limit(error.to_string()),
            GrantError::Folder { .. }
            | GrantError::Approval { .. }
            | GrantError::OtherToken
            | GrantError::Managed(_) => Self::Forbidden(error.to_string()),
        }
    }
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> Self {
        if let StoreError::OwnedElsewhere { .. } | StoreError::Taken { .. } = error {
            return Self::Elsewhere(error.to_string());
        }
        tracing::error!(%error, "the session store cannot be used");
        Self::Server("the session store cannot be used at the moment".to_owned())
    }
}

impl From<SessionError> for RunError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Grant(error) => error.into(),
            SessionError::Store(error) => error.into(),
            SessionError::Unknown(_) => Self::NotFound("there is no such session"),
            error => Self::Server(error.to_string()),
        }
    }
}

impl From<PromptError> for RunError {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Busy | PromptError::BusyElsewhere => Self::Busy(error.to_string()),
            PromptError::Grant(error) => error.into(),
            PromptError::HookRefusal { .. } => Self::Forbidden(error.to_string()),
            PromptError::Store(error) => error.into(),
            PromptError::Record(error) => error.into(),
            error => Self::Server(error.to_string()),
        }
    }
}
