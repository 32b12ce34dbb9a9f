//! Shows sessions live: each session that a browser watches has one feed, which is a viewer of the session and passes
//! its updates on to event streams.
//!
//! Stored events are not sent: a feed says that there are new ones, and the page reads them from the store by their
//! numbers. So a page that lost its connection misses nothing. Text that is not stored yet is sent at once.
//!
//! Invariant: a feed without a stream is not attached, so that it keeps no session open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::acp::{SharedSession, SharedSessions, next_viewer_id};
use crate::agents::{Event, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::session::{SessionViewer, TurnFailure, ViewerId};
use crate::tool::Activity;

/// Updates that wait for one event stream. A stream that is further behind ends, and its browser connects again.
const MAX_WAITING: usize = 4_096;
/// Times that a feed tries to attach while turns begin and end.
const ATTACH_ATTEMPTS: usize = 100;

/// One event stream of a browser.
#[derive(Debug, Clone)]
pub(super) struct StreamSender {
    id: ViewerId,
    sender: mpsc::Sender<Value>,
    /// Cancelled when the stream is too far behind. The task that writes it then ends.
    overflow: CancellationToken,
}

impl StreamSender {
    /// Returns the two ends of a new stream.
    pub(super) fn new() -> (Self, mpsc::Receiver<Value>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { id: next_viewer_id(), sender, overflow: CancellationToken::new() }, receiver)
    }

    /// Waits until the stream is too far behind.
    pub(super) async fn wait_for_overflow(&self) {
        self.overflow.cancelled().await;
    }

    /// Sends an update. Returns false if the stream has ended or is too far behind.
    pub(super) fn send(&self, update: Value) -> bool {
        match self.sender.try_send(update) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.overflow.cancel();
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

/// The feeds of all watched sessions.
#[derive(Debug, Default)]
pub(super) struct FeedTable {
    feeds: Mutex<HashMap<String, Arc<SessionFeed>>>,
}

impl FeedTable {
    /// Sends the updates of a session to a stream, beginning with its unfinished text. The caller has checked that the
    /// browser may see the session.
    pub(super) fn watch(&self, id: &str, stream: &StreamSender, open_sessions: &SharedSessions) {
        let feed = {
            let mut feeds = self.feeds();
            let feed = feeds.entry(id.to_owned()).or_insert_with(|| Arc::new(SessionFeed::new(id)));
            feed.add(stream);
            Arc::clone(feed)
        };
        if let Some(open) = open_sessions.find(id) {
            feed.attach_to(&open);
        }
    }

    /// Ends the updates of a session for a stream. Returns the session if no stream watches it any more: the caller
    /// closes it if it has no other viewer.
    pub(super) fn leave(&self, id: &str, stream: &StreamSender) -> Option<Arc<SharedSession>> {
        let feed = {
            let mut feeds = self.feeds();
            let feed = Arc::clone(feeds.get(id)?);
            if !feed.remove(stream) {
                return None;
            }
            feeds.remove(id);
            feed
        };
        let open = feed.state().open.take()?;
        open.session.live().detach(feed.viewer);
        Some(open)
    }

    /// Follows a session that was opened just now, if a stream watches it.
    pub(super) fn follow(&self, open: &Arc<SharedSession>) {
        let feed = self.feeds().get(open.session.id()).cloned();
        if let Some(feed) = feed {
            feed.attach_to(open);
        }
    }

    fn feeds(&self) -> MutexGuard<'_, HashMap<String, Arc<SessionFeed>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The updates of one session.
#[derive(Debug)]
struct SessionFeed {
    session: String,
    /// The feed as a client that shows the session.
    viewer: ViewerId,
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    /// The session to which the feed is attached. `None` while it is not open.
    open: Option<Arc<SharedSession>>,
    streams: Vec<StreamSender>,
    /// Text and thoughts that are not stored yet.
    text: String,
    thought: String,
}

impl SessionFeed {
    fn new(session: &str) -> Self {
        Self { session: session.to_owned(), viewer: next_viewer_id(), state: Mutex::default() }
    }

    fn add(&self, stream: &StreamSender) {
        let mut state = self.state();
        state.streams.retain(|known| known.id != stream.id);
        let snapshot =
            json!({"kind": "snapshot", "session": self.session, "text": state.text, "thought": state.thought});
        if stream.send(snapshot) {
            state.streams.push(stream.clone());
        }
    }

    /// Removes a stream. Returns true if no stream is left.
    fn remove(&self, stream: &StreamSender) -> bool {
        let mut state = self.state();
        state.streams.retain(|known| known.id != stream.id);
        state.streams.is_empty()
    }

    /// Attaches the feed to a session, unless it is attached already. The lock of the feed is free meanwhile, because
    /// the session calls the feed while it holds its own lock.
    fn attach_to(self: &Arc<Self>, open: &Arc<SharedSession>) {
        let before = self.state().open.replace(Arc::clone(open));
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, open)) {
            return;
        }
        if let Some(before) = before {
            before.session.live().detach(self.viewer);
        }
        let live = open.session.live();
        let is_attached = (0..ATTACH_ATTEMPTS).any(|_| {
            let viewer = Arc::clone(self) as Arc<dyn SessionViewer>;
            live.attach(self.viewer, viewer, &[], true, live.version()).is_ok()
        });
        if !is_attached {
            tracing::warn!(session = self.session, "the console cannot follow the session");
        }
        self.send(json!({"kind": "changed", "session": self.session}));
    }

    /// Sends an update to all streams, and forgets those that have ended.
    fn send(&self, update: Value) {
        let mut state = self.state();
        state.streams.retain(|stream| stream.send(update.clone()));
    }

    fn send_text(&self, kind: &str, text: &str) {
        let update = json!({"kind": kind, "session": self.session, "text": text});
        let mut state = self.state();
        match kind {
            "thought" => state.thought.push_str(text),
            _ => state.text.push_str(text),
        }
        state.streams.retain(|stream| stream.send(update.clone()));
    }

    /// Says that there are new events.
    fn send_change(&self, event: &Event) {
        let has_text = matches!(event, Event::Message { .. } | Event::External { .. });
        let mut state = self.state();
        if has_text {
            state.text.clear();
            state.thought.clear();
        }
        let update = json!({"kind": "changed", "session": self.session, "clear": has_text});
        state.streams.retain(|stream| stream.send(update.clone()));
    }

    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for SessionFeed {
    fn log(&self, event: Event) {
        self.send_change(&event);
    }

    fn status(&self, status: StatusUpdate) {
        match status {
            StatusUpdate::Text(text) | StatusUpdate::ExternalChunk { text, thought: false, .. } => {
                self.send_text("text", &text);
            }
            StatusUpdate::Thought(text) | StatusUpdate::ExternalChunk { text, thought: true, .. } => {
                self.send_text("thought", &text);
            }
            StatusUpdate::ToolActivity { activity, .. } => {
                if let Some(text) = progress_text(&activity) {
                    self.send(json!({"kind": "progress", "session": self.session, "text": text}));
                }
            }
            StatusUpdate::Usage { turn, .. } => {
                let text = format!("{} tokens in, {} out in this turn", turn.input, turn.output);
                self.send(json!({"kind": "progress", "session": self.session, "text": text}));
            }
            StatusUpdate::Notice(notice) => {
                self.send(json!({"kind": "notice", "session": self.session, "text": notice.text}));
            }
            StatusUpdate::Title(title) => {
                self.send(json!({"kind": "title", "session": self.session, "text": title}));
            }
        }
    }
}

impl SessionViewer for SessionFeed {
    fn replay(&self, events: &[Event], _is_running: bool) {
        if let Some(last) = events.last() {
            self.send_change(last);
        }
    }

    fn follow(&self, _events: &[Event]) {}

    fn end_turn(&self, end: Result<&TurnEnd, &TurnFailure>) {
        {
            let mut state = self.state();
            state.text.clear();
            state.thought.clear();
        }
        let problem = match end {
            Err(failure) => Some(failure.0.clone()),
            Ok(TurnEnd { ending, .. }) => match ending {
                StopReason::Exhausted { why } | StopReason::Failed { why, .. } => Some(why.clone()),
                StopReason::EndTurn
                | StopReason::MaxTokens
                | StopReason::Refusal
                | StopReason::Cancelled
                | StopReason::CallRefused { .. } => None,
            },
        };
        self.send(json!({"kind": "ended", "session": self.session, "problem": problem}));
    }
}

/// Returns what a call does now, in one line. `None` if the transcript shows it.
fn progress_text(activity: &Activity) -> Option<String> {
    match activity {
        Activity::Progress(progress) => {
            let part = match progress.total {
                Some(total) => format!("{} of {total}", progress.progress),
                None => progress.progress.to_string(),
            };
            Some(progress.message.as_ref().map_or(part.clone(), |message| format!("{message} ({part})")))
        }
        Activity::Location { path, .. } => Some(format!("works on {}", path.display())),
        Activity::Running | Activity::Changed { .. } | Activity::TodoList(_) | Activity::Terminal { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(receiver: &mut mpsc::Receiver<Value>) -> Vec<Value> {
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[test]
    fn a_stream_gets_the_text_so_far_and_each_piece_once() {
        let feed = SessionFeed::new("s");
        let (early, mut first) = StreamSender::new();
        feed.add(&early);
        feed.status(StatusUpdate::Text("one ".to_owned()));
        let (late, mut second) = StreamSender::new();
        feed.add(&late);
        feed.status(StatusUpdate::Text("two".to_owned()));
        let text = |updates: Vec<Value>| -> String {
            updates.iter().filter_map(|update| update["text"].as_str().map(str::to_owned)).collect()
        };
        assert_eq!((text(received(&mut first)), text(received(&mut second))), ("one two".into(), "one two".into()));
        assert!(!feed.remove(&early) && feed.remove(&late));
    }

    #[test]
    fn a_stream_that_has_ended_is_forgotten() {
        let feed = SessionFeed::new("s");
        let (stream, receiver) = StreamSender::new();
        feed.add(&stream);
        drop(receiver);
        feed.status(StatusUpdate::Text("x".to_owned()));
        assert!(feed.state().streams.is_empty());
    }

    #[tokio::test]
    async fn a_stream_that_is_too_far_behind_ends() {
        let (stream, receiver) = StreamSender::new();
        assert!((0..MAX_WAITING).all(|number| stream.send(number.into())));
        assert!(!stream.overflow.is_cancelled());
        assert!(!stream.send("one more".into()));
        stream.wait_for_overflow().await;
        assert_eq!(receiver.len(), MAX_WAITING);
    }
}
