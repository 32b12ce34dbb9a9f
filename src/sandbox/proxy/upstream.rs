//! Connects to hosts: directly at checked addresses, or through the proxy of a company.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::company::{CompanyProxy, ProxyAddress};
use super::gate::RefusalReason;
use super::head::MAX_HEAD;
use super::policy::{AddressReach, HostPolicy};
use super::tunnel::TunnelEnd;
use crate::network::{AddressKind, Network, RemoteHost};

const DIAL_LIMIT: Duration = Duration::from_secs(10);
const RESOLVE_LIMIT: Duration = Duration::from_secs(15);
/// Maximum number of addresses tried per host.
const MAX_ADDRESSES: usize = 6;

/// The way to hosts outside.
pub(super) struct Upstream {
    pub(super) network: Arc<dyn Network>,
    pub(super) company: CompanyProxy,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("{0}")]
    Refused(RefusalReason),
    #[error("cannot find the host: {0}")]
    Resolve(#[source] io::Error),
    #[error("cannot connect: {0}")]
    Dial(#[source] io::Error),
    #[error("the proxy {proxy} answered `{answer}`")]
    CompanyProxy { proxy: String, answer: String },
}

impl Upstream {
    /// Opens a tunnel to a host.
    pub(super) async fn connect(
        &self,
        host: &RemoteHost,
        reach: AddressReach,
        policy: &HostPolicy,
    ) -> Result<TunnelEnd, UpstreamError> {
        match self.company.for_tunnel(host) {
            Some(proxy) => self.connect_through(proxy, host).await,
            None => Ok(TunnelEnd { stream: self.dial(host, reach, policy).await?, unread: Vec::new() }),
        }
    }

    /// Connects to a host, at an address that the policy allows.
    pub(super) async fn dial(
        &self,
        host: &RemoteHost,
        reach: AddressReach,
        policy: &HostPolicy,
    ) -> Result<TcpStream, UpstreamError> {
        let addresses = self.resolve(host).await?;
        // One forbidden address fails them all: a name with public and internal addresses is probably an attack.
        for ip in &addresses {
            policy.check_address(*ip, host.port(), reach).map_err(|kind| address_refusal(*ip, kind))?;
        }
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for ip in addresses.into_iter().take(MAX_ADDRESSES) {
            let address = SocketAddr::new(ip, host.port());
            match dial_address(self.network.as_ref(), address).await {
                Ok(stream) if is_own_address(&stream, address) && !policy.lists_address(address) => {
                    return Err(address_refusal(ip, AddressKind::Loopback));
                }
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(UpstreamError::Dial(failure))
    }

    async fn resolve(&self, host: &RemoteHost) -> Result<Vec<IpAddr>, UpstreamError> {
        if let Some(ip) = host.ip() {
            return Ok(vec![ip]);
        }
        match tokio::time::timeout(RESOLVE_LIMIT, self.network.resolve(host.name())).await {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(UpstreamError::Resolve(io::ErrorKind::NotFound.into())),
            Ok(result) => result.map_err(UpstreamError::Resolve),
            Err(_) => Err(UpstreamError::Resolve(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Connects to the company's proxy. Its address comes from the user's environment, so no class is refused.
    pub(super) async fn dial_proxy(&self, proxy: &ProxyAddress) -> Result<TcpStream, UpstreamError> {
        let addresses = self.resolve(&proxy.host).await?;
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for ip in addresses.into_iter().take(MAX_ADDRESSES) {
            match dial_address(self.network.as_ref(), SocketAddr::new(ip, proxy.host.port())).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(UpstreamError::Dial(failure))
    }

    async fn connect_through(&self, proxy: &ProxyAddress, host: &RemoteHost) -> Result<TunnelEnd, UpstreamError> {
        let mut stream = self.dial_proxy(proxy).await?;
        let authority = host.authority();
        let mut head = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n");
        if let Some(credentials) = &proxy.credentials {
            head.extend(["proxy-authorization: ", &credentials.to_header(), "\r\n"]);
        }
        head.push_str("\r\n");
        let exchange = async {
            stream.write_all(head.as_bytes()).await?;
            read_answer(&mut stream).await
        };
        let (answer, unread) = match tokio::time::timeout(DIAL_LIMIT, exchange).await {
            Ok(result) => result.map_err(UpstreamError::Dial)?,
            Err(_) => return Err(UpstreamError::Dial(io::ErrorKind::TimedOut.into())),
        };
        let status = answer.split(' ').nth(1).unwrap_or_default();
        if !(status.len() == 3 && status.starts_with('2')) {
            return Err(UpstreamError::CompanyProxy { proxy: proxy.host.authority(), answer });
        }
        Ok(TunnelEnd { stream, unread })
    }
}

fn address_refusal(ip: IpAddr, kind: AddressKind) -> UpstreamError {
    UpstreamError::Refused(RefusalReason::Address { address: ip.to_string(), kind })
}

async fn dial_address(network: &dyn Network, address: SocketAddr) -> io::Result<TcpStream> {
    match tokio::time::timeout(DIAL_LIMIT, network.dial(address)).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Returns true if the address is one of this machine's own: a connection to it starts at the same address.
fn is_own_address(stream: &TcpStream, address: SocketAddr) -> bool {
    let reached = stream.peer_addr().is_ok_and(|peer| peer == address);
    reached && stream.local_addr().is_ok_and(|local| local.ip() == address.ip())
}

/// Reads the head of an answer. Returns its first line, and the bytes behind the head.
async fn read_answer(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let unread = bytes.split_off(end + 4);
            let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).take(100).collect();
            return Ok((line, unread));
        }
        if bytes.len() > MAX_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer of the proxy is too long"));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
