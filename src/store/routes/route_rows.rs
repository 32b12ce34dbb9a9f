//! What a kind of store does for corrections: SQLite in `file_routes`, PostgreSQL in `shared_routes`.

use crate::store::StoreError;

#[derive(Debug)]
pub(super) struct StoredRoute {
    pub(super) id: i64,
    pub(super) prompt: String,
    pub(super) mode: String,
}

/// Reads and writes the corrections of all principals. A call may wait for another process.
pub(super) trait RouteRows: Send + std::fmt::Debug {
    /// Returns the corrections of a project, oldest first.
    fn list(&mut self, principal: &str, project: &str) -> Result<Vec<StoredRoute>, StoreError>;

    /// Stores a correction. Removes those for the same prompt, those in `earlier`, and the oldest beyond the limit.
    fn replace(
        &mut self,
        principal: &str,
        project: &str,
        prompt: &str,
        mode: &str,
        earlier: &[i64],
    ) -> Result<(), StoreError>;
}
