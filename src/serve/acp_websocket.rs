//! ACP over WebSocket: each text message is one JSON message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{CloseCode, CloseFrame, Message, WebSocket, close_code};
use axum::response::Response;
use futures::stream::{FuturesUnordered, SplitSink, SplitStream};
use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::ServerState;
use super::authenticator::ActiveToken;
use super::checks::MAX_BODY;
use super::gateway::{ClientGateway, ClientSecret};
use super::metrics::{ConnectionGauge, ConnectionKind};
use crate::acp::{self, ClientOutput, OutgoingMessage, OutputMeter};

/// Messages up to this size are read whole, so that the client gets a close code instead of a broken connection.
const MAX_READ: usize = MAX_BODY + (4 << 20);
/// Buffers of the transport. A client rarely sends much, and messages to it are flushed in batches.
const READ_BUFFER: usize = 4 << 10;
const WRITE_BUFFER: usize = 16 << 10;
/// Messages are flushed and counted as sent in portions of about this size in bytes.
const PORTION: usize = 64 << 10;
/// How often the client is asked whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time after which a client that answers no ping is gone.
const MIN_SILENCE: Duration = Duration::from_secs(75);
/// How long the client may take to read the last messages and the close frame.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection that ends may take to store its turns.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    /// The client closed it or is gone.
    Client,
    TooLarge,
    Unread,
    Silent,
    TokenEnded,
    /// The sessions of the client are on another replica now.
    Moved,
    Shutdown,
}

impl CloseReason {
    fn frame(self) -> Option<CloseFrame> {
        let (code, reason): (CloseCode, &str) = match self {
            Self::Client => return None,
            Self::TooLarge => (close_code::SIZE, "the message is too large"),
            Self::Unread => (close_code::POLICY, "the client does not read"),
            Self::Silent => (close_code::POLICY, "the client does not answer"),
            Self::TokenEnded => (close_code::POLICY, "the token has ended"),
            Self::Moved => (close_code::AWAY, "the session is on another replica; connect again"),
            Self::Shutdown => (close_code::AWAY, "the server is shutting down"),
        };
        Some(CloseFrame { code, reason: reason.into() })
    }
}

/// Switches a request to WebSocket and serves the connection.
pub(super) fn answer(
    state: Arc<ServerState>,
    token: Arc<ActiveToken>,
    secret: ClientSecret,
    upgrade: WebSocketUpgrade,
) -> Response {
    let upgrade = upgrade
        .max_message_size(MAX_READ)
        .max_frame_size(MAX_READ)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER);
    upgrade.on_upgrade(async move |socket| {
        let (done, ended) = tokio::sync::oneshot::channel::<()>();
        let task_state = Arc::clone(&state);
        // The scope waits for the connection at the shutdown.
        state.scope.spawn(async move {
            serve(&task_state, &token, secret, socket).await;
            drop(done);
        });
        drop(ended.await);
    })
}

async fn serve(state: &Arc<ServerState>, token: &Arc<ActiveToken>, secret: ClientSecret, socket: WebSocket) {
    let _counted = ConnectionGauge::new(&state.metrics, ConnectionKind::AcpWebSocket);
    let stop = CancellationToken::new();
    let (input, mut output, served) = acp::connect(state.acp_server(token), stop.clone());
    let gateway = ClientGateway::new(state, token, secret, input);
    let (mut sink, mut stream) = socket.split();
    let sent = output.meter();
    let finished = CancellationToken::new();
    let guard = finished.clone().drop_guard();
    state.scope.spawn(async move {
        served.await;
        drop(guard);
    });
    let reason = {
        let silence = state.idle.max(MIN_SILENCE);
        // Unlike `select!`, this polls only what was woken: each message that is sent would poll the reader too.
        let mut ends = FuturesUnordered::from_iter([
            finished.cancelled().map(|()| CloseReason::Client).boxed(),
            read(&mut stream, &gateway, token, silence).boxed(),
            write(&mut sink, &mut output).map(|()| CloseReason::Client).boxed(),
            sent.stall().map(|()| CloseReason::Unread).boxed(),
            token.ended.cancelled().map(|()| CloseReason::TokenEnded).boxed(),
            gateway.wait_for_end().map(|()| CloseReason::Moved).boxed(),
            state.closing.cancelled().map(|()| CloseReason::Shutdown).boxed(),
        ]);
        ends.next().await.unwrap_or(CloseReason::Client)
    };
    stop.cancel();
    if matches!(reason, CloseReason::Client | CloseReason::Unread | CloseReason::Silent) {
        sent.close();
    }
    // The turns are stored even if the client is gone.
    drop(tokio::time::timeout(END_TIMEOUT, finished.cancelled()).await);
    drop(gateway);
    let farewell = async {
        write(&mut sink, &mut output).await;
        if let Some(frame) = reason.frame() {
            // Fails only if the client is gone.
            drop(sink.send(Message::Close(Some(frame))).await);
            // Closing with unread data would reset the connection before the client has the frame.
            while let Some(Ok(_)) = stream.next().await {}
        }
    };
    drop(tokio::time::timeout(FLUSH_TIMEOUT, farewell).await);
    sent.close();
}

/// Passes on what the client sends, until it closes the connection or is silent for `idle`.
async fn read(
    stream: &mut SplitStream<WebSocket>,
    gateway: &ClientGateway,
    token: &ActiveToken,
    idle: Duration,
) -> CloseReason {
    loop {
        let Ok(received) = tokio::time::timeout(idle, stream.next()).await else { return CloseReason::Silent };
        let text = match received {
            Some(Ok(Message::Text(text))) => text,
            // The transport answers pings; binary messages have no meaning in ACP.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_))) => continue,
            Some(Ok(Message::Close(_))) | None => return CloseReason::Client,
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection broke");
                return if is_too_large(&error) { CloseReason::TooLarge } else { CloseReason::Client };
            }
        };
        if text.len() > MAX_BODY {
            return CloseReason::TooLarge;
        }
        // A client over its limit waits: its next message is read later.
        while let Err(wait) = token.grant.count_request(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        if !gateway.send(text.as_str().to_owned()).await {
            return CloseReason::Client;
        }
    }
}

/// Sends messages in batches until the connection has ended and all are sent, or the client is gone.
async fn write(sink: &mut SplitSink<WebSocket, Message>, output: &mut ClientOutput) {
    let sent = output.meter();
    let mut ping = tokio::time::interval(PING_INTERVAL);
    ping.reset();
    loop {
        let messages = tokio::select! {
            messages = output.next() => messages,
            _ = ping.tick() => {
                if sink.send(Message::Ping(Vec::new().into())).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let Some(messages) = messages else { return };
        if send_batch(sink, messages, &sent).await.is_err() {
            return;
        }
    }
}

/// Sends messages and counts them as sent. Each portion counts once the transport has it, so that a client which reads
/// a large batch slowly does not look like one that reads nothing.
async fn send_batch(
    sink: &mut SplitSink<WebSocket, Message>,
    messages: Vec<OutgoingMessage>,
    sent: &OutputMeter,
) -> Result<(), axum::Error> {
    let mut size = 0;
    let mut uncounted = Vec::with_capacity(messages.len());
    for mut message in messages {
        let text = std::mem::take(&mut message.text);
        size += text.len();
        sink.feed(Message::Text(text.into())).await?;
        uncounted.push(message);
        if size >= PORTION {
            flush(sink, &mut uncounted, sent).await?;
            size = 0;
        }
    }
    flush(sink, &mut uncounted, sent).await
}

/// Passes on what the transport has, and counts it as sent.
async fn flush(
    sink: &mut SplitSink<WebSocket, Message>,
    uncounted: &mut Vec<OutgoingMessage>,
    sent: &OutputMeter,
) -> Result<(), axum::Error> {
    if !uncounted.is_empty() {
        sink.flush().await?;
        uncounted.drain(..).for_each(|message| sent.add(&message));
    }
    Ok(())
}

/// Returns whether the transport refused a message for its size.
fn is_too_large(error: &axum::Error) -> bool {
    use std::error::Error as _;
    use tokio_tungstenite::tungstenite::Error;
    let source = error.source().and_then(|source| source.downcast_ref::<Error>());
    matches!(source, Some(Error::Capacity(_)))
}
