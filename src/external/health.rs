//! Rates an external agent as healthy, degraded or dead, by its failures in a row and its silence during requests.
//!
//! Invariant: pure. Callers pass the time, so that tests need no clock.

use std::time::{Duration, Instant};

use serde::Serialize;

/// Failures in a row after which an agent counts as dead.
const DEAD_AFTER: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentHealth {
    Healthy,
    /// The last turn failed, or the agent has been silent for long during a request.
    Degraded,
    /// Several turns in a row failed, or the process has ended. The next request starts it again.
    Dead,
}

#[derive(Debug)]
pub(super) struct HealthTracker {
    failures: u32,
    last_activity: Instant,
    /// Number of requests without a reply.
    waiting: usize,
}

impl HealthTracker {
    pub(super) fn new(now: Instant) -> Self {
        Self { failures: 0, last_activity: now, waiting: 0 }
    }

    pub(super) fn record_activity(&mut self, now: Instant) {
        self.last_activity = now;
    }

    /// Counts a request. Silence is measured from the first one that is pending.
    pub(super) fn record_request(&mut self, now: Instant) {
        if self.waiting == 0 {
            self.last_activity = now;
        }
        self.waiting += 1;
    }

    pub(super) fn record_reply(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    pub(super) fn record_failure(&mut self) {
        self.failures += 1;
    }

    pub(super) fn record_success(&mut self) {
        self.failures = 0;
    }

    /// Returns true while a caller waits for a reply.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    /// Returns how long the agent has been silent during a request. `None` if no request is pending.
    pub(super) fn silent(&self, now: Instant) -> Option<Duration> {
        (self.waiting > 0).then(|| now.saturating_duration_since(self.last_activity))
    }

    pub(super) fn health(&self, now: Instant, stale: Duration) -> AgentHealth {
        let silent = self.silent(now).is_some_and(|silent| silent >= stale);
        match self.failures {
            DEAD_AFTER.. => AgentHealth::Dead,
            0 if !silent => AgentHealth::Healthy,
            _ => AgentHealth::Degraded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Duration = Duration::from_secs(60);

    #[test]
    fn failures_in_a_row_kill_and_one_success_heals() {
        let now = Instant::now();
        let mut pulse = HealthTracker::new(now);
        let mut seen = Vec::new();
        for _ in 0..DEAD_AFTER {
            seen.push(pulse.health(now, STALE));
            pulse.record_failure();
        }
        assert_eq!(seen, [AgentHealth::Healthy, AgentHealth::Degraded, AgentHealth::Degraded]);
        assert_eq!(pulse.health(now, STALE), AgentHealth::Dead);
        pulse.record_success();
        assert_eq!(pulse.health(now, STALE), AgentHealth::Healthy);
    }

    #[test]
    fn silence_counts_only_while_somebody_waits() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = HealthTracker::new(start);
        assert_eq!(pulse.health(at(600), STALE), AgentHealth::Healthy, "nobody asked it anything");
        pulse.record_request(at(600));
        assert_eq!(pulse.health(at(659), STALE), AgentHealth::Healthy);
        assert_eq!(pulse.health(at(660), STALE), AgentHealth::Degraded);
        pulse.record_activity(at(661));
        assert_eq!(pulse.health(at(662), STALE), AgentHealth::Healthy, "it is still there");
        pulse.record_reply();
        assert_eq!(pulse.health(at(999), STALE), AgentHealth::Healthy);
    }
}
