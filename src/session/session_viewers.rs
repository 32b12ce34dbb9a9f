//! Shows a session to every client that is attached to it, and shows a running turn to one that attaches later.
//!
//! Invariant: each viewer gets every update of a turn once and in order. Snapshot and subscription share one lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::agents::{ChildSession, Event, Notifier, StatusUpdate, TurnEnd};

/// A client that shows a session.
pub trait SessionViewer: Notifier {
    /// Shows past events. If `is_running`, calls without an end still run.
    fn replay(&self, events: &[Event], is_running: bool);

    /// Remembers the calls of past events without showing them, so that their end can be shown.
    fn follow(&self, events: &[Event]);

    /// Shows the end of a turn that another client began. The error is the reason why the turn failed.
    fn end_turn(&self, end: Result<&TurnEnd, &TurnFailure>);
}

/// The reason why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TurnFailure(pub String);

/// Identifies a client connection. A connection views a session at most once.
pub type ViewerId = u64;

/// The viewers of a session, and what the running turn has shown so far.
#[derive(Default)]
pub struct LiveSession {
    state: Mutex<LiveState>,
}

#[derive(Default)]
struct LiveState {
    viewers: Vec<(ViewerId, Arc<dyn SessionViewer>)>,
    turn: Option<LiveTurn>,
    /// Counts the starts and ends of turns.
    version: u64,
}

/// What a running turn has shown so far.
struct LiveTurn {
    /// The client that began the turn. It gets the end as the response to its prompt.
    author: ViewerId,
    /// Number of stored events before the turn.
    start: usize,
    events: Vec<Event>,
    /// Text and thoughts after the last event.
    chunks: Vec<StatusUpdate>,
    /// Cancels the token of [`LiveSession::begin`]. `None` after the first answer.
    unanswered: Option<DropGuard>,
}

/// The stored events that a viewer is shown do not end where the turn begins; read them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a turn began or ended meanwhile")]
pub struct StaleEventsError;

impl LiveSession {
    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes whenever a turn begins or ends.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Returns true while a turn runs that viewers can attach to.
    pub fn is_running(&self) -> bool {
        self.state().turn.is_some()
    }

    /// Returns true if another client than `viewer` views the session.
    pub fn has_others(&self, viewer: ViewerId) -> bool {
        self.state().viewers.iter().any(|(id, _)| *id != viewer)
    }

    /// Starts a turn that `author` prompted. Viewers get its events from now on. Returns a token that is cancelled when
    /// the model or the external agent has answered for the first time, or the turn has ended.
    pub fn begin(&self, author: ViewerId, stored_events: usize) -> CancellationToken {
        let answered = CancellationToken::new();
        let unanswered = Some(answered.clone().drop_guard());
        let mut state = self.state();
        state.version += 1;
        state.turn =
            Some(LiveTurn { author, start: stored_events, events: Vec::new(), chunks: Vec::new(), unanswered });
        answered
    }

    /// Corrects the number of stored events before the turn, if another process has added some.
    pub(super) fn set_start(&self, stored_events: usize) {
        if let Some(turn) = &mut self.state().turn {
            turn.start = stored_events;
        }
    }

    /// Ends the turn, and shows the end to every viewer but the author.
    pub fn end(&self, end: Result<&TurnEnd, &TurnFailure>) {
        let mut state = self.state();
        state.version += 1;
        let Some(turn) = state.turn.take() else { return };
        for (_, viewer) in state.viewers.iter().filter(|(id, _)| *id != turn.author) {
            viewer.end_turn(end);
        }
    }

    /// Adds a viewer, or replaces the earlier viewer of the same connection. With `replay`, the viewer first shows
    /// `stored` (the events before the running turn) and what the turn has shown so far. Fails if `version` is no
    /// longer current, because `stored` may then lack a turn.
    pub fn attach(
        &self,
        id: ViewerId,
        viewer: Arc<dyn SessionViewer>,
        stored: &[Event],
        replay: bool,
        version: u64,
    ) -> Result<(), StaleEventsError> {
        let mut state = self.state();
        if state.version != version {
            return Err(StaleEventsError);
        }
        match &state.turn {
            None if replay => viewer.replay(stored, false),
            None => {}
            Some(turn) => {
                let before = &stored[..turn.start.min(stored.len())];
                let events: Vec<Event> = before.iter().chain(&turn.events).cloned().collect();
                if replay {
                    viewer.replay(&events, true);
                    turn.chunks.iter().for_each(|chunk| viewer.status(chunk.clone()));
                } else {
                    viewer.follow(&events);
                }
            }
        }
        state.viewers.retain(|(known, _)| *known != id);
        state.viewers.push((id, viewer));
        Ok(())
    }

    /// Removes a viewer. Returns true if it was the last one.
    pub fn detach(&self, id: ViewerId) -> bool {
        let mut state = self.state();
        state.viewers.retain(|(known, _)| *known != id);
        state.viewers.is_empty()
    }
}

impl LiveTurn {
    fn push_chunk(&mut self, status: &StatusUpdate) {
        match (self.chunks.last_mut(), status) {
            (Some(StatusUpdate::Text(text)), StatusUpdate::Text(more))
            | (Some(StatusUpdate::Thought(text)), StatusUpdate::Thought(more)) => text.push_str(more),
            (
                Some(StatusUpdate::ExternalChunk { text, frame, .. }),
                StatusUpdate::ExternalChunk { text: more, frame: other, .. },
            ) if frame == other => text.push_str(more),
            (_, StatusUpdate::Text(_) | StatusUpdate::Thought(_) | StatusUpdate::ExternalChunk { .. }) => {
                self.chunks.push(status.clone());
            }
            // These repeat what an event says, or are of the moment.
            (
                _,
                StatusUpdate::ToolActivity { .. }
                | StatusUpdate::Usage { .. }
                | StatusUpdate::Notice(_)
                | StatusUpdate::Title(_),
            ) => {}
        }
    }
}

impl Notifier for LiveSession {
    fn log(&self, event: Event) {
        let mut state = self.state();
        let LiveState { viewers, turn, .. } = &mut *state;
        for (id, viewer) in viewers.iter() {
            // The author knows its own prompt.
            match &event {
                Event::Message { message }
                    if message.is_prompt() && turn.as_ref().is_some_and(|it| it.author != *id) =>
                {
                    viewer.replay(std::slice::from_ref(&event), true);
                }
                _ => viewer.log(event.clone()),
            }
        }
        if let Some(turn) = turn {
            match &event {
                Event::Message { message } if message.is_prompt() => turn.chunks.clear(),
                Event::Message { .. } | Event::External { .. } => {
                    turn.chunks.clear();
                    turn.unanswered = None;
                }
                _ => {}
            }
            turn.events.push(event);
        }
    }

    fn status(&self, status: StatusUpdate) {
        let mut state = self.state();
        if let Some(turn) = &mut state.turn {
            turn.push_chunk(&status);
        }
        // Most sessions have one viewer, which gets the update itself and not a copy.
        let Some(((_, last), others)) = state.viewers.split_last() else { return };
        others.iter().for_each(|(_, viewer)| viewer.status(status.clone()));
        last.status(status);
    }

    fn child(&self, child: &ChildSession) -> Option<Arc<dyn Notifier>> {
        let viewers: Vec<_> = self.state().viewers.iter().filter_map(|(_, viewer)| viewer.child(child)).collect();
        match viewers.as_slice() {
            [] => None,
            [only] => Some(Arc::clone(only)),
            _ => Some(Arc::new(ChildViewers(viewers))),
        }
    }

    fn backlog(&self) -> usize {
        self.state().viewers.iter().map(|(_, viewer)| viewer.backlog()).max().unwrap_or_default()
    }
}

/// The viewers of a child session: those that were attached when it began.
struct ChildViewers(Vec<Arc<dyn Notifier>>);

impl Notifier for ChildViewers {
    fn log(&self, event: Event) {
        self.0.iter().for_each(|viewer| viewer.log(event.clone()));
    }

    fn status(&self, status: StatusUpdate) {
        self.0.iter().for_each(|viewer| viewer.status(status.clone()));
    }

    fn backlog(&self) -> usize {
        self.0.iter().map(|viewer| viewer.backlog()).max().unwrap_or_default()
    }
}

impl std::fmt::Debug for LiveSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("LiveSession").field("viewers", &state.viewers.len()).field("version", &state.version).finish()
    }
}

#[cfg(test)]
#[path = "session_viewers_tests.rs"]
mod tests;
