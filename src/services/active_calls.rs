//! Records the calls that a service works on. A call that the service makes on a service that it requires belongs to
//! one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::tool::CallContext;

/// The calls that a service works on now.
#[derive(Default)]
pub struct ActiveCalls {
    state: Mutex<CallTable>,
}

#[derive(Default)]
struct CallTable {
    next: u64,
    running: BTreeMap<u64, CallContext>,
    /// Cancelled when the last running call ends. Replaced by the next one.
    ended: CancellationToken,
}

/// A call that runs until this is dropped.
pub(super) struct CallGuard {
    calls: Arc<ActiveCalls>,
    number: u64,
}

impl ActiveCalls {
    pub(super) fn begin(self: &Arc<Self>, context: &CallContext) -> CallGuard {
        let mut state = self.state();
        if state.running.is_empty() {
            state.ended = CancellationToken::new();
        }
        let number = state.next;
        state.next += 1;
        state.running.insert(number, context.clone());
        CallGuard { calls: Arc::clone(self), number }
    }

    /// Returns the context of the newest running call, and a token that is cancelled when no call runs any more. A
    /// service cannot say which of its calls it works on, so the token does not end with the newest one. `None` if no
    /// call runs.
    pub fn newest(&self) -> Option<(CallContext, CancellationToken)> {
        let state = self.state();
        let (_, context) = state.running.last_key_value()?;
        Some((context.clone(), state.ended.clone()))
    }

    fn state(&self) -> MutexGuard<'_, CallTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        state.running.remove(&self.number);
        if state.running.is_empty() {
            state.ended.cancel();
        }
    }
}

impl std::fmt::Debug for ActiveCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ActiveCalls({})", self.state().running.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::SessionContext;

    #[test]
    fn calls_inside_last_as_long_as_any_call_runs() {
        let calls = Arc::new(ActiveCalls::default());
        assert!(calls.newest().is_none());
        let session = SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into());
        let context = |id: &str| CallContext::new(Arc::clone(&session)).with_id(id);
        let first = calls.begin(&context("first"));
        let second = calls.begin(&context("second"));
        let (newest, ended) = calls.newest().expect("a call runs");
        assert_eq!(newest.id.as_deref(), Some("second"));
        drop(second);
        assert!(!ended.is_cancelled(), "the first call may have made it");
        drop(first);
        assert!(ended.is_cancelled() && calls.newest().is_none());
        let _third = calls.begin(&context("third"));
        assert!(calls.newest().is_some_and(|(_, ended)| !ended.is_cancelled()), "a later call has its own end");
    }
}
