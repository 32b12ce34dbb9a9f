//! Marks the sessions that a process has open, so that retention in any process keeps them.
//!
//! The writer records in each open session the time until which it counts as open, and renews it. If a process ends
//! without notice, its sessions count as open for the rest of this time. If the store is a file, the process also lists
//! them in a locked file, because the clock may jump between two records.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::SessionStore;
use super::job::Work;
use super::open_list::OpenList;
use crate::store::StoreError;

/// How long a session counts as open after a process has recorded it, in milliseconds.
pub(in crate::store) const LEASE_TIME: u64 = 60 * 60 * 1_000;
/// A record that ends later than this from now comes from a clock that was ahead, and does not count. It is longer than
/// a lease, because a reader may know the present from a few minutes ago.
pub(in crate::store) const MAX_LEASE_LEFT: u64 = LEASE_TIME + 5 * 60 * 1_000;
/// The time between two records.
pub(super) const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// The time until the next attempt after a record failed.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// The open sessions of a process, with the number of their leases. The writer's thread reads them.
#[derive(Debug, Default)]
pub(super) struct SessionLeases {
    open: Mutex<BTreeMap<String, usize>>,
    /// Whether a session was opened since the last record.
    is_changed: AtomicBool,
    /// The same sessions for other processes. `None` if the store is a database, whose clock they share.
    list: Option<Mutex<OpenList>>,
}

impl SessionLeases {
    pub(super) fn new(list: Option<OpenList>) -> Self {
        Self { list: list.map(Mutex::new), ..Self::default() }
    }

    fn add(&self, id: &str) {
        let mut open = self.lock();
        let count = open.entry(id.to_owned()).or_default();
        *count += 1;
        if *count == 1
            && let Some(list) = &self.list
            && let Err(error) = list.lock().unwrap_or_else(PoisonError::into_inner).add(id)
        {
            tracing::warn!(%error, session = id, "an open session could not be listed yet; it is tried again");
        }
    }

    /// Removes the sessions from the list that are no longer open.
    pub(super) fn renew_list(&self) -> io::Result<()> {
        let Some(list) = &self.list else { return Ok(()) };
        // Nothing is opened meanwhile.
        let open = self.lock();
        let ids: Vec<_> = open.keys().cloned().collect();
        list.lock().unwrap_or_else(PoisonError::into_inner).set(&ids)
    }

    /// Returns the ids of the open sessions, in order.
    pub(super) fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Returns whether a session was opened since the last call.
    pub(super) fn take_change(&self) -> bool {
        self.is_changed.swap(false, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a session from retention. Dropping it ends that.
#[derive(Debug)]
pub struct SessionLease {
    leases: Arc<SessionLeases>,
    id: String,
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        let mut leases = self.leases.lock();
        if let Some(count) = leases.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                leases.remove(&self.id);
            }
        }
    }
}

impl SessionStore {
    /// Keeps a stored session from retention while the lease exists, from when this returns. `None` if there is no such
    /// session.
    pub async fn hold_stored(&self, id: &str) -> Result<Option<SessionLease>, StoreError> {
        let lease = self.lease(id);
        let is_unused = self.shared.unused.contains(self.principal(), id);
        let is_stored = is_unused || self.ask(id, Work::Hold).await?;
        Ok(is_stored.then_some(lease))
    }

    fn lease(&self, id: &str) -> SessionLease {
        let leases = Arc::clone(&self.shared.leases);
        leases.add(id);
        SessionLease { leases, id: id.to_owned() }
    }

    /// Keeps a session from retention while the lease exists. The writer records it soon.
    pub fn hold(&self, id: &str) -> SessionLease {
        let lease = self.lease(id);
        // A session without events is not stored. Retention spares a stored one for an hour after its last event.
        if !self.shared.unused.contains(self.principal(), id) {
            lease.leases.is_changed.store(true, Ordering::Relaxed);
            // Wakes the writer.
            self.queue(id, Work::Nothing, None);
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_open_until_its_last_lease_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let store = SessionStore::open(folder.path()).unwrap();
        let (one, two) = (store.hold("a"), store.hold("a"));
        let other = store.clone().hold("b");
        assert_eq!(store.shared.leases.ids(), ["a", "b"]);
        drop((one, other));
        assert_eq!(store.shared.leases.ids(), ["a"]);
        drop(two);
        assert_eq!(store.shared.leases.ids(), [""; 0]);
    }
}
