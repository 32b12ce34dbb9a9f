//! Finds out whether a folder still belongs to a stored session, and names the store.

use std::path::Path;

use super::{SessionStore, StoreError};

impl SessionStore {
    /// Returns the file or the address of the store, without a password.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns whether a stored session of any principal has this folder.
    pub async fn has_folder(&self, folder: &Path) -> Result<bool, StoreError> {
        let folder = folder.to_string_lossy().into_owned();
        self.read(move |reads, _| reads.has_folder(&folder)).await
    }
}
