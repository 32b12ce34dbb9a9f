//! Reads and writes what is used of limits, through a handle of a principal.

use super::job::Work;
use super::usage_rows::{UsageKey, UsageRow};
use super::{SessionStore, StoreError};

impl SessionStore {
    /// Queues an addition to a row.
    pub fn add_usage(&self, key: UsageKey, more: UsageRow) {
        self.queue("", Work::AddUsage(key, more), None);
    }

    /// Returns a row; zero if there is none.
    pub async fn usage(&self, key: UsageKey) -> Result<UsageRow, StoreError> {
        self.read(move |reads, view| reads.usage(view, &key)).await
    }
}
