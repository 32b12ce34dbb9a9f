//! The way out: names to addresses, addresses to connections. Everything else in `fetch` reaches the network
//! through this, so a test that replaces it sees every address that is dialled.

use std::io;
use std::net::{IpAddr, SocketAddr};

use futures::future::BoxFuture;
use tokio::net::TcpStream;

pub trait Network: Send + Sync {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;

    /// Connects to exactly this address.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// The machine's resolver and its network. It knows no proxy: one that the environment names would resolve for
/// itself, where nobody checks.
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
