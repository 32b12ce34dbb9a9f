//! Counts the tokens and the cost of a session.

use super::{Session, lock};
use crate::conversation::Usage;
use crate::store::{SessionChange, UsageTotals};

impl Session {
    /// Counts tokens that were spent outside the session's own requests. They count for the running turn, if there is
    /// one.
    pub fn spend(&self, usage: Usage) {
        if lock(&self.turn).is_some() {
            *lock(&self.extra_usage) += usage;
        } else {
            self.count(usage);
        }
    }

    /// Takes the tokens spent outside the running turn's own requests, to count them with the turn.
    pub(super) fn take_extra_usage(&self) -> Usage {
        std::mem::take(&mut *lock(&self.extra_usage))
    }

    /// Adds to the totals of the session.
    pub(super) fn count(&self, usage: Usage) {
        let cost = self.cost_of(&usage);
        let more = UsageTotals { input: usage.input, output: usage.output, cached: usage.cached, cost };
        let mut spent = lock(&self.usage);
        spent.cost = cost.map(|cost| spent.cost.unwrap_or_default() + cost).or(spent.cost);
        spent.input += more.input;
        spent.output += more.output;
        spent.cached += more.cached;
        self.sessions.store.change(self.id(), SessionChange { spent: Some(more), ..SessionChange::default() });
    }
}
