//! Stores memories, which are short texts with tags for one project or for the user, and finds them by full-text
//! search.

mod file_memories;
mod memory_rows;
mod sealed_memories;
mod shared_memories;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

pub(super) use shared_memories::memory_words;

use super::sealing::StoreKey;
use super::{Schema, StoreAddress, StoreError, database_key};
use crate::principal::Principal;
use file_memories::FileMemories;
use memory_rows::MemoryRows;
use sealed_memories::SealedMemories;
use shared_memories::SharedMemories;

pub(super) const SCHEMA: Schema = Schema {
    mark: 0,
    migrations: &[
        "
    CREATE TABLE memory (
        -- Never used again after it was forgotten: a model may still hold an old one.
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        text TEXT NOT NULL,
        tags TEXT NOT NULL,
        project TEXT,
        created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
        source TEXT NOT NULL
    );
    CREATE UNIQUE INDEX memory_once ON memory (text, ifnull(project, ''));
    CREATE VIRTUAL TABLE memory_words USING fts5(text, tags, content='memory', content_rowid='id',
        tokenize='porter unicode61 remove_diacritics 2');
    CREATE TRIGGER memory_added AFTER INSERT ON memory BEGIN
        INSERT INTO memory_words (rowid, text, tags) VALUES (new.id, new.text, new.tags);
    END;
    CREATE TRIGGER memory_removed AFTER DELETE ON memory BEGIN
        INSERT INTO memory_words (memory_words, rowid, text, tags) VALUES ('delete', old.id, old.text, old.tags);
    END;
    CREATE TRIGGER memory_changed AFTER UPDATE ON memory BEGIN
        INSERT INTO memory_words (memory_words, rowid, text, tags) VALUES ('delete', old.id, old.text, old.tags);
        INSERT INTO memory_words (rowid, text, tags) VALUES (new.id, new.text, new.tags);
    END;
",
        "
    -- The owner. Memories of older versions belong to the user of the machine.
    ALTER TABLE memory ADD COLUMN principal TEXT NOT NULL DEFAULT 'local';
    DROP INDEX memory_once;
    CREATE UNIQUE INDEX memory_once ON memory (principal, text, ifnull(project, ''));
",
        "
    -- The key that encrypts texts, if one does.
    CREATE TABLE store_key (id TEXT PRIMARY KEY, proof TEXT NOT NULL);
",
    ],
};

/// A stored memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub id: i64,
    pub text: String,
    pub tags: Vec<String>,
    pub scope: MemoryOwner,
    pub created: String,
    /// The id of the session that stored it, or `goose` for an imported memory.
    pub source: String,
}

/// The owner of a memory: one project, or the user in all projects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline, description = "")]
pub enum MemoryOwner {
    Project,
    User,
}

#[derive(Debug, Clone)]
pub struct NewMemory<'a> {
    pub text: &'a str,
    pub tags: &'a [String],
    pub scope: MemoryOwner,
    pub source: &'a str,
}

/// Selects memories. A field that is `None` or empty does not restrict the selection.
#[derive(Debug, Clone, Default)]
pub struct MemoryFilter<'a> {
    pub words: Option<&'a str>,
    /// A memory must have all of these tags.
    pub tags: &'a [String],
    pub scope: Option<MemoryOwner>,
    pub limit: Option<usize>,
}

/// How the words of a query match.
#[derive(Debug, Clone, Copy)]
enum MatchMode {
    /// At least one word matches as a prefix; best match first.
    Any,
    /// Every word matches as a whole.
    All,
}

/// The memories of one principal. Each project sees its own memories and the user's.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    rows: Arc<Mutex<Box<dyn MemoryRows>>>,
    principal: Principal,
}

impl MemoryStore {
    /// Opens the store in an SQLite file with the memories of `local`. Fails if the file is encrypted.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        Self::open_file(file, None)
    }

    /// Opens the store in an SQLite file with the memories of `local`. Fails if the file has another key or none.
    pub(super) fn open_file(file: &Path, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        Ok(Self::with_key(Box::new(FileMemories::open(file, key)?), key))
    }

    /// Opens the store in a database with the memories of `local`. It may wait for the network. Fails if the database
    /// has another key or none.
    pub(super) fn connect(address: &Arc<StoreAddress>, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        database_key::check_database(address, key)?;
        Ok(Self::with_key(Box::new(SharedMemories::open(address, key)?), key))
    }

    fn with_key(rows: Box<dyn MemoryRows>, key: Option<&StoreKey>) -> Self {
        match key {
            Some(key) => Self::new(Box::new(SealedMemories::new(rows, key.clone()))),
            None => Self::new(rows),
        }
    }

    fn new(rows: Box<dyn MemoryRows>) -> Self {
        Self { rows: Arc::new(Mutex::new(rows)), principal: Principal::local() }
    }

    /// Returns the memories of another principal in the same store.
    #[must_use]
    pub fn of(&self, principal: Principal) -> Self {
        Self { rows: Arc::clone(&self.rows), principal }
    }

    fn rows(&self) -> MutexGuard<'_, Box<dyn MemoryRows>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a memory. If the text is stored already, adds the tags to it.
    pub fn remember(&self, project: &Path, new: &NewMemory<'_>) -> Result<Memory, StoreError> {
        let project = owner(project, new.scope);
        self.rows().remember(self.principal.name(), project.as_deref(), new)
    }

    /// Returns the matching memories, best first; without words, newest first.
    pub fn recall(&self, project: &Path, filter: &MemoryFilter<'_>) -> Result<Vec<Memory>, StoreError> {
        let Some(words) = filter.words.map(str::trim).filter(|words| !words.is_empty()) else {
            return self.select(project, &MemoryFilter { words: None, ..filter.clone() }, MatchMode::Any);
        };
        let mut found = self.select(project, &MemoryFilter { limit: None, ..filter.clone() }, MatchMode::Any)?;
        // A verbatim search covers languages without spaces and parts of words.
        let asked = words.to_lowercase();
        for memory in
            self.select(project, &MemoryFilter { words: None, limit: None, ..filter.clone() }, MatchMode::Any)?
        {
            if memory.text.to_lowercase().contains(&asked) && !found.iter().any(|known| known.id == memory.id) {
                found.push(memory);
            }
        }
        // A memory whose whole text is the query comes first.
        found.sort_by_key(|memory| memory.text.to_lowercase() != asked);
        found.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(found)
    }

    /// Returns the memories that contain every word of the query; forgetting by query removes exactly these.
    pub fn exactly(&self, project: &Path, words: &str) -> Result<Vec<Memory>, StoreError> {
        self.select(project, &MemoryFilter { words: Some(words), ..MemoryFilter::default() }, MatchMode::All)
    }

    pub fn get(&self, project: &Path, id: i64) -> Result<Option<Memory>, StoreError> {
        Ok(self.select(project, &MemoryFilter::default(), MatchMode::Any)?.into_iter().find(|memory| memory.id == id))
    }

    /// Deletes the principal's memories with these ids.
    pub fn forget(&self, ids: &[i64]) -> Result<(), StoreError> {
        self.rows().forget(self.principal.name(), ids)
    }

    fn select(
        &self,
        project: &Path,
        filter: &MemoryFilter<'_>,
        matching: MatchMode,
    ) -> Result<Vec<Memory>, StoreError> {
        let project = project.to_string_lossy();
        let words = filter.words.map(|words| (words, matching));
        let mut found = self.rows().select(self.principal.name(), &project, words, filter.scope)?;
        found.retain(|memory| filter.tags.iter().all(|tag| memory.tags.contains(tag)));
        found.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(found)
    }
}

fn owner(project: &Path, scope: MemoryOwner) -> Option<String> {
    (scope == MemoryOwner::Project).then(|| project.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "memories_tests.rs"]
mod tests;
