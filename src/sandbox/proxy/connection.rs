//! Serves one client of the proxy: reads its request, decides, connects and relays.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing::debug;

use super::body::BodyReader;
use super::gate::{HostRefusal, RefusalReason};
use super::head::{ForwardRequest, MAX_HEAD, ProxyCredentials, RequestTarget, parse_head};
use super::inspect::NameInspector;
use super::socks::{self, SocksError, SocksMessage, SocksReply};
use super::tunnel::{self, ClientFilter, TunnelEnd, TunnelError};
use super::upstream::UpstreamError;
use super::{CommandId, ProxyInner, write_last};
use crate::network::RemoteHost;

/// How long a client may take to send its request.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// How long the rest of a refused request is read, so that the client sees the answer instead of a reset.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);
const MAX_DRAIN: usize = 256 * 1024;

/// The reason why a connection ends before it is relayed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Refused(#[from] HostRefusal),
    #[error("{}: {error}", host.authority())]
    Connect { host: RemoteHost, error: UpstreamError },
    #[error("the proxy needs the user name and password of its address")]
    Unauthorised,
    #[error("{0}")]
    Malformed(String),
    #[error("the head of the request is larger than {MAX_HEAD} bytes")]
    TooLarge,
    #[error("the request took too long")]
    TooSlow,
    #[error("cannot read the request: {0}")]
    Io(#[from] io::Error),
}

/// A client and the bytes that it sent so far.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    async fn fill(&mut self) -> Result<(), Failure> {
        if self.received.len() > MAX_HEAD {
            return Err(Failure::TooLarge);
        }
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    /// Reads a message of SOCKS.
    async fn read_message<T>(&mut self, parse: fn(&[u8]) -> SocksMessage<T>) -> Result<T, SocksFailure> {
        loop {
            if let Some((message, used)) = parse(&self.received).map_err(SocksFailure::Socks)? {
                self.received.drain(..used);
                return Ok(message);
            }
            self.fill().await.map_err(SocksFailure::Other)?;
        }
    }

    /// Reads the head of a request.
    async fn read_head(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(end) = self.received.windows(4).position(|part| part == b"\r\n\r\n") {
                if end + 4 > MAX_HEAD {
                    return Err(Failure::TooLarge);
                }
                let unread = self.received.split_off(end + 4);
                return Ok(std::mem::replace(&mut self.received, unread));
            }
            let bare = |pair: &[u8]| pair[1] == b'\n' && pair[0] != b'\r';
            if self.received.windows(2).any(bare) {
                return Err(Failure::Malformed("a line has no carriage return".to_owned()));
            }
            self.fill().await?;
        }
    }

    fn into_end(self) -> TunnelEnd {
        TunnelEnd { stream: self.stream, unread: self.received }
    }
}

enum SocksFailure {
    Socks(SocksError),
    Other(Failure),
}

/// Serves a client until its connection ends.
pub(super) async fn serve(proxy: &ProxyInner, stream: TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "proxy client has no TCP_NODELAY");
    }
    let mut client = Client { stream, received: Vec::new() };
    match tokio::time::timeout(HEAD_LIMIT, client.fill()).await {
        Ok(Ok(())) if client.received.first() == Some(&socks::VERSION) => serve_socks(proxy, client).await,
        Ok(Ok(())) => serve_http(proxy, client).await,
        Ok(Err(error)) => debug!(%error, "proxy client sent nothing"),
        Err(_) => debug!("proxy client was silent"),
    }
}

async fn serve_http(proxy: &ProxyInner, mut client: Client) {
    let head = match tokio::time::timeout(HEAD_LIMIT, client.read_head()).await {
        Ok(Ok(head)) => head,
        Ok(Err(failure)) => return answer_http(client, &failure).await,
        Err(_) => return answer_http(client, &Failure::TooSlow).await,
    };
    let request = match parse_head(&head) {
        Ok(request) => request,
        Err(error) => return answer_http(client, &Failure::Malformed(error.to_string())).await,
    };
    let command = match authorise(proxy, request.credentials.as_ref()) {
        Ok(command) => command,
        Err(failure) => return answer_http(client, &failure).await,
    };
    match request.target {
        RequestTarget::Tunnel(host) => match open(proxy, &host, command).await {
            Ok((host, server)) => {
                let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
                match client.stream.write_all(established).await {
                    Ok(()) => relay(proxy, client, server, host, command).await,
                    Err(error) => debug!(%error, "client left before the answer"),
                }
            }
            Err(failure) => answer_http(client, &failure).await,
        },
        RequestTarget::Forward(request) => match forward(proxy, &request, command).await {
            Ok(server) => {
                let filter = ClientFilter::Body(BodyReader::new(request.body));
                if let Err(error) = tunnel::run(client.into_end(), server, filter).await {
                    debug!(%error, "request ended");
                }
            }
            Err(failure) => answer_http(client, &failure).await,
        },
    }
}

/// Checks the token, and finds the command that the user name identifies.
fn authorise(proxy: &ProxyInner, credentials: Option<&ProxyCredentials>) -> Result<Option<CommandId>, Failure> {
    if let Some(token) = &proxy.token {
        let given = credentials.map_or("", |credentials| credentials.password.as_str());
        if !is_same(given.as_bytes(), token.as_bytes()) {
            return Err(Failure::Unauthorised);
        }
    }
    Ok(proxy.commands.find(credentials.map(|credentials| credentials.user.as_str())))
}

/// Compares in a time that depends only on the lengths.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
}

/// Replaces `localhost` by the address of this machine, so that no resolver decides about it.
fn canonical(host: &RemoteHost) -> RemoteHost {
    let loopback = host.is_localhost().then(|| RemoteHost::new("127.0.0.1", host.port())).flatten();
    loopback.unwrap_or_else(|| host.clone())
}

/// Decides about a host and connects to it. Returns the name that the client may send.
async fn open(
    proxy: &ProxyInner,
    named: &RemoteHost,
    command: Option<CommandId>,
) -> Result<(RemoteHost, TunnelEnd), Failure> {
    let host = canonical(named);
    if let Some(stream) = proxy.dial_server(&host, command).await? {
        return Ok((named.clone(), TunnelEnd { stream, unread: Vec::new() }));
    }
    let reach = proxy.admit(&host, command).await?;
    match proxy.upstream.connect(&host, reach, &proxy.policy).await {
        Ok(server) => Ok((named.clone(), server)),
        Err(error) => Err(connect_failure(proxy, host, command, error)),
    }
}

/// Decides about a request, connects and sends its head.
async fn forward(
    proxy: &ProxyInner,
    request: &ForwardRequest,
    command: Option<CommandId>,
) -> Result<TunnelEnd, Failure> {
    let host = canonical(&request.host);
    if let Some(mut stream) = proxy.dial_server(&host, command).await? {
        let written = stream.write_all(&request.origin_head()).await;
        written.map_err(|error| Failure::Connect { host, error: UpstreamError::Dial(error) })?;
        return Ok(TunnelEnd { stream, unread: Vec::new() });
    }
    let reach = proxy.admit(&host, command).await?;
    let company = proxy.upstream.company.for_forward(&host);
    let (connected, head) = match company {
        Some(company) => (proxy.upstream.dial_proxy(company).await, request.proxy_head(company.credentials.as_ref())),
        None => (proxy.upstream.dial(&host, reach, &proxy.policy).await, request.origin_head()),
    };
    let mut stream = connected.map_err(|error| connect_failure(proxy, host.clone(), command, error))?;
    stream.write_all(&head).await.map_err(|error| Failure::Connect { host, error: UpstreamError::Dial(error) })?;
    Ok(TunnelEnd { stream, unread: Vec::new() })
}

fn connect_failure(proxy: &ProxyInner, host: RemoteHost, command: Option<CommandId>, error: UpstreamError) -> Failure {
    match error {
        UpstreamError::Refused(reason) => Failure::Refused(proxy.refuse(&host, command, reason)),
        error => Failure::Connect { host, error },
    }
}

/// Relays a tunnel, and refuses it if the client names another host.
async fn relay(proxy: &ProxyInner, client: Client, server: TunnelEnd, host: RemoteHost, command: Option<CommandId>) {
    let filter = ClientFilter::Name(NameInspector::new(host.clone()));
    match tunnel::run(client.into_end(), server, filter).await {
        Ok(()) => {}
        Err(TunnelError::Mismatch(mismatch)) => {
            let refusal = proxy.refuse(&host, command, RefusalReason::OtherName(mismatch));
            debug!(%refusal, "tunnel closed");
        }
        Err(error) => debug!(host = %host, %error, "tunnel ended"),
    }
}

async fn serve_socks(proxy: &ProxyInner, mut client: Client) {
    let greeting = tokio::time::timeout(HEAD_LIMIT, greet_socks(proxy, &mut client));
    let (host, command) = match greeting.await {
        Ok(Ok(request)) => request,
        Ok(Err(SocksFailure::Socks(error))) => {
            debug!(%error, "SOCKS request refused");
            let reply = if error == SocksError::Command { SocksReply::UnknownCommand } else { SocksReply::Failed };
            return write_last(&mut client.stream, &reply.encode()).await;
        }
        Ok(Err(SocksFailure::Other(failure))) => return debug!(%failure, "SOCKS request failed"),
        Err(_) => return debug!("SOCKS client was slow"),
    };
    match open(proxy, &host, command).await {
        Ok((host, server)) => match client.stream.write_all(&SocksReply::Succeeded.encode()).await {
            Ok(()) => relay(proxy, client, server, host, command).await,
            Err(error) => debug!(%error, "client left before the answer"),
        },
        Err(failure) => {
            let reply = match failure {
                Failure::Refused(_) => SocksReply::NotAllowed,
                Failure::Connect { .. } => SocksReply::Unreachable,
                _ => SocksReply::Failed,
            };
            write_last(&mut client.stream, &reply.encode()).await;
        }
    }
}

/// Negotiates the authentication and reads the request.
async fn greet_socks(proxy: &ProxyInner, client: &mut Client) -> Result<(RemoteHost, Option<CommandId>), SocksFailure> {
    let write = |error: io::Error| SocksFailure::Other(Failure::Io(error));
    let methods = client.read_message(socks::parse_methods).await?;
    // The user name identifies the command, so a password is preferred.
    let credentials = if methods.password {
        client.stream.write_all(&socks::CHOOSE_PASSWORD).await.map_err(write)?;
        Some(client.read_message(socks::parse_credentials).await?)
    } else if methods.none && proxy.token.is_none() {
        client.stream.write_all(&socks::CHOOSE_NONE).await.map_err(write)?;
        None
    } else {
        write_last(&mut client.stream, &socks::NO_METHOD).await;
        return Err(SocksFailure::Other(Failure::Unauthorised));
    };
    let command = match authorise(proxy, credentials.as_ref()) {
        Ok(command) => command,
        Err(failure) => {
            write_last(&mut client.stream, &socks::NOT_AUTHENTICATED).await;
            return Err(SocksFailure::Other(failure));
        }
    };
    if credentials.is_some() {
        client.stream.write_all(&socks::AUTHENTICATED).await.map_err(write)?;
    }
    let host = client.read_message(socks::parse_request).await?;
    Ok((host, command))
}

/// Answers a request that is not relayed, and closes the connection.
async fn answer_http(mut client: Client, failure: &Failure) {
    let (status, header) = match failure {
        Failure::Refused(_) => ("403 Forbidden", ""),
        Failure::Connect { .. } => ("502 Bad Gateway", ""),
        Failure::Unauthorised => {
            ("407 Proxy Authentication Required", "proxy-authenticate: Basic realm=\"sandbox\"\r\n")
        }
        Failure::Malformed(_) => ("400 Bad Request", ""),
        Failure::TooLarge => ("431 Request Header Fields Too Large", ""),
        Failure::TooSlow => ("408 Request Timeout", ""),
        Failure::Io(error) => return debug!(%error, "proxy client ended early"),
    };
    let body = format!("{failure}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\n{header}content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    write_last(&mut client.stream, [head, body].concat().as_bytes()).await;
    drain(&mut client.stream).await;
}

/// Reads what the client still sends. Closing with unread bytes would reset the connection and lose the answer.
async fn drain(stream: &mut TcpStream) {
    let reading = async {
        let mut buffer = [0; 4096];
        let mut left = MAX_DRAIN;
        while left > 0 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => left = left.saturating_sub(count),
            }
        }
    };
    // The limit only bounds the courtesy.
    tokio::time::timeout(DRAIN_LIMIT, reading).await.unwrap_or_default();
}
