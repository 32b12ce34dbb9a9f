//! Serves a client over a transport that the caller runs: WebSocket or HTTP. The caller passes on what the client sends
//! and takes what is to be sent to it.
//!
//! Invariant: one connection runs the same code as `skein acp` on stdio; only the transport differs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::connection::ClientConnection;
use super::message_routes::OutgoingMessage;
use super::wire::{ClientWriter, LineInjector, MAX_UNSENT, OutputQueue, QueueReader};
use super::{AcpServer, dispatch, request_limit};

/// Messages of the client that wait for the dispatch loop. A full queue makes the transport wait.
const MAX_INPUT: usize = 64;
/// Unsent bytes beyond which a client is disconnected even if it reads slowly.
const MAX_UNSENT_OF_READER: usize = 32 << 20;
/// How long a remote client with too many unsent bytes may read nothing.
const STALL_LIMIT: Duration = Duration::from_secs(3);
const REMOTE_STALL: StallLimits = StallLimits { time: STALL_LIMIT, unsent: MAX_UNSENT_OF_READER };
/// How often the unsent bytes are checked.
const STALL_POLL: Duration = Duration::from_millis(250);
/// Sent to clients when the server begins to shut down.
const SHUTDOWN: &str = r#"{"jsonrpc":"2.0","method":"_skein/shutdown","params":{}}"#;

/// Passes the messages of the client to its connection. Dropping the last one ends the connection.
#[derive(Debug, Clone)]
pub struct ClientInput {
    tx: mpsc::Sender<io::Result<String>>,
    client: LineInjector,
}

impl ClientInput {
    /// Passes on one message. Returns false if the connection has ended.
    pub async fn send(&self, message: String) -> bool {
        self.tx.send(Ok(message)).await.is_ok()
    }

    /// Returns true if the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.tx.is_closed()
    }

    /// Sends a message of another server to the client, in order with those of the connection.
    pub fn inject(&self, message: String) {
        self.client.send_line(message);
    }
}

/// Takes the messages for the client.
#[derive(Debug)]
pub struct ClientOutput(QueueReader);

/// Counts what was sent to the client.
#[derive(Debug, Clone)]
pub struct OutputMeter(Arc<OutputQueue>);

/// When a client with more than [`MAX_UNSENT`] unsent bytes loses its connection.
pub(super) struct StallLimits {
    /// How long it may read nothing.
    pub(super) time: Duration,
    /// The unsent bytes that it may leave while it reads.
    pub(super) unsent: usize,
}

impl OutputMeter {
    pub(super) fn of(queue: &QueueReader) -> Self {
        Self(Arc::clone(queue.queue()))
    }

    /// Counts a message as sent.
    pub fn add(&self, message: &OutgoingMessage) {
        self.0.mark_written(message.size);
    }

    /// Waits until too many bytes are unsent and the client reads nothing.
    pub async fn stall(&self) {
        self.stall_of_streams(|_| 0).await;
    }

    /// The same for a client with several streams, which may read one and leave another. `unread` returns the bytes of
    /// the streams from which the client has taken nothing for this long.
    pub async fn stall_of_streams(&self, unread: impl Fn(Duration) -> usize) {
        self.stall_over(&REMOTE_STALL, unread).await;
    }

    /// The same with limits of the caller.
    pub(super) async fn stall_over(&self, limits: &StallLimits, unread: impl Fn(Duration) -> usize) {
        let mut written = self.0.total_output();
        // Not the time that has passed: client and Skein may have been stopped together.
        let mut idle = Duration::ZERO;
        loop {
            if self.0.unwritten() <= MAX_UNSENT {
                self.0.overfull.notified().await;
                idle = Duration::ZERO;
            }
            sleep(STALL_POLL).await;
            idle += STALL_POLL;
            let now = self.0.total_output();
            if now != written {
                written = now;
                idle = Duration::ZERO;
            }
            let is_over = self.0.unwritten() > limits.unsent || unread(limits.time) > MAX_UNSENT;
            if is_over || idle >= limits.time {
                return;
            }
        }
    }

    /// Drops everything that is not sent, and all that follows.
    pub fn close(&self) {
        self.0.break_off();
    }
}

impl ClientOutput {
    /// Returns the counter of sent bytes. The transport must count every message that it has sent.
    pub fn meter(&self) -> OutputMeter {
        OutputMeter::of(&self.0)
    }

    /// Waits for messages and returns them in order. `None` once the connection has ended and all are taken. Dropping the
    /// future loses nothing.
    pub async fn next(&mut self) -> Option<Vec<OutgoingMessage>> {
        Some(self.0.next().await?.into_iter().map(OutgoingMessage::from).collect())
    }
}

/// Connects a client. The future serves it until the last [`ClientInput`] is dropped or `stop` is cancelled. Turns that
/// outlast the connection continue. When the future ends, all messages are in the [`ClientOutput`].
pub fn connect(
    front: AcpServer,
    stop: CancellationToken,
) -> (ClientInput, ClientOutput, impl Future<Output = ()> + Send + 'static) {
    let (wire, output) = ClientWriter::with_reader(None);
    let (tx, mut rx) = mpsc::channel(MAX_INPUT);
    let client = wire.injector();
    // Boxed, because callers move it into a task, which would have room for it twice.
    let served = Box::pin(async move {
        let messages = futures::stream::poll_fn(move |context| rx.poll_recv(context));
        let transport = request_limit::transport(&wire, messages.take_until(stop.cancelled_owned()));
        let draining = front.draining.clone();
        let connection = ClientConnection::new(front, wire);
        let announced = async {
            draining.cancelled().await;
            if connection.is_initialized() {
                connection.wire.send_line(SHUTDOWN.to_owned());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = dispatch::speak(&connection, transport) => {
                if let Err(error) = ended {
                    tracing::info!(%error, "a client connection broke");
                }
            }
            () = announced => {}
        }
        connection.end().await;
    });
    (ClientInput { tx, client }, ClientOutput(output), served)
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
