//! Deletes sessions with their child sessions.

use super::SessionStore;
use super::job::{DeletedChildren, Work};
use crate::store::StoreError;

impl SessionStore {
    /// Deletes a session and its child sessions; returns false if it does not exist.
    pub async fn delete(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.delete_family(id).await?.is_some())
    }

    /// Does the same, and returns the ids of the child sessions. `None` if the session does not exist.
    pub async fn delete_family(&self, id: &str) -> Result<Option<Vec<String>>, StoreError> {
        if !self.admits(id).await? {
            return Ok(None);
        }
        if self.shared.unused.take(self.principal(), id).is_some() {
            return Ok(Some(Vec::new()));
        }
        let children = DeletedChildren::default();
        let is_deleted = self.ask(id, Work::Delete(children.clone())).await?;
        Ok(is_deleted.then(|| children.take()))
    }
}
