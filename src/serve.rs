//! Serves clients over HTTP: ACP, MCP, REST, A2A, the console and operations on one port. Each client shows a token, and
//! a browser the cookie of its login.
//!
//! Invariant: no handler runs before `Host`, `Origin`, size, token and limits of a request are checked.

mod a2a;
mod acp_connections;
mod acp_http;
mod acp_websocket;
mod agents;
mod authenticator;
mod checks;
mod client_address;
mod console;
mod event_stream;
mod gateway;
mod hosts;
mod internal;
mod listener;
mod mcp;
mod metrics;
mod oidc;
mod peers;
mod protected_resource;
mod readiness;
mod replica_headers;
mod rest;
mod runs;
mod stall_limit;
mod tls;

pub use client_address::AddressSource;
pub use console::{
    AppGallery, ConsoleHub, GalleryApp, GalleryError, LogEntry, ManifestCheck, ManifestListing, ManifestPath,
    OtherManifest, SaveOutcome, ServerSetup, ServerSetupError, SetupFinding, StoredManifest,
};
pub use hosts::{PublicUrl, PublicUrlError};
pub use internal::ReplicaParts;
pub use mcp::{McpParts, ServiceLoader};
pub use oidc::{IssuerError, JwtError, OidcError, OidcSettings, OidcVerifier, PrincipalMapping};
pub use tls::{TlsError, TlsFiles};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use axum::{Router, middleware};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::acp::{AcpServer, SharedSessions};
use crate::ids::ServiceName;
use crate::principal::SessionGrant;
use crate::project::ProjectLoader;
use crate::session::SessionMetrics;
use crate::store::TokenStore;
use crate::task::{TaskScope, alive_tasks};
use crate::tool::ServiceStatus;
use acp_connections::AcpConnections;
use authenticator::{ActiveToken, Authenticator};
use checks::Refusal;
use console::{LoginTable, MetricHistory};
use hosts::HostFilter;
use listener::Listener;
use mcp::McpEndpoints;
use metrics::ServerMetrics;
use readiness::FolderCheck;
use runs::RunTable;
use tls::TlsSettings;

/// How often the end of the running turns is checked during the shutdown.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// How long connections may take to end after the running turns have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections at once to the address of the metrics.
const MAX_METRICS_CONNECTIONS: usize = 32;
/// The media type of metrics.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    pub listen: SocketAddr,
    /// A second address, which serves only `/metrics`, without a token.
    pub metrics_listen: Option<SocketAddr>,
    pub public_url: Option<PublicUrl>,
    /// Where the addresses of clients come from, for failed logins.
    pub client_addresses: AddressSource,
    pub tls: Option<TlsFiles>,
    /// How long running turns may take at the shutdown.
    pub drain: Duration,
    /// How long an ACP connection or an MCP session may be without a stream and a request.
    pub idle: Duration,
    /// Maximum number of connections at once, and of ACP connections over HTTP.
    pub connections: usize,
}

/// What the server offers.
pub struct ServeParts {
    pub tokens: TokenStore,
    /// Verifies JWTs. `None`: they are not accepted.
    pub oidc: Option<OidcVerifier>,
    /// Makes the ACP server of a client from its grant. The token is cancelled when the server shuts down.
    pub acp: Box<dyn Fn(SessionGrant, CancellationToken) -> AcpServer + Send + Sync>,
    pub mcp: McpParts,
    pub projects: Arc<dyn ProjectLoader>,
    /// The sessions that the ACP servers share.
    pub open_sessions: Arc<SharedSessions>,
    /// Observes these sessions for the console.
    pub console: Arc<ConsoleHub>,
    /// The apps that the console shows.
    pub apps: Box<dyn AppGallery>,
    /// What administrators read and change in the console.
    pub setup: Arc<dyn ServerSetup>,
    /// The folder of new sessions of `local` in the console.
    pub folder: PathBuf,
    /// An empty folder, for requests that name none with a token that has none.
    pub empty_folder: PathBuf,
    pub sessions: Arc<SessionMetrics>,
    /// The place among the replicas of a shared store. `None` if the store is not shared.
    pub replica: Option<ReplicaParts>,
    /// Returns the number of services in each state.
    pub services: Box<dyn Fn() -> Vec<(&'static str, usize)> + Send + Sync>,
    /// Returns the state of each service that was started.
    pub pool_status: Box<dyn Fn() -> Vec<(ServiceName, ServiceStatus)> + Send + Sync>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// The state that all handlers share.
struct ServerState {
    parts: ServeParts,
    hosts: HostFilter,
    authenticator: Authenticator,
    acp: AcpConnections,
    mcp: McpEndpoints,
    runs: RunTable,
    /// The check of the shared folder, for `/readyz`.
    folder_check: FolderCheck,
    /// The logins of the console.
    logins: LoginTable,
    /// The one place for an evaluation of the router, which keeps a core busy.
    evaluation: Arc<Semaphore>,
    client_addresses: AddressSource,
    /// Whether browsers reach the server with TLS, so that cookies are never sent without it.
    has_tls: bool,
    metrics: Arc<ServerMetrics>,
    /// The metrics of the last hour, for the console.
    history: MetricHistory,
    /// `http` or `https`, as the listener speaks it.
    scheme: &'static str,
    idle: Duration,
    /// Cancelled when the shutdown begins: no new turn starts.
    draining: CancellationToken,
    /// Cancelled when connections must end.
    closing: CancellationToken,
    /// Runs the connections of clients.
    scope: TaskScope,
}

impl ServerState {
    /// Returns the ACP server for a client with this token.
    fn acp_server(&self, token: &ActiveToken) -> AcpServer {
        (self.parts.acp)(token.grant.clone(), self.draining.clone())
    }
}

/// A server that listens.
pub struct HttpFrontEnd {
    settings: ServeSettings,
    state: Arc<ServerState>,
    tls: Option<TlsSettings>,
    main: TcpListener,
    metrics: Option<TcpListener>,
    /// Listens for other replicas.
    internal: Option<TcpListener>,
}

impl HttpFrontEnd {
    /// Listens on the addresses of the settings. `socket` already listens on the main one, if another program opened
    /// it. Fails if an address cannot be used, or the certificate does not work.
    pub async fn bind(
        settings: ServeSettings,
        socket: Option<std::net::TcpListener>,
        mut parts: ServeParts,
    ) -> Result<Self, ServeError> {
        let tls = settings.tls.clone().map(TlsSettings::load).transpose()?;
        let main = match socket {
            Some(socket) => adopt(socket, settings.listen)?,
            None => listen(settings.listen).await?,
        };
        let metrics = match settings.metrics_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let internal = parts.replica.as_mut().and_then(|replica| replica.listener.take());
        let internal = match internal {
            Some(socket) => {
                let address = socket.local_addr().unwrap_or(settings.listen);
                Some(adopt(socket, address)?)
            }
            None => None,
        };
        let state = Arc::new(ServerState {
            authenticator: Authenticator::new(parts.tokens.clone(), parts.oidc.take()),
            parts,
            hosts: HostFilter { public: settings.public_url.clone() },
            acp: AcpConnections::new(settings.connections),
            mcp: McpEndpoints::default(),
            runs: RunTable::default(),
            folder_check: FolderCheck::default(),
            logins: LoginTable::default(),
            evaluation: Arc::new(Semaphore::new(1)),
            client_addresses: settings.client_addresses,
            has_tls: settings.tls.is_some() || settings.public_url.as_ref().is_some_and(PublicUrl::is_https),
            metrics: Arc::default(),
            history: MetricHistory::default(),
            scheme: if tls.is_some() { "https" } else { "http" },
            idle: settings.idle,
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            scope: TaskScope::new(),
        });
        Ok(Self { settings, state, tls, main, metrics, internal })
    }

    /// Returns the address on which the server listens, with its real port.
    pub fn address(&self) -> Option<SocketAddr> {
        self.main.local_addr().ok()
    }

    /// Returns a code with which one browser can log in to the console as `local`, once and within 60 seconds. Fails if
    /// the system gives no random numbers.
    pub fn create_login_code(&self) -> Result<String, ServeError> {
        Ok(self.state.logins.create_code(std::time::Instant::now())?)
    }

    /// Returns the address of the metrics. `None` if only the main address has them.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves clients until `stop` is cancelled. Then lets running turns end, interrupts those that take too long, and
    /// closes all connections.
    pub async fn run(self, stop: CancellationToken) {
        let Self { settings, state, tls, main, metrics, internal } = self;
        let (accepting, background) = (TaskScope::new(), TaskScope::new());
        let listener = |socket, router, places| Listener {
            socket,
            tls: tls.clone(),
            router,
            metrics: Arc::clone(&state.metrics),
            places: Arc::new(Semaphore::new(places)),
        };
        accepting.spawn(listener(main, router(&state), settings.connections).run(accepting.clone()));
        if let Some(metrics) = metrics {
            // Clients must not take the places of the monitoring.
            let listener = listener(metrics, metrics_router(&state), MAX_METRICS_CONNECTIONS);
            accepting.spawn(listener.run(accepting.clone()));
        }
        if let Some(socket) = internal {
            let (router, metrics) = (internal::router(&state), Arc::clone(&state.metrics));
            // Clients must not take the places of replicas: these pass on the clients of others.
            let places = Arc::new(Semaphore::new(settings.connections));
            accepting.spawn(Listener { socket, tls: None, router, metrics, places }.run(accepting.clone()));
        }
        let (watched, cancelled) = (Arc::clone(&state), background.cancelled().clone());
        background.spawn(async move {
            let watch_tls = async {
                if let Some(tls) = tls {
                    tls.watch(&cancelled).await;
                }
            };
            let keep_place = async {
                if let Some(parts) = &watched.parts.replica {
                    parts.replica.run(&cancelled).await;
                }
            };
            tokio::join!(
                keep_place,
                watched.authenticator.watch(&cancelled),
                watched.acp.sweep(watched.idle, &cancelled),
                console::sweep(&watched, &cancelled),
                console::watch_logins(&watched, &cancelled),
                console::sample(&watched, &cancelled),
                watch_tls
            );
        });
        stop.cancelled().await;
        state.draining.cancel();
        tracing::info!(turns = state.parts.sessions.running_turns(), "the server shuts down");
        drain(&state.parts.sessions, settings.drain).await;
        drop(tokio::time::timeout(CLOSE_TIMEOUT, state.parts.open_sessions.interrupt_all()).await);
        // The answers to interrupted prompts are on their way to the clients.
        sleep(DRAIN_POLL).await;
        state.closing.cancel();
        state.acp.end_all();
        drop(tokio::time::timeout(settings.drain.min(CLOSE_TIMEOUT) + CLOSE_TIMEOUT, state.scope.stop()).await);
        background.stop().await;
        accepting.stop().await;
        if let Some(parts) = &state.parts.replica {
            parts.replica.leave().await;
        }
    }
}

/// Waits until no turn is running, for at most `limit`.
async fn drain(sessions: &SessionMetrics, limit: Duration) {
    let deadline = Instant::now() + limit;
    while sessions.running_turns() > 0 && Instant::now() < deadline {
        sleep(DRAIN_POLL).await;
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

/// Takes over a socket that listens already.
fn adopt(socket: std::net::TcpListener, address: SocketAddr) -> Result<TcpListener, ServeError> {
    let adopted = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
    adopted.map_err(|source| ServeError::Listen { address, source })
}

fn router(state: &Arc<ServerState>) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness::answer))
        .route("/metrics", get(report))
        .route("/agents", get(agents::list))
        .route("/acp", any(acp_http::answer))
        .route("/mcp/{*path}", any(mcp::answer))
        .route("/.well-known/oauth-protected-resource", get(protected_resource::show))
        .route("/.well-known/oauth-protected-resource/{*resource}", get(protected_resource::show))
        .route("/", get(console::lead_to_console))
        .merge(
            rest::routes()
                .merge(a2a::routes())
                .layer(middleware::from_fn_with_state(Arc::clone(state), peers::ask_others)),
        )
        .merge(console::routes(state))
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "there is nothing here\n"))
        .layer(middleware::from_fn_with_state(Arc::clone(state), checks::check))
        .with_state(Arc::clone(state))
}

/// Serves only the metrics, without a token.
fn metrics_router(state: &Arc<ServerState>) -> Router {
    Router::new()
        .route("/metrics", get(report))
        .layer(middleware::from_fn_with_state(Arc::clone(state), checks::check_host))
        .with_state(Arc::clone(state))
}

async fn health() -> &'static str {
    "ok\n"
}

async fn report(State(state): State<Arc<ServerState>>) -> Response {
    let text = state.metrics.render(&state.parts.sessions, &(state.parts.services)(), alive_tasks());
    ([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response()
}

impl std::fmt::Debug for HttpFrontEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpFrontEnd").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ServeParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeParts").field("empty_folder", &self.empty_folder).finish_non_exhaustive()
    }
}
