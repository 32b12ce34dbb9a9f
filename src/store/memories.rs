//! Stores memories, which are short texts with tags for one project or for the user, and finds them by full-text
//! search.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, Row, ToSql, TransactionBehavior, params};
use serde::Serialize;

use super::{Schema, StoreError, open};
use crate::principal::Principal;

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
#[derive(Clone, Copy)]
enum MatchMode {
    /// At least one word matches as a prefix; best match first.
    Any,
    /// Every word matches as a whole.
    All,
}

/// The memories of one principal. Each project sees its own memories and the user's.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    connection: Arc<Mutex<Connection>>,
    principal: Principal,
}

impl MemoryStore {
    /// Opens the store with the memories of `local`.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: Arc::new(Mutex::new(open(file, &SCHEMA)?)), principal: Principal::local() })
    }

    /// Returns the memories of another principal in the same store.
    #[must_use]
    pub fn of(&self, principal: Principal) -> Self {
        Self { connection: Arc::clone(&self.connection), principal }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a memory. If the text is stored already, adds the tags to it.
    pub fn remember(&self, project: &Path, new: &NewMemory<'_>) -> Result<Memory, StoreError> {
        let (principal, project) = (self.principal.name(), owner(project, new.scope));
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let known = "SELECT id, text, tags, project, created, source FROM memory
            WHERE text = ?1 AND project IS ?2 AND principal = ?3";
        let known = transaction.query_row(known, params![new.text, project, principal], memory);
        let id = match known {
            Ok(known) => {
                let mut tags = known.tags;
                tags.extend(new.tags.iter().filter(|tag| !tags.contains(tag)).cloned().collect::<Vec<_>>());
                let update = "UPDATE memory SET tags = ?2 WHERE id = ?1";
                transaction.execute(update, params![known.id, tags_json(&tags)])?;
                known.id
            }
            Err(rusqlite::Error::QueryReturnedNoRows) => {
                let insert = "INSERT INTO memory (text, tags, project, source, principal) VALUES (?1, ?2, ?3, ?4, ?5)";
                transaction.execute(insert, params![new.text, tags_json(new.tags), project, new.source, principal])?;
                transaction.last_insert_rowid()
            }
            Err(error) => return Err(error.into()),
        };
        let kept = "SELECT id, text, tags, project, created, source FROM memory WHERE id = ?1";
        let kept = transaction.query_row(kept, [id], memory)?;
        transaction.commit()?;
        Ok(kept)
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
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for id in ids {
            let delete = "DELETE FROM memory WHERE id = ?1 AND principal = ?2";
            transaction.execute(delete, params![id, self.principal.name()])?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn select(
        &self,
        project: &Path,
        filter: &MemoryFilter<'_>,
        matching: MatchMode,
    ) -> Result<Vec<Memory>, StoreError> {
        let (principal, project) = (self.principal.name(), owner(project, MemoryOwner::Project));
        let query = filter.words.map(|words| full_text(words, matching));
        let mut sql = String::from("SELECT m.id, m.text, m.tags, m.project, m.created, m.source FROM memory m");
        let mut values: Vec<&dyn ToSql> = vec![&project, &principal];
        let order = match &query {
            Some(None) => return Ok(Vec::new()),
            Some(Some(query)) => {
                sql.push_str(" JOIN memory_words w ON w.rowid = m.id WHERE (m.project IS NULL OR m.project = ?1)");
                sql.push_str(" AND +m.principal = ?2 AND memory_words MATCH ?3");
                values.push(query);
                " ORDER BY bm25(memory_words), m.id DESC"
            }
            None => {
                sql.push_str(" WHERE (m.project IS NULL OR m.project = ?1) AND +m.principal = ?2");
                " ORDER BY m.id DESC"
            }
        };
        match filter.scope {
            Some(MemoryOwner::User) => sql.push_str(" AND m.project IS NULL"),
            Some(MemoryOwner::Project) => sql.push_str(" AND m.project IS NOT NULL"),
            None => {}
        }
        sql.push_str(order);
        let connection = self.connection();
        let mut statement = connection.prepare_cached(&sql)?;
        let rows = statement.query_map(values.as_slice(), memory)?;
        let mut found = Vec::new();
        for row in rows {
            let row = row?;
            if filter.tags.iter().all(|tag| row.tags.contains(tag)) {
                found.push(row);
            }
            if filter.limit.is_some_and(|limit| found.len() == limit) {
                break;
            }
        }
        Ok(found)
    }
}

fn owner(project: &Path, scope: MemoryOwner) -> Option<String> {
    (scope == MemoryOwner::Project).then(|| project.to_string_lossy().into_owned())
}

/// Builds a full-text query without operators. `None` if there are no words.
fn full_text(words: &str, matching: MatchMode) -> Option<String> {
    let terms: Vec<_> = match matching {
        MatchMode::Any => {
            let words = words.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
            words.map(|word| format!("\"{word}\"*")).collect()
        }
        // SQLite splits punctuation inside a word as it did when it indexed the text.
        MatchMode::All => {
            let words = words.split(|c: char| c.is_whitespace() || c.is_control());
            let words = words.filter(|word| word.contains(char::is_alphanumeric));
            words.map(|word| format!("\"{}\"", word.replace('"', "\"\""))).collect()
        }
    };
    let join = match matching {
        MatchMode::Any => " OR ",
        MatchMode::All => " AND ",
    };
    (!terms.is_empty()).then(|| terms.join(join))
}

fn tags_json(tags: &[String]) -> String {
    serde_json::to_string(tags).unwrap_or_default()
}

fn memory(row: &Row<'_>) -> rusqlite::Result<Memory> {
    let tags: String = row.get(2)?;
    let project: Option<String> = row.get(3)?;
    Ok(Memory {
        id: row.get(0)?,
        text: row.get(1)?,
        tags: serde_json::from_str(&tags).unwrap_or_default(),
        scope: if project.is_some() { MemoryOwner::Project } else { MemoryOwner::User },
        created: row.get(4)?,
        source: row.get(5)?,
    })
}

#[cfg(test)]
#[path = "memories_tests.rs"]
mod tests;
