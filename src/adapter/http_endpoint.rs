//! Serves an MCP server over streamable HTTP, for a front end that has checked each request and reads its body.
//!
//! Invariant: a session of the protocol ends when no request or stream has used it for the idle time, and with its
//! endpoint. Another endpoint does not know it. The number of sessions has a limit.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use rmcp::ServerHandler;
use rmcp::model::ErrorCode;
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::endpoint_sessions::EndpointSessions;

/// Sessions of an endpoint.
const MAX_SESSIONS: usize = 256;
/// Seconds after which a client may try again to begin a session.
const RETRY_AFTER: u64 = 30;
/// Header of a request that belongs to a session of MCP.
const SESSION_HEADER: &str = "mcp-session-id";
/// Header of a request for the events after one that the client has.
const EVENT_HEADER: &str = "last-event-id";
const JSON: &str = "application/json";
/// The answer for a session that does not exist here.
const NO_SESSION: &str = "Not Found: Session not found";

/// An answer to a request.
pub type EndpointAnswer = Response<BoxBody<Bytes, Infallible>>;

type AnswerRequest = Box<dyn Fn(Request<Full<Bytes>>) -> BoxFuture<'static, EndpointAnswer> + Send + Sync>;

/// An MCP server for the HTTP clients of one owner.
pub struct HttpEndpoint {
    answer: AnswerRequest,
    sessions: Arc<EndpointSessions>,
    activity: Arc<Mutex<EndpointActivity>>,
    ended: CancellationToken,
}

/// When the endpoint and its sessions were last used.
struct EndpointActivity {
    whole: RecentUse,
    sessions: HashMap<String, RecentUse>,
    /// No further request is served.
    is_closed: bool,
}

struct RecentUse {
    /// Requests and streams that are open now.
    open: usize,
    last: Instant,
}

impl RecentUse {
    fn new() -> Self {
        Self { open: 0, last: Instant::now() }
    }

    fn begin(&mut self) {
        self.open += 1;
    }

    fn end(&mut self) {
        self.open -= 1;
        self.last = Instant::now();
    }

    fn is_idle(&self, idle: Duration) -> bool {
        self.open == 0 && self.last.elapsed() >= idle
    }
}

/// A request or an open stream. The endpoint is in use until it is dropped.
pub struct EndpointUse {
    activity: Arc<Mutex<EndpointActivity>>,
    /// The session that it uses, if any.
    session: Option<String>,
}

impl EndpointUse {
    /// Counts the request for a session too. Ignores a session that only the request names.
    fn add_session(&mut self, id: String, origin: SessionOrigin) {
        if self.session.is_some() {
            return;
        }
        let mut activity = lock(&self.activity);
        if origin == SessionOrigin::Server {
            activity.sessions.entry(id.clone()).or_insert_with(RecentUse::new);
        }
        let Some(session) = activity.sessions.get_mut(&id) else { return };
        session.begin();
        self.session = Some(id);
    }
}

/// The endpoint has too many sessions, and all of them are in use.
struct SessionLimit;

/// Who named a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionOrigin {
    /// The server, which began it.
    Server,
    /// A request of a client.
    Client,
}

impl Drop for EndpointUse {
    fn drop(&mut self) {
        let mut activity = lock(&self.activity);
        activity.whole.end();
        let Some(id) = &self.session else { return };
        if let Some(session) = activity.sessions.get_mut(id) {
            session.end();
        }
    }
}

impl HttpEndpoint {
    /// Serves clones of `handler`, one for each session, or for each request of versions without sessions.
    pub fn new(handler: impl ServerHandler + Clone) -> Self {
        let ended = CancellationToken::new();
        let sessions = Arc::new(EndpointSessions::new());
        // The front end has checked `Host`, `Origin` and size.
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(ended.clone())
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(usize::MAX);
        let service = StreamableHttpService::new(move || Ok(handler.clone()), Arc::clone(&sessions), config);
        let answer = move |request: Request<Full<Bytes>>| -> BoxFuture<'static, EndpointAnswer> {
            let service = service.clone();
            Box::pin(async move { service.handle(request).await })
        };
        let activity = EndpointActivity { whole: RecentUse::new(), sessions: HashMap::new(), is_closed: false };
        Self { answer: Box::new(answer), sessions, activity: Arc::new(Mutex::new(activity)), ended }
    }

    /// Begins a request. `None` if the endpoint is closed.
    pub fn enter(&self) -> Option<EndpointUse> {
        let mut activity = self.activity();
        if activity.is_closed {
            return None;
        }
        activity.whole.begin();
        Some(EndpointUse { activity: Arc::clone(&self.activity), session: None })
    }

    /// Answers a request. The endpoint and the session are in use until the body of the answer has ended.
    pub async fn handle(&self, mut request: Request<Full<Bytes>>, mut entered: EndpointUse) -> EndpointAnswer {
        let session = session_of(request.headers());
        let is_end = request.method() == Method::DELETE;
        if let Some(id) = &session {
            entered.add_session(id.clone(), SessionOrigin::Client);
            if is_end && entered.session.is_none() {
                return no_session();
            }
        }
        ask_for_next_event(request.headers_mut());
        let (body, is_json) = (request.body().clone(), has_json(request.headers()));
        let answer = (self.answer)(request).await;
        // rmcp answers with a text. Clients expect an error of the protocol.
        if is_json && answer.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            return refuse_message(body).await;
        }
        // Only for a session that did not begin: another request may have had an effect.
        if answer.status() == StatusCode::INTERNAL_SERVER_ERROR && self.is_closed() && begins_session(body).await {
            return unavailable("this endpoint has closed: try again\n".to_owned());
        }
        if let Some(id) = session_of(answer.headers()) {
            entered.add_session(id.clone(), SessionOrigin::Server);
            if session.is_none()
                && let Err(SessionLimit) = self.make_room().await
            {
                self.end_sessions(&[id]).await;
                return too_many_sessions();
            }
        }
        if let Some(id) = session.filter(|_| is_end && answer.status().is_success()) {
            self.activity().sessions.remove(&id);
        }
        answer.map(|body| {
            body.map_frame(move |frame| {
                // The body owns the use, which ends with it.
                let _open = &entered;
                frame
            })
            .boxed()
        })
    }

    /// Ends the sessions unused for the longest time, if there are too many. Fails if too many of them are in use.
    async fn make_room(&self) -> Result<(), SessionLimit> {
        let (excess, unused) = {
            let activity = self.activity();
            let excess = activity.sessions.len().saturating_sub(MAX_SESSIONS);
            let idle = activity.sessions.iter().filter(|(_, session)| session.open == 0);
            let mut idle: Vec<_> = idle.map(|(id, session)| (session.last, id.clone())).collect();
            idle.sort_unstable();
            (excess, idle.into_iter().take(excess).map(|(_, id)| id).collect::<Vec<_>>())
        };
        self.end_sessions(&unused).await;
        if unused.len() < excess { Err(SessionLimit) } else { Ok(()) }
    }

    /// Ends the sessions that were not used for `idle`.
    pub async fn expire_sessions(&self, idle: Duration) {
        let expired: Vec<_> = {
            let open = self.sessions.local.sessions.read().await;
            let mut activity = self.activity();
            // Ended by itself.
            activity.sessions.retain(|id, session| session.open > 0 || open.contains_key(id.as_str()));
            // Begun for a client that left before it got the answer.
            for id in open.keys() {
                activity.sessions.entry(id.to_string()).or_insert_with(RecentUse::new);
            }
            let unused = activity.sessions.iter().filter(|(_, session)| session.is_idle(idle));
            unused.map(|(id, _)| id.clone()).collect()
        };
        self.end_sessions(&expired).await;
    }

    /// Closes the endpoint if it has no session and was not used for `idle`. Returns whether it is closed.
    pub fn close_if_unused(&self, idle: Duration) -> bool {
        let mut activity = self.activity();
        if activity.sessions.is_empty() && activity.whole.is_idle(idle) {
            activity.is_closed = true;
        }
        activity.is_closed
    }

    /// Ends all sessions and streams. No further request is served.
    pub async fn close(&self) {
        {
            let mut activity = self.activity();
            activity.is_closed = true;
            activity.sessions.clear();
        }
        let open = self.sessions.close().await;
        self.end_sessions(&open).await;
        self.ended.cancel();
    }

    /// Returns whether a request with these headers belongs to a session of this endpoint.
    pub fn has_session(&self, headers: &HeaderMap) -> bool {
        session_of(headers).is_some_and(|id| self.activity().sessions.contains_key(&id))
    }

    /// Returns whether [`Self::enter`] refuses.
    pub fn is_closed(&self) -> bool {
        self.activity().is_closed
    }

    /// Ends sessions, and forgets each of them after its end: the future may be dropped while it waits.
    async fn end_sessions(&self, ids: &[String]) {
        for id in ids {
            if let Err(error) = self.sessions.close_session(&id.as_str().into()).await {
                tracing::warn!(%error, "a session of an MCP client did not end in order");
            }
            self.activity().sessions.remove(id);
        }
    }

    fn activity(&self) -> MutexGuard<'_, EndpointActivity> {
        lock(&self.activity)
    }
}

/// Returns whether the body of a request asks for work, unlike an answer to a question of the server or a notification.
pub fn asks_for_work(body: &[u8]) -> bool {
    let message: Option<Value> = serde_json::from_slice(body).ok();
    message.is_some_and(|message| message.get("method").is_some() && message.get("id").is_some())
}

fn session_of(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_HEADER)?.to_str().ok().map(str::to_owned)
}

/// Returns whether a request says that its body is JSON, as rmcp reads it.
fn has_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with(JSON))
}

/// Replaces the id of the last event that the client has by that of the next one: rmcp begins its replay with the event
/// that the request names, so the client would get it twice.
fn ask_for_next_event(headers: &mut HeaderMap) {
    let named = headers.get(EVENT_HEADER).and_then(|id| id.to_str().ok());
    if let Some(next) = named.and_then(next_event).and_then(|id| HeaderValue::from_str(&id).ok()) {
        headers.insert(EVENT_HEADER, next);
    }
}

/// Returns the id of the event after this one: `4` or, in the stream of one request, `4/1`. `None` if rmcp has not made
/// the id. Also `None` for `0`: rmcp gives this id to the empty event at the beginning of the common stream and to the
/// first message there. A client may have only the former, so it gets the message, maybe twice.
fn next_event(id: &str) -> Option<String> {
    if id == "0" {
        return None;
    }
    let (index, stream) = id.split_at(id.find('/').unwrap_or(id.len()));
    let index: usize = index.parse().ok()?;
    Some(format!("{}{stream}", index.checked_add(1)?))
}

/// Returns whether a body asks for a session.
async fn begins_session(body: Full<Bytes>) -> bool {
    let Ok(body) = body.collect().await;
    let message: Option<Value> = serde_json::from_slice(&body.to_bytes()).ok();
    message.is_some_and(|message| message["method"] == "initialize")
}

/// Returns the answer to a body that is not a message.
async fn refuse_message(body: Full<Bytes>) -> EndpointAnswer {
    let Ok(body) = body.collect().await;
    let (code, problem, id) = match serde_json::from_slice::<Value>(&body.to_bytes()) {
        Err(error) => (ErrorCode::PARSE_ERROR, format!("the body is not JSON: {error}"), None),
        Ok(message) => {
            let id = message.get("id").filter(|id| id.is_string() || id.is_number()).cloned();
            (ErrorCode::INVALID_REQUEST, "the body is not a message of JSON-RPC 2.0".to_owned(), id)
        }
    };
    let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code.0, "message": problem}});
    let mut answer = Response::new(Full::new(Bytes::from(error.to_string())).boxed());
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    answer
}

fn no_session() -> EndpointAnswer {
    let mut answer = Response::new(Full::new(Bytes::from_static(NO_SESSION.as_bytes())).boxed());
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
}

fn too_many_sessions() -> EndpointAnswer {
    unavailable(format!("{MAX_SESSIONS} sessions of this endpoint are in use: end one of them, then try again\n"))
}

/// Returns the answer to a request for a session that cannot begin now.
fn unavailable(text: String) -> EndpointAnswer {
    let mut answer = Response::new(Full::new(Bytes::from(text)).boxed());
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
    answer
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for HttpEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpEndpoint").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for EndpointUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointUse").field("session", &self.session).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct EmptyServer;

    impl ServerHandler for EmptyServer {}

    /// The request for a session.
    fn initialize() -> Request<Full<Bytes>> {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
        Request::post("http://localhost/mcp")
            .header(header::CONTENT_TYPE, JSON)
            .header(header::ACCEPT, "application/json, text/event-stream")
            .body(Full::new(Bytes::from(body)))
            .unwrap()
    }

    /// Begins a session. It is in use as long as the answer exists.
    async fn begin(endpoint: &HttpEndpoint) -> EndpointAnswer {
        endpoint.handle(initialize(), endpoint.enter().unwrap()).await
    }

    #[tokio::test]
    async fn no_session_begins_after_the_endpoint_has_closed() {
        let endpoint = HttpEndpoint::new(EmptyServer);
        let open = begin(&endpoint).await;
        // The request came before.
        let entered = endpoint.enter().unwrap();
        endpoint.close().await;
        let refused = endpoint.handle(initialize(), entered).await;
        assert_eq!((open.status(), refused.status()), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        assert!(endpoint.sessions.local.sessions.read().await.is_empty());
    }

    #[tokio::test]
    async fn the_session_unused_for_longest_makes_room() {
        let endpoint = HttpEndpoint::new(EmptyServer);
        let mut open = Vec::new();
        for _ in 0..MAX_SESSIONS {
            open.push(begin(&endpoint).await);
        }
        assert!(open.iter().all(|answer| answer.status() == StatusCode::OK));
        let refused = begin(&endpoint).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "all sessions are in use");
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(endpoint.sessions.local.sessions.read().await.len(), MAX_SESSIONS, "the refused one has ended");
        let mut end = |place: usize| {
            let (head, body) = open.remove(place).into_parts();
            drop(body);
            head
        };
        let (first, second) = (end(7), end(3));
        assert_eq!(begin(&endpoint).await.status(), StatusCode::OK);
        let has = |id: &HeaderMap| endpoint.has_session(id);
        assert!(!has(&first.headers) && has(&second.headers), "the one unused for longest has ended");
        assert!(open.iter().all(|answer| has(answer.headers())), "those in use stay");
        assert_eq!(endpoint.sessions.local.sessions.read().await.len(), MAX_SESSIONS);
        endpoint.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_without_a_request_ends() {
        let endpoint = HttpEndpoint::new(EmptyServer);
        let idle = Duration::from_secs(60);
        let count = async || endpoint.sessions.local.sessions.read().await.len();
        // The client leaves before it gets the answer.
        let _transport = endpoint.sessions.create_session().await.unwrap();
        endpoint.expire_sessions(idle).await;
        assert_eq!(count().await, 1, "the answer may be under way");
        tokio::time::advance(idle).await;
        endpoint.expire_sessions(idle).await;
        assert_eq!(count().await, 0);
        assert!(endpoint.close_if_unused(idle));

        let endpoint = HttpEndpoint::new(EmptyServer);
        let _transport = endpoint.sessions.create_session().await.unwrap();
        endpoint.close().await;
        assert_eq!(endpoint.sessions.local.sessions.read().await.len(), 0);
    }

    #[tokio::test]
    async fn a_request_that_ends_early_forgets_no_session() {
        let endpoint = HttpEndpoint::new(EmptyServer);
        for _ in 0..=MAX_SESSIONS {
            let (id, transport) = endpoint.sessions.create_session().await.unwrap();
            drop(transport);
            endpoint.enter().unwrap().add_session(id.to_string(), SessionOrigin::Server);
        }
        let reading = endpoint.sessions.local.sessions.read().await;
        {
            let room = std::pin::pin!(endpoint.make_room());
            assert!(futures::poll!(room).is_pending(), "it waits for the sessions");
        }
        drop(reading);
        assert_eq!(endpoint.activity().sessions.len(), MAX_SESSIONS + 1);
        assert!(endpoint.make_room().await.is_ok());
        assert_eq!(endpoint.activity().sessions.len(), MAX_SESSIONS);
        assert_eq!(endpoint.sessions.local.sessions.read().await.len(), MAX_SESSIONS);
    }

    #[test]
    fn the_next_event_is_in_the_same_stream() {
        assert_eq!(next_event("4/1").as_deref(), Some("5/1"));
        assert_eq!(next_event("0/1").as_deref(), Some("1/1"));
        assert_eq!(next_event("9").as_deref(), Some("10"));
        for other in ["", "0", "/1", "x", "-1/2", "18446744073709551615"] {
            assert_eq!(next_event(other), None, "{other}");
        }
    }

    #[test]
    fn only_requests_ask_for_work() {
        assert!(asks_for_work(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#));
        for other in [
            &br#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#[..],
            br#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            b"",
            b"no JSON",
        ] {
            assert!(!asks_for_work(other));
        }
    }
}
