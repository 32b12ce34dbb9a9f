//! A client of HTTP APIs that answer with JSON, or with JSON in server-sent events.
//!
//! Invariant: requests follow no redirects, so that their headers reach only the address that the caller names. Errors
//! contain neither the address nor a header.

use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use serde_json::Value;

use super::event_parser::EventParser;
use super::http_client::{TrustedRoots, client_builder, client_builder_with_roots};

/// Maximum size of an answer or an event, in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// Maximum size of the text of an error, in bytes.
const MAX_ERROR: usize = 1000;
/// Maximum size of an answer to bytes, in bytes.
const MAX_RECEIPT: usize = 64 << 10;
/// How long a server may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(30);

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonClientError {
    #[error("`{header}` is not a header name")]
    HeaderName { header: String },
    #[error("the value of the header `{header}` is not valid")]
    HeaderValue { header: String },
    #[error("no HTTP client can be made: {reason}")]
    Client { reason: String },
    #[error("it cannot be reached: {reason}")]
    Unreachable { reason: String },
    #[error("it answered with HTTP {status}{}", .text.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        status: u16,
        text: Option<String>,
        /// How long the server asks to wait before the next request. `None` if it does not ask, or names a date.
        retry_after: Option<Duration>,
    },
    #[error("its answer is not JSON: {reason}")]
    NotJson { reason: String },
    #[error("its answer is larger than {} MiB", MAX_ANSWER >> 20)]
    TooLarge,
}

/// Sends requests with the same headers.
#[derive(Debug, Clone)]
pub struct JsonClient {
    http: reqwest::Client,
    headers: HeaderMap,
}

/// What a server answers.
#[derive(Debug)]
pub enum JsonReply {
    Value(Value),
    Events(Box<JsonEventReader>),
}

/// Reads the events of an answer.
#[derive(Debug)]
pub struct JsonEventReader {
    response: reqwest::Response,
    parser: EventParser,
}

impl JsonClient {
    /// Creates a client that sends these headers. Fails if one is not valid.
    pub fn new(headers: impl IntoIterator<Item = (String, String)>) -> Result<Self, JsonClientError> {
        Self::from_builder(client_builder(), headers)
    }

    /// Creates a client that trusts only these certificates. Fails if a header is not valid.
    pub fn with_roots(
        roots: &TrustedRoots,
        headers: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, JsonClientError> {
        Self::from_builder(client_builder_with_roots(roots), headers)
    }

    fn from_builder(
        builder: reqwest::ClientBuilder,
        headers: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, JsonClientError> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let header = HeaderName::try_from(name.as_str());
            let header = header.map_err(|_| JsonClientError::HeaderName { header: name.clone() })?;
            let mut value = HeaderValue::try_from(value).map_err(|_| JsonClientError::HeaderValue { header: name })?;
            value.set_sensitive(true);
            all.insert(header, value);
        }
        let http = builder.redirect(Policy::none()).connect_timeout(CONNECT_TIME).build();
        let http = http.map_err(|error| JsonClientError::Client { reason: reason(error) })?;
        Ok(Self { http, headers: all })
    }

    /// Reads a JSON value. The future is boxed, because the compiler cannot follow the types of the HTTP client as part
    /// of a session's future.
    pub fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Value, JsonClientError>> {
        let request = self.http.get(url).headers(self.headers.clone()).header("accept", "application/json");
        Box::pin(async move { read_value(send(request).await?).await })
    }

    /// Sends a JSON value. Boxed for the same reason.
    pub fn post<'a>(&'a self, url: &'a str, body: &'a Value) -> BoxFuture<'a, Result<JsonReply, JsonClientError>> {
        Box::pin(self.send_value(url, body))
    }

    /// Sends bytes of this type, such as `application/x-protobuf`. Returns the body of the answer. It is empty if it cannot
    /// be read or is larger than 64 KiB: the server has taken the bytes, so the request must not be sent again.
    pub fn post_bytes<'a>(
        &'a self,
        url: &'a str,
        kind: &'a str,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Vec<u8>, JsonClientError>> {
        let request = self.http.post(url).headers(self.headers.clone()).header(CONTENT_TYPE, kind).body(body);
        Box::pin(async move { Ok(read_bytes(send(request).await?, MAX_RECEIPT).await.unwrap_or_default()) })
    }

    async fn send_value(&self, url: &str, body: &Value) -> Result<JsonReply, JsonClientError> {
        let request = self.http.post(url).headers(self.headers.clone());
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.header("accept", "application/json, text/event-stream").body(body.to_string());
        let response = send(request).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/event-stream") {
            let reader = JsonEventReader { response, parser: EventParser::default() };
            return Ok(JsonReply::Events(Box::new(reader)));
        }
        Ok(JsonReply::Value(read_value(response).await?))
    }
}

impl JsonEventReader {
    /// Returns the next event. `None` at the end of the stream. If the future is dropped, no event is lost.
    pub fn next_event(&mut self) -> BoxFuture<'_, Result<Option<Value>, JsonClientError>> {
        Box::pin(async move {
            loop {
                if let Some(data) = self.parser.next() {
                    return parse(data.as_bytes()).map(Some);
                }
                if self.parser.len() > MAX_ANSWER {
                    return Err(JsonClientError::TooLarge);
                }
                match self.response.chunk().await.map_err(unreachable)? {
                    Some(bytes) => self.parser.push(&bytes),
                    None => return Ok(None),
                }
            }
        })
    }
}

async fn send(request: reqwest::RequestBuilder) -> Result<reqwest::Response, JsonClientError> {
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    let text = read_bytes(response, MAX_ERROR).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let text = Some(text).filter(|text| !text.is_empty());
    Err(JsonClientError::Status { status: status.as_u16(), text, retry_after })
}

async fn read_value(response: reqwest::Response) -> Result<Value, JsonClientError> {
    parse(&read_bytes(response, MAX_ANSWER).await?)
}

async fn read_bytes(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, JsonClientError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > limit {
            return Err(JsonClientError::TooLarge);
        }
    }
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Value, JsonClientError> {
    serde_json::from_slice(bytes).map_err(|error| JsonClientError::NotJson { reason: error.to_string() })
}

fn unreachable(error: reqwest::Error) -> JsonClientError {
    JsonClientError::Unreachable { reason: reason(error) }
}

/// Returns the innermost reason, which says more than the outer ones. The address may contain a secret.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(body: String) -> reqwest::Response {
        hyper::Response::new(body).into()
    }

    #[tokio::test]
    async fn an_answer_in_json_that_is_too_large_is_an_error() {
        let read = |size: usize| read_value(response(format!("\"{}\"", "x".repeat(size - 2))));
        assert!(read(MAX_ANSWER).await.is_ok());
        assert_eq!(read(MAX_ANSWER + 1).await, Err(JsonClientError::TooLarge));
    }

    #[tokio::test]
    async fn an_event_in_json_that_is_too_large_is_an_error() {
        let response = response(format!("data: {}", "x".repeat(MAX_ANSWER)));
        let mut reader = JsonEventReader { response, parser: EventParser::default() };
        assert_eq!(reader.next_event().await, Err(JsonClientError::TooLarge));
    }
}
