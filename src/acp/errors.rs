//! Converts errors to ACP errors: a protocol code and a message for the user.

use agent_client_protocol::v1::schema as acp;
use serde_json::json;

use super::limits::UsageError;
use crate::diagnostic::Diagnostic;
use crate::project::{ModeError, ProjectError};
use crate::session::{PromptError, SessionError};

pub(super) fn invalid_params(problem: impl Into<String>) -> acp::Error {
    error(acp::ErrorCode::InvalidParams, problem)
}

pub(super) fn invalid_request(problem: impl Into<String>) -> acp::Error {
    error(acp::ErrorCode::InvalidRequest, problem)
}

/// The `reason` in the data of [`busy`], for clients that must recognize it.
pub(super) const BUSY: &str = "busy";

/// A turn runs in the session already.
pub(super) fn busy() -> acp::Error {
    let problem = "the session is still busy with the prompt before; cancel it, or wait";
    invalid_request(problem).data(serde_json::json!({"reason": BUSY}))
}

pub(super) fn internal_error(problem: impl Into<String>) -> acp::Error {
    error(acp::ErrorCode::InternalError, problem)
}

/// Returns an error with the seconds after which the client may try again.
pub(super) fn usage(problem: &UsageError) -> acp::Error {
    invalid_request(problem.to_string()).data(json!({"retryAfter": problem.retry_after()}))
}

pub(super) fn auth_required(problem: impl Into<String>) -> acp::Error {
    error(acp::ErrorCode::AuthRequired, problem)
}

/// Returns a "resource not found" error (-32002) with the session id, for a session that is not open here.
pub(super) fn session_not_open(id: &str) -> acp::Error {
    let told = error(
        acp::ErrorCode::ResourceNotFound,
        format!("there is no session `{id}` here; load or resume it first if it is a stored one"),
    );
    told.data(json!({"sessionId": id}))
}

pub(super) fn not_stored(id: &str) -> acp::Error {
    error(acp::ErrorCode::ResourceNotFound, format!("there is no session `{id}`")).data(json!({"sessionId": id}))
}

/// Returns an internal error with the errors and warnings of the manifests, in the format of `skein check`.
pub(super) fn project_error(broken: &ProjectError) -> acp::Error {
    let text: String = broken.diagnostics.iter().map(Diagnostic::render_plain).collect();
    let diagnostics: Vec<_> = broken.diagnostics.iter().map(Diagnostic::to_json).collect();
    internal_error(broken.problem.clone()).data(json!({"diagnostics": diagnostics, "text": text}))
}

pub(super) fn mode(error: &ModeError) -> acp::Error {
    invalid_params(format!("{error}; {}", error.help()))
}

pub(super) fn session(error: &SessionError) -> acp::Error {
    if error.is_missing_key() {
        return auth_required(error.to_string());
    }
    match error {
        SessionError::Unknown(id) => not_stored(id),
        SessionError::Bind(_)
        | SessionError::Model(_)
        | SessionError::External(_)
        | SessionError::Grant(_)
        | SessionError::Checkpoint(_) => invalid_params(error.to_string()),
        SessionError::Store(_) | SessionError::Folder(_) | SessionError::Record { .. } => {
            internal_error(error.to_string())
        }
    }
}

/// Converts the error of entering a mode for a prompt.
pub(super) fn enter(error: &SessionError) -> acp::Error {
    if error.is_missing_key() { auth_required(error.to_string()) } else { internal_error(error.to_string()) }
}

pub(super) fn prompt(error: &PromptError) -> acp::Error {
    if error.is_missing_key() {
        return auth_required(error.to_string());
    }
    match error {
        PromptError::Busy | PromptError::BusyElsewhere | PromptError::Grant(_) | PromptError::HookRefusal { .. } => {
            invalid_request(error.to_string())
        }
        PromptError::Misdirected(_) => invalid_params(error.to_string()),
        PromptError::Bind(_)
        | PromptError::Model(_)
        | PromptError::Prompt(_)
        | PromptError::NotCompacted(_)
        | PromptError::Record(_)
        | PromptError::Store(_) => internal_error(error.to_string()),
    }
}

/// Creates an error whose message is complete and on one line, because clients show only the message.
fn error(code: acp::ErrorCode, problem: impl Into<String>) -> acp::Error {
    let line = problem.into().split_whitespace().collect::<Vec<_>>().join(" ");
    acp::Error::new(code.into(), line)
}
