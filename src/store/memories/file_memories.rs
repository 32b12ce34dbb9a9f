//! Stores memories in an SQLite file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, ToSql, TransactionBehavior, params};

use super::memory_rows::{MemoryRows, MergeSealed, find_same, merge_tags, tags_json};
use super::{MatchMode, Memory, MemoryOwner, NewMemory, SCHEMA};
use crate::store::sealing::StoreKey;
use crate::store::text_ranks::{MatchedText, TextStats, best_keys, text_length};
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

    fn remember_sealed(
        &mut self,
        principal: &str,
        project: Option<&str>,
        new: &NewMemory<'_>,
        merge: &MergeSealed<'_>,
    ) -> Result<Memory, StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        key_check::check_file_again(&self.file, &transaction, self.key.as_ref())?;
        let known = "SELECT id, text, tags, project, created, source FROM memory
            WHERE project IS ?1 AND principal = ?2";
        let known =
            transaction.prepare(known)?.query_map(params![project, principal], memory)?.collect::<Result<_, _>>()?;
        let id = match find_same(known, merge)? {
            Some((known, tags)) => {
                let update = "UPDATE memory SET tags = ?2 WHERE id = ?1";
                transaction.execute(update, params![known.id, tags_json(&tags)])?;
                known.id
            }
            None => {
                let insert = "INSERT INTO memory (text, tags, project, source, principal) VALUES (?1, ?2, ?3, ?4, ?5)";
                transaction.execute(insert, params![new.text, tags_json(new.tags), project, new.source, principal])?;
                transaction.last_insert_rowid()
            }
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
        match &query {
            Some(None) => return Ok(Vec::new()),
            Some(Some(query)) => {
                sql.push_str(" JOIN memory_words w ON w.rowid = m.id WHERE (m.project IS NULL OR m.project = ?1)");
                sql.push_str(" AND +m.principal = ?2 AND memory_words MATCH ?3");
                values.push(query);
            }
            None => sql.push_str(" WHERE (m.project IS NULL OR m.project = ?1) AND +m.principal = ?2"),
        }
        match scope {
            Some(MemoryOwner::User) => sql.push_str(" AND m.project IS NULL"),
            Some(MemoryOwner::Project) => sql.push_str(" AND m.project IS NOT NULL"),
            None => {}
        }
        sql.push_str(" ORDER BY m.id DESC");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let found = statement.query_map(values.as_slice(), memory)?;
        let mut found = found.collect::<rusqlite::Result<Vec<_>>>()?;
        if let (Some((words, _)), Some(Some(query))) = (words, &query) {
            let best = best_memories(&self.connection, principal, words, query)?;
            let places: HashMap<i64, usize> = best.into_iter().zip(0..).collect();
            found.sort_by_key(|memory| places.get(&memory.id).copied());
        }
        Ok(found)
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

/// Returns the ids of all matches, best first. Only memories of the principal count, so the order does not reveal those of
/// others.
fn best_memories(connection: &Connection, principal: &str, words: &str, query: &str) -> rusqlite::Result<Vec<i64>> {
    let words: Vec<_> = words.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let matches = "SELECT m.id, z.sz FROM memory_words w JOIN memory m ON m.id = w.rowid
        JOIN memory_words_docsize z ON z.id = m.id WHERE memory_words MATCH ?2 AND +m.principal = ?1";
    let text = |row: &Row<'_>| {
        let sizes: Vec<u8> = row.get(1)?;
        Ok(MatchedText { key: row.get(0)?, length: text_length(&sizes), factor: 1.0 })
    };
    let mut select = connection.prepare_cached(matches)?;
    let matches = select.query_map([principal, query], text)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut found: Vec<f64> = Vec::with_capacity(words.len());
    for word in &words {
        let (term, mut count) = (format!("\"{word}\"*"), 0.0);
        for row in select.query_map([principal, term.as_str()], text)? {
            row?;
            count += 1.0;
        }
        found.push(count);
    }
    let lengths = "SELECT z.sz FROM memory m JOIN memory_words_docsize z ON z.id = m.id WHERE m.principal = ?1";
    let mut lengths = connection.prepare_cached(lengths)?;
    let (mut sum, mut total) = (0.0, 0.0);
    for sizes in lengths.query_map([principal], |row| row.get::<_, Vec<u8>>(0))? {
        sum += text_length(&sizes?);
        total += 1.0;
    }
    let stats = TextStats { total, mean: sum / f64::max(total, 1.0), found };
    best_keys(connection, "memory_words", &words, &matches, &stats, usize::MAX)
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
