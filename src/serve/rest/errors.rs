//! Errors of the REST API, in the form of the Agent Communication Protocol.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::super::checks::Refusal;
use super::super::replica_headers::NotHere;
use super::super::runs::RunError;
use crate::store::StoreError;

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
    /// Another replica may have what the request is about.
    is_elsewhere: bool,
}

impl RestError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let is_elsewhere = status == StatusCode::NOT_FOUND;
        Self::Problem(RestProblem { status, code, message: message.into(), retry_after: None, is_elsewhere })
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

impl From<RunError> for RestError {
    fn from(error: RunError) -> Self {
        let (status, code) = match &error {
            RunError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_input"),
            RunError::Contradiction(_) => (StatusCode::BAD_REQUEST, "invalid_input"),
            RunError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            RunError::Forbidden(_) | RunError::WrongState(_) => (StatusCode::FORBIDDEN, "invalid_input"),
            RunError::Busy(_) => (StatusCode::CONFLICT, "invalid_input"),
            RunError::Limit(_) => (StatusCode::TOO_MANY_REQUESTS, "server_error"),
            RunError::Elsewhere(_) | RunError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "server_error"),
            RunError::Server(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
        };
        let is_elsewhere = matches!(error, RunError::NotFound(_) | RunError::Elsewhere(_));
        let (message, retry_after) = (error.to_string(), error.retry_after());
        Self::Problem(RestProblem { status, code, message, retry_after, is_elsewhere })
    }
}

impl From<StoreError> for RestError {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
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
        if problem.is_elsewhere {
            response.extensions_mut().insert(NotHere);
        }
        if let Some(seconds) = problem.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
