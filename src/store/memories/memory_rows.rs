//! What a kind of store does for memories: SQLite in `file_memories`, PostgreSQL in `shared_memories`.

use super::{MatchMode, Memory, MemoryOwner, NewMemory};
use crate::store::StoreError;

/// Reads and writes the memories of all principals. A call may wait for another process.
pub(super) trait MemoryRows: Send + std::fmt::Debug {
    /// Stores a memory. If the text is stored already, adds the tags to it. `project` is `None` for a memory of the user.
    fn remember(&mut self, principal: &str, project: Option<&str>, new: &NewMemory<'_>) -> Result<Memory, StoreError>;

    /// Returns the memories of the project and of the user that match, best first; without words, newest first.
    fn select(
        &mut self,
        principal: &str,
        project: &str,
        words: Option<(&str, MatchMode)>,
        scope: Option<MemoryOwner>,
    ) -> Result<Vec<Memory>, StoreError>;

    /// Replaces the tags of a memory.
    fn set_tags(&mut self, principal: &str, id: i64, tags: &[String]) -> Result<(), StoreError>;

    fn forget(&mut self, principal: &str, ids: &[i64]) -> Result<(), StoreError>;
}

/// Adds the tags of `new` that `tags` does not have.
pub(super) fn merge_tags(mut tags: Vec<String>, new: &[String]) -> Vec<String> {
    for tag in new {
        if !tags.contains(tag) {
            tags.push(tag.clone());
        }
    }
    tags
}

pub(super) fn tags_json(tags: &[String]) -> String {
    serde_json::to_string(tags).unwrap_or_default()
}
