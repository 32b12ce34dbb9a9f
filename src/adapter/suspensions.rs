//! Keeps the calls of clients that wait for answers, by the request state that a client returns with its answers.
//!
//! Invariant: a call that waits has a place, and waits for at most [`ANSWER_TIMEOUT`]. Its timer ends with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::DropGuard;

use super::client_asker::ANSWER_TIMEOUT;
use super::suspension_slots::{PrincipalSlots, SlotError, SuspensionSlot};
use crate::ids::random_uuid;
use crate::task::TaskScope;

/// The calls of the clients of one server that wait. A cheap handle.
pub(crate) struct Suspensions<T>(Arc<Inner<T>>);

impl<T> Clone for Suspensions<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<T> {
    slots: PrincipalSlots,
    /// Runs the timers.
    scope: TaskScope,
    waiting: Mutex<HashMap<String, Suspension<T>>>,
}

struct Suspension<T> {
    call: T,
    slot: SuspensionSlot,
    /// Ends the task that drops the call when the time is over.
    _timer: DropGuard,
}

impl<T: Send + 'static> Suspensions<T> {
    /// `scope` runs the timers. Its end drops all calls.
    pub(crate) fn new(slots: PrincipalSlots, scope: TaskScope) -> Self {
        Self(Arc::new(Inner { slots, scope, waiting: Mutex::default() }))
    }

    /// Keeps a call until the client answers or [`ANSWER_TIMEOUT`] has passed, and returns its request state. A call
    /// without a place takes one. Fails if there is none left, and drops the call then.
    pub(crate) fn keep(&self, call: T, slot: Option<SuspensionSlot>) -> Result<String, SlotError> {
        let slot = slot.map_or_else(|| self.0.slots.acquire(), Ok)?;
        let state = random_uuid();
        let over = self.0.scope.cancelled().child_token();
        let timer = over.clone().drop_guard();
        self.lock().insert(state.clone(), Suspension { call, slot, _timer: timer });
        let (calls, key) = (self.clone(), state.clone());
        self.0.scope.spawn(async move {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                () = tokio::time::sleep(ANSWER_TIMEOUT) => {}
            }
            let ended = calls.lock().remove(&key);
            // The end of a call may take a moment, and others must not wait for it.
            drop(ended);
        });
        Ok(state)
    }

    /// Takes the call that waits for answers with this state, and its place. `None` if there is none that fits.
    pub(crate) fn take(&self, state: &str, fits: impl FnOnce(&T) -> bool) -> Option<(T, SuspensionSlot)> {
        let mut waiting = self.lock();
        if !fits(&waiting.get(state)?.call) {
            return None;
        }
        waiting.remove(state).map(|suspended| (suspended.call, suspended.slot))
    }

    /// Drops all calls.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }
}

impl<T> Suspensions<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns whether a call waits for answers with this state.
    pub(crate) fn contains(&self, state: &str) -> bool {
        self.lock().contains_key(state)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Suspension<T>>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> std::fmt::Debug for Suspensions<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suspensions").field("waiting", &self.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::adapter::suspension_slots::SuspensionSlots;

    fn suspensions() -> Suspensions<&'static str> {
        Suspensions::new(SuspensionSlots::default().of("ana"), TaskScope::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_answers_ends_in_time() {
        let calls = suspensions();
        let state = calls.keep("call", None).unwrap();
        tokio::time::sleep(ANSWER_TIMEOUT - Duration::from_secs(1)).await;
        assert!(calls.contains(&state));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(calls.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_ends_with_the_call() {
        let calls = suspensions();
        for _ in 0..3 {
            let state = calls.keep("call", None).unwrap();
            assert!(calls.take(&state, |_| true).is_some());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&calls.0), 1, "each timer has a handle");
    }

    #[tokio::test]
    async fn a_call_that_waits_again_keeps_its_place() {
        let calls = suspensions();
        let state = calls.keep("first", None).unwrap();
        while calls.keep("other", None).is_ok() {}
        assert!(calls.take(&state, |call| *call == "other").is_none(), "the state of another call");
        let (call, slot) = calls.take(&state, |call| *call == "first").unwrap();
        assert_eq!(calls.keep("other", None), Err(SlotError::Principal), "the place is not free");
        let again = calls.keep(call, Some(slot)).unwrap();
        assert!(again != state && calls.contains(&again) && !calls.contains(&state));
    }
}
