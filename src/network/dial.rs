//! Resolves host names and opens connections. `fetch` and the proxy of a sandbox use the network only through this
//! port, so a test that replaces it sees every address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use futures::future::BoxFuture;
use tokio::net::TcpStream;

/// The port to the network.
pub trait Network: Send + Sync {
    /// Returns the addresses of a name. Fails if the name does not exist.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;

    /// Connects to exactly this address.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// The system's resolver and network. It ignores proxies from the environment, because a proxy would resolve names
/// without any check.
#[derive(Debug, Clone, Copy)]
pub struct SystemNetwork;

impl Network for SystemNetwork {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}
