//! Defines the port through which services keep the state of a session when the session is closed and opened again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

/// Stores entries for one session. An entry has the name of its owner, usually a service, and a key.
pub trait StateStore: Send + Sync {
    /// Takes the entries that earlier openings of the session left for `owner`, by key. A second call returns nothing.
    fn take(&self, owner: &str) -> BTreeMap<String, Vec<u8>>;

    /// Adds or replaces an entry. Never waits; the store writes in the order of the calls.
    fn put(&self, owner: &str, key: &str, value: Vec<u8>);

    fn remove(&self, owner: &str, key: &str);
}

/// The store of a session that cannot be opened again.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStateStore;

impl StateStore for NoStateStore {
    fn take(&self, _owner: &str) -> BTreeMap<String, Vec<u8>> {
        BTreeMap::new()
    }

    fn put(&self, _owner: &str, _key: &str, _value: Vec<u8>) {}

    fn remove(&self, _owner: &str, _key: &str) {}
}

/// The stored entries of one owner in one session. Clones share them.
#[derive(Clone)]
pub struct StateEntries {
    store: Arc<dyn StateStore>,
    owner: &'static str,
}

impl StateEntries {
    pub fn new(store: Arc<dyn StateStore>, owner: &'static str) -> Self {
        Self { store, owner }
    }

    /// Takes the entries of earlier openings, by key.
    pub fn take(&self) -> BTreeMap<String, Vec<u8>> {
        self.store.take(self.owner)
    }

    pub fn put(&self, key: &str, value: Vec<u8>) {
        self.store.put(self.owner, key, value);
    }

    /// Stores a value as JSON.
    pub fn put_json(&self, key: &str, value: &impl Serialize) {
        match serde_json::to_vec(value) {
            Ok(json) => self.put(key, json),
            Err(error) => tracing::warn!(owner = self.owner, key, %error, "state of a session is not stored"),
        }
    }

    pub fn remove(&self, key: &str) {
        self.store.remove(self.owner, key);
    }
}

/// Entries that are not stored.
impl Default for StateEntries {
    fn default() -> Self {
        Self::new(Arc::new(NoStateStore), "")
    }
}

impl std::fmt::Debug for StateEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateEntries({})", self.owner)
    }
}
