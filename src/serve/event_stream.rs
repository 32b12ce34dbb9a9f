//! Server-sent events: the answers that REST, A2A and the console send piece by piece.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures::{Stream, StreamExt as _};
use serde_json::Value;

/// How often a comment keeps a stream without events open.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// An event that clients ignore.
pub(super) const COMMENT: &str = ":\n\n";
const EVENT_STREAM: &str = "text/event-stream";

/// Returns an event with this value.
pub(super) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Returns the answer with these events.
pub(super) fn response(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(events.map(|event| Ok::<_, Infallible>(Bytes::from(event))));
    let mut response = ([(header::CONTENT_TYPE, EVENT_STREAM)], body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy that collects events would delay them.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
