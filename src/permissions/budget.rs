//! Limits the work of evaluating one call.
//!
//! Invariant: once the budget is spent, a pattern matches nothing, so nothing more is allowed. Rules that deny or ask
//! then count as possible matches.

use std::cell::Cell;

/// The steps for one call and all rules: characters read, and characters compared with a pattern position. A typical
/// command takes a few thousand.
const MAX_STEPS: usize = 5_000_000;

/// The remaining steps.
#[derive(Debug)]
pub(super) struct Budget {
    /// `None` once more steps were needed than remained.
    left: Cell<Option<usize>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Cell::new(Some(MAX_STEPS)) }
    }
}

impl Budget {
    /// Takes steps before the work is done. Returns false if too few remain, and always after that.
    pub(super) fn spend(&self, steps: usize) -> bool {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(steps)));
        !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.get().is_none()
    }

    /// Returns the steps taken so far; all of them if the budget is spent.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        MAX_STEPS - self.left.get().unwrap_or(0)
    }
}
