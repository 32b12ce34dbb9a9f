//! Limits how many calls of clients wait for answers at once.
//!
//! Invariant: a principal with many calls that wait leaves places for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls of one principal that may wait at once.
const MAX_PER_PRINCIPAL: usize = 32;
/// Calls of all principals that may wait at once.
const MAX_TOTAL: usize = 1_000;

/// Why a call cannot wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlotError {
    #[error("{MAX_PER_PRINCIPAL} of your calls wait for answers: answer one of them, then call again")]
    Principal,
    #[error("{MAX_TOTAL} calls on this server wait for answers: call again later")]
    Server,
}

/// The places of a whole server for calls that wait. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SuspensionSlots {
    /// The number of calls that wait, by the name of their principal.
    waiting: Arc<Mutex<HashMap<String, usize>>>,
}

impl SuspensionSlots {
    /// Returns the places for one principal.
    pub(crate) fn of(&self, principal: &str) -> PrincipalSlots {
        PrincipalSlots { all: self.clone(), principal: principal.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places that the calls of one principal may take.
#[derive(Debug, Clone)]
pub(crate) struct PrincipalSlots {
    all: SuspensionSlots,
    principal: String,
}

impl PrincipalSlots {
    /// Takes a place. Fails if the principal or the server has none left.
    pub(crate) fn acquire(&self) -> Result<SuspensionSlot, SlotError> {
        let mut waiting = self.all.lock();
        if waiting.get(&self.principal).is_some_and(|count| *count >= MAX_PER_PRINCIPAL) {
            return Err(SlotError::Principal);
        }
        if waiting.values().sum::<usize>() >= MAX_TOTAL {
            return Err(SlotError::Server);
        }
        *waiting.entry(self.principal.clone()).or_default() += 1;
        Ok(SuspensionSlot(self.clone()))
    }
}

/// The place of a call that waits. Dropping it makes the place free.
#[derive(Debug)]
pub(crate) struct SuspensionSlot(PrincipalSlots);

impl Drop for SuspensionSlot {
    fn drop(&mut self) {
        let mut waiting = self.0.all.lock();
        let Some(count) = waiting.get_mut(&self.0.principal) else { return };
        *count -= 1;
        if *count == 0 {
            waiting.remove(&self.0.principal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_and_the_server_have_limited_places() {
        let slots = SuspensionSlots::default();
        let ana = slots.of("ana");
        let mut held: Vec<_> = (0..MAX_PER_PRINCIPAL).map(|_| ana.acquire().unwrap()).collect();
        assert_eq!(slots.of("ana").acquire().unwrap_err(), SlotError::Principal, "all endpoints of ana count together");
        let other = slots.of("bob").acquire().unwrap();
        drop(held.pop());
        held.push(ana.acquire().unwrap());
        drop(other);
        let principals = (0..).map(|number| slots.of(&number.to_string()));
        let more = principals.flat_map(|of| (0..MAX_PER_PRINCIPAL).map(move |_| of.acquire()));
        held.extend(more.map_while(Result::ok));
        assert_eq!(held.len(), MAX_TOTAL);
        assert_eq!(slots.of("zoe").acquire().unwrap_err(), SlotError::Server);
        drop(held);
        assert!(slots.lock().is_empty(), "nothing stays of principals without calls");
    }
}
