//! Errors of A2A, as JSON-RPC writes them.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::super::replica_headers::NotHere;
use super::super::runs::RunError;

const DOMAIN: &str = "a2a-protocol.org";

/// Why a request has no result.
#[derive(Debug)]
pub(super) struct A2aError {
    code: i32,
    /// The error's name for programs.
    reason: &'static str,
    message: String,
    status: StatusCode,
    retry_after: Option<u64>,
    /// Another replica may have what the request is about.
    is_elsewhere: bool,
}

impl A2aError {
    fn new(code: i32, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), status: StatusCode::OK, retry_after: None, is_elsewhere: false }
    }

    pub(super) fn parse(message: impl Into<String>) -> Self {
        Self::new(-32700, "PARSE_ERROR", message)
    }

    /// The body is not a request of JSON-RPC.
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self::new(-32600, "INVALID_REQUEST", message)
    }

    pub(super) fn method() -> Self {
        Self::new(-32601, "METHOD_NOT_FOUND", "there is no such method")
    }

    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(-32602, "INVALID_PARAMS", message)
    }

    /// The answer for an unknown id, and for one of another principal. It does not repeat the id.
    pub(super) fn no_task() -> Self {
        Self { is_elsewhere: true, ..Self::new(-32001, "TASK_NOT_FOUND", "there is no such task") }
    }

    pub(super) fn not_cancelable(message: impl Into<String>) -> Self {
        Self::new(-32002, "TASK_NOT_CANCELABLE", message)
    }

    pub(super) fn no_push() -> Self {
        let message = "push notifications are not offered; use SubscribeToTask";
        Self::new(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", message)
    }

    /// The state of the task does not allow the request.
    pub(super) fn wrong_state(message: impl Into<String>) -> Self {
        Self::new(-32004, "UNSUPPORTED_OPERATION", message)
    }

    pub(super) fn content_type(message: impl Into<String>) -> Self {
        Self::new(-32005, "CONTENT_TYPE_NOT_SUPPORTED", message)
    }

    pub(super) fn version(message: impl Into<String>) -> Self {
        Self::new(-32009, "VERSION_NOT_SUPPORTED", message)
    }

    /// Returns the answer to the request with this id.
    pub(super) fn to_response(&self, id: &Value) -> Response {
        let details = json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason,
            "domain": DOMAIN,
        }]);
        let error = json!({"code": self.code, "message": self.message, "data": details});
        let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if self.is_elsewhere {
            response.extensions_mut().insert(NotHere);
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// If a later attempt may succeed, the answer has the HTTP status for that.
impl From<RunError> for A2aError {
    fn from(error: RunError) -> Self {
        let (code, reason, status) = match &error {
            RunError::Invalid(_) | RunError::Contradiction(_) => (-32602, "INVALID_PARAMS", StatusCode::OK),
            RunError::NotFound(_) => (-32001, "TASK_NOT_FOUND", StatusCode::OK),
            RunError::Forbidden(_) | RunError::WrongState(_) | RunError::Busy(_) => {
                (-32004, "UNSUPPORTED_OPERATION", StatusCode::OK)
            }
            RunError::Limit(_) => (-32603, "INTERNAL_ERROR", StatusCode::TOO_MANY_REQUESTS),
            RunError::Elsewhere(_) | RunError::Draining => (-32603, "INTERNAL_ERROR", StatusCode::SERVICE_UNAVAILABLE),
            RunError::Server(_) => (-32603, "INTERNAL_ERROR", StatusCode::OK),
        };
        let is_elsewhere = matches!(error, RunError::NotFound(_) | RunError::Elsewhere(_));
        let base = Self::new(code, reason, error.to_string());
        Self { status, retry_after: error.retry_after(), is_elsewhere, ..base }
    }
}
