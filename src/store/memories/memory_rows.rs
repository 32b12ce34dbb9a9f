//! What a kind of store does for memories: SQLite in `file_memories`, PostgreSQL in `shared_memories`.

use super::{MatchMode, Memory, MemoryOwner, NewMemory};
use crate::store::StoreError;

/// Returns the tags to store with a memory that is there already. `None` if it has another text.
pub(super) type MergeSealed<'a> = dyn Fn(&Memory) -> Result<Option<Vec<String>>, StoreError> + 'a;

/// Finds the memory with the text of a new one, and the tags to store with it. `None` if there is no such memory.
pub(super) fn find_same(
    known: Vec<Memory>,
    merge: &MergeSealed<'_>,
) -> Result<Option<(Memory, Vec<String>)>, StoreError> {
    for memory in known {
        if let Some(tags) = merge(&memory)? {
            return Ok(Some((memory, tags)));
        }
    }
    Ok(None)
}

/// Reads and writes the memories of all principals. A call may wait for another process.
pub(super) trait MemoryRows: Send + std::fmt::Debug {
    /// Stores a memory. If the text is stored already, adds the tags to it. `project` is `None` for a memory of the user.
    fn remember(&mut self, principal: &str, project: Option<&str>, new: &NewMemory<'_>) -> Result<Memory, StoreError>;

    /// Stores an encrypted memory. Equal texts are not equal once encrypted, so `merge` compares: it gets the memories with
    /// the same owner, and returns the new tags of the one with this text. No other process stores a memory meanwhile.
    fn remember_sealed(
        &mut self,
        principal: &str,
        project: Option<&str>,
        new: &NewMemory<'_>,
        merge: &MergeSealed<'_>,
    ) -> Result<Memory, StoreError>;

    /// Returns the memories of the project and of the user that match, best first; without words, newest first.
    fn select(
        &mut self,
        principal: &str,
        project: &str,
        words: Option<(&str, MatchMode)>,
        scope: Option<MemoryOwner>,
    ) -> Result<Vec<Memory>, StoreError>;

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
