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

impl SandboxProcess {
    /// Returns the ports on which processes inside listen.
    pub async fn listening_ports(&self) -> io::Result<Vec<u16>> {
        let mut tables = String::new();
        for version in [AddressVersion::V4, AddressVersion::V6] {
            match self.open_inside(InsideTarget::PortTable(version)).await {
                // The kernel makes the text without waiting for anything.
                Ok(table) => drop(File::from(table).take(MAX_TABLE).read_to_string(&mut tables)?),
                // A machine without IPv6 has no such table.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listening_ports(&tables))
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
