//! Writes lines to a client. All output goes through one queue, so it is written in the order in which it was queued: at
//! once if nothing waits and the client has room for it, or else by one task. Updates bypass the SDK, which costs thirty
//! times as much as writing them.
//!
//! Invariant: every output line is one JSON message.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use agent_client_protocol::v1::schema as acp;
use futures::Sink;
use serde_json::Value;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::output_item::{ExternalChunk, MessageChunk, OutputItem};
use crate::agents::ChunkTemplate;

const MAX_BUFFER: usize = 256 << 10;
/// Unsent bytes beyond which a remote client that does not read is disconnected.
pub(super) const MAX_UNSENT: usize = 4 << 20;
/// How long the writer collects chunks after it has taken one.
pub(super) const BATCH_INTERVAL: Duration = Duration::from_millis(2);

/// A cheap handle to the output queue. The queue is closed when the last handle is dropped.
#[derive(Debug, Clone)]
pub(super) struct ClientWriter {
    queue: Arc<QueueHandle>,
}

/// Sends lines to a client as long as its connection has a handle to the queue.
#[derive(Debug, Clone)]
pub(super) struct LineInjector(Weak<QueueHandle>);

impl LineInjector {
    /// Queues a message that is complete. Does nothing once the connection has ended.
    pub(super) fn send_line(&self, line: String) {
        if let Some(queue) = self.0.upgrade() {
            queue.0.push(OutputItem::Line(line));
        }
    }
}

/// Output that can be written without waiting.
pub(super) trait TryWrite: std::fmt::Debug + Send + Sync {
    /// Writes as many bytes as possible without waiting, and returns their number.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
}

/// The queue of items to write. Waking the writer for every chunk of a stream costs more than writing it. While the
/// writer collects chunks, only other items wake it.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    state: Mutex<State>,
    /// Takes items while nothing waits. The thread that has an item then need not wait for the writer.
    direct: Option<Box<dyn TryWrite>>,
    /// Wakes the task that writes.
    arrived: Notify,
    /// Notified when more than [`MAX_UNSENT`] bytes are not written.
    pub(super) overfull: Notify,
    /// Bytes that were queued and are not written yet, including those the writer has taken.
    unwritten: AtomicUsize,
    /// Grows when bytes are written, which shows whether the client reads.
    written: AtomicUsize,
    /// Notified when bytes were written.
    progress: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<OutputItem>,
    /// The writer has taken items that are not written yet.
    writing: bool,
    /// When a chunk was the last that was taken or written.
    chunk_taken: Option<Instant>,
    /// The writer collects chunks, because one was taken shortly before.
    gathering: bool,
    closed: bool,
    /// The client no longer reads: further items are dropped.
    broken: bool,
}

/// Shared by all handles; closes the queue when the last handle is dropped.
#[derive(Debug)]
struct QueueHandle(Arc<OutputQueue>);

impl Drop for QueueHandle {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.arrived.notify_one();
    }
}

impl OutputQueue {
    /// Returns the number of bytes that are queued or taken, and not written yet.
    pub(super) fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Notes that the client has read a part of what the writer has taken.
    fn mark_progress(&self, size: usize) {
        self.written.fetch_add(size, Ordering::Relaxed);
    }

    /// Returns a number that grows when bytes are written.
    pub(super) fn total_output(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Counts `size` bytes as written.
    pub(super) fn mark_written(&self, size: usize) {
        self.written.fetch_add(size, Ordering::Relaxed);
        // The queue counts nothing any more once it is broken.
        let (Ok(_) | Err(_)) =
            self.unwritten.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| Some(bytes.saturating_sub(size)));
        self.progress.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, outgoing: OutputItem) {
        let mut state = self.state();
        if state.broken {
            return;
        }
        let before = self.unwritten.fetch_add(outgoing.size(), Ordering::Relaxed);
        if before + outgoing.size() > MAX_UNSENT {
            self.overfull.notify_one();
        }
        let is_piece = outgoing.is_piece();
        let outgoing = match &self.direct {
            Some(direct) if state.is_idle() && !(is_piece && state.batch_end().is_some()) => {
                self.write_now(&**direct, &mut state, &outgoing)
            }
            _ => Some(outgoing),
        };
        let Some(outgoing) = outgoing else { return };
        let rest = match state.waiting.back_mut() {
            Some(last) => last.try_merge(outgoing),
            None => Some(outgoing),
        };
        state.waiting.extend(rest);
        let is_collected = is_piece && state.gathering;
        // The writer needs the lock as soon as it wakes.
        drop(state);
        if !is_collected {
            self.arrived.notify_one();
        }
    }

    /// Writes an item without waiting. Returns the rest for which there is no room.
    fn write_now(&self, direct: &dyn TryWrite, state: &mut State, item: &OutputItem) -> Option<OutputItem> {
        let mut bytes = Vec::new();
        item.write(&mut bytes);
        match direct.try_write(&bytes) {
            Ok(count) if count < bytes.len() => {
                bytes.drain(..count);
                return Some(OutputItem::Rest { bytes, size: item.size() });
            }
            Ok(_) => {
                state.chunk_taken = item.is_piece().then(Instant::now);
                self.mark_written(item.size());
            }
            Err(error) => self.fail(state, &error),
        }
        None
    }

    /// Empties the queue and drops all further items, because the client no longer reads. A client that disconnects also
    /// closes its output, which ends the connection.
    fn fail(&self, state: &mut State, error: &io::Error) {
        tracing::info!(%error, "the client no longer reads");
        self.drop_all(state);
    }

    /// Empties the queue and drops all further items.
    pub(super) fn break_off(&self) {
        self.drop_all(&mut self.state());
    }

    fn drop_all(&self, state: &mut State) {
        state.broken = true;
        state.waiting.clear();
        self.unwritten.store(0, Ordering::Relaxed);
    }
}

impl State {
    /// Returns true if everything that was queued is written.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.writing
    }

    /// Returns until when chunks are collected, because one was taken shortly before. A slow stream thus needs no timer.
    fn batch_end(&self) -> Option<Instant> {
        let until = self.chunk_taken? + BATCH_INTERVAL;
        (Instant::now() < until).then_some(until)
    }
}

/// Takes the items of a queue. One task has it.
#[derive(Debug)]
pub(super) struct QueueReader(Arc<OutputQueue>);

impl QueueReader {
    pub(super) fn queue(&self) -> &Arc<OutputQueue> {
        &self.0
    }

    /// Waits for items and returns all of them, at least one. `None` once the queue is closed and empty. If there is a
    /// direct output, the caller must have written the items before. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<VecDeque<OutputItem>> {
        loop {
            let more_until = {
                let mut state = self.0.state();
                state.writing = false;
                // What is to be sent at once: everything but chunks, and the chunks before it.
                let collects = !state.closed && state.waiting.iter().all(OutputItem::is_piece);
                let more_until = state.batch_end().filter(|_| collects && !state.waiting.is_empty());
                state.gathering = more_until.is_some();
                if more_until.is_none() {
                    if let Some(last) = state.waiting.back() {
                        state.chunk_taken = last.is_piece().then(Instant::now);
                        state.writing = true;
                        return Some(std::mem::take(&mut state.waiting));
                    }
                    if state.closed {
                        return None;
                    }
                }
                more_until
            };
            match more_until {
                // Any item but a chunk ends the wait early.
                Some(until) => drop(timeout_at(until, self.0.arrived.notified()).await),
                None => self.0.arrived.notified().await,
            }
        }
    }
}

impl ClientWriter {
    /// Creates a queue with its first handle, and the reader for the task that writes. If there is a `direct` output, the
    /// task must write to the same file.
    pub(super) fn with_reader(direct: Option<Box<dyn TryWrite>>) -> (Self, QueueReader) {
        let queue = Arc::new(OutputQueue { direct, ..OutputQueue::default() });
        (Self { queue: Arc::new(QueueHandle(Arc::clone(&queue))) }, QueueReader(queue))
    }

    /// Waits until the first message is written.
    pub(super) async fn first_output(&self) {
        let queue = &self.queue.0;
        loop {
            let mut progress = pin!(queue.progress.notified());
            progress.as_mut().enable();
            if queue.total_output() > 0 {
                return;
            }
            progress.await;
        }
    }

    /// Returns a handle that does not keep the queue open.
    pub(super) fn injector(&self) -> LineInjector {
        LineInjector(Arc::downgrade(&self.queue))
    }

    /// Queues a message that is complete.
    pub(super) fn send_line(&self, line: String) {
        self.send(OutputItem::Line(line));
    }

    /// Queues a chunk. Merges it with the queued chunk before it, if both belong to one message.
    pub(super) fn send_chunk(&self, chunk: MessageChunk) {
        self.send(OutputItem::Chunk(chunk));
    }

    /// Queues a chunk of an external agent. Merges it with the queued chunk before it, if both have one template.
    pub(super) fn send_external_chunk(&self, session: &Arc<str>, frame: Arc<ChunkTemplate>, text: String) {
        self.send(OutputItem::External(ExternalChunk { session: Arc::clone(session), template: frame, text }));
    }

    pub(super) fn send_update(&self, session: &Arc<str>, update: acp::SessionUpdate) {
        let is_call = matches!(update, acp::SessionUpdate::ToolCall(_));
        let params = acp::SessionNotification::new(Arc::clone(session), update);
        // Serialization cannot fail: the protocol types contain only JSON values.
        let Ok(mut params) = serde_json::to_value(&params) else { return };
        if is_call {
            complete_call(&mut params["update"]);
        }
        self.send_params(session, &params);
    }

    /// Sends the valid update of an external agent, with `session` as its session id.
    pub(super) fn send_raw_update(&self, session: &str, told: &Value) {
        let mut params = told.clone();
        params["sessionId"] = session.into();
        if params["update"]["sessionUpdate"] == "tool_call" {
            complete_call(&mut params["update"]);
        }
        self.send_params(&session.into(), &params);
    }

    fn send_params(&self, session: &Arc<str>, params: &Value) {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#);
        self.send(OutputItem::Update(Arc::clone(session), line));
    }

    /// Sends a notification of a session other than an update.
    pub(super) fn send_notification(&self, method: &str, params: &Value) {
        self.send(OutputItem::Line(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)));
    }

    /// Returns the number of bytes that are not written to the client yet.
    pub(super) fn backlog(&self) -> usize {
        self.queue.0.unwritten()
    }

    fn send(&self, outgoing: OutputItem) {
        self.queue.0.push(outgoing);
    }

    /// Returns the sink for the lines of the SDK.
    pub(super) fn sink(&self) -> impl Sink<String, Error = io::Error> + Send + 'static + use<> {
        let wire = self.clone();
        futures::sink::unfold(wire, |wire, line: String| async move {
            wire.send_line(line);
            Ok(wire)
        })
    }
}

/// Adds the status and the kind of a new call if they are the defaults, which the protocol's types leave out. Some
/// clients require both.
fn complete_call(update: &mut Value) {
    for (field, default) in [("status", "pending"), ("kind", "other")] {
        if update[field].is_null() {
            update[field] = default.into();
        }
    }
}

/// Writes the items of a queue until it is closed and empty, or until the client no longer reads.
pub(super) async fn write_queue(mut reader: QueueReader, output: impl AsyncWrite + Unpin) {
    if let Err(error) = write_all(&mut reader, output).await {
        let queue = reader.queue();
        queue.fail(&mut queue.state(), &error);
    }
}

async fn write_all(reader: &mut QueueReader, mut output: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(waiting) = reader.next().await {
        let mut in_buffer = 0;
        for item in waiting {
            in_buffer += item.size();
            item.write(&mut buffer);
            drop(item);
            if buffer.len() > MAX_BUFFER {
                write_portions(&mut output, &buffer, reader.queue()).await?;
                reader.queue().mark_written(std::mem::take(&mut in_buffer));
                buffer.clear();
                buffer.shrink_to(4 * MAX_BUFFER);
            }
        }
        write_portions(&mut output, &buffer, reader.queue()).await?;
        output.flush().await?;
        reader.queue().mark_written(in_buffer);
        buffer.clear();
    }
    Ok(())
}

/// Writes bytes, and notes the progress of each portion. A client may take long for a large message.
async fn write_portions(output: &mut (impl AsyncWrite + Unpin), bytes: &[u8], queue: &OutputQueue) -> io::Result<()> {
    for portion in bytes.chunks(MAX_BUFFER) {
        output.write_all(portion).await?;
        queue.mark_progress(portion.len());
    }
    Ok(())
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
