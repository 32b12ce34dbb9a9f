//! Forwards ports of servers inside a sandbox to the loopback address of the host, after consent.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tracing::debug;

use super::MAX_CONNECTIONS;
use super::tunnel::{self, ClientFilter, TunnelEnd};
use crate::sandbox::accept::serve_clients;
use crate::sandbox::{ConsentRefusal, PortAccess};
use crate::task::TaskScope;

/// Opens connections to the loopback address inside a sandbox.
pub trait InsideNetwork: Send + Sync {
    fn dial(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// Asks the user whether a port may be forwarded.
pub trait PortGate: Send + Sync {
    /// Fails if the user declines.
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<(), ConsentRefusal>>;
}

/// The forwarded ports of one sandbox.
pub struct PortForwards {
    access: PortAccess,
    gate: Arc<dyn PortGate>,
    inside: Arc<dyn InsideNetwork>,
    tasks: TaskScope,
    connections: Arc<Semaphore>,
    /// Inside port to address outside. The lock is held while the user is asked, so that each port is asked about once.
    open: Mutex<BTreeMap<u16, SocketAddr>>,
}

impl std::fmt::Debug for PortForwards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortForwards").field("access", &self.access).finish_non_exhaustive()
    }
}

/// The reason why a port is not forwarded.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("the sandbox profile does not forward port {0}; `ports` in the profile allows it")]
    Unlisted(u16),
    #[error("port {port} is not forwarded: {refusal}")]
    Declined { port: u16, refusal: ConsentRefusal },
    #[error("cannot listen for port {port} on 127.0.0.1")]
    Listen {
        port: u16,
        #[source]
        source: io::Error,
    },
}

impl PortForwards {
    pub fn new(access: PortAccess, gate: Arc<dyn PortGate>, inside: Arc<dyn InsideNetwork>) -> Self {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Self { access, gate, inside, tasks: TaskScope::new(), connections, open: Mutex::default() }
    }

    /// Forwards a port and returns its address on the host. It has the same number if that is free.
    pub async fn forward(&self, port: u16) -> Result<SocketAddr, PortError> {
        let mut open = self.open.lock().await;
        if let Some(address) = open.get(&port) {
            return Ok(*address);
        }
        match &self.access {
            PortAccess::Off => return Err(PortError::Unlisted(port)),
            PortAccess::List(ports) if !ports.contains(&port) => return Err(PortError::Unlisted(port)),
            PortAccess::List(_) => {}
            PortAccess::Ask => {
                self.gate.ask(port).await.map_err(|refusal| PortError::Declined { port, refusal })?;
            }
        }
        let listen = |source| PortError::Listen { port, source };
        let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(listen)?
            }
            bound => bound.map_err(listen)?,
        };
        let address = listener.local_addr().map_err(listen)?;
        self.serve(listener, port);
        open.insert(port, address);
        Ok(address)
    }

    fn serve(&self, listener: TcpListener, port: u16) {
        let inside = Arc::clone(&self.inside);
        serve_clients(&self.tasks, listener, Arc::clone(&self.connections), move |client| {
            let inside = Arc::clone(&inside);
            async move { connect(inside.as_ref(), client, port).await }
        });
    }

    /// Closes all ports without waiting.
    pub fn cancel(&self) {
        self.tasks.cancel();
    }

    /// Closes all ports.
    pub async fn stop(&self) {
        self.tasks.stop().await;
        self.open.lock().await.clear();
    }
}

async fn connect(inside: &dyn InsideNetwork, client: TcpStream, port: u16) {
    match inside.dial(port).await {
        Ok(server) => {
            let end = |stream| TunnelEnd { stream, unread: Vec::new() };
            if let Err(error) = tunnel::run(end(client), end(server), ClientFilter::Open).await {
                debug!(%error, port, "forwarded connection ended");
            }
        }
        Err(error) => debug!(%error, port, "cannot connect to the server inside"),
    }
}

/// Returns the ports on which processes listen, from the text of `/proc/PID/net/tcp` and `tcp6`.
pub fn listening_ports(table: &str) -> Vec<u16> {
    /// The state of a listening socket.
    const LISTEN: &str = "0A";
    let port = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let (_, port) = local.rsplit_once(':').filter(|_| state == LISTEN)?;
        u16::from_str_radix(port, 16).ok()
    };
    let mut ports: Vec<u16> = table.lines().filter_map(port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
