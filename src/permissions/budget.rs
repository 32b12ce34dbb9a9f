//! The limit on the work of judging one call.
//!
//! Invariant: when the steps are used up, a pattern matches nothing, so nothing more is allowed; rules that deny or ask
//! then count as ones that may apply.

use std::cell::Cell;

/// Steps for one call and all rules: characters read, and characters compared with a place in a pattern. An everyday
/// command takes some thousands.
const MAX_STEPS: usize = 5_000_000;

/// Steps that are left.
#[derive(Debug)]
pub(super) struct Budget {
    /// `None` if more were needed than there were.
    left: Cell<Option<usize>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Cell::new(Some(MAX_STEPS)) }
    }
}

impl Budget {
    /// Takes steps before the work is done. False if there are not enough, and from then on always.
    pub(super) fn spend(&self, steps: usize) -> bool {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(steps)));
        !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.get().is_none()
    }

    /// The steps taken so far; all of them if there were not enough.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        MAX_STEPS - self.left.get().unwrap_or(0)
    }
}
