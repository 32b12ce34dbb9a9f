//! Serves a binding over streamable HTTP on this machine. Other users can reach the port, so every request must have
//! the token. Web pages in a browser can reach it too, so every request with an `Origin` header or another `Host` is
//! refused.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Bound};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::token::Token;
use super::{ACCEPT_RETRY_DELAY, MAX_UNKNOWN};
use crate::adapter::export::BindingServer;
use crate::task::TaskScope;

/// Maximum number of sessions of an offer. rmcp ends one that is unused for some minutes.
const MAX_SESSIONS: usize = 256;
/// Maximum number of connections that use an offer.
const MAX_CONNECTIONS: usize = 128;

/// Path of the server. The path of an offer for one client ends with its token.
const PATH: &str = "/mcp";

/// Header of a request that belongs to a session of MCP.
const SESSION_HEADER: &str = "mcp-session-id";
/// Header with the method of a request, in versions of MCP without sessions.
const METHOD_HEADER: &str = "mcp-method";

/// The answer to a request of a version without sessions.
const NO_SESSION: &str = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32601,\"message\":\"this server has sessions; \
                          begin one with initialize\"}}";

/// How long a client may take to send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// An offer at an HTTP address of this machine. Dropping it ends the server and every connection to it.
pub struct HttpOffer {
    pub url: String,
    /// The client sends it as `Authorization: Bearer …`, unless the URL contains it.
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
    sessions: Arc<LocalSessionManager>,
    /// Places for connections.
    connections: Arc<Semaphore>,
    token: Token,
    ended: CancellationToken,
    uses: OfferUses,
}

/// How clients show the token of an offer, and how many may use it.
#[derive(Clone)]
enum OfferUses {
    /// Any number of clients, with the token in a header.
    Unlimited,
    /// One client, with the token in the URL.
    Once(Arc<SingleUse>),
}

/// The one client of an offer.
#[derive(Default)]
struct SingleUse {
    /// True once a client has shown the token.
    used: AtomicBool,
    /// The session of that client, which only it knows. Empty until the server has begun it.
    session: OnceLock<HeaderValue>,
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

    /// Offers a binding to clients that show the token in a header.
    pub(super) fn offer(&self, export: BindingServer, token: Token, ended: CancellationToken) -> HttpOffer {
        let url = format!("http://{}{PATH}", self.address);
        self.publish(export, token, ended, url, OfferUses::Unlimited)
    }

    /// Offers a binding to one client, at a URL with the token.
    pub(super) fn offer_once(&self, export: BindingServer, token: Token, ended: CancellationToken) -> HttpOffer {
        let url = format!("http://{}{PATH}/{}", self.address, token.text());
        self.publish(export, token, ended, url, OfferUses::Once(Arc::default()))
    }

    fn publish(
        &self,
        export: BindingServer,
        token: Token,
        ended: CancellationToken,
        url: String,
        uses: OfferUses,
    ) -> HttpOffer {
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(ended.clone())
            .with_allowed_hosts([self.address.to_string()])
            .enforce_origin_validation();
        let sessions = Arc::new(LocalSessionManager::default());
        let service = StreamableHttpService::new(move || Ok(export.clone()), Arc::clone(&sessions), config);
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let offer = HttpOffer { url, token: token.text().to_owned(), _ended: ended.clone().drop_guard() };
        let mut offers = self.offers();
        offers.retain(|offer| !offer.ended.is_cancelled());
        offers.push(PublishedOffer { service, sessions, connections, token, ended, uses });
        offer
    }

    /// Returns the offer whose token a request shows. Compares every offer, so that the timing reveals nothing.
    fn find(&self, request: &Request<Incoming>) -> Option<PublishedOffer> {
        let in_header = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let in_header = in_header.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        let in_path = request.uri().path().strip_prefix(PATH).and_then(|rest| rest.strip_prefix('/'));
        let in_path = in_path.unwrap_or_default().as_bytes();
        let offers = self.offers();
        let mut found = None;
        for offer in offers.iter() {
            let shown = match offer.uses {
                OfferUses::Unlimited => in_header,
                OfferUses::Once(_) => in_path,
            };
            if offer.token.is(shown) && !offer.ended.is_cancelled() {
                found = Some(offer.clone());
            }
        }
        found
    }

    fn offers(&self) -> MutexGuard<'_, Vec<PublishedOffer>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connection with the first of its offers that ends, because a client may use one connection for several.
struct ConnectionEnd {
    ended: CancellationToken,
    used: Mutex<Vec<UsedOffer>>,
    /// The place among the connections that use no offer. `None` for one that does.
    unknown: Mutex<Option<OwnedSemaphorePermit>>,
}

/// An offer that a connection uses.
struct UsedOffer {
    ended: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl ConnectionEnd {
    fn new(unknown: OwnedSemaphorePermit) -> Self {
        Self { ended: CancellationToken::new(), used: Mutex::default(), unknown: Mutex::new(Some(unknown)) }
    }

    /// Registers an offer that the connection uses. Returns false if too many connections use it.
    fn follow(self: &Arc<Self>, offer: &PublishedOffer, scope: &TaskScope) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.iter().any(|used| used.ended == offer.ended) {
            return true;
        }
        let Ok(place) = Arc::clone(&offer.connections).try_acquire_owned() else { return false };
        used.push(UsedOffer { ended: offer.ended.clone(), _place: place });
        drop(self.unknown.lock().unwrap_or_else(PoisonError::into_inner).take());
        let (offer, connection) = (offer.ended.clone(), self.ended.clone());
        scope.spawn(async move {
            tokio::select! {
                () = offer.cancelled() => connection.cancel(),
                () = connection.cancelled() => {}
            }
        });
        true
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
    let unknown = Arc::new(Semaphore::new(MAX_UNKNOWN));
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
        // Closes a connection over the limit.
        let Ok(place) = Arc::clone(&unknown).try_acquire_owned() else { continue };
        let (server, end, ending) =
            (Arc::clone(&server), Arc::new(ConnectionEnd::new(place)), scope.cancelled().clone());
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
) -> Result<HttpAnswer, Infallible> {
    let Some(offer) = server.find(&request) else {
        let said = "Unauthorized: show the token as `Authorization: Bearer TOKEN`, or use the whole URL\n";
        let mut refusal = refuse(StatusCode::UNAUTHORIZED, said);
        refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(refusal);
    };
    if !end.follow(&offer, &server.scope) {
        let mut refusal = refuse(StatusCode::SERVICE_UNAVAILABLE, "too many connections use this token\n");
        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Ok(refusal);
    }
    let PublishedOffer { service, sessions, uses, .. } = offer;
    let OfferUses::Once(single) = uses else {
        if begins_session(&request) && sessions.sessions.read().await.len() >= MAX_SESSIONS {
            return Ok(refuse(StatusCode::SERVICE_UNAVAILABLE, "too many sessions use this token: end one of them\n"));
        }
        return Ok(service.handle(request).await);
    };
    if let Some(refusal) = single.refusal(&request) {
        return Ok(refusal);
    }
    let answer = service.handle(request).await;
    if let Some(session) = answer.headers().get(SESSION_HEADER) {
        // The first answer names the session, and later ones repeat it.
        single.session.get_or_init(|| session.clone());
    }
    Ok(answer)
}

/// Returns whether a request is one of a version with sessions, and belongs to none yet.
fn begins_session(request: &Request<Incoming>) -> bool {
    let method = request.headers().get(METHOD_HEADER).map(HeaderValue::as_bytes);
    let has_session = request.headers().contains_key(SESSION_HEADER);
    request.method() == Method::POST && !has_session && method.is_none_or(|method| method == b"initialize")
}

type HttpAnswer = Response<BoxBody<Bytes, Infallible>>;

impl SingleUse {
    /// Admits the request that begins a session, once, and the requests of that session. Versions of MCP without
    /// sessions are refused, because each of their requests could be from another client. Returns `None` if it
    /// admits the request.
    fn refusal(&self, request: &Request<Incoming>) -> Option<HttpAnswer> {
        let used = "Unauthorized: the token was used already, and it is good once\n";
        if let Some(session) = request.headers().get(SESSION_HEADER) {
            let is_same = self.session.get() == Some(session);
            return (!is_same).then(|| refuse(StatusCode::UNAUTHORIZED, used));
        }
        let method = request.headers().get(METHOD_HEADER).map(HeaderValue::as_bytes);
        if method.is_some_and(|method| method != b"initialize") {
            // A client that asks for versions reads this as the answer of a server that has only older ones.
            let mut refusal = refuse(StatusCode::BAD_REQUEST, NO_SESSION);
            refusal.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return Some(refusal);
        }
        if request.method() == Method::POST && !self.used.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(refuse(StatusCode::UNAUTHORIZED, used))
    }
}

fn refuse(status: StatusCode, said: &'static str) -> HttpAnswer {
    let mut refusal = Response::new(Full::new(Bytes::from_static(said.as_bytes())).boxed());
    *refusal.status_mut() = status;
    refusal
}

/// Omits the token, because debug output ends up in logs.
impl std::fmt::Debug for HttpOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpOffer").field("url", &self.url.replace(&self.token, "…")).finish_non_exhaustive()
    }
}
