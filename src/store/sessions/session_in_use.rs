//! Finds a session that is in use, and states why it is missing.

use super::{SessionStore, StoredSession};
use crate::store::StoreError;

impl SessionStore {
    /// Returns a session that this process has created or opened. Fails if it was deleted, or if it is not stored yet
    /// and cannot be.
    pub async fn find_in_use(&self, id: &str) -> Result<StoredSession, StoreError> {
        if let Some(stored) = self.find(id).await? {
            return Ok(stored);
        }
        // The creation may still be queued, for example on a full disk. The writer knows the reason.
        self.flush(id).await?;
        self.find(id).await?.ok_or_else(|| StoreError::Gone { id: id.to_owned() })
    }
}
