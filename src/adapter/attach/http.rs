//! Serves a binding over streamable HTTP on this machine. Other users can reach the port, so every request must have
//! the token. Web pages in a browser can reach it too, so every request with an `Origin` header or another `Host` is
//! refused.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Bound};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// One server for all offers of this process. Each request shows the token of its offer.
pub(super) struct HttpServer {
    address: SocketAddr,
    offers: Mutex<Vec<PublishedOffer>>,
    scope: TaskScope,
}

#[derive(Clone)]
struct PublishedOffer {
    service: HttpService,
    token: Token,
    ended: CancellationToken,
}

impl HttpServer {
    /// Listens on a free port. Ends with `scope`.
    pub(super) fn start(scope: &TaskScope) -> std::io::Result<Arc<Self>> {
        let (listener, address) = listen()?;
        let server = Arc::new(Self { address, offers: Mutex::default(), scope: scope.clone() });
        scope.spawn(accept(listener, Arc::clone(&server)));
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn offer(&self, export: BindingServer, token: Token, ended: CancellationToken) -> HttpOffer {
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(ended.clone())
            .with_allowed_hosts([self.address.to_string()])
            .enforce_origin_validation();
        let service = StreamableHttpService::new(move || Ok(export.clone()), Arc::default(), config);
        let offer = HttpOffer {
            url: format!("http://{}/mcp", self.address),
            token: token.text().to_owned(),
            _ended: ended.clone().drop_guard(),
        };
        let mut offers = self.offers();
        offers.retain(|offer| !offer.ended.is_cancelled());
        offers.push(PublishedOffer { service, token, ended });
        offer
    }

    /// Returns the offer with this token. Compares every offer, so that the timing reveals nothing.
    fn find(&self, shown: &[u8]) -> Option<PublishedOffer> {
        let offers = self.offers();
        let mut found = None;
        for offer in offers.iter().filter(|offer| offer.token.is(shown) && !offer.ended.is_cancelled()) {
            found = Some(offer.clone());
        }
        found
    }

    fn offers(&self) -> MutexGuard<'_, Vec<PublishedOffer>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connection with the first of its offers that ends, because a client may use one connection for several.
#[derive(Default)]
struct ConnectionEnd {
    ended: CancellationToken,
    used: Mutex<Vec<CancellationToken>>,
}

impl ConnectionEnd {
    /// Registers an offer that the connection uses.
    fn follow(self: &Arc<Self>, offer: &CancellationToken, scope: &TaskScope) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.contains(offer) {
            return;
        }
        used.push(offer.clone());
        let (offer, connection) = (offer.clone(), self.ended.clone());
        scope.spawn(async move {
            tokio::select! {
                () = offer.cancelled() => connection.cancel(),
                () = connection.cancelled() => {}
            }
        });
    }
}

fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let bound = Bound::bind((Ipv4Addr::LOCALHOST, 0))?;
    bound.set_nonblocking(true)?;
    let address = bound.local_addr()?;
    Ok((TcpListener::from_std(bound)?, address))
}

async fn accept(listener: TcpListener, server: Arc<HttpServer>) {
    let scope = server.scope.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            () = scope.cancelled().cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) =
            accepted.inspect_err(|error| tracing::warn!(%error, "no program can attach at the moment"))
        else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let (server, end, ending) =
            (Arc::clone(&server), Arc::new(ConnectionEnd::default()), scope.cancelled().clone());
        scope.spawn(async move {
            let ended = end.ended.clone();
            let _guard = ended.clone().drop_guard();
            let answering = service_fn(move |request| answer(Arc::clone(&server), Arc::clone(&end), request));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            tokio::select! {
                biased;
                () = ending.cancelled() => {}
                () = ended.cancelled() => {}
                // An error here means that the client disconnected, which needs no handling.
                _ = builder.serve_connection(TokioIo::new(stream), answering) => {}
            }
        });
    }
}

async fn answer(
    server: Arc<HttpServer>,
    end: Arc<ConnectionEnd>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if let Some(PublishedOffer { service, ended, .. }) = server.find(shown) {
        end.follow(&ended, &server.scope);
        return Ok(service.handle(request).await);
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
