//! Checks every request before its handler: `Host`, `Origin`, size, token, limits, in this order. Writes the access
//! log.
//!
//! Invariant: a request that fails a check reaches no handler, and its answer does not depend on what exists. The
//! access log has no token, query or body.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;

use super::ServerState;
use super::metrics::{ConnectionGauge, ConnectionKind};
use super::protected_resource;

/// Maximum size of a request body and of a WebSocket message, in bytes.
pub(super) const MAX_BODY: usize = 16 << 20;

/// How long the next part of a body may take to arrive.
const PART_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the rest of a body that is too large is read.
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// Says that the process runs. Also answered without a free place: a server with many clients must not be restarted.
const HEALTH_PATH: &str = "/healthz";
/// Paths that need no token. `/` leads to the console.
const PUBLIC_PATHS: [&str; 4] = ["/", HEALTH_PATH, "/readyz", "/.well-known/agent-card.json"];
/// The path of the console, which checks the cookie of its login instead of a token.
const CONSOLE: &str = "/console";
/// The answer to every request without a valid token, for any reason.
const UNAUTHORIZED: &str = "a valid token is required: send it as `Authorization: Bearer TOKEN`\n";

/// How a request reached the server. The listener adds it to each request.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    /// The address on which the connection arrived.
    pub(super) local: SocketAddr,
    /// The address from which it came.
    pub(super) peer: IpAddr,
    /// Whether the server has a free place for the connection.
    pub(super) capacity: Capacity,
}

/// Whether a connection is within the maximum number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capacity {
    Free,
    Exhausted,
}

/// A request that was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    text: String,
    retry_after: Option<u64>,
    /// For a 401: where the client learns which issuer gives JWTs.
    metadata_url: Option<String>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry_after: None, metadata_url: None }
    }

    /// Returns the refusal of a request without a valid token.
    fn no_token(state: &ServerState, request: &Request) -> Self {
        let metadata_url = protected_resource::metadata_url(state, request);
        Self { metadata_url, ..Self::new(StatusCode::UNAUTHORIZED, UNAUTHORIZED) }
    }

    /// Returns the refusal of a body that takes too long to arrive.
    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive\n")
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Adds the seconds after which the client may try again.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds.max(1)), ..self }
    }

    /// Returns the refusal of a body with more than `limit` bytes.
    pub(super) fn too_large(limit: usize) -> Self {
        let limit = if limit < 1 << 20 { format!("{} KiB", limit >> 10) } else { format!("{} MiB", limit >> 20) };
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit}\n"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let plain = HeaderValue::from_static("Bearer realm=\"skein\"");
            let named = self.metadata_url.map(|url| format!("Bearer realm=\"skein\", resource_metadata=\"{url}\""));
            let challenge = named.and_then(|text| HeaderValue::from_str(&text).ok()).unwrap_or(plain);
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The middleware around all handlers.
pub(super) async fn check(State(state): State<Arc<ServerState>>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let _open = ConnectionGauge::new(&state.metrics, ConnectionKind::Request);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let checked = admit(&state, &mut request).await;
    let principal = checked.as_ref().ok().cloned().flatten();
    let response = match checked {
        Ok(_) => next.run(request).await,
        Err(refusal) => {
            if refusal.status == StatusCode::PAYLOAD_TOO_LARGE && !request.headers().contains_key(header::EXPECT) {
                discard(request.into_body()).await;
            }
            refusal.into_response()
        }
    };
    let status = response.status();
    state.metrics.count_request(status);
    let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(%method, path, status = status.as_u16(), millis, principal, "request");
    response
}

/// The middleware around handlers that need no token.
pub(super) async fn check_host(State(state): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    match check_source(&state, &request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Checks `Host`, `Origin` and size of a request, and whether the server has room for it.
fn check_source(state: &ServerState, request: &Request) -> Result<(), Refusal> {
    let arrival = request.extensions().get::<Arrival>();
    let arrival = arrival.ok_or_else(|| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "unknown connection\n"))?;
    if !state.hosts.admits(request, arrival.local) {
        let text = "this `Host` or `Origin` is not served here; see --public-url\n";
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    if content_length(request).is_some_and(|length| length > MAX_BODY as u64) {
        return Err(Refusal::too_large(MAX_BODY));
    }
    if arrival.capacity == Capacity::Exhausted && request.uri().path() != HEALTH_PATH {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections\n").retry_after(5));
    }
    Ok(())
}

/// Checks a request and adds its token to it. Returns the name of the principal. `None` on a public path.
async fn admit(state: &ServerState, request: &mut Request) -> Result<Option<String>, Refusal> {
    check_source(state, request)?;
    let path = request.uri().path();
    let is_console = path == CONSOLE || path.starts_with("/console/");
    if PUBLIC_PATHS.contains(&path) || is_console || protected_resource::is_document(path) {
        return Ok(None);
    }
    let resource = protected_resource::resource_url(state, request);
    let token = state.authenticator.authenticate(request.headers(), resource.as_deref()).await.map_err(|error| {
        tracing::error!(%error, "tokens cannot be verified");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.text()).retry_after(5)
    })?;
    let token = token.ok_or_else(|| Refusal::no_token(state, request))?;
    if let Err(wait) = token.grant.count_request(Instant::now()) {
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "the token has made too many requests\n");
        return Err(refusal.retry_after(wait.as_secs() + 1));
    }
    let principal = token.grant.principal().name().to_owned();
    request.extensions_mut().insert(token);
    Ok(Some(principal))
}

fn content_length(request: &Request) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a whole body. Fails if it is larger than [`MAX_BODY`], a part of it takes too long, or the client disconnects.
pub(super) async fn read_body(body: Body) -> Result<Vec<u8>, Refusal> {
    read_within(body, MAX_BODY).await
}

/// Reads a whole body. Fails if it is larger than `limit`, a part of it takes too long, or the client disconnects.
pub(super) async fn read_within(mut body: Body, limit: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    loop {
        let next = tokio::time::timeout(PART_TIMEOUT, body.frame()).await;
        let Some(frame) = next.map_err(|_| Refusal::too_slow())? else { return Ok(bytes) };
        let frame = frame.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the body ended early\n"))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > limit {
            discard(body).await;
            return Err(Refusal::too_large(limit));
        }
        bytes.extend_from_slice(data);
    }
}

/// Reads what the client still sends, for a moment. Closing a connection with unread data would reset it before the
/// client has read the answer.
async fn discard(mut body: Body) {
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    drop(tokio::time::timeout(DISCARD_TIME, reading).await);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use futures::{StreamExt as _, stream};

    use super::*;

    /// A body of this many parts, with a pause before each. Then nothing more arrives.
    fn slow_body(parts: usize, pause: Duration) -> Body {
        let parts = stream::iter(0..parts).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Bytes::from_static(b"part"))
        });
        Body::from_stream(parts.chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_takes_too_long_is_refused() {
        let begun = tokio::time::Instant::now();
        let refusal = read_body(slow_body(3, PART_TIMEOUT / 2)).await.unwrap_err();
        assert_eq!(refusal.status(), StatusCode::REQUEST_TIMEOUT);
        let took = begun.elapsed();
        assert!(took >= PART_TIMEOUT * 5 / 2 && took < PART_TIMEOUT * 3, "each part has its time: {took:?}");
    }
}
