//! Keeps the state of a session's services in the store, for the next opening of the session.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::store::{SessionLease, SessionStore, StateEntry};
use crate::tool::StateStore;

/// The stored state of one session.
pub(super) struct SessionStateStore {
    store: SessionStore,
    session: String,
    /// Keeps the session from retention while it is open.
    _lease: SessionLease,
    /// The entries of earlier openings by owner, until their owner takes them.
    earlier: Mutex<BTreeMap<String, BTreeMap<String, Vec<u8>>>>,
}

impl SessionStateStore {
    /// `entries` are those of earlier openings.
    pub(super) fn new(store: SessionStore, session: String, entries: Vec<StateEntry>) -> Self {
        let mut earlier: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for StateEntry { owner, key, value } in entries {
            earlier.entry(owner).or_default().insert(key, value);
        }
        let _lease = store.hold(&session);
        Self { store, session, _lease, earlier: Mutex::new(earlier) }
    }
}

impl StateStore for SessionStateStore {
    fn take(&self, owner: &str) -> BTreeMap<String, Vec<u8>> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner).remove(owner).unwrap_or_default()
    }

    fn put(&self, owner: &str, key: &str, value: Vec<u8>) {
        self.store.put_state(&self.session, StateEntry { owner: owner.to_owned(), key: key.to_owned(), value });
    }

    fn remove(&self, owner: &str, key: &str) {
        self.store.remove_state(&self.session, owner, key);
    }
}
