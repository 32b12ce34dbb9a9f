//! Errors of the REST API, in the form of the Agent Communication Protocol.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::super::checks::Refusal;
use crate::principal::GrantError;
use crate::session::{PromptError, SessionError};
use crate::store::StoreError;

/// The seconds after which a client may try again if its token has too many sessions or turns.
const LIMIT_WAIT: u64 = 5;
/// The seconds after which another server may have replaced one that shuts down.
const SHUTDOWN_WAIT: u64 = 30;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum RestError {
    /// The request failed a check that all paths have.
    Refusal(Refusal),
    Problem(RestProblem),
}

/// The status and the body of a failed request.
#[derive(Debug)]
pub(super) struct RestProblem {
    status: StatusCode,
    code: &'static str,
    message: String,
    retry_after: Option<u64>,
}

impl RestError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::Problem(RestProblem { status, code, message: message.into(), retry_after: None })
    }

    fn after(status: StatusCode, seconds: u64, message: impl Into<String>) -> Self {
        let (code, retry_after) = ("server_error", Some(seconds));
        Self::Problem(RestProblem { status, code, message: message.into(), retry_after })
    }

    /// The request does not have the form that the API describes.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_input", message)
    }

    /// Two parts of the request contradict each other.
    pub(super) fn contradiction(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_input", message)
    }

    /// The answer for an unknown id, and for one of another principal. It does not repeat the id.
    pub(super) fn not_found(message: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// The request is valid, but not now or not with this token.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_input", message)
    }

    /// Another run uses the session.
    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_input", message)
    }

    pub(super) fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(super) fn draining() -> Self {
        Self::after(StatusCode::SERVICE_UNAVAILABLE, SHUTDOWN_WAIT, "the server is shutting down; try again later")
    }

    pub(super) fn other_media_type() -> Self {
        let message = "the content type must be application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_input", message)
    }
}

impl From<Refusal> for RestError {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<GrantError> for RestError {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::Sessions { .. } | GrantError::Turns { .. } => {
                Self::after(StatusCode::TOO_MANY_REQUESTS, LIMIT_WAIT, error.to_string())
            }
            GrantError::Folder { .. } | GrantError::Approval { .. } | GrantError::OtherToken => {
                Self::forbidden(error.to_string())
            }
        }
    }
}

impl From<StoreError> for RestError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "the session store cannot be used");
        Self::server("the session store cannot be used at the moment")
    }
}

impl From<SessionError> for RestError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Grant(error) => error.into(),
            SessionError::Store(error) => error.into(),
            SessionError::Unknown(_) => Self::not_found("there is no such session"),
            error => Self::server(error.to_string()),
        }
    }
}

impl From<PromptError> for RestError {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Busy => Self::busy(error.to_string()),
            PromptError::Grant(error) => error.into(),
            PromptError::Store(error) => error.into(),
            PromptError::Record(error) => error.into(),
            error => Self::server(error.to_string()),
        }
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let problem = match self {
            Self::Refusal(refusal) => return refusal.into_response(),
            Self::Problem(problem) => problem,
        };
        let body = json!({"code": problem.code, "message": problem.message}).to_string();
        let mut response = (problem.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(seconds) = problem.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
