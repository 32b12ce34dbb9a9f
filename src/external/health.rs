//! How an agent outside is: healthy, degraded or dead, by how often it failed in a row and how long it has said nothing
//! though it was asked.
//!
//! Invariant: pure. Time comes in as an argument, so that tests need no clock.

use std::time::{Duration, Instant};

use serde::Serialize;

/// So many failures in a row, and it is no use to ask again.
const DEAD_AFTER: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Healthy,
    /// It failed the last time, or has said nothing for long.
    Degraded,
    /// It failed again and again, or its program has ended; the next one who needs it starts it anew.
    Dead,
}

#[derive(Debug)]
pub(super) struct Pulse {
    failures: u32,
    heard: Instant,
    /// Requests that it has not answered.
    waiting: usize,
}

impl Pulse {
    pub(super) fn new(now: Instant) -> Self {
        Self { failures: 0, heard: now, waiting: 0 }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Silence counts from when it is asked.
    pub(super) fn asked(&mut self, now: Instant) {
        if self.waiting == 0 {
            self.heard = now;
        }
        self.waiting += 1;
    }

    pub(super) fn answered(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    pub(super) fn failed(&mut self) {
        self.failures += 1;
    }

    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    /// How long it has said nothing although somebody waits.
    pub(super) fn silent(&self, now: Instant) -> Option<Duration> {
        (self.waiting > 0).then(|| now.saturating_duration_since(self.heard))
    }

    pub(super) fn health(&self, now: Instant, stale: Duration) -> Health {
        let silent = self.silent(now).is_some_and(|silent| silent >= stale);
        match self.failures {
            DEAD_AFTER.. => Health::Dead,
            0 if !silent => Health::Healthy,
            _ => Health::Degraded,
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
        let mut pulse = Pulse::new(now);
        let mut seen = Vec::new();
        for _ in 0..DEAD_AFTER {
            seen.push(pulse.health(now, STALE));
            pulse.failed();
        }
        assert_eq!(seen, [Health::Healthy, Health::Degraded, Health::Degraded]);
        assert_eq!(pulse.health(now, STALE), Health::Dead);
        pulse.worked();
        assert_eq!(pulse.health(now, STALE), Health::Healthy);
    }

    #[test]
    fn silence_counts_only_while_somebody_waits() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(start);
        assert_eq!(pulse.health(at(600), STALE), Health::Healthy, "nobody asked it anything");
        pulse.asked(at(600));
        assert_eq!(pulse.health(at(659), STALE), Health::Healthy);
        assert_eq!(pulse.health(at(660), STALE), Health::Degraded);
        pulse.heard(at(661));
        assert_eq!(pulse.health(at(662), STALE), Health::Healthy, "it is still there");
        pulse.answered();
        assert_eq!(pulse.health(at(999), STALE), Health::Healthy);
    }
}
