//! Accepts connections and speaks HTTP/1.1 and HTTP/2 on them, with or without TLS.
//!
//! Invariant: a client has 30 seconds for the handshake and for the head of a request. One that takes longer, or sends
//! nothing, does not keep its connection. Neither does one that takes nothing of its answers for 30 seconds.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

use super::checks::{Arrival, Capacity};
use super::metrics::{ConnectionGauge, ConnectionKind, ServerMetrics};
use super::stall_limit::StallLimit;
use super::tls::{HTTP2, TlsSettings};
use crate::task::TaskScope;

/// How long a client may take for a TLS handshake, or to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the head of a request, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// Requests that a client may have open on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// How often an HTTP/2 client is asked whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after the system refuses to accept a connection, as when it has no file descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Connections beyond the maximum that get an answer. Further ones are closed at once.
const MAX_REFUSED: usize = 256;
/// The pause between two looks at the beginning of a connection.
const PREFACE_POLL: Duration = Duration::from_millis(5);
/// The beginning of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const REQUEST_TIMEOUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// One address on which the server accepts connections.
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) tls: Option<TlsSettings>,
    pub(super) router: Router,
    pub(super) metrics: Arc<ServerMetrics>,
    /// The free places for connections.
    pub(super) places: Arc<Semaphore>,
}

impl Listener {
    /// Accepts connections until the scope is cancelled.
    pub(super) async fn run(self, scope: TaskScope) {
        let refused = Arc::new(Semaphore::new(MAX_REFUSED));
        loop {
            let accepted = tokio::select! {
                biased;
                () = scope.cancelled().cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            let Ok((stream, peer)) = accepted.inspect_err(|error| tracing::warn!(%error, "no connection is accepted"))
            else {
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let (capacity, place) = match Arc::clone(&self.places).try_acquire_owned() {
                Ok(place) => (Capacity::Free, place),
                Err(_) => match Arc::clone(&refused).try_acquire_owned() {
                    Ok(place) => (Capacity::Exhausted, place),
                    Err(_) => continue,
                },
            };
            let Ok(local) = stream.local_addr() else { continue };
            let connection = HttpConnection { router: self.router.clone(), local, peer: peer.ip(), capacity };
            let (tls, ending) = (self.tls.clone(), scope.cancelled().clone());
            let gauge = ConnectionGauge::new(&self.metrics, ConnectionKind::Tcp);
            scope.spawn(async move {
                let _counted = (place, gauge);
                // A delayed packet costs more than a small one.
                drop(stream.set_nodelay(true));
                tokio::select! {
                    biased;
                    () = ending.cancelled() => {}
                    () = connection.serve(stream, tls) => {}
                }
            });
        }
    }
}

/// Serves the requests of one connection.
struct HttpConnection {
    router: Router,
    local: SocketAddr,
    peer: IpAddr,
    capacity: Capacity,
}

impl HttpConnection {
    async fn serve(self, stream: TcpStream, tls: Option<TlsSettings>) {
        let Some(tls) = tls else {
            let beginning = timeout(HEAD_TIMEOUT, begins_with_preface(&stream)).await;
            let mut stream = StallLimit::new(stream);
            // All futures are boxed here, because each connection would keep room for the largest of them.
            return match beginning {
                Ok(Ok(true)) => Box::pin(self.serve_http2(stream)).await,
                Ok(Ok(false)) => Box::pin(self.serve_http1(stream)).await,
                Ok(Err(_)) => {}
                Err(_) => close_late(&mut stream).await,
            };
        };
        // A failed handshake is the client's concern: it sees the reason.
        let handshake = Box::pin(tls.acceptor().accept(StallLimit::new(stream)));
        let Ok(Ok(stream)) = timeout(HEAD_TIMEOUT, handshake).await else { return };
        if stream.get_ref().1.alpn_protocol() == Some(HTTP2) {
            // hyper waits for the preface without a limit.
            let (mut read, write) = tokio::io::split(stream);
            let mut beginning = [0; PREFACE.len()];
            let Ok(Ok(_)) = timeout(HEAD_TIMEOUT, read.read_exact(&mut beginning)).await else { return };
            let stream = tokio::io::join(std::io::Cursor::new(beginning).chain(read), write);
            Box::pin(self.serve_http2(stream)).await;
        } else {
            Box::pin(self.serve_http1(stream)).await;
        }
    }

    async fn serve_http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let served = Arc::new(AtomicBool::new(false));
        let any = Arc::clone(&served);
        let answering = service_fn(move |request| {
            any.store(true, Ordering::Relaxed);
            self.answer(request)
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_header_size(MAX_HEAD);
        let mut connection = builder.serve_connection(TokioIo::new(stream), answering).with_upgrades();
        let ended = (&mut connection).await;
        let is_late = ended.is_err_and(|error| error.is_timeout());
        if let (true, Some(parts)) = (is_late, connection.into_parts())
            // A connection that waits for its next request is closed without a word.
            && (!served.load(Ordering::Relaxed) || !parts.read_buf.is_empty())
        {
            close_late(&mut parts.io.into_inner()).await;
        }
    }

    async fn serve_http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let answering = service_fn(move |request| self.answer(request));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_INTERVAL);
        // An error here means that the client disconnected, which needs no handling.
        drop(builder.serve_connection(TokioIo::new(stream), answering).await);
    }

    /// Passes a request on with the way it came.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<axum::response::Response, std::convert::Infallible>> + use<> {
        let mut request = request.map(Body::new);
        let arrival = Arrival { local: self.local, peer: self.peer, capacity: self.capacity };
        request.extensions_mut().insert(arrival);
        self.router.clone().call(request)
    }
}

/// Returns whether a connection begins like HTTP/2. Leaves what it has read in the connection. Fails if the client
/// disconnects.
async fn begins_with_preface(stream: &TcpStream) -> std::io::Result<bool> {
    let mut beginning = [0; PREFACE.len()];
    loop {
        let read = stream.peek(&mut beginning).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if beginning[..read] != PREFACE[..read] {
            return Ok(false);
        }
        if read == PREFACE.len() {
            return Ok(true);
        }
        sleep(PREFACE_POLL).await;
    }
}

/// Answers a client that took too long, and closes the connection.
async fn close_late(stream: &mut (impl AsyncWrite + Unpin)) {
    // The client may be gone already.
    if stream.write_all(REQUEST_TIMEOUT).await.is_ok() {
        drop(stream.shutdown().await);
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;

    /// The body of its answer has no end, and hyper asks for none of it while the client reads nothing.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_reading_an_answer_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(local).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let endless = futures::stream::repeat_with(|| Ok::<_, std::convert::Infallible>(vec![b'x'; 64 << 10]));
        let router = Router::new().route("/", get(async || Body::from_stream(endless)));
        let connection = HttpConnection { router, local, peer: peer.ip(), capacity: Capacity::Free };
        let served = timeout(Duration::from_secs(300), connection.serve(stream, None)).await;
        served.expect("the connection ends");
        drop(client);
    }
}
