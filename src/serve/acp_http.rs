//! ACP over HTTP: the client posts its messages and reads the server's from event streams, one for the connection and
//! one for each session.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Request, State, WebSocketUpgrade};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::acp_connections::{AcpConnections, AcpHttpClient, EventReader};
use super::authenticator::{ActiveToken, bearer_token};
use super::checks::{Refusal, read_body};
use super::gateway::ClientSecret;
use super::{ServerState, acp_websocket};
use crate::acp::{IncomingMessage, MessageStream, UsageError, check_usage};

const CONNECTION: HeaderName = HeaderName::from_static("acp-connection-id");
const SESSION: HeaderName = HeaderName::from_static("acp-session-id");
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";
/// The answer for a connection that does not exist, or belongs to another token.
const NO_CONNECTION: &str = "there is no such connection\n";
/// How often a comment keeps an event stream without messages open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Answers all requests to `/acp`.
pub(super) async fn answer(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
) -> Result<Response, Refusal> {
    match (request.method(), upgrade) {
        (&Method::GET, Ok(upgrade)) => {
            let secret = client_secret(request.headers());
            Ok(acp_websocket::answer(state, token, secret, upgrade))
        }
        (&Method::GET, Err(rejection)) if request.headers().contains_key(header::UPGRADE) => {
            Ok(rejection.into_response())
        }
        (&Method::GET, Err(_)) => open_stream(&state, &token, request.headers()),
        (&Method::POST, _) => post(state, token, request).await,
        (&Method::DELETE, _) => {
            find(&state, &token, request.headers())?.close();
            Ok(StatusCode::ACCEPTED.into_response())
        }
        _ => {
            let mut response =
                Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "use POST, GET or DELETE\n").into_response();
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("DELETE, GET, POST"));
            Ok(response)
        }
    }
}

async fn post(state: Arc<ServerState>, token: Arc<ActiveToken>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(|value| is_media_type(value, JSON)) {
        let text = "the content type must be application/json\n";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let has_connection = parts.headers.contains_key(CONNECTION);
    let client = if has_connection { Some(find(&state, &token, &parts.headers)?) } else { None };
    // Text that is not UTF-8 is answered like text that is not JSON.
    let text = String::from_utf8(read_body(body).await?).unwrap_or_else(|_| "not UTF-8".to_owned());
    let message = IncomingMessage::parse(&text);
    let Some(client) = client else {
        return open(state, token, client_secret(&parts.headers), (message, text)).await;
    };
    if let (Some(header), Some(session)) = (text_of(&parts.headers, &SESSION), message.session())
        && header != session
    {
        let text = "`Acp-Session-Id` names another session than the message\n";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    check_usage(&message, &token.grant, &state.draining).map_err(|error| usage_refusal(&error))?;
    if client.receive(&message, text).await {
        Ok(StatusCode::ACCEPTED.into_response())
    } else {
        Err(Refusal::new(StatusCode::NOT_FOUND, NO_CONNECTION))
    }
}

/// Opens a connection. Only `initialize` can do so, and its response is the body of the answer.
async fn open(
    state: Arc<ServerState>,
    token: Arc<ActiveToken>,
    secret: ClientSecret,
    (message, text): (IncomingMessage, String),
) -> Result<Response, Refusal> {
    if !message.is_initialize() {
        let text = "`Acp-Connection-Id` is required, except for `initialize`\n";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let (client, answer) = AcpConnections::open(&state, &token, secret, (message, text)).await?;
    let mut response = ([(header::CONTENT_TYPE, JSON)], answer.text).into_response();
    if answer.outcome == crate::acp::Response::Result {
        add_id(&mut response, CONNECTION, &client.id);
    }
    Ok(response)
}

fn open_stream(state: &ServerState, token: &ActiveToken, headers: &HeaderMap) -> Result<Response, Refusal> {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let is_accepted = |accepted: &str| accepted.split(',').any(|part| is_media_type(part, EVENT_STREAM));
    if !accepted.is_some_and(is_accepted) {
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, "`Accept` must contain text/event-stream\n"));
    }
    let client = find(state, token, headers)?;
    let session = text_of(headers, &SESSION);
    let stream = session.map_or(MessageStream::Connection, |session| MessageStream::Session(session.into()));
    let events = Body::from_stream(futures::stream::unfold(client.subscribe(stream), next_event));
    let mut response = ([(header::CONTENT_TYPE, EVENT_STREAM)], events).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy that collects events would delay them.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    add_id(&mut response, CONNECTION, &client.id);
    if let Some(session) = session {
        add_id(&mut response, SESSION, session);
    }
    Ok(response)
}

async fn next_event(reader: EventReader) -> Option<(Result<Bytes, std::convert::Infallible>, EventReader)> {
    let text = match tokio::time::timeout(KEEP_ALIVE, reader.next()).await {
        // A message is one line.
        Ok(Some(message)) => format!("data: {message}\n\n"),
        Ok(None) => return None,
        Err(_) => ":\n\n".to_owned(),
    };
    Some((Ok(Bytes::from(text)), reader))
}

/// Returns the connection that the headers name. Fails if they name none, or one that is not the token's.
fn find(state: &ServerState, token: &ActiveToken, headers: &HeaderMap) -> Result<Arc<AcpHttpClient>, Refusal> {
    let id = text_of(headers, &CONNECTION);
    let id = id.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "`Acp-Connection-Id` is required\n"))?;
    state.acp.find(id, token).ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, NO_CONNECTION))
}

/// Returns the token of a request that was checked already.
fn client_secret(headers: &HeaderMap) -> ClientSecret {
    ClientSecret(bearer_token(headers).unwrap_or_default().to_owned())
}

fn usage_refusal(error: &UsageError) -> Refusal {
    let status = match error {
        UsageError::Grant(_) => StatusCode::TOO_MANY_REQUESTS,
        UsageError::Draining => StatusCode::SERVICE_UNAVAILABLE,
    };
    Refusal::new(status, format!("{error}\n")).retry_after(error.retry_after())
}

fn text_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn add_id(response: &mut Response, name: HeaderName, id: &str) {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(name, value);
    }
}

fn is_media_type(value: &str, wanted: &str) -> bool {
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted)
}
