//! Asks other replicas about runs, tasks and open questions that this one does not know. These are in the memory of the
//! replica that runs the turn, and any replica may get a request about them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ServerState;
use super::checks::read_body;
use super::gateway::wait_until_gone;
use super::replica_headers::{NotHere, SECRET_HEADER};
use crate::store::{Replica, ReplicaPeer};

/// How long a connection to another replica may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Marks the answer of a replica that does not have what the request is about.
const NOT_HERE: HeaderName = HeaderName::from_static("skein-not-here");
/// The headers of a client that another replica needs.
const PASSED_HEADERS: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::CONTENT_TYPE,
    header::ACCEPT,
    HeaderName::from_static("a2a-version"),
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("sec-fetch-site"),
    HeaderName::from_static("x-console-passive"),
    HeaderName::from_static("x-console-script"),
];
/// How long the fragments of all other replicas may take.
const FRAGMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest fragment of a page, in bytes.
const MAX_FRAGMENT: usize = 4 << 20;

/// The middleware around requests about runs, tasks and questions: answers them here, or else asks the other replicas.
pub(super) async fn ask_others(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let Some(parts) = &state.parts.replica else { return next.run(request).await };
    let (head, body) = request.into_parts();
    // The body of a GET means nothing, and some of these paths need no token.
    let body = if head.method.is_safe() { Body::empty() } else { body };
    let body = match read_body(body).await {
        Ok(body) => Bytes::from(body),
        Err(refusal) => return refusal.into_response(),
    };
    let own = next.run(Request::from_parts(head.clone(), Body::from(body.clone()))).await;
    if own.extensions().get::<NotHere>().is_none() {
        return own;
    }
    for peer in peers_of(&parts.replica).await {
        // A paused process takes connections and answers nothing.
        let answer = tokio::select! {
            biased;
            answer = ask(&state, &peer, &head, body.clone()) => answer,
            () = wait_until_gone(parts.replica.clone(), peer.id.clone()) => None,
        };
        match answer {
            Some(answer) if !answer.headers().contains_key(NOT_HERE) => return answer,
            Some(_) => {}
            None => tracing::info!(replica = %peer.id, "a replica cannot be asked"),
        }
    }
    own
}

async fn peers_of(replica: &Replica) -> Vec<ReplicaPeer> {
    replica.peers().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the other replicas are unknown");
        Vec::new()
    })
}

/// Returns the HTML that the other replicas have for a path, for a client with these headers. A replica that gives no
/// answer in time is left out.
pub(super) async fn collect_fragments(state: &ServerState, path: &str, headers: &HeaderMap) -> String {
    let Some(parts) = &state.parts.replica else { return String::new() };
    let Ok(request) = HttpRequest::builder().uri(path).body(()) else { return String::new() };
    let (mut head, ()) = request.into_parts();
    head.headers = headers.clone();
    let head = &head;
    let peers = peers_of(&parts.replica).await;
    let fragments = peers.iter().map(|peer| async move {
        let fragment = async {
            let answer = ask(state, peer, head, Bytes::new()).await?;
            read_fragment(answer).await
        };
        timeout(FRAGMENT_TIMEOUT, fragment).await.ok().flatten().unwrap_or_default()
    });
    futures::future::join_all(fragments).await.concat()
}

/// Reads the HTML of an answer. `None` if the replica has none, or more than [`MAX_FRAGMENT`] bytes of it.
async fn read_fragment(answer: Response) -> Option<String> {
    if answer.status() != StatusCode::OK {
        return None;
    }
    let bytes = axum::body::to_bytes(answer.into_body(), MAX_FRAGMENT).await.ok()?;
    String::from_utf8(bytes.to_vec()).ok()
}

/// The middleware of the internal address: marks answers for the replica that asks.
pub(super) async fn mark_answers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if response.extensions().get::<NotHere>().is_some() {
        response.headers_mut().insert(NOT_HERE, HeaderValue::from_static("1"));
    }
    response
}

/// Sends a request to another replica. `None` if it gives no answer.
async fn ask(state: &ServerState, peer: &ReplicaPeer, head: &Parts, body: Bytes) -> Option<Response> {
    let address = peer.address?;
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.ok()?.ok()?;
    let (mut sender, connection) = http1::handshake::<_, Body>(TokioIo::new(stream)).await.ok()?;
    state.scope.spawn(async move {
        // Fails only if the replica disconnects, which the request notices.
        drop(connection.await);
    });
    let path = head.uri.path_and_query()?.as_str();
    let mut request = HttpRequest::builder().method(head.method.clone()).uri(path);
    for name in PASSED_HEADERS {
        for value in head.headers.get_all(&name) {
            request = request.header(&name, value);
        }
    }
    request = request.header(header::HOST, address.to_string()).header(SECRET_HEADER, &peer.secret);
    let mut response = sender.send_request(request.body(Body::from(body)).ok()?).await.ok()?.map(Body::new);
    // These are about the connection to the replica.
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(name);
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fragment_is_read_up_to_the_limit() {
        let read = async |size: usize| read_fragment("x".repeat(size).into_response()).await.map(|html| html.len());
        assert_eq!(read(MAX_FRAGMENT).await, Some(MAX_FRAGMENT));
        assert_eq!(read(MAX_FRAGMENT + 1).await, None);
    }
}
