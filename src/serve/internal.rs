//! Serves other replicas on a separate address: the ACP connections that they make for their clients, and requests about
//! runs, tasks and open questions.
//!
//! Invariant: a request without the secret of this replica gets 401 before anything else is checked. With it, the token of
//! the client is checked as on the main address.

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;

use super::checks::{self, Arrival, Refusal};
use super::replica_headers::SECRET_HEADER;
use super::{ServerState, a2a, acp_http, console, peers, rest};
use crate::store::{ListenHub, Replica};

/// The place of the server among the replicas of its store.
pub struct ReplicaParts {
    pub replica: Replica,
    /// Notifies of events that other replicas write.
    pub hub: ListenHub,
    /// Listens on the address that other replicas use. `None`: they cannot reach this one.
    pub listener: Option<TcpListener>,
}

impl std::fmt::Debug for ReplicaParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicaParts").field("replica", &self.replica.id()).finish_non_exhaustive()
    }
}

pub(super) fn router(state: &Arc<ServerState>) -> Router {
    Router::new()
        .route("/acp", any(acp_http::answer))
        .merge(rest::routes())
        .merge(a2a::routes())
        .merge(console::replica_routes(state))
        .layer(middleware::from_fn(peers::mark_answers))
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "there is nothing here\n"))
        .layer(middleware::from_fn_with_state(Arc::clone(state), checks::check))
        // The last layer runs first.
        .layer(middleware::from_fn_with_state(Arc::clone(state), check_secret))
        .with_state(Arc::clone(state))
}

async fn check_secret(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let secret = request.headers().get(SECRET_HEADER).and_then(|value| value.to_str().ok());
    let is_replica = state.parts.replica.as_ref().is_some_and(|parts| {
        let admits = |secret: &str| parts.replica.admits(secret);
        secret.is_some_and(admits)
    });
    if is_replica {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<Arrival>().map(|arrival| arrival.peer.to_string());
    tracing::warn!(peer, "a request to the internal address has a wrong secret");
    Refusal::new(StatusCode::UNAUTHORIZED, "the secret of this replica is required\n").into_response()
}
