//! `GET /console/events`: the one event stream of a browser, for the sessions that its tabs show and for the number of
//! open requests.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::super::ServerState;
use super::super::event_stream::{self, COMMENT, KEEP_ALIVE};
use super::feeds::StreamSender;
use super::form::FormFields;
use super::layout::ConsoleProblem;
use super::logins::Login;
use super::open_session::{self, ConsoleSessions};

/// Sessions that one stream may watch.
const MAX_WATCHED: usize = 64;

/// Opens the stream. `watch` names each session. A session that the login may not see is left out.
pub(super) async fn open(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let query = FormFields::parse(query.as_deref().unwrap_or_default().as_bytes());
    let wanted: Vec<String> = query.all("watch").take(MAX_WATCHED).map(str::to_owned).collect();
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let (stream, updates) = StreamSender::new();
    let mut watched = WatchedSessions { state: Arc::clone(&state), stream, ids: Vec::new() };
    for id in wanted {
        if sessions.exists(&id).await? {
            state.parts.console.feeds.watch(&id, &watched.stream, &state.parts.open_sessions);
            watched.ids.push(id);
        }
    }
    let mut requests = state.parts.console.requests.changes();
    // The first update is the number of requests that are open already.
    requests.mark_changed();
    let reader = StreamReader { watched, updates, requests, login };
    let body = Body::from_stream(futures::stream::unfold(reader, next_update));
    let mut response = (StatusCode::OK, [(header::CONTENT_TYPE, "text/event-stream")], body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that collects updates would delay them.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
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
    requests: watch::Receiver<u64>,
    login: Arc<Login>,
}

impl StreamReader {
    /// Returns whether the login may see an update. The mode of its session may have changed since the stream began.
    fn admits(&self, update: &Value) -> bool {
        let open_sessions = &self.watched.state.parts.open_sessions;
        let open = update["session"].as_str().and_then(|id| open_sessions.find(id));
        open.is_none_or(|open| open.session.admits_client(&self.login.token.grant))
    }
}

/// Waits for the next update. `None` ends the stream: with its login, with the server, or if it is too far behind.
async fn next_update(mut reader: StreamReader) -> Option<(Result<Bytes, Infallible>, StreamReader)> {
    let state = Arc::clone(&reader.watched.state);
    let text = tokio::select! {
        biased;
        () = reader.login.ended.cancelled() => return None,
        () = state.closing.cancelled() => return None,
        () = reader.watched.stream.wait_for_overflow() => return None,
        changed = reader.requests.changed() => {
            changed.ok()?;
            let count = state.parts.console.requests.count(&reader.login.token.grant);
            event_stream::data(&json!({"kind": "approvals", "count": count}))
        }
        update = reader.updates.recv() => {
            let update = update?;
            if reader.admits(&update) { event_stream::data(&update) } else { COMMENT.to_owned() }
        }
        () = tokio::time::sleep(KEEP_ALIVE) => COMMENT.to_owned(),
    };
    Some((Ok(Bytes::from(text)), reader))
}
