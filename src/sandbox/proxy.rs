//! The proxy through which the processes of a sandbox reach hosts. It listens inside the sandbox and runs in Skein.
//!
//! One port speaks HTTP (CONNECT and absolute URLs) and SOCKS5. Each connection is decided by name: a rule that denies,
//! the sandbox profile, a rule that allows, the approval level, the user's consent.
//!
//! Invariant: no byte leaves before the decision, and the proxy connects only to addresses that the decision covers.

mod body;
mod client_hello;
mod commands;
mod company;
mod connection;
mod gate;
mod head;
mod inspect;
mod policy;
mod ports;
mod socks;
mod tunnel;
mod upstream;
mod variables;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::debug;

use crate::network::{Network, RemoteHost};
use crate::sandbox::accept::serve_clients;
use crate::task::TaskScope;
use commands::ProxyCommands;
pub(super) use commands::limit_work;
pub use commands::{CommandNetwork, CommandPause};
pub use company::{CompanyProxy, CompanyProxyError, ProxyVariables};
use gate::HostConsent;
pub use gate::{CommandId, HostAnswer, HostGate, HostQuestion, HostRecord, HostRefusal, HostRuling, RefusalReason};
pub use inspect::NameMismatch;
use policy::ProfileDecision;
pub use policy::{AddressReach, HostPolicy};
pub use ports::{InsideNetwork, PortError, PortForwards, PortGate, listening_ports};
use tunnel::{ClientFilter, TunnelEnd};
use upstream::{Upstream, UpstreamError};
pub use variables::{java_options, proxy_credentials, proxy_variables};

/// How long a connection waits for the user's answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 512;

/// The parts of a proxy.
pub struct ProxyParts {
    pub policy: HostPolicy,
    pub gate: Arc<dyn HostGate>,
    pub network: Arc<dyn Network>,
    pub company: CompanyProxy,
    /// Servers of the session, at the loopback address. `None` if clients reach them themselves. A proxy with them is that
    /// of a browser: consent covers public addresses only, because a page chooses the hosts.
    pub servers: Option<Arc<dyn InsideNetwork>>,
    /// The password that clients must send. Needed where other processes of the machine reach the listener.
    pub token: Option<String>,
}

/// A proxy. Clones share it; it ends with [`Proxy::stop`].
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<ProxyInner>,
    tasks: TaskScope,
}

struct ProxyInner {
    policy: HostPolicy,
    upstream: Upstream,
    servers: Option<Arc<dyn InsideNetwork>>,
    commands: Arc<ProxyCommands>,
    token: Option<String>,
    connections: Arc<Semaphore>,
}

/// A connection that may be opened.
struct AdmittedHost {
    reach: AddressReach,
    /// The gate or the user consented. Otherwise the profile or a rule allows the host.
    consented: bool,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("policy", &self.inner.policy).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ProxyParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyParts").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Proxy {
    pub fn new(parts: ProxyParts) -> Self {
        let tasks = TaskScope::new();
        let commands = ProxyCommands::new(parts.gate, tasks.clone(), PATIENCE);
        let inner = ProxyInner {
            policy: parts.policy,
            upstream: Upstream { network: parts.network, company: parts.company },
            servers: parts.servers,
            commands,
            token: parts.token,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        };
        Self { inner: Arc::new(inner), tasks }
    }

    /// Serves the proxy's protocols on a listener. Fails if the listener cannot be used.
    pub fn serve(&self, listener: StdListener) -> io::Result<()> {
        self.accept(listener, |inner, stream| async move { connection::serve(&inner, stream).await })
    }

    /// Relays every connection of a listener to an address of the profile's list. Fails if the listener cannot be used.
    pub fn relay(&self, listener: StdListener, target: SocketAddr) -> io::Result<()> {
        self.accept(listener, move |inner, stream| async move { inner.relay(stream, target).await })
    }

    /// Registers a command, so that questions and refusals name it. `consented` are the hosts in a command line that the
    /// user agreed to.
    pub fn begin_command(&self, line: impl Into<String>, consented: &[RemoteHost]) -> CommandNetwork {
        self.inner.commands.begin(line.into(), consented)
    }

    /// Stops the time limits of all running commands until the result is dropped, because the user is asked.
    pub fn pause_commands(&self) -> CommandPause {
        self.inner.commands.pause(None)
    }

    /// Ends all connections and questions without waiting.
    pub fn cancel(&self) {
        self.tasks.cancel();
    }

    /// Ends all connections and questions.
    pub async fn stop(&self) {
        self.tasks.stop().await;
    }

    /// Runs `serve` for each connection of a listener, up to the limit of connections.
    fn accept<F, Fut>(&self, listener: StdListener, serve: F) -> io::Result<()>
    where
        F: Fn(Arc<ProxyInner>, TcpStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let inner = Arc::clone(&self.inner);
        let limit = Arc::clone(&self.inner.connections);
        serve_clients(&self.tasks, listener, limit, move |stream| serve(Arc::clone(&inner), stream));
        Ok(())
    }
}

impl ProxyInner {
    /// Decides about a connection.
    async fn decide(&self, host: &RemoteHost, command: Option<CommandId>) -> Result<AdmittedHost, RefusalReason> {
        let ruling = self.commands.gate().rule(host);
        if let HostRuling::Deny(rule) = ruling {
            return Err(RefusalReason::Rule(rule));
        }
        let decision = self.policy.decide(host);
        let of_consent = if self.servers.is_some() { AddressReach::Public } else { AddressReach::Private };
        // An address that no consent covers is refused before the user is asked.
        if let Some(ip) = host.ip() {
            let is_named = ruling == HostRuling::AllowExact || matches!(decision, ProfileDecision::Allowed(_));
            let reach = if is_named { AddressReach::Private } else { of_consent };
            let checked = self.policy.check_address(ip, host.port(), reach);
            checked.map_err(|kind| RefusalReason::Address { address: ip.to_string(), kind })?;
        }
        let listed = |reach| Ok(AdmittedHost { reach, consented: false });
        match (decision, ruling) {
            (ProfileDecision::Denied, _) => Err(RefusalReason::Profile),
            (ProfileDecision::Unlisted, _) => Err(RefusalReason::Unlisted),
            (ProfileDecision::Ask, HostRuling::Allow) => listed(AddressReach::Public),
            (ProfileDecision::Ask, HostRuling::AllowExact) => listed(AddressReach::Private),
            (ProfileDecision::Allowed(_), HostRuling::Ask) | (ProfileDecision::Ask, _) => {
                let reach = match self.commands.consent(host, command).await? {
                    HostConsent::User => of_consent,
                    // No user has seen the name of the host, which may lead to this machine's network.
                    HostConsent::Level => AddressReach::Public,
                };
                if let Some(ip) = host.ip() {
                    let checked = self.policy.check_address(ip, host.port(), reach);
                    checked.map_err(|kind| RefusalReason::Address { address: ip.to_string(), kind })?;
                }
                Ok(AdmittedHost { reach, consented: true })
            }
            (ProfileDecision::Allowed(reach), _) => listed(reach),
        }
    }

    /// Decides about a host, and reports the decision. Returns the addresses that the connection may reach.
    async fn admit(&self, host: &RemoteHost, command: Option<CommandId>) -> Result<AddressReach, HostRefusal> {
        match self.decide(host, command).await {
            Ok(AdmittedHost { reach, consented }) => {
                self.commands.record(host, command, None, consented);
                Ok(reach)
            }
            Err(reason) => Err(self.refuse(host, command, reason)),
        }
    }

    /// Connects to a server of the session, if the host is the loopback address and a server has this port. Rules that
    /// deny the host still count.
    async fn dial_server(
        &self,
        host: &RemoteHost,
        command: Option<CommandId>,
    ) -> Result<Option<TcpStream>, HostRefusal> {
        let Some(servers) = self.servers.as_ref().filter(|_| is_server_address(host)) else { return Ok(None) };
        if let HostRuling::Deny(rule) = self.commands.gate().rule(host) {
            return Err(self.refuse(host, command, RefusalReason::Rule(rule)));
        }
        match servers.dial(host.port()).await {
            Ok(stream) => {
                self.commands.record(host, command, None, false);
                Ok(Some(stream))
            }
            Err(error) => {
                debug!(host = %host, %error, "no server of the session");
                Ok(None)
            }
        }
    }

    /// Reports a refusal.
    fn refuse(&self, host: &RemoteHost, command: Option<CommandId>, reason: RefusalReason) -> HostRefusal {
        self.commands.record(host, command, Some(&reason), false);
        HostRefusal { host: host.clone(), reason }
    }

    async fn relay(&self, client: TcpStream, target: SocketAddr) {
        let host = RemoteHost::of_address(target);
        let command = self.commands.find(None);
        let Ok(reach) = self.admit(&host, command).await else { return };
        match self.upstream.dial(&host, reach, &self.policy).await {
            Ok(server) => {
                let client = TunnelEnd { stream: client, unread: Vec::new() };
                let server = TunnelEnd { stream: server, unread: Vec::new() };
                if let Err(error) = tunnel::run(client, server, ClientFilter::Open).await {
                    debug!(%target, %error, "relay ended");
                }
            }
            Err(UpstreamError::Refused(reason)) => drop(self.refuse(&host, command, reason)),
            Err(error) => debug!(%target, %error, "relay failed"),
        }
    }
}

/// Returns true for the addresses at which servers of a session listen.
fn is_server_address(host: &RemoteHost) -> bool {
    host.ip().is_some_and(|ip| ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST)
}

/// Writes a last message to a client that is about to lose its connection. A failure means that the client is gone.
async fn write_last(stream: &mut TcpStream, message: &[u8]) {
    let written = async {
        stream.write_all(message).await?;
        stream.shutdown().await
    };
    if let Err(error) = written.await {
        debug!(%error, "client left before the answer");
    }
}

/// Reads the first bytes of a connection in each way, for the fuzzer. Panics if another proxy would read a request
/// differently, or a SOCKS message is longer than the bytes.
#[cfg(any(test, fuzzing))]
pub fn read_first_bytes(bytes: &[u8]) {
    use head::{RequestHead, RequestTarget, parse_head};

    if let Ok(RequestHead { target: RequestTarget::Forward(request), .. }) = parse_head(bytes) {
        let Ok(RequestHead { target: RequestTarget::Forward(again), .. }) = parse_head(&request.proxy_head(None))
        else {
            panic!("the head of {request:?} cannot be read");
        };
        assert_eq!((&request.host, request.body), (&again.host, again.body));
        let ends = request.origin_head().windows(4).filter(|end| *end == b"\r\n\r\n").count();
        assert_eq!(ends, 1, "{request:?} is one request");
    }
    drop(client_hello::read_client_hello(bytes));
    let methods = socks::parse_methods(bytes).ok().flatten().map(|(_, size)| size);
    let credentials = socks::parse_credentials(bytes).ok().flatten().map(|(_, size)| size);
    let request = socks::parse_request(bytes).ok().flatten().map(|(_, size)| size);
    assert!([methods, credentials, request].iter().flatten().all(|size| *size <= bytes.len()));
}

#[cfg(test)]
#[path = "proxy/proxy_tests.rs"]
mod tests;
