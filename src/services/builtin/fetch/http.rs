//! Fetches a page: each hop is checked, resolved, checked again and connected to at the checked address.
//!
//! Invariant: nothing is kept between requests, neither cookies nor connections. Of the caller's input only the URL
//! is sent.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, ClientConfig, pki_types::ServerName};
use url::{Host, Url};

use super::super::answer::ToolRefusal;
use super::address::{AllowedHosts, Target, display_url};
use crate::network::{Network, tls_provider};

const MAX_REDIRECTS: usize = 5;
/// Maximum size of a body, compressed and decompressed.
pub(super) const MAX_BODY: usize = 2_000_000;
/// Time limit of a whole fetch with all its redirects.
const TOTAL: Duration = Duration::from_secs(30);
/// Time limit for one address; a host may have several, and the first may be unreachable.
const DIAL: Duration = Duration::from_secs(8);
/// Maximum size of the response head.
const MAX_HEAD: usize = 64 * 1024;
/// Maximum number of addresses tried per host.
const MAX_ADDRESSES: usize = 6;

const USER_AGENT: &str = concat!("skein/", env!("CARGO_PKG_VERSION"), " (+reads single pages on request of a user)");

pub(super) struct HttpResponse {
    /// URL after all redirects.
    pub(super) url: Url,
    pub(super) status: StatusCode,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// The body was longer than what was read.
    pub(super) cut: bool,
}

/// The result of following a URL.
pub(super) enum FetchResult {
    Page(HttpResponse),
    /// A redirect to another host, which was not contacted.
    Elsewhere(Url),
}

/// Why a secure connection cannot be prepared.
#[derive(Debug, thiserror::Error)]
enum TlsSetupError {
    #[error("no certificates to trust: {0}")]
    Certificates(#[source] rustls::Error),
    #[error(transparent)]
    HostName(#[from] rustls::pki_types::InvalidDnsNameError),
}

#[derive(Clone)]
pub(super) struct HttpClient {
    network: Arc<dyn Network>,
    allowed: Arc<AllowedHosts>,
    total: Duration,
    /// Created at the first https request, because it reads the system's certificates.
    tls: Arc<OnceLock<Result<Arc<ClientConfig>, rustls::Error>>>,
}

impl HttpClient {
    pub(super) fn new(network: Arc<dyn Network>, allowed: AllowedHosts) -> Self {
        Self { network, allowed: Arc::new(allowed), total: TOTAL, tls: Arc::default() }
    }

    #[cfg(test)]
    pub(super) fn with_total(self, total: Duration) -> Self {
        Self { total, ..self }
    }

    pub(super) async fn get(&self, url: &Url, accept: &'static str) -> Result<FetchResult, ToolRefusal> {
        match tokio::time::timeout(self.total, self.follow(url, accept)).await {
            Ok(response) => response,
            Err(_) => {
                let seconds = self.total.as_secs_f32();
                Err(ToolRefusal::new(format!(
                    "`{}` took longer than {seconds} s; try another source",
                    display_url(url)
                )))
            }
        }
    }

    /// Follows redirects within a host.
    async fn follow(&self, url: &Url, accept: &'static str) -> Result<FetchResult, ToolRefusal> {
        let mut current = url.clone();
        for hop in 0..=MAX_REDIRECTS {
            let redirected = |refusal: ToolRefusal| match hop {
                0 => refusal,
                _ => ToolRefusal::new(format!("`{}` redirects elsewhere: {}", display_url(url), refusal.0)),
            };
            let (response, location) = self.hop(&current, accept).await.map_err(redirected)?;
            let Some(location) = location else { return Ok(FetchResult::Page(response)) };
            let next = current.join(&location).map_err(|error| {
                ToolRefusal::new(format!("`{}` redirects to what is no URL: {error}", display_url(&current)))
            })?;
            if host_of(&next) != host_of(&current) {
                let elsewhere = |refusal: ToolRefusal| {
                    ToolRefusal::new(format!("`{}` redirects elsewhere: {}", display_url(url), refusal.0))
                };
                self.allowed.target(&next).map_err(elsewhere)?;
                return Ok(FetchResult::Elsewhere(next));
            }
            current = next;
        }
        Err(ToolRefusal::new(format!(
            "`{}` redirects more than {MAX_REDIRECTS} times; give the last URL",
            display_url(url)
        )))
    }

    /// Sends one request. Returns the response, and the redirect location if there is one.
    async fn hop(&self, url: &Url, accept: &'static str) -> Result<(HttpResponse, Option<String>), ToolRefusal> {
        let target = self.allowed.target(url)?;
        let addresses = self.addresses(url, &target).await?;
        target.check(url, &addresses)?;
        let failed = |what: &str| ToolRefusal::new(format!("`{}` could not be read: {what}", display_url(url)));
        let mut problem = String::new();
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            let dialled = self.network.dial(SocketAddr::new(address, target.port));
            match tokio::time::timeout(DIAL, dialled).await {
                Ok(Ok(stream)) if target.secure => {
                    let config = self.tls().map_err(|error| failed(&error.to_string()))?;
                    let name = server_name(&target.host).map_err(|error| failed(&error.to_string()))?;
                    let stream = TlsConnector::from(config).connect(name, stream).await;
                    let stream = stream.map_err(|error| failed(&format!("the secure connection failed: {error}")))?;
                    return exchange(stream, url, accept).await;
                }
                Ok(Ok(stream)) => return exchange(stream, url, accept).await,
                Ok(Err(error)) => problem = error.to_string(),
                Err(_) => problem = format!("no connection within {} s", DIAL.as_secs()),
            }
        }
        Err(failed(&problem))
    }

    async fn addresses(&self, url: &Url, target: &Target) -> Result<Vec<IpAddr>, ToolRefusal> {
        let name = match &target.host {
            Host::Ipv4(address) => return Ok(vec![IpAddr::V4(*address)]),
            Host::Ipv6(address) => return Ok(vec![IpAddr::V6(*address)]),
            Host::Domain(name) => name,
        };
        let found = self.network.resolve(name).await.map_err(|error| {
            ToolRefusal::new(format!("`{}` could not be read: its host was not found: {error}", display_url(url)))
        })?;
        if found.is_empty() {
            return Err(ToolRefusal::new(format!("`{}` could not be read: its host has no address", display_url(url))));
        }
        Ok(found)
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, TlsSetupError> {
        let make = || -> Result<Arc<ClientConfig>, rustls::Error> {
            let provider = Arc::new(tls_provider());
            let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
            Ok(Arc::new(builder.with_platform_verifier()?.with_no_client_auth()))
        };
        self.tls.get_or_init(make).clone().map_err(TlsSetupError::Certificates)
    }
}

fn server_name(host: &Host<String>) -> Result<ServerName<'static>, TlsSetupError> {
    match host {
        Host::Domain(name) => Ok(ServerName::try_from(name.clone())?),
        Host::Ipv4(address) => Ok(ServerName::IpAddress(IpAddr::V4(*address).into())),
        Host::Ipv6(address) => Ok(ServerName::IpAddress(IpAddr::V6(*address).into())),
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &Url,
    accept: &'static str,
) -> Result<(HttpResponse, Option<String>), ToolRefusal> {
    let failed =
        |error: &dyn std::fmt::Display| ToolRefusal::new(format!("`{}` could not be read: {error}", display_url(url)));
    let mut connection = hyper::client::conn::http1::Builder::new();
    connection.max_buf_size(MAX_HEAD);
    let handshake = connection.handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| failed(&error))?;
    let request = request(url, accept).map_err(|error| failed(&error))?;
    let conversation = async {
        let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let (head, body) = (answer.status(), answer.headers().clone());
        read(url, head, &body, answer.into_body()).await
    };
    // This task drives the connection itself, so that the connection ends with the call.
    match select(std::pin::pin!(conversation), std::pin::pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The connection has read everything; the request still has to take it.
        Either::Right((_, conversation)) => conversation.await,
    }
}

/// Returns host and port; the default ports of http and https count as equal.
fn host_of(url: &Url) -> (Option<Host<&str>>, Option<u16>) {
    (url.host(), url.port_or_known_default().filter(|port| ![80, 443].contains(port)))
}

fn request(url: &Url, accept: &'static str) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, accept)
        .header(header::ACCEPT_ENCODING, "gzip")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
}

async fn read(
    url: &Url,
    status: StatusCode,
    headers: &HeaderMap,
    mut body: Incoming,
) -> Result<(HttpResponse, Option<String>), ToolRefusal> {
    let text = |name: HeaderName| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let mut response = HttpResponse {
        url: url.clone(),
        status,
        content_type: text(header::CONTENT_TYPE),
        body: Vec::new(),
        cut: false,
    };
    if status.is_redirection()
        && status != StatusCode::NOT_MODIFIED
        && let Some(location) = text(header::LOCATION)
    {
        return Ok((response, Some(location)));
    }
    let failed = |what: String| ToolRefusal::new(format!("`{}` could not be read: {what}", display_url(url)));
    let encoding = text(header::CONTENT_ENCODING).map(|encoding| encoding.trim().to_ascii_lowercase());
    let mut unpacked = match encoding.as_deref() {
        None | Some("" | "identity") => BodyDecoder::Plain(BoundedBuffer::default()),
        Some("gzip" | "x-gzip") => BodyDecoder::Gzip(flate2::write::MultiGzDecoder::new(BoundedBuffer::default())),
        Some(other) => return Err(failed(format!("it is packed as `{other}`, which was not asked for"))),
    };
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        let rest = &data[..data.len().min(MAX_BODY - received)];
        received += rest.len();
        let more = unpacked.take(rest).map_err(|error| failed(format!("its packed body is broken: {error}")))?;
        if !more || received == MAX_BODY || rest.len() < data.len() {
            response.cut = true;
            break;
        }
    }
    // A body of exactly the limit counts as cut: only reading on would show that it is complete.
    let bounded = unpacked.end();
    response.cut = response.cut || bounded.full;
    response.body = bounded.bytes;
    Ok((response, None))
}

/// Decompressed bytes up to the limit: a small body can decompress to a thousand times its size.
#[derive(Default)]
struct BoundedBuffer {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for BoundedBuffer {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let rest = MAX_BODY - self.bytes.len();
        if data.len() > rest {
            self.full = true;
        }
        let taken = &data[..data.len().min(rest)];
        self.bytes.extend_from_slice(taken);
        if taken.is_empty() && !data.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum BodyDecoder {
    Plain(BoundedBuffer),
    Gzip(flate2::write::MultiGzDecoder<BoundedBuffer>),
}

impl BodyDecoder {
    /// Decodes `data`. Returns `false` if the buffer is full.
    fn take(&mut self, data: &[u8]) -> std::io::Result<bool> {
        let written = match self {
            BodyDecoder::Plain(bounded) => bounded.write_all(data),
            BodyDecoder::Gzip(decoder) => decoder.write_all(data),
        };
        let full = match self {
            BodyDecoder::Plain(bounded) => bounded.full,
            BodyDecoder::Gzip(decoder) => decoder.get_ref().full,
        };
        match written {
            _ if full => Ok(false),
            Ok(()) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the body. One that ends early is kept as far as it was received, and counts as cut.
    fn end(self) -> BoundedBuffer {
        match self {
            BodyDecoder::Plain(bounded) => bounded,
            BodyDecoder::Gzip(mut decoder) => {
                let whole = decoder.try_finish().is_ok();
                let bounded = std::mem::take(decoder.get_mut());
                BoundedBuffer { full: bounded.full || !whole, ..bounded }
            }
        }
    }
}
