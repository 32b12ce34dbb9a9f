//! Sends a message to an MCP server with POST, and reads the answer. It decides as rmcp's client does, which reads an
//! answer in JSON and the body of an HTTP error without a limit.
//!
//! Invariant: each body and each event is read up to a limit.

use futures::{StreamExt as _, future};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode};
use rmcp::ErrorData;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, RequestId, ServerJsonRpcMessage};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpError,
    StreamableHttpPostResponse,
};
use serde_json::Value;
use sse_stream::Sse;

use super::event_stream::{is_too_large, read_events};
use super::{Events, Headers, HttpError, request_id};
use crate::services::replies::error_for;

/// Maximum bytes of the body of an HTTP error. The rest is not read.
const MAX_ERROR: usize = 64 * 1024;
/// Maximum bytes of an unreadable answer that an error quotes.
const MAX_QUOTE: usize = 256;
/// Headers that only the transport sets.
const RESERVED_HEADERS: [&str; 3] = ["accept", HEADER_SESSION_ID, HEADER_LAST_EVENT_ID];

type PostResult = Result<StreamableHttpPostResponse, HttpError>;

/// A message to a server, which can be sent again with another token.
pub(super) struct Post<'a> {
    pub(super) http: &'a reqwest::Client,
    pub(super) url: &'a str,
    pub(super) message: &'a ClientJsonRpcMessage,
    /// `None` if the server has given no session id.
    pub(super) session: Option<&'a str>,
    pub(super) headers: &'a Headers,
    /// Maximum bytes of an answer in JSON, or of an event.
    pub(super) max_answer: usize,
}

impl Post<'_> {
    /// Sends the message. Fails if the server refuses it, or if the answer to a request is not readable.
    pub(super) async fn send(&self, token: Option<&str>) -> PostResult {
        let response = self.request(token)?.send().await?;
        if let Some(error) = refusal(&response) {
            return Err(error);
        }
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if self.session.is_some() => Err(StreamableHttpError::SessionExpired),
            status if status.is_success() => self.read_answer(response).await,
            _ => self.read_error(response).await,
        }
    }

    fn request(&self, token: Option<&str>) -> Result<RequestBuilder, HttpError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE));
        for (name, value) in self.headers {
            if RESERVED_HEADERS.iter().any(|reserved| name.as_str().eq_ignore_ascii_case(reserved)) {
                return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
            }
            headers.insert(name, value.clone());
        }
        let accepted = format!("{EVENT_STREAM_MIME_TYPE}, {JSON_MIME_TYPE}");
        let mut request = self.http.post(self.url).headers(headers).header(ACCEPT, accepted);
        if let Some(session) = self.session {
            request = request.header(HEADER_SESSION_ID, session);
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        Ok(request.body(serde_json::to_vec(self.message)?))
    }

    async fn read_answer(&self, response: Response) -> PostResult {
        // A server should answer with 202 here, but some answer with an empty 200.
        if response.content_length() == Some(0) && request_id(self.message).is_none() {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = header_text(&response, HEADER_SESSION_ID);
        let kind = content_type(&response);
        match kind.as_deref() {
            Some(kind) if kind.starts_with(EVENT_STREAM_MIME_TYPE) => {
                Ok(StreamableHttpPostResponse::Sse(self.events(response), session))
            }
            Some(kind) if kind.starts_with(JSON_MIME_TYPE) => self.read_json(response, session).await,
            _ => Err(StreamableHttpError::UnexpectedContentType(kind)),
        }
    }

    /// Returns the events of an answer. An event that is too large becomes the error of the request, or ends the stream of
    /// another message. An error of the stream could make rmcp ask for the event again, because rmcp knows only the error
    /// of its limit.
    fn events(&self, response: Response) -> Events {
        let events = read_events(response, self.max_answer);
        let Some(asked) = request_id(self.message) else {
            let is_small = |event: &Result<Sse, SseError>| !matches!(event, Err(error) if is_too_large(error));
            return events.take_while(move |event| future::ready(is_small(event))).boxed();
        };
        let failure = self.too_large(&asked).to_string();
        let events = events.map(move |event| match event {
            Err(error) if is_too_large(&error) => Ok(Sse::default().data(failure.clone())),
            event => event,
        });
        events.boxed()
    }

    /// Reads an answer in JSON. Only a request needs a readable one.
    async fn read_json(&self, response: Response, session: Option<String>) -> PostResult {
        let asked = request_id(self.message);
        let mut body = Vec::new();
        read_body(response, self.max_answer, &mut body).await?;
        if body.len() > self.max_answer {
            return match asked {
                Some(asked) => {
                    let failure = serde_json::from_value(self.too_large(&asked))?;
                    Ok(StreamableHttpPostResponse::Json(failure, session))
                }
                None => Ok(StreamableHttpPostResponse::Accepted),
            };
        }
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            Err(error) if asked.is_none() => {
                tracing::debug!(%error, "an answer to a message that is no request cannot be read");
                Ok(StreamableHttpPostResponse::Accepted)
            }
            Err(error) => {
                let quote = String::from_utf8_lossy(&body[..body.len().min(MAX_QUOTE)]);
                Err(server_error(format!("the answer cannot be read: {error}: {quote}")))
            }
        }
    }

    /// Returns the JSON-RPC error for an answer that is too large.
    fn too_large(&self, asked: &RequestId) -> Value {
        error_for(asked, &format!("it has more than {} MiB", self.max_answer >> 20))
    }

    /// Reads the JSON-RPC error in the body of an HTTP error. Fails with the status if there is none.
    async fn read_error(&self, response: Response) -> PostResult {
        let status = response.status();
        let is_json = content_type(&response).is_some_and(|kind| kind.starts_with(JSON_MIME_TYPE));
        let failure = status_error(&response);
        if status == StatusCode::TOO_MANY_REQUESTS || (status.is_server_error() && !is_json) {
            return Err(failure.into());
        }
        let session = header_text(&response, HEADER_SESSION_ID);
        let mut body = Vec::new();
        // If the connection breaks, the error has what arrived.
        drop(read_body(response, MAX_ERROR, &mut body).await);
        body.truncate(MAX_ERROR);
        let text = String::from_utf8_lossy(&body);
        let reported = match serde_json::from_slice(&body) {
            Ok(ServerJsonRpcMessage::Error(error)) => Some(error),
            _ => None,
        };
        let is_forbidden = status == StatusCode::FORBIDDEN;
        if let Some(id) = self.discovery_id()
            && status.is_client_error()
            && !is_forbidden
        {
            let error = match reported {
                Some(reported) => reported.error,
                None => ErrorData::invalid_request(format!("HTTP {status}: {text}"), None),
            };
            return Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, Some(id)), None));
        }
        match reported {
            Some(error) if is_json && !is_forbidden => {
                Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), session))
            }
            _ if status.is_server_error() => Err(failure.into()),
            _ => Err(server_error(format!("HTTP {status}: {text}"))),
        }
    }

    /// Returns the id of a request for the versions of a server. `None` for another message. A server of the older era
    /// may refuse the request with an error that lacks the id. rmcp needs it to fall back to that era.
    fn discovery_id(&self) -> Option<RequestId> {
        match self.message {
            ClientJsonRpcMessage::Request(request)
                if self.session.is_none() && matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
            {
                Some(request.id.clone())
            }
            _ => None,
        }
    }
}

/// Returns the error of a 401, or of a 403 with a challenge. `None` for another answer.
fn refusal(response: &Response) -> Option<HttpError> {
    let challenge = header_text(response, WWW_AUTHENTICATE.as_str());
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge.unwrap_or_default())))
        }
        // The login reads the scope from the challenge.
        StatusCode::FORBIDDEN => {
            Some(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge?, None)))
        }
        _ => None,
    }
}

fn server_error(text: String) -> HttpError {
    StreamableHttpError::UnexpectedServerResponse(text.into())
}

fn status_error(response: &Response) -> HttpStatusError {
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
    HttpStatusError::new(response.status().as_u16(), retry_after.map(str::to_owned))
}

/// Returns a header. `None` if it is missing, or has other characters than those of ASCII.
fn header_text(response: &Response, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

fn content_type(response: &Response) -> Option<String> {
    let kind = response.headers().get(CONTENT_TYPE)?;
    Some(String::from_utf8_lossy(kind.as_bytes()).into_owned())
}

/// Reads a body until its end, or until it has more than `limit` bytes.
async fn read_body(mut response: Response, limit: usize, body: &mut Vec<u8>) -> Result<(), reqwest::Error> {
    while body.len() <= limit
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use reqwest::header::HeaderName;
    use rmcp::model::{
        ClientNotification, DiscoverRequest, DiscoverRequestParams, InitializedNotification, PingRequest,
    };
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::client;
    use super::*;

    const JSON: &str = "content-type: application/json";
    const ERROR: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#;

    fn ping() -> ClientJsonRpcMessage {
        ClientJsonRpcMessage::request(ClientRequest::PingRequest(PingRequest::default()), RequestId::Number(1))
    }

    fn discover() -> ClientJsonRpcMessage {
        let request = DiscoverRequest::new(DiscoverRequestParams {});
        ClientJsonRpcMessage::request(ClientRequest::DiscoverRequest(request), RequestId::Number(1))
    }

    fn notification() -> ClientJsonRpcMessage {
        let notification = InitializedNotification::default();
        ClientJsonRpcMessage::notification(ClientNotification::InitializedNotification(notification))
    }

    /// Sends a message to a server that answers with this head and body. Returns the request and the result.
    async fn send(
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: &Headers,
        (head, body): (&str, &str),
    ) -> (String, PostResult) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            // The body is a JSON object.
            while !request.ends_with(b"}") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap()
        };
        let http = client().unwrap();
        let post = Post { http: &http, url: &url, message, session, headers, max_answer: 1 << 20 };
        tokio::join!(serve, post.send(Some("a-token")))
    }

    /// Returns the result of a message in short.
    async fn outcome(message: ClientJsonRpcMessage, session: Option<&str>, head: &str, body: &str) -> String {
        match send(&message, session, &HashMap::new(), (head, body)).await.1 {
            Ok(StreamableHttpPostResponse::Json(answer, _)) => serde_json::to_string(&answer).unwrap(),
            Ok(other) => format!("{other:?}"),
            Err(StreamableHttpError::HttpStatus(error)) => format!("{error}, {:?}", error.retry_after),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn the_status_of_an_answer_decides_first() {
        let unexpected = |text: &str| format!("unexpected server response: {text}");
        assert_eq!(outcome(ping(), None, "202 Accepted", "").await, "Accepted");
        assert_eq!(outcome(ping(), None, "204 No Content", "").await, "Accepted");
        assert_eq!(outcome(ping(), Some("s"), "404 Not Found", "gone").await, "Session expired (HTTP 404)");
        let gone = outcome(ping(), None, "404 Not Found", "gone").await;
        assert_eq!(gone, unexpected("HTTP 404 Not Found: gone"));
        assert_eq!(outcome(ping(), None, &format!("401 Unauthorized\r\n{JSON}"), ERROR).await, "Auth required");
        let forbidden = outcome(ping(), None, &format!("403 Forbidden\r\n{JSON}"), ERROR).await;
        assert_eq!(forbidden, unexpected(&format!("HTTP 403 Forbidden: {ERROR}")));
        let challenge = "www-authenticate: Bearer scope=\"read\"";
        assert_eq!(outcome(ping(), None, &format!("401 Unauthorized\r\n{challenge}"), "").await, "Auth required");
        assert_eq!(outcome(ping(), None, &format!("403 Forbidden\r\n{challenge}"), "").await, "Insufficient scope");
    }

    #[tokio::test]
    async fn an_http_error_may_carry_a_json_rpc_error() {
        let busy = format!("429 Too Many Requests\r\nretry-after: 7\r\n{JSON}");
        assert_eq!(outcome(ping(), None, &busy, ERROR).await, "HTTP 429, Some(\"7\")");
        assert_eq!(outcome(ping(), None, "503 Service Unavailable", ERROR).await, "HTTP 503, None");
        let broken = format!("500 Internal Server Error\r\n{JSON}");
        assert_eq!(outcome(ping(), None, &broken, ERROR).await, ERROR);
        assert_eq!(outcome(ping(), None, &broken, "nonsense").await, "HTTP 500, None");
        assert_eq!(outcome(ping(), None, &format!("400 Bad Request\r\n{JSON}"), ERROR).await, ERROR);
    }

    #[tokio::test]
    async fn a_refused_question_for_versions_is_an_answer() {
        let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"HTTP 400 Bad Request: what?"}}"#;
        assert_eq!(outcome(discover(), None, "400 Bad Request", "what?").await, refused);
        let with_other_id = ERROR.replace("\"id\":1", "\"id\":\"server-error\"");
        assert_eq!(outcome(discover(), None, "400 Bad Request", &with_other_id).await, ERROR);
        assert_eq!(outcome(discover(), None, "500 Internal Server Error", "").await, "HTTP 500, None");
    }

    #[tokio::test]
    async fn only_a_request_needs_a_readable_answer() {
        let json = format!("200 OK\r\n{JSON}");
        assert_eq!(outcome(notification(), None, "200 OK", "").await, "Accepted");
        assert_eq!(outcome(notification(), None, &json, "nonsense").await, "Accepted");
        assert_eq!(outcome(ping(), None, &json, ERROR).await, ERROR);
        let unreadable = outcome(ping(), None, &json, "nonsense").await;
        assert!(unreadable.starts_with("unexpected server response: the answer cannot be read: "), "{unreadable}");
        assert!(unreadable.ends_with(": nonsense"), "{unreadable}");
        let page = outcome(ping(), None, "200 OK\r\ncontent-type: text/html", "<p>").await;
        assert_eq!(page, "Unexpected content type: Some(\"text/html\")");
    }

    #[tokio::test]
    async fn a_request_has_the_headers_of_the_transport() {
        let header =
            |name: &'static str| HashMap::from([(HeaderName::from_static(name), HeaderValue::from_static("x"))]);
        let headers = header("mcp-protocol-version");
        let (request, result) = send(&ping(), Some("s"), &headers, ("202 Accepted", "")).await;
        assert!(matches!(result, Ok(StreamableHttpPostResponse::Accepted)), "{result:?}");
        for line in [
            "content-type: application/json",
            "accept: text/event-stream, application/json",
            "mcp-session-id: s",
            "mcp-protocol-version: x",
            "authorization: Bearer a-token",
        ] {
            assert_eq!(request.matches(&format!("\r\n{line}\r\n")).count(), 1, "{line} in {request}");
        }
        let body = request.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str::<Value>(body).unwrap());
        assert_eq!(body, Some(serde_json::to_value(ping()).unwrap()));

        let (http, headers) = (client().unwrap(), header("accept"));
        let url = "http://127.0.0.1:9/mcp";
        let post = Post { http: &http, url, message: &ping(), session: None, headers: &headers, max_answer: 1 };
        assert!(matches!(post.send(None).await, Err(StreamableHttpError::ReservedHeaderConflict(_))));
    }
}
