//! A WebSocket client: TCP, TLS with the system's certificates, and the handshake with a token.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use url::{Host, Url};

use super::http_client::tls_provider;

/// How long the connection and the handshake may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for another replica, which is near.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that sends nothing for this long is gone. Skein's server sends a ping every 30 seconds.
const MAX_SILENCE: Duration = Duration::from_secs(90);
/// How long the last frames may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest message of a server.
const MAX_MESSAGE: usize = 64 << 20;

/// The address of a WebSocket endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebSocketAddress {
    url: Url,
    host: Host<String>,
}

/// Why an address cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketAddressError {
    #[error("it is not a URL: {0}")]
    Invalid(String),
    #[error("its scheme is `{0}`; use https, wss, http or ws")]
    Scheme(String),
    #[error("it has no host")]
    NoHost,
    #[error("it contains a user or a password")]
    Credentials,
    #[error("without TLS the token can be read on the way; use https, or a tunnel to this machine")]
    Unprotected,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum WebSocketError {
    #[error("no connection: {0}")]
    Unreachable(#[source] io::Error),
    #[error("no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    TimeOut,
    #[error("the certificate or the secure connection does not work: {0}")]
    Tls(String),
    #[error("the token cannot be sent in a header")]
    BadToken,
    #[error("the server answered with status {0}")]
    Status(u16),
    #[error("the server does not speak WebSocket: {0}")]
    Handshake(String),
}

impl WebSocketAddress {
    /// Reads a URL. `http` means `ws`, and `https` means `wss`; without a path, `path` is used. Fails if the URL is
    /// wrong, or if it has no TLS and leads to another machine.
    pub fn parse(text: &str, path: &str) -> Result<Self, WebSocketAddressError> {
        let mut url = Url::parse(text).map_err(|error| WebSocketAddressError::Invalid(error.to_string()))?;
        let scheme = match url.scheme() {
            "http" | "ws" => "ws",
            "https" | "wss" => "wss",
            other => return Err(WebSocketAddressError::Scheme(other.to_owned())),
        };
        if url.set_scheme(scheme).is_err() {
            return Err(WebSocketAddressError::Scheme(scheme.to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(WebSocketAddressError::Credentials);
        }
        let host = url.host().map(|host| host.to_owned()).ok_or(WebSocketAddressError::NoHost)?;
        let is_local = match &host {
            Host::Domain(name) => name == "localhost",
            Host::Ipv4(address) => address.is_loopback(),
            Host::Ipv6(address) => address.is_loopback(),
        };
        if scheme == "ws" && !is_local {
            return Err(WebSocketAddressError::Unprotected);
        }
        if url.path() == "/" {
            url.set_path(path);
        }
        url.set_fragment(None);
        Ok(Self { url, host })
    }
}

impl std::fmt::Display for WebSocketAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)
    }
}

trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// An open connection to a WebSocket server.
pub struct WebSocketClient {
    stream: WebSocketStream<Box<dyn ByteStream>>,
    /// When the server last sent something.
    heard: Instant,
}

impl std::fmt::Debug for WebSocketClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocketClient").finish_non_exhaustive()
    }
}

impl WebSocketClient {
    /// Connects to a replica of this server on a private network, with the bearer token of a client and another header.
    /// Fails if the replica cannot be reached, or refuses the token.
    pub async fn connect_replica(
        address: SocketAddr,
        path: &str,
        token: &str,
        header: (&'static str, &str),
    ) -> Result<Self, WebSocketError> {
        let wrong = |error: Error| WebSocketError::Handshake(error.to_string());
        let connect = async {
            let mut request = format!("ws://{address}{path}").into_client_request().map_err(wrong)?;
            for (name, value) in [("authorization", format!("Bearer {token}").as_str()), header] {
                let mut value = HeaderValue::from_str(value).map_err(|_| WebSocketError::BadToken)?;
                value.set_sensitive(true);
                request.headers_mut().insert(name, value);
            }
            let tcp = TcpStream::connect(address).await.map_err(WebSocketError::Unreachable)?;
            Self::shake_hands(request, Box::new(tcp_stream(tcp)?)).await
        };
        timeout(REPLICA_TIMEOUT, connect).await.unwrap_or(Err(WebSocketError::TimeOut))
    }

    /// Connects with a bearer token. Fails if the server cannot be reached, its certificate is not trusted, or it
    /// refuses the token.
    pub async fn connect(address: &WebSocketAddress, token: &str) -> Result<Self, WebSocketError> {
        let connected = timeout(CONNECT_TIMEOUT, Self::open(address, token)).await;
        connected.unwrap_or(Err(WebSocketError::TimeOut))
    }

    async fn open(address: &WebSocketAddress, token: &str) -> Result<Self, WebSocketError> {
        let wrong = |error: Error| WebSocketError::Handshake(error.to_string());
        let mut request = address.url.as_str().into_client_request().map_err(wrong)?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| WebSocketError::BadToken)?;
        bearer.set_sensitive(true);
        request.headers_mut().insert("authorization", bearer);
        let port = address.url.port_or_known_default().unwrap_or(443);
        let connected = match &address.host {
            Host::Domain(name) => TcpStream::connect((name.as_str(), port)).await,
            Host::Ipv4(ip) => TcpStream::connect((*ip, port)).await,
            Host::Ipv6(ip) => TcpStream::connect((*ip, port)).await,
        };
        let tcp = tcp_stream(connected.map_err(WebSocketError::Unreachable)?)?;
        let stream: Box<dyn ByteStream> = match address.url.scheme() {
            "wss" => Box::new(secure(&address.host, tcp).await?),
            _ => Box::new(tcp),
        };
        Self::shake_hands(request, stream).await
    }

    async fn shake_hands(request: Request, stream: Box<dyn ByteStream>) -> Result<Self, WebSocketError> {
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
        match opened {
            Ok((stream, _)) => Ok(Self { stream, heard: Instant::now() }),
            Err(Error::Http(response)) => Err(WebSocketError::Status(response.status().as_u16())),
            Err(error) => Err(WebSocketError::Handshake(error.to_string())),
        }
    }

    /// Queues a text message. Fails if the connection is lost.
    pub async fn feed(&mut self, text: String) -> io::Result<()> {
        self.stream.feed(Message::text(text)).await.map_err(io::Error::other)
    }

    /// Sends the queued messages. Fails if the connection is lost.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await.map_err(io::Error::other)
    }

    /// Waits for the next text message. `None` if the connection has ended or the server is silent for too long. A
    /// caller that stops waiting loses no message.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            let received = timeout_at(self.heard + MAX_SILENCE, self.stream.next()).await.ok()??;
            self.heard = Instant::now();
            match received {
                Ok(Message::Text(text)) => return Some(text.as_str().to_owned()),
                Ok(Message::Close(frame)) => {
                    let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    tracing::info!(reason, "the server closed the connection");
                    return None;
                }
                // The transport answers pings; binary messages have no meaning here.
                Ok(_) => {}
                Err(error) => {
                    tracing::info!(%error, "the connection broke");
                    return None;
                }
            }
        }
    }

    /// Closes the connection.
    pub async fn close(mut self) {
        // Fails only if the connection is lost already.
        drop(timeout(CLOSE_TIMEOUT, self.stream.close(None)).await);
    }
}

/// Returns a connection on which small messages do not wait for each other.
fn tcp_stream(tcp: TcpStream) -> Result<TcpStream, WebSocketError> {
    tcp.set_nodelay(true).map_err(WebSocketError::Unreachable)?;
    Ok(tcp)
}

async fn secure(host: &Host<String>, tcp: TcpStream) -> Result<TlsStream<TcpStream>, WebSocketError> {
    let failed = |error: rustls::Error| WebSocketError::Tls(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(tls_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let mut config = builder.with_platform_verifier().map_err(failed)?.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = match host {
        Host::Domain(name) => {
            ServerName::try_from(name.clone()).map_err(|error| WebSocketError::Tls(error.to_string()))?
        }
        Host::Ipv4(address) => ServerName::IpAddress(IpAddr::V4(*address).into()),
        Host::Ipv6(address) => ServerName::IpAddress(IpAddr::V6(*address).into()),
    };
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, tcp).await.map_err(|error| WebSocketError::Tls(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn parse(text: &str) -> Result<String, WebSocketAddressError> {
        WebSocketAddress::parse(text, "/acp").map(|address| address.to_string())
    }

    #[test]
    fn an_address_names_the_endpoint() {
        assert_eq!(parse("https://skein.example.com").unwrap(), "wss://skein.example.com/acp");
        assert_eq!(parse("wss://skein.example.com:8443/team/acp").unwrap(), "wss://skein.example.com:8443/team/acp");
        assert_eq!(parse("http://127.0.0.1:4780").unwrap(), "ws://127.0.0.1:4780/acp");
        assert_eq!(parse("ws://[::1]:4780/").unwrap(), "ws://[::1]:4780/acp");
    }

    #[test]
    fn a_wrong_address_is_refused() {
        assert!(matches!(parse("skein.example.com"), Err(WebSocketAddressError::Invalid(_))));
        assert_eq!(parse("ftp://localhost"), Err(WebSocketAddressError::Scheme("ftp".to_owned())));
        assert_eq!(parse("https://ana:secret@localhost"), Err(WebSocketAddressError::Credentials));
    }

    #[test]
    fn a_token_leaves_the_machine_only_with_tls() {
        assert_eq!(parse("http://skein.example.com"), Err(WebSocketAddressError::Unprotected));
        assert_eq!(parse("ws://192.0.2.7:4780"), Err(WebSocketAddressError::Unprotected));
        assert!(parse("http://localhost:4780").is_ok());
    }

    /// Returns what a client reads if a server sends only the head of a message of this length, and hangs up.
    async fn read_message(length: usize) -> Option<Result<Message, Error>> {
        let (here, there) = tokio::io::duplex(4096);
        let request = "ws://localhost/acp".into_client_request().unwrap();
        let (client, server) = tokio::join!(
            WebSocketClient::shake_hands(request, Box::new(here)),
            tokio_tungstenite::accept_async(there),
        );
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        let length = u64::try_from(length).unwrap();
        let head = [&[0x81_u8, 127][..], &length.to_be_bytes()].concat();
        server.get_mut().write_all(&head).await.unwrap();
        drop(server);
        client.stream.next().await
    }

    #[tokio::test]
    async fn a_message_of_a_server_that_is_too_large_is_refused() {
        assert!(matches!(read_message(MAX_MESSAGE + 1).await, Some(Err(Error::Capacity(_)))));
        assert!(!matches!(read_message(MAX_MESSAGE).await, Some(Err(Error::Capacity(_)))));
    }
}
