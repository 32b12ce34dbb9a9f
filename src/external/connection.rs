//! Exchanges JSON-RPC messages with an external agent over stdio, one per line. Routes each message to its session, and
//! does not interpret the rest of it.
//!
//! Invariant: lines are dispatched in order, each before the next is read. Every request that Skein sends gets a reply
//! or an error, even if the process ends. No error contains a secret that the process was given.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::health::HealthTracker;
use super::lock;
use super::process::{LineVerdict, OutgoingLine, log, reading, supervise, write};
use super::rpc::{CLIENT_METHODS, RpcError};
use crate::ids::AgentName;
use crate::process::Pipes;
use crate::services::{SecretValues, SpawnedProgram};
use crate::task::TaskScope;
use crate::tool::SessionLifetime;

/// Maximum number of updates kept for sessions whose opening reply has not arrived yet.
const MAX_EARLY: usize = 1024;
const MAX_EARLY_BYTES: usize = 4 << 20;
/// Maximum number of requests from the agent whose replies are not written yet.
const MAX_CLIENT_REQUESTS: usize = 32;
/// Maximum number of refusals that are not written yet.
const MAX_REFUSALS: usize = 1024;
/// Maximum bytes of the id and of the method of a request. A refusal repeats both.
const MAX_REQUEST_NAME: usize = 1 << 10;
/// How long [`AgentConnection::tell`] waits for a reply that no caller needs.
const DETACHED_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

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

/// Receives the messages of one session. The connection calls it in the order of the messages.
pub(super) trait SessionHandler: Send + Sync {
    /// Blocks the reader while too much waits to be written. Returns false if the message must be dropped.
    fn wait_for_room(&self) -> bool;

    fn handle_update(&self, params: &RawValue);

    /// Counts a request against the limits of the turn. `bytes` is the size of its params. Fails if the request exceeds
    /// a limit.
    fn admit_request(&self, method: &str, bytes: usize) -> Result<(), RpcError>;

    /// Answers a request of the agent. `cancel` is cancelled if the agent withdraws it.
    fn answer(
        self: Arc<Self>,
        method: String,
        params: Value,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<Value, RpcError>>;

    /// Called when the user is done with the page `id`.
    fn page_done(&self, id: &str);

    /// Called when the process has ended.
    fn handle_exit(&self);
}

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
    /// The process can connect to a Unix socket of Skein.
    pub(super) has_unix_sockets: bool,
    closed: watch::Receiver<Option<String>>,
    stop: CancellationToken,
    pub(super) tasks: TaskScope,
    /// Cancellation tokens of the agent's pending requests, by request id.
    client_requests: Mutex<HashMap<String, CancellationToken>>,
    /// The agent's reply to `initialize`, without secrets.
    pub(super) about: std::sync::OnceLock<Value>,
    /// What the process was given. It may repeat a value in any error.
    secrets: SecretValues,
}

#[derive(Default)]
struct SessionTable {
    open: HashMap<String, Weak<dyn SessionHandler>>,
    /// Number of sessions being opened whose ids are not known yet.
    opening: usize,
    early: Vec<(String, Box<RawValue>)>,
}

impl AgentConnection {
    /// Takes over a process that was just started, and supervises it until it ends. Fails if its stdout cannot be read
    /// on a thread.
    pub(super) fn start(
        name: AgentName,
        program: SpawnedProgram,
        secrets: SecretValues,
        scope: &TaskScope,
    ) -> std::io::Result<Arc<Self>> {
        let SpawnedProgram { group, pipes: Pipes { stdin, stdout, stderr }, has_unix_sockets, .. } = program;
        let (connection, lines, closing) = Self::new(name, group.id(), has_unix_sockets, secrets.clone(), scope);
        let stop = connection.stop.clone();
        let (said, last_words) = watch::channel(String::new());
        scope.spawn(log(connection.name.clone(), stderr, secrets, said));
        scope.spawn(write(stdin, lines, stop.clone()));
        let reader = Arc::downgrade(&connection);
        let handle = move |line: &[u8]| match reader.upgrade() {
            Some(connection) => connection.receive(line),
            None => LineVerdict::Stop,
        };
        let reading = reading(connection.name.clone(), stdout, handle)?;
        let ending = scope.cancelled().clone();
        let watched = Arc::downgrade(&connection);
        scope.spawn(async move {
            let reason = supervise(group, reading, &stop, &ending, last_words).await;
            // The receivers may already be dropped.
            drop(closing.send(Some(reason.clone())));
            if let Some(connection) = watched.upgrade() {
                connection.handle_exit(&reason);
            }
        });
        Ok(connection)
    }

    /// Returns a connection with the lines that it sends, and the sender of the reason why its process has ended.
    pub(super) fn new(
        name: AgentName,
        pid: u32,
        has_unix_sockets: bool,
        secrets: SecretValues,
        scope: &TaskScope,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<OutgoingLine>, watch::Sender<Option<String>>) {
        let (out, lines) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(None);
        let connection = Self {
            name,
            out,
            room: Arc::new(Semaphore::new(MAX_CLIENT_REQUESTS)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
            sessions: Mutex::default(),
            health: Mutex::new(HealthTracker::new(Instant::now())),
            pid,
            has_unix_sockets,
            closed,
            stop: CancellationToken::new(),
            tasks: scope.clone(),
            client_requests: Mutex::default(),
            about: std::sync::OnceLock::new(),
            secrets,
        };
        (Arc::new(connection), lines, closing)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a text of the agent without the secrets that the process was given.
    pub(super) fn hide_secrets(&self, text: &str) -> String {
        self.secrets.hide(text)
    }

    /// Sends `initialize`. The reply is without secrets, because its texts are logged and shown.
    pub(super) async fn initialize(&self, greeting: Value) -> Result<Value, RpcError> {
        let about = self.request("initialize", greeting).await?;
        Ok(self.secrets.hide_json(about))
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

    /// Stops the process when the session ends.
    pub(super) fn stop_with(&self, session: SessionLifetime) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = session.wait_for_end() => stop.cancel(),
                () = stop.cancelled() => {}
            }
        });
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
        let connection = Arc::clone(self);
        self.tasks.spawn(async move {
            drop(tokio::time::timeout(DETACHED_REQUEST_TIMEOUT, connection.request(method, params)).await);
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

    /// Routes messages about `session` to `handler`, starting with the updates that arrived early. Returns false if
    /// another handler has that id.
    pub(super) fn register<H: SessionHandler + 'static>(&self, session: &str, handler: &Arc<H>) -> bool {
        let mut sessions = lock(&self.sessions);
        sessions.open.retain(|_, known| known.strong_count() > 0);
        let taken = |known: &Weak<dyn SessionHandler>| !std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(handler));
        if sessions.open.get(session).is_some_and(taken) {
            return false;
        }
        let weak = Arc::downgrade(handler) as Weak<dyn SessionHandler>;
        sessions.open.insert(session.to_owned(), weak);
        let (mine, rest) = std::mem::take(&mut sessions.early).into_iter().partition(|(id, _)| id == session);
        sessions.early = rest;
        drop(sessions);
        let mine: Vec<(String, Box<RawValue>)> = mine;
        mine.iter().for_each(|(_, params)| handler.handle_update(params));
        true
    }

    /// Stops routing messages about `session` to `handler`. Returns false if they were not routed there.
    pub(super) fn unregister(&self, session: &str, handler: &impl SessionHandler) -> bool {
        let mut sessions = lock(&self.sessions);
        let own = sessions.open.get(session).is_some_and(|known| std::ptr::addr_eq(known.as_ptr(), handler));
        if own {
            sessions.open.remove(session);
        }
        own
    }

    /// Starts keeping early updates, for a session whose id only the reply contains.
    pub(super) fn begin_opening(&self) -> OpeningGuard<'_> {
        lock(&self.sessions).opening += 1;
        OpeningGuard(self)
    }

    fn session_of(&self, session: &str) -> Option<Arc<dyn SessionHandler>> {
        lock(&self.sessions).open.get(session)?.upgrade()
    }

    /// Handles one line of the process's output.
    pub(super) fn receive(self: &Arc<Self>, line: &[u8]) -> LineVerdict {
        self.health().record_activity(Instant::now());
        match self.handle_line(line) {
            Ok(()) => LineVerdict::Message,
            Err(()) => LineVerdict::Garbage,
        }
    }

    /// Dispatches one line. Returns `Err` if it is not a JSON-RPC message.
    fn handle_line(self: &Arc<Self>, line: &[u8]) -> Result<(), ()> {
        let message: Envelope<'_> = serde_json::from_slice(line).map_err(drop)?;
        match (message.method.as_deref(), message.id) {
            (Some("session/update"), None) => self.handle_update(message.params),
            (Some("$/cancel_request"), None) => self.handle_cancel(message.params),
            (Some("elicitation/complete"), None) => self.handle_page_done(message.params),
            (Some(method), None) => {
                let method = self.hide_secrets(method);
                tracing::debug!(agent = %self.name, method, "a notification that is not passed on");
            }
            (Some(method), Some(id)) => self.handle_request(method, id, message.params),
            (None, Some(id)) => self.handle_reply(id, message.result, message.error),
            (None, None) => return Err(()),
        }
        Ok(())
    }

    fn handle_update(&self, params: Option<&RawValue>) {
        let Some(params) = params.filter(|params| params.get().starts_with('{')) else { return };
        let Ok(SessionIdParams { session_id }) = serde_json::from_str(params.get()) else { return };
        let mut sessions = lock(&self.sessions);
        // Under one lock, or a session that is registered in between would never get the update.
        if let Some(handler) = sessions.open.get(&session_id).and_then(Weak::upgrade) {
            drop(sessions);
            if handler.wait_for_room() {
                handler.handle_update(params);
            }
            return;
        }
        let size: usize = sessions.early.iter().map(|(_, params)| params.get().len()).sum();
        if sessions.opening > 0 && sessions.early.len() < MAX_EARLY && size + params.get().len() <= MAX_EARLY_BYTES {
            sessions.early.push((session_id, params.to_owned()));
        } else {
            let session_id = self.hide_secrets(&session_id);
            tracing::debug!(agent = %self.name, session_id, "an update about a session that is not known");
        }
    }

    /// Answers a request on its own task, so that the reader can continue.
    fn handle_request(self: &Arc<Self>, method: &str, id: &RawValue, params: Option<&RawValue>) {
        if id.get().len() > MAX_REQUEST_NAME || method.len() > MAX_REQUEST_NAME {
            tracing::warn!(agent = %self.name, "the id or the method of its request is too long; it is ended");
            return self.stop();
        }
        let params = params.filter(|params| params.get().starts_with('{'));
        let of = params.and_then(|params| serde_json::from_str::<SessionIdParams>(params.get()).ok());
        let Some(handler) = of.and_then(|of| self.session_of(&of.session_id)) else {
            let error = if CLIENT_METHODS.contains(&method) {
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
        if !handler.wait_for_room() {
            return self.refuse(id, RpcError::new(-32800, "the turn was cancelled"));
        }
        if let Err(error) = handler.admit_request(method, params.map_or(0, |params| params.get().len())) {
            return self.refuse(id, error);
        }
        let params = params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
        let (connection, method, id) = (Arc::clone(self), method.to_owned(), id.to_owned());
        let cancel = CancellationToken::new();
        lock(&self.client_requests).insert(id.get().to_owned(), cancel.clone());
        self.tasks.spawn(async move {
            let answer = handler.answer(method, params, cancel).await;
            lock(&connection.client_requests).remove(id.get());
            connection.answer(&id, answer, Some(room));
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
        let sessions: Vec<_> = lock(&self.sessions).open.values().filter_map(Weak::upgrade).collect();
        if let Some(id) = params["elicitationId"].as_str() {
            sessions.iter().for_each(|handler| handler.page_done(id));
        }
    }

    fn handle_reply(&self, id: &RawValue, result: Option<&RawValue>, error: Option<Value>) {
        let Some(waiting) = id.get().parse().ok().and_then(|id: u64| lock(&self.waiting).remove(&id)) else { return };
        let answer = match error {
            Some(error) => {
                let message = self.hide_secrets(error["message"].as_str().unwrap_or("no reason given"));
                let data = error.get("data").cloned().map(|data| self.secrets.hide_json(data));
                Err(RpcError { code: error["code"].as_i64().unwrap_or(-32603), message, data })
            }
            None => Ok(result.and_then(|result| serde_json::from_str(result.get()).ok()).unwrap_or_default()),
        };
        // The caller may have stopped waiting.
        drop(waiting.send(answer));
    }

    fn handle_exit(&self, reason: &str) {
        let waiting: Vec<_> = lock(&self.waiting).drain().map(|(_, waiting)| waiting).collect();
        waiting.into_iter().for_each(|waiting| drop(waiting.send(Err(RpcError::process_exit(reason)))));
        lock(&self.client_requests).drain().for_each(|(_, cancel)| cancel.cancel());
        let sessions: Vec<_> = lock(&self.sessions).open.values().filter_map(Weak::upgrade).collect();
        sessions.iter().for_each(|handler| handler.handle_exit());
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
        let mut sessions = lock(&self.0.sessions);
        sessions.opening -= 1;
        if sessions.opening == 0 {
            sessions.early.clear();
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

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
