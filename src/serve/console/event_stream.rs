//! `GET /console/events`: the one event stream of a browser, for the sessions and pages that its tabs show and for the
//! number of open requests. `GET /console/socket` has the same updates for one tab, over WebSocket: browsers allow few
//! HTTP/1.1 connections per host, but many WebSockets.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{RawQuery, State, WebSocketUpgrade};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::ServerState;
use super::super::event_stream::{self, COMMENT, KEEP_ALIVE};
use super::feeds::StreamSender;
use super::form::FormFields;
use super::layout::ConsoleProblem;
use super::logins::Login;
use super::open_session::{self, ConsoleSessions};
use super::page_updates::{LivePage, send_news};
use super::remote_changes::send_changes;

/// Sessions that one stream may watch.
const MAX_WATCHED: usize = 64;

/// Maximum bytes of a message from the browser, which has nothing to say.
const MAX_MESSAGE: usize = 4 << 10;
/// How long a browser may take to read an update.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens the stream. `watch` names each session, and `page` each page. What the login may not see is left out.
pub(super) async fn open(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let reader = StreamReader::open(&state, login, query.as_deref()).await?;
    let body = Body::from_stream(futures::stream::unfold(reader, next_event));
    let mut response = (StatusCode::OK, [(header::CONTENT_TYPE, "text/event-stream")], body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that collects updates would delay them.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Opens a WebSocket with the updates, for a browser without shared workers.
pub(super) async fn open_socket(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(query): RawQuery,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ConsoleProblem> {
    let reader = StreamReader::open(&state, login, query.as_deref()).await?;
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    Ok(upgrade.on_upgrade(async move |socket| {
        let (done, ended) = tokio::sync::oneshot::channel::<()>();
        // The scope waits for the connection at the shutdown.
        state.scope.spawn(async move {
            send_updates(socket, reader).await;
            drop(done);
        });
        drop(ended.await);
    }))
}

/// Sends updates until the stream ends or the browser is gone.
async fn send_updates(mut socket: WebSocket, mut reader: StreamReader) {
    loop {
        let message = tokio::select! {
            received = socket.recv() => match received {
                // The transport answers pings, and the browser has nothing to say.
                Some(Ok(Message::Text(_) | Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            update = reader.next() => match update {
                Some(StreamUpdate::Data(update)) => Message::Text(update.to_string().into()),
                Some(StreamUpdate::KeepAlive) => Message::Ping(Vec::new().into()),
                None => Message::Close(None),
            },
        };
        let is_last = matches!(message, Message::Close(_));
        let sent = tokio::time::timeout(SEND_TIMEOUT, socket.send(message)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

/// Answers that the login still works, for a browser that lost its stream.
pub(super) async fn alive() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// The sessions that a stream watches. Dropping it ends that, and closes sessions without another viewer.
struct WatchedSessions {
    state: Arc<ServerState>,
    stream: StreamSender,
    ids: Vec<String>,
    /// Ends the tasks that follow pages, and sessions of other replicas.
    _end: DropGuard,
}

impl Drop for WatchedSessions {
    fn drop(&mut self) {
        for id in &self.ids {
            if let Some(open) = self.state.parts.console.feeds.leave(id, &self.stream) {
                self.state.scope.spawn(open_session::release(Arc::clone(&self.state), open));
            }
        }
    }
}

/// The end of a stream that writes to the browser.
struct StreamReader {
    watched: WatchedSessions,
    updates: mpsc::Receiver<Value>,
    /// The tasks that follow pages have the other end.
    pages: mpsc::Receiver<Value>,
    requests: watch::Receiver<u64>,
    login: Arc<Login>,
}

/// What a stream sends.
enum StreamUpdate {
    Data(Value),
    /// Nothing, to keep the connection open.
    KeepAlive,
}

impl StreamReader {
    /// Watches the sessions of a query that the login may see. Fails if the store cannot be read.
    async fn open(state: &Arc<ServerState>, login: Arc<Login>, query: Option<&str>) -> Result<Self, ConsoleProblem> {
        let query = FormFields::of_query(query);
        let wanted = session_ids(&query);
        let sessions = ConsoleSessions::of(state, &login.token).await?;
        let (stream, updates) = StreamSender::new();
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let mut watched = WatchedSessions { state: Arc::clone(state), stream, ids: Vec::new(), _end: end };
        for id in wanted {
            if sessions.exists(&id).await? {
                state.parts.console.feeds.watch(&id, &watched.stream, &state.parts.open_sessions);
                if let Some(parts) = &state.parts.replica {
                    let last = sessions.find(&id).await?.events;
                    let follower = sessions.store().follow(&id, last, &parts.hub);
                    let changes = send_changes(follower, id.clone(), watched.stream.clone(), ended.clone());
                    state.scope.spawn(changes);
                }
                watched.ids.push(id);
            }
        }
        let (page_sender, pages) = mpsc::channel(1);
        for page in LivePage::all_of(&query) {
            // Over the limit of the login, a page shows no changes until it is loaded.
            let Some(place) = login.follow_page() else { break };
            let news = send_news(Arc::clone(state), Arc::clone(&login), page, page_sender.clone(), ended.clone());
            state.scope.spawn(async move {
                news.await;
                drop(place);
            });
        }
        let mut requests = state.parts.console.requests.changes();
        // The first update is the number of requests that are open already.
        requests.mark_changed();
        Ok(Self { watched, updates, pages, requests, login })
    }

    /// Returns whether the login may see an update. The mode of its session may have changed since the stream began.
    fn admits(&self, update: &Value) -> bool {
        let open_sessions = &self.watched.state.parts.open_sessions;
        let open = update["session"].as_str().and_then(|id| open_sessions.find(id));
        open.is_none_or(|open| open.session.admits_client(&self.login.token.grant))
    }

    /// Waits for the next update. `None` ends the stream: with its login, with the server, or if it is too far behind.
    /// Loses no update if the caller stops waiting.
    async fn next(&mut self) -> Option<StreamUpdate> {
        let state = Arc::clone(&self.watched.state);
        tokio::select! {
            biased;
            () = self.login.ended.cancelled() => None,
            () = state.closing.cancelled() => None,
            () = self.watched.stream.wait_for_overflow() => None,
            changed = self.requests.changed() => {
                changed.ok()?;
                let count = state.parts.console.requests.count(&self.login.token.grant);
                Some(StreamUpdate::Data(json!({"kind": "approvals", "count": count})))
            }
            update = self.updates.recv() => {
                let update = update?;
                Some(if self.admits(&update) { StreamUpdate::Data(update) } else { StreamUpdate::KeepAlive })
            }
            Some(news) = self.pages.recv() => Some(StreamUpdate::Data(news)),
            () = tokio::time::sleep(KEEP_ALIVE) => Some(StreamUpdate::KeepAlive),
        }
    }
}

/// Returns the ids of the sessions to watch.
fn session_ids(query: &FormFields) -> Vec<String> {
    query.all("watch").take(MAX_WATCHED).map(str::to_owned).collect()
}

/// Returns the next update as a server-sent event.
async fn next_event(mut reader: StreamReader) -> Option<(Result<Bytes, Infallible>, StreamReader)> {
    let text = match reader.next().await? {
        StreamUpdate::Data(update) => event_stream::data(&update),
        StreamUpdate::KeepAlive => COMMENT.to_owned(),
    };
    Some((Ok(Bytes::from(text)), reader))
}
