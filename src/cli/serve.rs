//! `skein serve`: serves clients over HTTP, each with a token.

mod oidc_settings;
mod replica_flags;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::agent_flags::AgentFlags;
use super::app_gallery::StoredApps;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::reload::{self, ReloadTriggers};
use super::runtime::{self, CommandRuntime, StopSignals, WorkerThreads};
use super::server_setup::LocalSetup;
use super::store_failure::store_failure;
use super::store_flag::StoreFlag;
use super::workspace_loader::WorkspaceLoader;
use super::{Global, SandboxFlag, private_files, retention};
use crate::acp::{AcpServer, SessionObserver, SharedSessions};
use crate::agents::TurnLimits;
use crate::graph::Plan;
use crate::lesson::CheckVariables;
use crate::manifest::{DurationError, ManifestDuration};
use crate::orchestrator::Orchestrator;
use crate::principal::{Principal, SessionGrant};
use crate::process;
use crate::project::ProjectLoader;
use crate::serve::{
    AddressSource, ConsoleHub, HttpFrontEnd, McpParts, OidcVerifier, PublicUrl, ServeError, ServeParts, ServeSettings,
    TlsFiles,
};
use crate::services::Pool;
use crate::session::{SessionMetrics, Sessions};
use crate::store::StorePlace;
use crate::task::TaskScope;
use crate::tool::ServiceHealth;
use replica_flags::{ReplicaFlags, ReplicaLaunch};

/// Time for connections to end after `--drain`.
const END_TIME: Duration = Duration::from_secs(20);

/// The value of `--listen` for a socket that systemd passes.
const SYSTEMD: &str = "systemd";

/// How long a question of a turn without a connection waits for one.
const ASK_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How often the server looks for sessions that have left.
const MEMORY_INTERVAL: Duration = Duration::from_secs(2);
const MANY_SESSIONS: u64 = 500;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    speaker: AgentFlags,
    /// Listen on this address
    ///
    /// `systemd` means the socket that a systemd socket unit passes.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4780")]
    listen: String,
    /// Serve metrics on this address too, without a token
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Accept requests for this address, as https://HOST
    #[arg(long, value_name = "URL")]
    public_url: Option<PublicUrl>,
    /// Listen outside loopback without TLS, behind a proxy
    ///
    /// The proxy must speak TLS with clients, and add their addresses to X-Forwarded-For. Failed logins count by these
    /// addresses. Needs --public-url.
    #[arg(long, requires = "public_url")]
    behind_proxy: bool,
    /// Use the certificate chain in this PEM file
    ///
    /// Skein loads it again when the file changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Use the private key in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let running turns end for this long at the shutdown
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    drain: Duration,
    /// Remove connections and MCP sessions unused for this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    idle: Duration,
    /// Allow this many connections at once
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    connections: u32,
    /// Accept JWTs of this OpenID Connect issuer too
    ///
    /// `serve.principals` in your config.yaml maps their claims to principals and limits.
    #[arg(long, value_name = "URL", requires = "oidc_audience")]
    oidc_issuer: Option<String>,
    /// Accept only JWTs for this audience
    #[arg(long, value_name = "AUDIENCE", requires = "oidc_issuer")]
    oidc_audience: Option<String>,
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    replica: ReplicaFlags,
    /// Offer the unstable session/fork method
    #[arg(long)]
    unstable_fork: bool,
}

fn parse_time(text: &str) -> Result<Duration, DurationError> {
    ManifestDuration::try_from(text.to_owned()).map(ManifestDuration::duration)
}

impl ServeArgs {
    /// Checks the flags. Returns the settings, and the socket if systemd passes one. Fails if an address cannot be
    /// used.
    fn settings(&self) -> Result<(ServeSettings, Option<TcpListener>), CommandError> {
        let (listen, socket) = match self.listen.as_str() {
            SYSTEMD => self.systemd_socket().map(|(address, socket)| (address, Some(socket)))?,
            text => (self.address("--listen", text)?, None),
        };
        let metrics = self.metrics_listen.as_deref().map(|text| self.address("--metrics-listen", text)).transpose()?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }),
            _ => None,
        };
        let settings = ServeSettings {
            listen,
            metrics_listen: metrics,
            public_url: self.public_url.clone(),
            client_addresses: if self.behind_proxy { AddressSource::ProxyHeader } else { AddressSource::Connection },
            tls,
            drain: self.drain,
            idle: self.idle,
            connections: usize::try_from(self.connections).unwrap_or(usize::MAX),
        };
        Ok((settings, socket))
    }

    /// Takes the socket that systemd passes. Fails if there is none, or others could read the traffic on it.
    fn systemd_socket(&self) -> Result<(SocketAddr, TcpListener), CommandError> {
        let unusable = |problem: String| {
            CommandError::usage(problem, "start Skein with a socket unit of systemd, or write --listen HOST:PORT")
        };
        let passed = listenfd::ListenFd::from_env().take_tcp_listener(0);
        let passed = passed.map_err(|error| unusable(format!("the socket of systemd cannot be used: {error}")))?;
        let socket = passed.ok_or_else(|| unusable("systemd has passed no socket".to_owned()))?;
        let address = socket.local_addr().map_err(|error| unusable(format!("the socket has no address: {error}")))?;
        self.check_privacy("--listen", address)?;
        Ok((address, socket))
    }

    /// Reads an address. Fails if others could read the traffic on it.
    fn address(&self, flag: &str, text: &str) -> Result<SocketAddr, CommandError> {
        let address = text.to_socket_addrs().ok().and_then(|mut found| found.next());
        let address = address.ok_or_else(|| {
            let problem = format!("`{}` is not an address that {flag} can use", display_line(text));
            CommandError::usage(problem, "write it as HOST:PORT, as in 127.0.0.1:4780")
        })?;
        self.check_privacy(flag, address)?;
        Ok(address)
    }

    /// Fails if others could read the traffic on an address.
    fn check_privacy(&self, flag: &str, address: SocketAddr) -> Result<(), CommandError> {
        if address.ip().is_loopback() || self.tls_cert.is_some() || self.behind_proxy {
            return Ok(());
        }
        let problem = format!("{flag} {address} is outside loopback, where others can read tokens without TLS");
        let help = "add --tls-cert and --tls-key, or --behind-proxy and --public-url if a proxy speaks TLS";
        Err(CommandError::usage(problem, help))
    }
}

pub(super) fn run(
    args: &ServeArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let (settings, socket) = args.settings()?;
    let oidc = oidc_settings::verifier(args, &with_required_sandbox(global)?, folders, output)?;
    let store = args.store.place(folders, output)?;
    let replica = args.replica.launch(&store, &with_required_sandbox(global)?, folders, output)?;
    oidc_settings::note_replicas(args, output);
    let (flags, fork) = (args.speaker.clone(), args.unstable_fork);
    let listen_flag = "--listen";
    let launch = ServerLaunch { settings, listen_flag, socket, oidc, flags, store, replica, fork };
    launch.serve(global, folders, output, |_, _| Ok(()))
}

/// What a command chooses for the server that it runs.
pub(super) struct ServerLaunch {
    pub(super) settings: ServeSettings,
    /// The flag that chooses the address.
    pub(super) listen_flag: &'static str,
    /// A socket that listens already.
    pub(super) socket: Option<TcpListener>,
    /// Verifies JWTs.
    pub(super) oidc: Option<OidcVerifier>,
    pub(super) flags: AgentFlags,
    /// The place of sessions and tokens.
    pub(super) store: StorePlace,
    /// The place among the replicas of a shared store.
    pub(super) replica: Option<ReplicaLaunch>,
    /// Offers the unstable `session/fork` method.
    pub(super) fork: bool,
}

impl ServerLaunch {
    /// Serves clients until a signal ends the command. Calls `ready` when the server listens.
    pub(super) fn serve(
        self,
        global: &Global,
        folders: &Folders,
        output: &mut CommandOutput,
        ready: impl FnOnce(&HttpFrontEnd, &mut CommandOutput) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let Self { settings, listen_flag, socket, oidc, flags, store, replica, fork } = self;
        let global = &with_required_sandbox(global)?;
        let shared = replica.as_ref().and_then(|replica| replica.shared_dir.clone());
        let folders = &Folders { store: store.clone(), shared, ..folders.clone() };
        let tokens = store.tokens().map_err(|error| store_failure(&error))?;
        let place = store.clone();
        let (store, replica) = match replica {
            Some(replica) => replica.join(&place, folders).map(|(store, parts)| (store, Some(parts)))?,
            None => (store.sessions().map_err(|error| store_failure(&error))?, None),
        };
        let empty_folder = folders.empty_folder();
        private_files::make_folder(&empty_folder).map_err(|error| {
            let problem = format!("{} cannot be created: {error}", empty_folder.display());
            CommandError::work(problem, "check the folder that SKEIN_DATA_DIR or XDG_STATE_HOME names")
        })?;
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        // Each session uses the plan of its folder; the process itself has none.
        let plan = Plan::empty();
        runtime::block_on_until(
            StopSignals::Terminal,
            WorkerThreads::All,
            plan,
            global,
            folders,
            output,
            async |started: &CommandRuntime, output: &mut CommandOutput| {
                let mut loader = WorkspaceLoader::new(global, folders, started);
                loader.flags = flags;
                let loader = Arc::new(loader);
                let background = TaskScope::new();
                reload::watch(&loader, ReloadTriggers::SignalAndFiles, &background);
                let console = Arc::new(ConsoleHub::default());
                let observer = Arc::clone(&console) as Arc<dyn SessionObserver>;
                let front = AcpFront {
                    sessions: runtime::sessions(store, TurnLimits::default(), folders),
                    projects: Arc::clone(&loader) as Arc<dyn ProjectLoader>,
                    orchestrator: runtime::orchestrator(folders, started.hidden.clone()),
                    program: runtime::own_program()?,
                    cwd: folders.cwd.clone(),
                    approval: global.approval,
                    fork,
                    open_sessions: Arc::new(SharedSessions::with_timeout(ASK_TIMEOUT).with_observer(observer)),
                };
                background.spawn(release_memory(Arc::clone(front.sessions.metrics()), background.cancelled().clone()));
                let (sessions, ended) = (front.sessions.clone(), background.cancelled().clone());
                background.spawn(retention::keep_applying(sessions, place, folders.clone(), ended));
                let (pool, counted_pool) = (started.runtime.pool().clone(), started.runtime.pool().clone());
                if let Some(oidc) = &oidc {
                    oidc_settings::load_keys(oidc, output).await;
                }
                let parts = ServeParts {
                    tokens,
                    oidc,
                    mcp: McpParts {
                        sessions: front.sessions.clone(),
                        orchestrator: front.orchestrator.clone(),
                        services: Arc::new(move |cwd: &Path, principal: &Principal, service: &str| {
                            loader.open_service(cwd, principal, service)
                        }),
                        approval: global.approval,
                    },
                    projects: Arc::clone(&front.projects),
                    open_sessions: Arc::clone(&front.open_sessions),
                    console,
                    apps: Box::new(StoredApps { data: folders.data.clone() }),
                    setup: Arc::new(LocalSetup { global: global.clone(), folders: folders.clone() }),
                    folder: folders.cwd.clone(),
                    empty_folder,
                    replica,
                    sessions: Arc::clone(front.sessions.metrics()),
                    services: Box::new(move || service_states(&counted_pool)),
                    pool_status: Box::new(move || pool.status()),
                    acp: Box::new(move |grant, draining| front.server(grant, draining)),
                };
                let stop = started.interrupt_for(settings.drain + END_TIME);
                let server = HttpFrontEnd::bind(settings, socket, parts).await;
                let server = server.map_err(|error| serve_failure(&error, listen_flag))?;
                if let Some(address) = server.address() {
                    output.line(&format!("Skein listens on {scheme}://{address}"));
                }
                if let Some(address) = server.metrics_address() {
                    output.line(&format!("Metrics are on {scheme}://{address}/metrics"));
                }
                ready(&server, output)?;
                server.run(stop).await;
                background.stop().await;
                Ok(())
            },
        )
    }
}

/// Gives memory back to the system after sessions have left, until `ended` is cancelled. It delays running turns a
/// little, so with turns it waits for many sessions.
async fn release_memory(sessions: Arc<SessionMetrics>, ended: CancellationToken) {
    let mut highest = 0;
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(MEMORY_INTERVAL) => {}
        }
        let open = sessions.open_sessions();
        highest = highest.max(open);
        let count = highest - open;
        if count >= MANY_SESSIONS || (count > 0 && sessions.running_turns() == 0) {
            // Fails only if the process ends.
            drop(tokio::task::spawn_blocking(process::release_free_memory).await);
            highest = open;
        }
    }
}

/// Makes the ACP server of each client.
struct AcpFront {
    sessions: Sessions,
    projects: Arc<dyn ProjectLoader>,
    orchestrator: Orchestrator,
    program: PathBuf,
    cwd: PathBuf,
    approval: Option<crate::manifest::ApprovalLevel>,
    fork: bool,
    open_sessions: Arc<SharedSessions>,
}

impl AcpFront {
    fn server(&self, grant: SessionGrant, draining: CancellationToken) -> AcpServer {
        let sessions = self.sessions.clone();
        let cwd = grant.limits().roots.first().unwrap_or(&self.cwd).clone();
        AcpServer {
            sessions: Box::new(move || std::future::ready(Ok(sessions.clone())).boxed()),
            grant,
            projects: Arc::clone(&self.projects),
            orchestrator: self.orchestrator.clone(),
            version: env!("CARGO_PKG_VERSION"),
            notices: Mutex::default(),
            program: self.program.clone(),
            cwd,
            approval: self.approval,
            fork: self.fork,
            open_sessions: Arc::clone(&self.open_sessions),
            // Remote sessions run no checks.
            checks: CheckVariables::default(),
            draining,
        }
    }
}

/// Returns the flags with `--sandbox required`: the commands of remote sessions run in their sandbox or not at all.
/// Fails if the user asks for less.
fn with_required_sandbox(global: &Global) -> Result<Global, CommandError> {
    match global.sandbox {
        None | Some(SandboxFlag::Required) => Ok(Global { sandbox: Some(SandboxFlag::Required), ..global.clone() }),
        Some(SandboxFlag::Preferred | SandboxFlag::Off) => {
            let problem = "the sandbox of remote sessions is always required";
            Err(CommandError::usage(problem, "leave out --sandbox"))
        }
    }
}

/// Counts the services of the pool by their state.
fn service_states(pool: &Pool) -> Vec<(&'static str, usize)> {
    let states = [
        (ServiceHealth::Stopped, "stopped"),
        (ServiceHealth::Starting, "starting"),
        (ServiceHealth::Healthy, "healthy"),
        (ServiceHealth::Degraded, "degraded"),
        (ServiceHealth::Open, "open"),
        (ServiceHealth::HalfOpen, "half_open"),
    ];
    let all = pool.status();
    let count = |health| all.iter().filter(|(_, status)| status.health == health).count();
    states.into_iter().map(|(health, label)| (label, count(health))).collect()
}

/// Returns the error of a command. `listen_flag` chooses its address.
pub(super) fn serve_failure(error: &ServeError, listen_flag: &str) -> CommandError {
    let help = match error {
        ServeError::Listen { .. } => format!("choose another {listen_flag}, or end the program that uses the address"),
        ServeError::Tls(_) => "name PEM files with --tls-cert and --tls-key that belong together".to_owned(),
        ServeError::Random(_) => "check that /dev/urandom can be read".to_owned(),
    };
    match error {
        ServeError::Listen { .. } | ServeError::Random(_) => CommandError::work(error.to_string(), help),
        ServeError::Tls(_) => CommandError::usage(error.to_string(), help),
    }
}
