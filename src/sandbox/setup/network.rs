//! The network of a sandbox: a loopback device, and listeners that Skein serves.

use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, sendto, socket, socket_with,
};

use crate::sandbox::git::GitSockets;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const IFF_UP: u32 = 1;
/// In a new network namespace, the loopback device is the first.
const LOOPBACK: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Starts the loopback device.
pub(super) fn start_loopback() -> io::Result<()> {
    let mut body = vec![0; 4];
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    request(RTM_NEWLINK, 0, &body)
}

/// Listens on a free port for the proxy.
pub(super) fn listen_for_proxy() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Listens on an address. Gives the loopback device its IP if it has another.
pub(super) fn listen_for_relay(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_loopback() {
        add_address(address.ip())?;
    }
    TcpListener::bind(address)
}

/// Listens on the sockets of git, which exist only inside: `/run` is private.
pub(super) fn listen_for_git() -> io::Result<[UnixListener; 2]> {
    let GitSockets { credentials, agent } = GitSockets::inside();
    for folder in [&credentials, &agent].into_iter().filter_map(|path| path.parent()) {
        DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    }
    let listen = |path: &Path| UnixListener::bind(path);
    Ok([listen(&credentials)?, listen(&agent)?])
}

/// Begins a connection inside. It never waits, because PID 1 has other work.
pub(super) fn begin_connection(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn add_address(ip: IpAddr) -> io::Result<()> {
    let (family, prefix, bytes) = match ip {
        IpAddr::V4(ip) => (AddressFamily::INET, 32, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AddressFamily::INET6, 128, ip.octets().to_vec()),
    };
    let mut body = vec![u8::try_from(family.as_raw()).unwrap_or_default(), prefix, 0, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        let length = u16::try_from(bytes.len() + 4).map_err(io::Error::other)?;
        body.extend(length.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(&bytes);
    }
    match request(RTM_NEWADDR, NLM_F_CREATE, &body) {
        // Two relays may have one IP.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Sends a request to the kernel and waits for its answer.
fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    // Routes are protocol zero, the default.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 256];
    let (received, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    // The answer is a header of 16 bytes and a negative error number, zero for success.
    let code = answer.get(16..20).filter(|_| received >= 20).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
