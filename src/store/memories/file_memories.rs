//! Stores memories in an SQLite file.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, ToSql, TransactionBehavior, params};

use super::memory_rows::{MemoryRows, merge_tags, tags_json};
use super::{MatchMode, Memory, MemoryOwner, NewMemory, SCHEMA};
use crate::store::sealing::StoreKey;
use crate::store::{StoreError, key_check, open};

#[derive(Debug)]
pub(super) struct FileMemories {
    connection: Connection,
    file: PathBuf,
    key: Option<StoreKey>,
}

impl FileMemories {
    /// Opens the file, creating it if it does not exist. Fails if it has another key or none.
    pub(super) fn open(file: &Path, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        let mut connection = open(file, &SCHEMA)?;
        key_check::check_file(file, &mut connection, "SELECT EXISTS (SELECT 1 FROM memory)", key)?;
        Ok(Self { connection, file: file.to_owned(), key: key.cloned() })
    }
}

impl MemoryRows for FileMemories {
    fn remember(&mut self, principal: &str, project: Option<&str>, new: &NewMemory<'_>) -> Result<Memory, StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        key_check::check_file_again(&self.file, &transaction, self.key.as_ref())?;
        let known = "SELECT id, text, tags, project, created, source FROM memory
            WHERE text = ?1 AND project IS ?2 AND principal = ?3";
        let known = transaction.query_row(known, params![new.text, project, principal], memory);
        let id = match known {
            Ok(known) => {
                let tags = merge_tags(known.tags, new.tags);
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

    fn select(
        &mut self,
        principal: &str,
        project: &str,
        words: Option<(&str, MatchMode)>,
        scope: Option<MemoryOwner>,
    ) -> Result<Vec<Memory>, StoreError> {
        let query = words.map(|(words, matching)| full_text(words, matching));
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
        match scope {
            Some(MemoryOwner::User) => sql.push_str(" AND m.project IS NULL"),
            Some(MemoryOwner::Project) => sql.push_str(" AND m.project IS NOT NULL"),
            None => {}
        }
        sql.push_str(order);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let found = statement.query_map(values.as_slice(), memory)?;
        Ok(found.collect::<rusqlite::Result<_>>()?)
    }

    fn set_tags(&mut self, principal: &str, id: i64, tags: &[String]) -> Result<(), StoreError> {
        let update = "UPDATE memory SET tags = ?3 WHERE id = ?1 AND principal = ?2";
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        key_check::check_file_again(&self.file, &transaction, self.key.as_ref())?;
        transaction.execute(update, params![id, principal, tags_json(tags)])?;
        transaction.commit()?;
        Ok(())
    }

    fn forget(&mut self, principal: &str, ids: &[i64]) -> Result<(), StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for id in ids {
            let delete = "DELETE FROM memory WHERE id = ?1 AND principal = ?2";
            transaction.execute(delete, params![id, principal])?;
        }
        transaction.commit()?;
        Ok(())
    }
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
