//! Exchanges JSON-RPC messages with an external agent over stdio, one per line. Routes each message to its session, and
//! does not interpret the rest of it.
//!
//! Invariant: lines are dispatched in order, each before the next is read. Every request that Skein sends gets a reply
//! or an error, even if the process ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::health::HealthTracker;
use super::process::{log, reading, supervise, write};
use super::session::AcpSession;
use crate::ids::AgentName;
use crate::process::{Pipes, ProcessGroup};
use crate::services::SecretValues;
use crate::task::TaskScope;

/// Maximum number of updates kept for sessions whose opening reply has not arrived yet.
const MAX_EARLY: usize = 1024;
const MAX_EARLY_BYTES: usize = 4 << 20;
/// Maximum number of requests from the agent whose replies are not written yet.
const MAX_CLIENT_REQUESTS: usize = 32;
/// Maximum number of refusals that are not written yet.
const MAX_REFUSALS: usize = 1024;
/// How long [`AgentConnection::tell`] waits for a reply that no caller needs.
const DETACHED_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The error reply to a request, or the reason why no reply arrived.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl RpcError {
    /// Code of [`RpcError::process_exit`]; the protocol does not define it.
    const PROCESS_EXIT: i64 = 1;

    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    fn process_exit(reason: impl Into<String>) -> Self {
        Self::new(Self::PROCESS_EXIT, reason)
    }

    /// Returns true if the process has ended, so that no reply can arrive.
    pub(super) fn is_process_exit(&self) -> bool {
        self.code == Self::PROCESS_EXIT
    }
}

/// One message, parsed as far as routing needs.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionIdParams {
    session_id: String,
}

/// A line to write, and the permit that it holds until it is written.
pub(super) type OutgoingLine = (String, Option<OwnedSemaphorePermit>);

type ReplySender = oneshot::Sender<Result<Value, RpcError>>;

pub(super) struct AgentConnection {
    name: AgentName,
    out: mpsc::UnboundedSender<OutgoingLine>,
    room: Arc<Semaphore>,
    /// Permits for refusals that are not written yet.
    refusals: Arc<Semaphore>,
    waiting: Mutex<HashMap<u64, ReplySender>>,
    next: AtomicU64,
    sessions: Mutex<SessionTable>,
    health: Mutex<HealthTracker>,
    pid: u32,
    closed: watch::Receiver<Option<String>>,
    stop: CancellationToken,
    pub(super) tasks: TaskScope,
    /// Cancellation tokens of the agent's pending requests, by request id.
    client_requests: Mutex<HashMap<String, CancellationToken>>,
    /// The agent's reply to `initialize`.
    pub(super) about: std::sync::OnceLock<Value>,
}

#[derive(Default)]
struct SessionTable {
    open: HashMap<String, Weak<AcpSession>>,
    /// Number of sessions being opened whose ids are not known yet.
    opening: usize,
    early: Vec<(String, Box<RawValue>)>,
}

impl AgentConnection {
    /// Takes over a process that was just started, and supervises it until it ends. Fails if its stdout cannot be read
    /// on a thread.
    pub(super) fn start(
        name: AgentName,
        group: ProcessGroup,
        pipes: Pipes,
        secrets: SecretValues,
        scope: &TaskScope,
    ) -> std::io::Result<Arc<Self>> {
        let Pipes { stdin, stdout, stderr } = pipes;
        let (out, lines) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(None);
        let stop = CancellationToken::new();
        let peer = Arc::new(Self {
            name,
            out,
            room: Arc::new(Semaphore::new(MAX_CLIENT_REQUESTS)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
            sessions: Mutex::default(),
            health: Mutex::new(HealthTracker::new(Instant::now())),
            pid: group.id(),
            closed,
            stop: stop.clone(),
            tasks: scope.clone(),
            client_requests: Mutex::default(),
            about: std::sync::OnceLock::new(),
        });
        let (said, last_words) = watch::channel(String::new());
        scope.spawn(log(peer.name.clone(), stderr, secrets, said));
        scope.spawn(write(stdin, lines, stop.clone()));
        let reading = reading(Arc::downgrade(&peer), stdout)?;
        let ending = scope.cancelled().clone();
        let watched = Arc::downgrade(&peer);
        scope.spawn(async move {
            let reason = supervise(group, reading, &stop, &ending, last_words).await;
            // The receivers may already be dropped.
            drop(closing.send(Some(reason.clone())));
            if let Some(peer) = watched.upgrade() {
                peer.handle_exit(&reason);
            }
        });
        Ok(peer)
    }

    pub(super) fn name(&self) -> &AgentName {
        &self.name
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns why the process ended. `None` while it runs.
    pub(super) fn closed(&self) -> Option<String> {
        self.closed.borrow().clone()
    }

    pub(super) fn health(&self) -> MutexGuard<'_, HealthTracker> {
        lock(&self.health)
    }

    /// Asks the process to end; the supervisor kills it if it does not.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns true once the process is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(super) async fn stop_and_wait(&self) {
        self.stop();
        let mut closed = self.closed.clone();
        // The supervisor always sends the reason when the process has ended.
        drop(closed.wait_for(Option::is_some).await);
    }

    pub(super) async fn request(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        lock(&self.waiting).insert(id, tell);
        if let Some(reason) = self.closed() {
            lock(&self.waiting).remove(&id);
            return Err(RpcError::process_exit(reason));
        }
        self.health().record_request(Instant::now());
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let _answered = PendingReply { connection: self, id };
        told.await.unwrap_or_else(|_| Err(RpcError::process_exit("it ended")))
    }

    pub(super) fn notify(&self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request without waiting for its reply.
    pub(super) fn tell(self: &Arc<Self>, method: &'static str, params: Value) {
        let peer = Arc::clone(self);
        self.tasks.spawn(async move {
            drop(tokio::time::timeout(DETACHED_REQUEST_TIMEOUT, peer.request(method, params)).await);
        });
    }

    fn send(&self, message: &Value) {
        // Sending fails only for a process that ends; `handle_exit` then answers every waiting caller.
        drop(self.out.send((message.to_string(), None)));
    }

    /// Refuses a request. Stops an agent that leaves [`MAX_REFUSALS`] refusals unread, because they take memory.
    fn refuse(&self, id: &RawValue, error: RpcError) {
        match Arc::clone(&self.refusals).try_acquire_owned() {
            Ok(room) => self.answer(id, Err(error), Some(room)),
            Err(_) => {
                tracing::warn!(agent = %self.name, "it sends requests and does not read the answers; it is ended");
                self.stop();
            }
        }
    }

    fn answer(&self, id: &RawValue, answer: Result<Value, RpcError>, room: Option<OwnedSemaphorePermit>) {
        let id: Value = serde_json::from_str(id.get()).unwrap_or_default();
        let message = match answer {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(RpcError { code, message, data }) => {
                let mut error = json!({"code": code, "message": message});
                if let Some(data) = data {
                    error["data"] = data;
                }
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        };
        drop(self.out.send((message.to_string(), room)));
    }

    /// Routes messages about `session` to `place`, starting with the updates that arrived early. Returns false if
    /// another `AcpSession` has that id.
    pub(super) fn register(&self, session: &str, place: &Arc<AcpSession>) -> bool {
        let mut places = lock(&self.sessions);
        places.open.retain(|_, place| place.strong_count() > 0);
        if places.open.get(session).is_some_and(|known| known.as_ptr() != Arc::as_ptr(place)) {
            return false;
        }
        places.open.insert(session.to_owned(), Arc::downgrade(place));
        let (mine, rest) = std::mem::take(&mut places.early).into_iter().partition(|(id, _)| id == session);
        places.early = rest;
        drop(places);
        let mine: Vec<(String, Box<RawValue>)> = mine;
        mine.iter().for_each(|(_, params)| place.handle_update(params));
        true
    }

    /// Stops routing messages about `session` to `place`. Returns false if they were not routed there.
    pub(super) fn unregister(&self, session: &str, place: &AcpSession) -> bool {
        let mut places = lock(&self.sessions);
        let own = places.open.get(session).is_some_and(|known| std::ptr::eq(known.as_ptr(), place));
        if own {
            places.open.remove(session);
        }
        own
    }

    /// Starts keeping early updates, for a session whose id only the reply contains.
    pub(super) fn begin_opening(&self) -> OpeningGuard<'_> {
        lock(&self.sessions).opening += 1;
        OpeningGuard(self)
    }

    fn session_of(&self, session: &str) -> Option<Arc<AcpSession>> {
        lock(&self.sessions).open.get(session)?.upgrade()
    }

    /// Handles one line. Returns `Err` if it is not a JSON-RPC message.
    pub(super) fn handle_line(self: &Arc<Self>, line: &[u8]) -> Result<(), ()> {
        let message: Envelope<'_> = serde_json::from_slice(line).map_err(drop)?;
        match (message.method.as_deref(), message.id) {
            (Some("session/update"), None) => self.handle_update(message.params),
            (Some("$/cancel_request"), None) => self.handle_cancel(message.params),
            (Some("elicitation/complete"), None) => self.handle_page_done(message.params),
            (Some(method), None) => tracing::debug!(agent = %self.name, method, "a notification that is not passed on"),
            (Some(method), Some(id)) => self.handle_request(method, id, message.params),
            (None, Some(id)) => self.handle_reply(id, message.result, message.error),
            (None, None) => return Err(()),
        }
        Ok(())
    }

    fn handle_update(&self, params: Option<&RawValue>) {
        let Some(params) = params.filter(|params| params.get().starts_with('{')) else { return };
        let Ok(SessionIdParams { session_id }) = serde_json::from_str(params.get()) else { return };
        if let Some(place) = self.session_of(&session_id) {
            if place.wait_for_room() {
                place.handle_update(params);
            }
            return;
        }
        let mut places = lock(&self.sessions);
        let size: usize = places.early.iter().map(|(_, params)| params.get().len()).sum();
        if places.opening > 0 && places.early.len() < MAX_EARLY && size + params.get().len() <= MAX_EARLY_BYTES {
            places.early.push((session_id, params.to_owned()));
        } else {
            tracing::debug!(agent = %self.name, session_id, "an update about a session that is not known");
        }
    }

    /// Answers a request on its own task, so that the reader can continue.
    fn handle_request(self: &Arc<Self>, method: &str, id: &RawValue, params: Option<&RawValue>) {
        let params = params.filter(|params| params.get().starts_with('{'));
        let of = params.and_then(|params| serde_json::from_str::<SessionIdParams>(params.get()).ok());
        let Some(place) = of.and_then(|of| self.session_of(&of.session_id)) else {
            let error = if super::client_methods::METHODS.contains(&method) {
                RpcError::new(-32002, "there is no such session")
            } else {
                RpcError::new(-32601, format!("there is no method `{method}` here"))
            };
            return self.refuse(id, error);
        };
        // The permit is held until the reply is written: an agent that does not read its replies is refused further
        // requests.
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return self.refuse(id, RpcError::new(-32603, "this is too much at once; read the answers first"));
        };
        let params = params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
        let (peer, method, id) = (Arc::clone(self), method.to_owned(), id.to_owned());
        let cancel = CancellationToken::new();
        lock(&self.client_requests).insert(id.get().to_owned(), cancel.clone());
        self.tasks.spawn(async move {
            let answer = super::client_methods::answer(&place, &method, params, &cancel).await;
            lock(&peer.client_requests).remove(id.get());
            peer.answer(&id, answer, Some(room));
        });
    }

    fn handle_cancel(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct CancelParams {
            request_id: Box<RawValue>,
        }
        let cancelled = params.and_then(|params| serde_json::from_str::<CancelParams>(params.get()).ok());
        if let Some(cancel) = cancelled.and_then(|of| lock(&self.client_requests).get(of.request_id.get()).cloned()) {
            cancel.cancel();
        }
    }

    /// Reports a completed page to every session, because the notification does not name one.
    fn handle_page_done(&self, params: Option<&RawValue>) {
        let params: Value = params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
        let places: Vec<_> = lock(&self.sessions).open.values().filter_map(Weak::upgrade).collect();
        if let Some(id) = params["elicitationId"].as_str() {
            places.iter().for_each(|place| place.page_done(id));
        }
    }

    fn handle_reply(&self, id: &RawValue, result: Option<&RawValue>, error: Option<Value>) {
        let Some(waiting) = id.get().parse().ok().and_then(|id: u64| lock(&self.waiting).remove(&id)) else { return };
        let answer = match error {
            Some(error) => {
                let message = error["message"].as_str().unwrap_or("no reason given").to_owned();
                let data = error.get("data").cloned();
                Err(RpcError { code: error["code"].as_i64().unwrap_or(-32603), message, data })
            }
            None => Ok(result.and_then(|result| serde_json::from_str(result.get()).ok()).unwrap_or_default()),
        };
        // The caller may have stopped waiting.
        drop(waiting.send(answer));
    }

    pub(super) fn record_activity(&self) {
        self.health().record_activity(Instant::now());
    }

    fn handle_exit(&self, reason: &str) {
        let waiting: Vec<_> = lock(&self.waiting).drain().map(|(_, waiting)| waiting).collect();
        waiting.into_iter().for_each(|waiting| drop(waiting.send(Err(RpcError::process_exit(reason)))));
        lock(&self.client_requests).drain().for_each(|(_, cancel)| cancel.cancel());
        let places: Vec<_> = lock(&self.sessions).open.values().filter_map(Weak::upgrade).collect();
        places.iter().for_each(|place| place.handle_exit());
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Keeps early updates until the last such guard is dropped.
pub(super) struct OpeningGuard<'a>(&'a AgentConnection);

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        let mut places = lock(&self.0.sessions);
        places.opening -= 1;
        if places.opening == 0 {
            places.early.clear();
        }
    }
}

/// Removes a pending request when its caller has the reply or stops waiting.
struct PendingReply<'a> {
    connection: &'a AgentConnection,
    id: u64,
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        lock(&self.connection.waiting).remove(&self.id);
        self.connection.health().record_reply();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
