//! Keeps the ACP connections of HTTP clients, which are several requests that belong together.
//!
//! Invariant: a connection exists only for its own token. For any other token it is as if it did not exist.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ServerState;
use super::authenticator::ActiveToken;
use super::checks::Refusal;
use super::gateway::{ClientGateway, ClientSecret};
use super::metrics::{ConnectionGauge, ConnectionKind};
use crate::acp::{
    self, ClientOutput, IncomingMessage, MessageStream, OutgoingMessage, OutputMeter, Response, StreamRoutes,
};

/// How long a connection that ends may take to store its turns.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last messages of a connection may take to reach their streams.
const ROUTE_DELAY: Duration = Duration::from_millis(50);

/// The connections.
pub(super) struct AcpConnections {
    /// By their ids.
    all: Mutex<HashMap<String, Arc<AcpHttpClient>>>,
    /// The free places. A connection lives longer than the requests of its client, whose places are others.
    places: Arc<Semaphore>,
}

/// An ACP connection of an HTTP client.
pub(super) struct AcpHttpClient {
    pub(super) id: String,
    token: Arc<ActiveToken>,
    gateway: ClientGateway,
    routes: StreamRoutes,
    streams: Mutex<HashMap<MessageStream, Arc<EventQueue>>>,
    sent: OutputMeter,
    /// The request whose response goes into the body of the first answer. The task that routes messages takes it.
    initialize: Mutex<Option<(IncomingMessage, oneshot::Sender<InitializeAnswer>)>>,
    activity: Mutex<ClientActivity>,
    /// Cancelled when the connection is to end.
    close: CancellationToken,
    /// Cancelled when its streams have all messages.
    ended: CancellationToken,
}

/// The response to `initialize`.
pub(super) struct InitializeAnswer {
    pub(super) text: String,
    pub(super) outcome: Response,
}

/// When the client was last there.
struct ClientActivity {
    streams: usize,
    last: Instant,
}

/// The messages of one stream that the client has not fetched yet.
#[derive(Default)]
pub(super) struct EventQueue {
    waiting: Mutex<WaitingMessages>,
    arrived: Notify,
    /// Ends the reader before, when the client opens the stream again.
    reader: Mutex<CancellationToken>,
}

/// Messages in order, with their size.
#[derive(Default)]
struct WaitingMessages {
    messages: VecDeque<OutgoingMessage>,
    bytes: usize,
    /// When the client last took a message, or the first of these arrived.
    progress: Option<Instant>,
}

impl WaitingMessages {
    fn add(&mut self, message: OutgoingMessage) {
        if self.messages.is_empty() {
            self.progress = Some(Instant::now());
        }
        self.bytes += message.text.len();
        self.messages.push_back(message);
    }

    fn take(&mut self) -> Option<OutgoingMessage> {
        let message = self.messages.pop_front()?;
        self.bytes = self.bytes.saturating_sub(message.text.len());
        self.progress = Some(Instant::now());
        Some(message)
    }

    /// Returns the bytes, if the client has taken nothing for `time`.
    fn unread(&self, time: Duration) -> usize {
        let is_unread = self.progress.is_some_and(|progress| progress.elapsed() >= time);
        if is_unread { self.bytes } else { 0 }
    }
}

/// An open event stream of a client.
pub(super) struct EventReader {
    client: Arc<AcpHttpClient>,
    stream: MessageStream,
    queue: Arc<EventQueue>,
    replaced: CancellationToken,
}

impl AcpConnections {
    /// Makes a table for at most `limit` connections.
    pub(super) fn new(limit: usize) -> Self {
        Self { all: Mutex::default(), places: Arc::new(Semaphore::new(limit)) }
    }

    /// Opens a connection that begins with `initialize`. Returns it with the response. Fails if there are too many, or
    /// the connection ended before it answered.
    pub(super) async fn open(
        state: &Arc<ServerState>,
        token: &Arc<ActiveToken>,
        secret: ClientSecret,
        (initialize, text): (IncomingMessage, String),
    ) -> Result<(Arc<AcpHttpClient>, InitializeAnswer), Refusal> {
        let place = Arc::clone(&state.acp.places).try_acquire_owned();
        let place = place.map_err(|_| unavailable("too many ACP connections\n"))?;
        let stop = CancellationToken::new();
        let (input, output, served) = acp::connect(state.acp_server(token), stop.clone());
        let (answer_tx, answer_rx) = oneshot::channel();
        let client = Arc::new(AcpHttpClient {
            id: connection_id(),
            token: Arc::clone(token),
            gateway: ClientGateway::new(state, token, secret, input),
            routes: StreamRoutes::default(),
            streams: Mutex::default(),
            sent: output.meter(),
            initialize: Mutex::new(Some((initialize, answer_tx))),
            activity: Mutex::new(ClientActivity { streams: 0, last: Instant::now() }),
            close: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        state.acp.all().insert(client.id.clone(), Arc::clone(&client));
        let finished = CancellationToken::new();
        let guard = finished.clone().drop_guard();
        state.scope.spawn(async move {
            served.await;
            drop(guard);
        });
        let routed = Arc::clone(&client);
        state.scope.spawn(async move { routed.route(output).await });
        let gauge = ConnectionGauge::new(&state.metrics, ConnectionKind::AcpHttp);
        let (watched, server) = (Arc::clone(&client), Arc::clone(state));
        state.scope.spawn(async move {
            let _counted = (place, gauge);
            watched.watch(&finished, &stop).await;
            server.acp.all().remove(&watched.id);
        });
        client.gateway.send(text).await;
        let answer = tokio::select! {
            biased;
            answer = answer_rx => answer.ok(),
            () = client.ended.cancelled() => None,
        };
        let answer = answer.ok_or_else(|| unavailable("the connection ended at once\n"))?;
        if answer.outcome == Response::Error {
            client.close();
        }
        Ok((client, answer))
    }

    /// Returns the connection `id` of a token. `None` if there is none, or it belongs to another token.
    pub(super) fn find(&self, id: &str, token: &ActiveToken) -> Option<Arc<AcpHttpClient>> {
        let client = self.all().get(id).cloned()?;
        let is_open = client.token.id == token.id && !client.close.is_cancelled();
        is_open.then_some(client).inspect(|client| client.touch())
    }

    /// Ends connections without an open stream or a request for `idle`, until `stop` is cancelled.
    pub(super) async fn sweep(&self, idle: Duration, stop: &CancellationToken) {
        let interval = (idle / 10).clamp(Duration::from_millis(50), Duration::from_secs(10));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            self.all().values().filter(|client| client.is_idle(idle)).for_each(|client| {
                tracing::info!(connection = %client.id, "an idle connection is removed");
                client.close();
            });
        }
    }

    /// Ends all connections.
    pub(super) fn end_all(&self) {
        self.all().values().for_each(|client| client.close());
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<AcpHttpClient>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AcpHttpClient {
    /// Passes a message of the client on. Returns false if the connection has ended.
    pub(super) async fn receive(&self, message: &IncomingMessage, text: String) -> bool {
        self.routes.add(message);
        self.gateway.send(text).await
    }

    /// Opens a stream. A stream that the client has open already ends.
    pub(super) fn subscribe(self: &Arc<Self>, stream: MessageStream) -> EventReader {
        let queue = self.queue(stream.clone());
        let replaced = CancellationToken::new();
        let before = std::mem::replace(&mut *lock(&queue.reader), replaced.clone());
        before.cancel();
        lock(&self.activity).streams += 1;
        EventReader { client: Arc::clone(self), stream, queue, replaced }
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.close.cancel();
    }

    /// Waits until the client, its token or the server ends the connection, and ends its turns. `finished` is cancelled
    /// when no turn is running; `stop` asks for it.
    async fn watch(&self, finished: &CancellationToken, stop: &CancellationToken) {
        tokio::select! {
            () = finished.cancelled() => {}
            () = self.sent.stall_of_streams(|time| self.unread(time)) => {
                tracing::info!(connection = %self.id, "the client does not read; its connection ends");
            }
            () = self.token.ended.cancelled() => {}
            () = self.gateway.wait_for_end() => {}
            () = self.close.cancelled() => {}
        }
        self.close();
        stop.cancel();
        // The turns are stored even if the client is gone.
        drop(tokio::time::timeout(END_TIMEOUT, finished.cancelled()).await);
        // The last messages are on their way to their streams, which send them before they end.
        tokio::time::sleep(ROUTE_DELAY).await;
        self.ended.cancel();
        self.sent.close();
    }

    /// Moves each message to the stream on which the client expects it.
    async fn route(&self, mut output: ClientOutput) {
        while let Some(messages) = output.next().await {
            for message in messages {
                let Some(message) = self.take_initialize_answer(message) else { continue };
                let queue = self.queue(self.routes.stream_of(&message));
                lock(&queue.waiting).add(message);
                queue.arrived.notify_one();
            }
        }
    }

    /// Passes the response to `initialize` to its request. Returns any other message.
    fn take_initialize_answer(&self, message: OutgoingMessage) -> Option<OutgoingMessage> {
        let mut initialize = lock(&self.initialize);
        let Some(outcome) = initialize.as_ref().and_then(|(request, _)| message.response_to(request)) else {
            return Some(message);
        };
        self.sent.add(&message);
        if let Some((_, answer)) = initialize.take() {
            // Fails only if the client has disconnected.
            drop(answer.send(InitializeAnswer { text: message.text, outcome }));
        }
        None
    }

    fn queue(&self, stream: MessageStream) -> Arc<EventQueue> {
        Arc::clone(lock(&self.streams).entry(stream).or_default())
    }

    /// Returns the bytes of the streams from which the client has taken nothing for `time`.
    fn unread(&self, time: Duration) -> usize {
        lock(&self.streams).values().map(|queue| lock(&queue.waiting).unread(time)).sum()
    }

    /// Forgets a stream that has no message and no other reader: its name is any text that the client sends.
    fn forget_empty(&self, stream: &MessageStream, queue: &Arc<EventQueue>) {
        let mut streams = lock(&self.streams);
        // The map and the reader that ends have it. A message on its way would have it, too.
        if Arc::strong_count(queue) == 2 && lock(&queue.waiting).messages.is_empty() {
            streams.remove(stream);
        }
    }

    fn touch(&self) {
        lock(&self.activity).last = Instant::now();
    }

    fn is_idle(&self, idle: Duration) -> bool {
        let activity = lock(&self.activity);
        activity.streams == 0 && activity.last.elapsed() >= idle
    }
}

impl EventReader {
    /// Waits for the next message. `None` if the connection ends, or the client opens the stream again.
    pub(super) async fn next(&self) -> Option<String> {
        loop {
            if self.replaced.is_cancelled() {
                return None;
            }
            let message = lock(&self.queue.waiting).take();
            if let Some(message) = message {
                self.client.sent.add(&message);
                return Some(message.text);
            }
            tokio::select! {
                biased;
                () = self.replaced.cancelled() => return None,
                () = self.queue.arrived.notified() => {}
                () = self.client.ended.cancelled() => {
                    if lock(&self.queue.waiting).messages.is_empty() {
                        return None;
                    }
                }
            }
        }
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.client.forget_empty(&self.stream, &self.queue);
        let mut activity = lock(&self.client.activity);
        activity.streams -= 1;
        activity.last = Instant::now();
    }
}

fn unavailable(text: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text).retry_after(5)
}

/// Returns a random id. It is no secret: a connection works only with its token.
fn connection_id() -> String {
    crate::ids::random_id("connection")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
