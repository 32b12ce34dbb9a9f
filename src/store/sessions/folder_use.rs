//! Finds out whether a folder still belongs to a stored session.

use std::path::Path;

use super::{SessionStore, StoreError};

impl SessionStore {
    /// Returns whether a stored session of any principal has this folder.
    pub async fn has_folder(&self, folder: &Path) -> Result<bool, StoreError> {
        let folder = folder.to_string_lossy().into_owned();
        self.read(move |reads, _| reads.has_folder(&folder)).await
    }
}
