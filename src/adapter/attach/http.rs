//! Serves a binding over streamable HTTP on this machine. Other users can reach the port, so every request must have
//! the token. Web pages in a browser can reach it too, so every request with an `Origin` header or another `Host` is
//! refused.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Bound};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ACCEPT_RETRY_DELAY;
use super::token::Token;
use crate::adapter::export::BindingServer;
use crate::task::TaskScope;

/// How long a client may take to send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// An offer at an HTTP address of this machine. Dropping it ends the server and every connection to it.
pub struct HttpOffer {
    pub url: String,
    /// The client sends it as `Authorization: Bearer …`.
    pub token: String,
    _ended: DropGuard,
}

type HttpService = StreamableHttpService<BindingServer, LocalSessionManager>;

/// The state that all connections share.
struct HttpServer {
    service: HttpService,
    token: Token,
    ended: CancellationToken,
}

pub(super) fn offer(
    export: BindingServer,
    token: Token,
    ended: CancellationToken,
    scope: &TaskScope,
) -> std::io::Result<HttpOffer> {
    let (listener, address) = listen()?;
    let config = StreamableHttpServerConfig::default()
        .with_cancellation_token(ended.clone())
        .with_allowed_hosts([address.to_string()])
        .enforce_origin_validation();
    let service = StreamableHttpService::new(move || Ok(export.clone()), Arc::default(), config);
    let offer = HttpOffer {
        url: format!("http://{address}/mcp"),
        token: token.text().to_owned(),
        _ended: ended.clone().drop_guard(),
    };
    let server = Arc::new(HttpServer { service, token, ended });
    scope.spawn(accept(listener, server, scope.clone()));
    Ok(offer)
}

fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let bound = Bound::bind((Ipv4Addr::LOCALHOST, 0))?;
    bound.set_nonblocking(true)?;
    let address = bound.local_addr()?;
    Ok((TcpListener::from_std(bound)?, address))
}

async fn accept(listener: TcpListener, server: Arc<HttpServer>, scope: TaskScope) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = server.ended.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) =
            accepted.inspect_err(|error| tracing::warn!(%error, "no program can attach at the moment"))
        else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let server = Arc::clone(&server);
        scope.spawn(async move {
            let ended = server.ended.clone();
            let answering = service_fn(move |request| answer(Arc::clone(&server), request));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            tokio::select! {
                biased;
                () = ended.cancelled() => {}
                // An error here means that the client disconnected, which needs no handling.
                _ = builder.serve_connection(TokioIo::new(stream), answering) => {}
            }
        });
    }
}

async fn answer(
    server: Arc<HttpServer>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if server.token.is(shown) {
        return Ok(server.service.handle(request).await);
    }
    let said = Full::new(Bytes::from_static(b"Unauthorized: show the token as `Authorization: Bearer TOKEN`\n"));
    let mut refusal = Response::new(said.boxed());
    *refusal.status_mut() = StatusCode::UNAUTHORIZED;
    refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Ok(refusal)
}

/// Omits the token, because debug output ends up in logs.
impl std::fmt::Debug for HttpOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpOffer").field("url", &self.url).finish_non_exhaustive()
    }
}
