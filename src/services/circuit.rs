//! Decides when a failed service may be restarted. It allows a limited number of restarts within a period, each
//! after a longer pause. Then it blocks restarts for the period and allows one attempt.
//!
//! Invariant: pure. Time is an argument, so that tests need no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::manifest::Restart;
use crate::tool::ServiceHealth;

/// The first pause before a restart; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Circuit {
    max: usize,
    within: Duration,
    /// Failures within the period, oldest first.
    failures: VecDeque<Instant>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Closed,
    /// Starts are refused until then.
    Open {
        until: Instant,
    },
    /// One attempt is in progress.
    Trying,
}

/// Whether a start may be attempted.
#[derive(Debug, PartialEq)]
pub enum StartPermit {
    /// Allowed after this pause.
    After(Duration),
    /// Refused for this long.
    NotFor(Duration),
}

impl Circuit {
    pub fn new(restart: &Restart) -> Self {
        let max = usize::try_from(restart.max).unwrap_or(usize::MAX);
        Self { max, within: restart.within.duration(), failures: VecDeque::new(), state: State::Closed }
    }

    pub fn may_start(&mut self, now: Instant) -> StartPermit {
        self.forget_old(now);
        match self.state {
            State::Open { until } if now < until => StartPermit::NotFor(until - now),
            State::Open { .. } | State::Trying => {
                self.state = State::Trying;
                StartPermit::After(Duration::ZERO)
            }
            State::Closed => StartPermit::After(match self.failures.len() {
                0 => Duration::ZERO,
                count => FIRST_PAUSE.saturating_mul(1 << (count - 1).min(10)).min(LONGEST_PAUSE),
            }),
        }
    }

    /// Records that the service died or failed to start.
    pub fn record_failure(&mut self, now: Instant) {
        self.forget_old(now);
        self.failures.push_back(now);
        if self.state == State::Trying || self.failures.len() > self.max {
            self.state = State::Open { until: now + self.within };
        }
    }

    /// Records a successful start. Earlier failures count until they expire, so that a service that starts and dies
    /// repeatedly is detected.
    pub fn record_start(&mut self) {
        self.state = State::Closed;
    }

    pub fn health(&self, now: Instant, running: bool) -> ServiceHealth {
        match self.state {
            State::Open { until } if now < until => ServiceHealth::Open,
            State::Open { .. } | State::Trying => ServiceHealth::HalfOpen,
            State::Closed if self.failures.iter().any(|at| now.duration_since(*at) < self.within) => {
                ServiceHealth::Degraded
            }
            State::Closed if running => ServiceHealth::Healthy,
            State::Closed => ServiceHealth::Stopped,
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while self.failures.front().is_some_and(|at| now.duration_since(*at) >= self.within) {
            self.failures.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit(max: u32) -> Circuit {
        Circuit::new(&Restart { max, within: crate::manifest::ManifestDuration::seconds(60) })
    }

    #[test]
    fn opens_after_its_budget_and_tries_once_when_time_has_passed() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut circuit = circuit(2);
        assert_eq!(circuit.health(at(0), false), ServiceHealth::Stopped);
        circuit.record_failure(at(0));
        assert_eq!(circuit.health(at(0), true), ServiceHealth::Degraded);
        assert_eq!(circuit.may_start(at(0)), StartPermit::After(FIRST_PAUSE));
        circuit.record_failure(at(1));
        assert_eq!(circuit.may_start(at(1)), StartPermit::After(FIRST_PAUSE * 2));
        circuit.record_failure(at(2));
        assert_eq!(circuit.health(at(2), false), ServiceHealth::Open);
        assert_eq!(circuit.may_start(at(3)), StartPermit::NotFor(Duration::from_secs(59)));
        assert_eq!(circuit.health(at(62), false), ServiceHealth::HalfOpen);
        assert_eq!(circuit.may_start(at(62)), StartPermit::After(Duration::ZERO));
        circuit.record_failure(at(62));
        assert_eq!(circuit.health(at(63), false), ServiceHealth::Open, "a failed trial opens it again");
        assert_eq!(circuit.may_start(at(122)), StartPermit::After(Duration::ZERO));
        circuit.record_start();
        assert_eq!(circuit.health(at(200), true), ServiceHealth::Healthy);
    }

    #[test]
    fn old_failures_do_not_count() {
        let start = Instant::now();
        let mut circuit = circuit(1);
        for minute in 0..10 {
            circuit.record_failure(start + Duration::from_secs(61 * minute));
            circuit.record_start();
        }
        assert_eq!(circuit.health(start + Duration::from_secs(620), true), ServiceHealth::Healthy);
    }

    #[test]
    fn a_service_that_starts_and_dies_again_and_again_is_found_out() {
        let start = Instant::now();
        let mut circuit = circuit(3);
        for _ in 0..4 {
            circuit.record_start();
            circuit.record_failure(start);
        }
        assert_eq!(circuit.health(start, false), ServiceHealth::Open);
    }
}
