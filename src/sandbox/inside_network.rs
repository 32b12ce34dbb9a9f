//! Reaches servers inside a sandbox: the sandbox process opens descriptors in its network and sends them to Skein.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use futures::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::proxy::{InsideNetwork, listening_ports};
use super::sandbox_process::SandboxProcess;
use super::wire::{AddressVersion, InsideTarget};

/// Maximum size of a table of ports.
const MAX_TABLE: u64 = 4 << 20;
/// Room for the sockets of most sandboxes, about 400.
const USUAL_TABLE: usize = 64 << 10;

impl SandboxProcess {
    /// Returns the ports on which processes inside listen.
    pub async fn listening_ports(&self) -> io::Result<Vec<u16>> {
        let mut tables = Vec::new();
        for version in [AddressVersion::V4, AddressVersion::V6] {
            match self.open_inside(InsideTarget::PortTable(version)).await {
                Ok(table) => tables.push(table),
                // A machine without IPv6 has no such table.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        tokio::task::spawn_blocking(|| read_tables(tables)).await.map_err(io::Error::other)?
    }

    async fn open_inside(&self, target: InsideTarget) -> io::Result<OwnedFd> {
        let (sender, opened) = oneshot::channel();
        self.request_descriptor(target, sender)?;
        opened.await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
    }

    async fn connect_inside(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.open_inside(InsideTarget::Connection(address)).await?;
        let stream = TcpStream::from_std(std::net::TcpStream::from(socket))?;
        stream.writable().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }
}

/// Reads the listening ports from tables of the kernel. Each read searches the sockets of the whole machine, which takes
/// milliseconds, so it needs few reads and a separate thread.
fn read_tables(tables: Vec<OwnedFd>) -> io::Result<Vec<u16>> {
    let mut text = String::with_capacity(USUAL_TABLE);
    for table in tables {
        File::from(table).take(MAX_TABLE).read_to_string(&mut text)?;
    }
    Ok(listening_ports(&text))
}

impl InsideNetwork for SandboxProcess {
    fn dial(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            match self.connect_inside((Ipv4Addr::LOCALHOST, port).into()).await {
                // Some servers listen on `::1` only.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.connect_inside((Ipv6Addr::LOCALHOST, port).into()).await
                }
                result => result,
            }
        })
    }
}
