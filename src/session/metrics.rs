//! Counts sessions, turns and tool calls for operators.
//!
//! Invariant: the counts name no session and no principal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::agents::{Event, StopReason};
use crate::tool::ToolOutcome;

const TURN_LABELS: [&str; 7] =
    ["end_turn", "max_tokens", "exhausted", "refusal", "cancelled", "call_refused", "failed"];
const CALL_LABELS: [&str; 3] = ["success", "error", "refused"];

/// Counts of all sessions of a [`super::Sessions`].
#[derive(Debug, Default)]
pub struct SessionMetrics {
    open: AtomicU64,
    running: AtomicU64,
    turns: [AtomicU64; TURN_LABELS.len()],
    calls: [AtomicU64; CALL_LABELS.len()],
}

/// A counted session or turn. Dropping it ends the count.
#[derive(Debug)]
pub(super) struct CountGuard {
    metrics: Arc<SessionMetrics>,
    counter: fn(&SessionMetrics) -> &AtomicU64,
}

impl CountGuard {
    fn new(metrics: &Arc<SessionMetrics>, counter: fn(&SessionMetrics) -> &AtomicU64) -> Self {
        counter(metrics).fetch_add(1, Ordering::Relaxed);
        Self { metrics: Arc::clone(metrics), counter }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        (self.counter)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

impl SessionMetrics {
    pub fn open_sessions(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub fn running_turns(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Returns the number of ended turns for each stop reason.
    pub fn turns_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        TURN_LABELS.into_iter().zip(self.turns.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the number of ended calls for each outcome.
    pub fn calls_by_outcome(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CALL_LABELS.into_iter().zip(self.calls.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(super) fn open_session(self: &Arc<Self>) -> CountGuard {
        CountGuard::new(self, |metrics| &metrics.open)
    }

    pub(super) fn begin_turn(self: &Arc<Self>) -> CountGuard {
        CountGuard::new(self, |metrics| &metrics.running)
    }

    /// Counts the end of a turn. `None`: it could not run.
    pub(super) fn count_turn(&self, reason: Option<&StopReason>) {
        let index = match reason {
            Some(StopReason::EndTurn) => 0,
            Some(StopReason::MaxTokens) => 1,
            Some(StopReason::Exhausted { .. }) => 2,
            Some(StopReason::Refusal) => 3,
            Some(StopReason::Cancelled) => 4,
            Some(StopReason::CallRefused { .. }) => 5,
            Some(StopReason::Failed { .. }) | None => 6,
        };
        self.turns[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the calls that an event ends.
    pub(super) fn count_event(&self, event: &Event) {
        for event in event.native_events() {
            if let Event::ToolEnded { outcome, .. } = event {
                self.count_call(outcome);
            }
        }
    }

    fn count_call(&self, outcome: &ToolOutcome) {
        let index = match outcome {
            ToolOutcome { refused: true, .. } => 2,
            ToolOutcome { is_error: true, .. } => 1,
            _ => 0,
        };
        self.calls[index].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_and_calls_are_counted_by_their_end() {
        let metrics = Arc::new(SessionMetrics::default());
        let open = metrics.open_session();
        let turn = metrics.begin_turn();
        assert_eq!((metrics.open_sessions(), metrics.running_turns()), (1, 1));
        let ended = |outcome| Event::ToolEnded { id: "1".into(), name: "t".into(), outcome, activity: Vec::new() };
        metrics.count_event(&ended(ToolOutcome::text("done")));
        metrics.count_event(&ended(ToolOutcome::error("broken")));
        metrics.count_event(&ended(ToolOutcome { refused: true, ..ToolOutcome::error("no") }));
        metrics.count_turn(Some(&StopReason::EndTurn));
        metrics.count_turn(None);
        drop((turn, open));
        assert_eq!((metrics.open_sessions(), metrics.running_turns()), (0, 0));
        assert_eq!(metrics.calls_by_outcome().collect::<Vec<_>>(), [("success", 1), ("error", 1), ("refused", 1)]);
        let turns: Vec<_> = metrics.turns_by_reason().filter(|(_, count)| *count > 0).collect();
        assert_eq!(turns, [("end_turn", 1), ("failed", 1)]);
    }
}
