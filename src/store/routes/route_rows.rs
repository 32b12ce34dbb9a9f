//! What a kind of store does for corrections: SQLite in `file_routes`, PostgreSQL in `shared_routes`.

use crate::store::StoreError;

#[derive(Debug)]
pub(super) struct StoredRoute {
    pub(super) id: i64,
    pub(super) prompt: String,
    pub(super) mode: String,
}

/// Returns whether an encrypted prompt is that of a new correction.
pub(super) type SamePrompt<'a> = dyn Fn(&str) -> Result<bool, StoreError> + 'a;

/// Returns the ids of the corrections with the same prompt.
pub(super) fn find_earlier(stored: Vec<StoredRoute>, is_same: &SamePrompt<'_>) -> Result<Vec<i64>, StoreError> {
    let mut earlier = Vec::new();
    for route in stored {
        if is_same(&route.prompt)? {
            earlier.push(route.id);
        }
    }
    Ok(earlier)
}

/// Reads and writes the corrections of all principals. A call may wait for another process.
pub(super) trait RouteRows: Send + std::fmt::Debug {
    /// Returns the corrections of a project, oldest first.
    fn list(&mut self, principal: &str, project: &str) -> Result<Vec<StoredRoute>, StoreError>;

    /// Stores a correction. Removes those for the same prompt, and the oldest beyond the limit. Equal prompts are not equal
    /// once encrypted: then `is_same` compares a stored one, and no other process stores a correction meanwhile.
    fn replace(
        &mut self,
        principal: &str,
        project: &str,
        prompt: &str,
        mode: &str,
        is_same: Option<&SamePrompt<'_>>,
    ) -> Result<(), StoreError>;
}
