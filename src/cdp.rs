//! Speaks the Chrome DevTools Protocol with a browser over two pipes: one JSON message after the other, each with a NUL
//! at its end. It knows no domain of the protocol.
//!
//! Invariant: every call ends. It gets an answer, or an error after its time limit or when the browser ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};

use crate::task::TaskScope;

/// The largest message of a browser. A longer one is skipped, and its call fails.
const MAX_MESSAGE: usize = 64 << 20;
/// Messages that wait for the browser to read them.
const MAX_QUEUE: usize = 256;
/// The number of bytes at the start of a message in which its id is.
const HEAD: usize = 64;

/// An event of the browser.
#[derive(Debug, Clone, PartialEq)]
pub struct CdpEvent {
    pub method: String,
    pub params: Value,
    /// The page that it belongs to. `None` for the browser itself.
    pub session: Option<String>,
}

/// Receives the events of a browser, in order. It must not block: the task that reads calls it.
pub trait EventSink: Send + Sync + 'static {
    fn receive(&self, event: CdpEvent);

    /// The browser has closed its pipe. No event follows.
    fn end(&self);
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CdpError {
    #[error("the browser has ended")]
    Ended,
    #[error("the browser gave no answer to {method} within {} s", limit.as_secs())]
    TimedOut { method: String, limit: Duration },
    #[error("the answer to {method} is larger than {} MB", MAX_MESSAGE >> 20)]
    TooLarge { method: String },
    #[error("{message} ({method})")]
    Refused { method: String, message: String },
}

/// A connection to a browser. Clones share it; it ends when the last is dropped.
#[derive(Clone)]
pub struct CdpClient {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    /// The task that writes has the other end.
    outgoing: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<WaitingCalls>>,
    last_id: AtomicU64,
    limit: Duration,
    tasks: TaskScope,
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl std::fmt::Debug for CdpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CdpClient").field("limit", &self.inner.limit).finish_non_exhaustive()
    }
}

/// The calls without an answer, by id.
#[derive(Default)]
struct WaitingCalls {
    calls: HashMap<u64, WaitingCall>,
    has_ended: bool,
}

struct WaitingCall {
    method: String,
    /// `None`: the caller does not want the answer.
    answer: Option<oneshot::Sender<Result<Value, CdpError>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdpMessage {
    id: Option<u64>,
    #[serde(default)]
    result: Value,
    error: Option<ErrorMessage>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    session_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ErrorMessage {
    message: String,
}

impl CdpClient {
    /// Starts to read and write. `limit` is the time for one answer.
    pub fn start(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        events: Arc<dyn EventSink>,
        limit: Duration,
    ) -> Self {
        let (outgoing, queue) = mpsc::channel(MAX_QUEUE);
        let waiting: Arc<Mutex<WaitingCalls>> = Arc::default();
        let tasks = TaskScope::new();
        let cancelled = tasks.cancelled().clone();
        tasks.spawn(async move {
            cancelled.run_until_cancelled(write_messages(writer, queue)).await;
        });
        let (cancelled, known) = (tasks.cancelled().clone(), Arc::clone(&waiting));
        tasks.spawn(async move {
            cancelled.run_until_cancelled(read_messages(reader, &known, events.as_ref())).await;
            end_calls(&known);
            events.end();
        });
        Self { inner: Arc::new(ClientInner { outgoing, waiting, last_id: AtomicU64::new(0), limit, tasks }) }
    }

    /// Calls a method and waits for the result. `session` is the page, `None` the browser.
    pub async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Result<Value, CdpError> {
        self.call_within(self.inner.limit, session, method, params).await
    }

    /// Like [`CdpClient::call`], with another time limit.
    pub async fn call_within(
        &self,
        limit: Duration,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<Value, CdpError> {
        let (answer, answered) = oneshot::channel();
        let (id, message) = self.register(session, method, params, Some(answer))?;
        let exchange = async {
            self.inner.outgoing.send(message).await.map_err(|_| CdpError::Ended)?;
            answered.await.map_err(|_| CdpError::Ended)?
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(result) => result,
            Err(_) => {
                lock(&self.inner.waiting).calls.remove(&id);
                Err(CdpError::TimedOut { method: method.to_owned(), limit })
            }
        }
    }

    /// Sends a call without waiting. Drops it if the browser reads no messages.
    pub fn send(&self, session: Option<&str>, method: &str, params: Value) {
        let Ok((id, message)) = self.register(session, method, params, None) else { return };
        if self.inner.outgoing.try_send(message).is_err() {
            lock(&self.inner.waiting).calls.remove(&id);
            tracing::debug!(method, "a message to the browser was dropped");
        }
    }

    fn register(
        &self,
        session: Option<&str>,
        method: &str,
        params: Value,
        answer: Option<oneshot::Sender<Result<Value, CdpError>>>,
    ) -> Result<(u64, Vec<u8>), CdpError> {
        let id = self.inner.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = json!(session);
        }
        let mut waiting = lock(&self.inner.waiting);
        if waiting.has_ended {
            return Err(CdpError::Ended);
        }
        waiting.calls.insert(id, WaitingCall { method: method.to_owned(), answer });
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        Ok((id, bytes))
    }
}

fn lock(waiting: &Mutex<WaitingCalls>) -> MutexGuard<'_, WaitingCalls> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails every call that has no answer, and all later ones.
fn end_calls(waiting: &Mutex<WaitingCalls>) {
    let mut waiting = lock(waiting);
    waiting.has_ended = true;
    waiting.calls.clear();
}

async fn write_messages(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = queue.recv().await {
        if let Err(error) = writer.write_all(&message).await {
            tracing::debug!(%error, "the browser reads no more messages");
            return;
        }
    }
}

async fn read_messages(reader: impl AsyncRead + Unpin, waiting: &Mutex<WaitingCalls>, events: &dyn EventSink) {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    loop {
        match read_message(&mut reader).await {
            Ok(Some(ReadMessage::Whole(bytes))) => take_message(&bytes, waiting, events),
            Ok(Some(ReadMessage::TooLarge { head })) => refuse_large(&head, waiting),
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "the browser's pipe failed"),
        }
    }
}

/// A message without its NUL.
#[derive(Debug, PartialEq, Eq)]
enum ReadMessage {
    Whole(Vec<u8>),
    /// Only its first bytes were kept.
    TooLarge {
        head: Vec<u8>,
    },
}

/// Reads up to the next NUL. `None` at the end of the pipe.
async fn read_message(reader: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<Option<ReadMessage>> {
    let mut message = Vec::new();
    let mut is_large = false;
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            return Ok(None);
        }
        let end = memchr::memchr(0, available);
        let part = &available[..end.unwrap_or(available.len())];
        if !is_large && message.len() + part.len() > MAX_MESSAGE {
            is_large = true;
            message.truncate(HEAD);
            message.shrink_to_fit();
        }
        if !is_large {
            message.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            return Ok(Some(if is_large {
                ReadMessage::TooLarge { head: message }
            } else {
                ReadMessage::Whole(message)
            }));
        }
    }
}

/// Passes an answer to its caller, or an event to the sink.
fn take_message(bytes: &[u8], waiting: &Mutex<WaitingCalls>, events: &dyn EventSink) {
    let message: CdpMessage = match serde_json::from_slice(bytes) {
        Ok(message) => message,
        Err(error) => return tracing::debug!(%error, "the browser sent a malformed message"),
    };
    match (message.id, message.method) {
        (Some(id), _) => {
            let Some(call) = lock(waiting).calls.remove(&id) else { return };
            let result = match message.error {
                Some(error) => Err(CdpError::Refused { method: call.method, message: error.message }),
                None => Ok(message.result),
            };
            match call.answer {
                // The caller may have given up.
                Some(answer) => drop(answer.send(result)),
                None => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "the browser refused a message");
                    }
                }
            }
        }
        (None, Some(method)) => {
            events.receive(CdpEvent { method, params: message.params, session: message.session_id });
        }
        (None, None) => tracing::debug!("the browser sent neither an answer nor an event"),
    }
}

/// Fails the call whose answer was too large.
fn refuse_large(head: &[u8], waiting: &Mutex<WaitingCalls>) {
    let Some(id) = id_in_head(head) else { return };
    if let Some(WaitingCall { method, answer: Some(answer) }) = lock(waiting).calls.remove(&id) {
        drop(answer.send(Err(CdpError::TooLarge { method })));
    }
}

/// Returns the id at the start of an answer.
fn id_in_head(head: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(head.get(..HEAD.min(head.len()))?);
    let (_, rest) = text.split_once("\"id\":")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
#[path = "cdp/cdp_tests.rs"]
mod tests;
