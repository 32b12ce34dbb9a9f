//! Resolves host names and opens connections. All of `fetch` uses the network through this module, so a test that
//! replaces it sees every address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use futures::future::BoxFuture;
use tokio::net::TcpStream;

pub trait Network: Send + Sync {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;

    /// Connects to exactly this address.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// The system's resolver and network. It ignores proxies from the environment, because a proxy would resolve names
/// without any check.
#[derive(Debug, Clone, Copy)]
pub(super) struct System;

impl Network for System {
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
