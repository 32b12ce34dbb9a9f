//! Stores memories in a PostgreSQL database.

use std::sync::Arc;

use postgres::{GenericClient, Row};

use super::memory_rows::{MemoryRows, MergeSealed, find_same, merge_tags, tags_json};
use super::{MatchMode, Memory, MemoryOwner, NewMemory};
use crate::store::database::{Database, NOW, Queries};
use crate::store::sealing::StoreKey;
use crate::store::sessions::search_terms::{QueryWord, index_words, split_words};
use crate::store::{StoreAddress, StoreError};

const COLUMNS: &str = "id, text, tags, project, created, source";

#[derive(Debug)]
pub(super) struct SharedMemories {
    database: Database,
}

impl SharedMemories {
    /// A write fails if the database has another key.
    pub(super) fn open(address: &Arc<StoreAddress>, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        Database::open_with_key(address, key).map(|database| Self { database })
    }
}

impl MemoryRows for SharedMemories {
    fn remember(&mut self, principal: &str, project: Option<&str>, new: &NewMemory<'_>) -> Result<Memory, StoreError> {
        let text = new.text.replace('\0', " ");
        let insert = format!(
            "INSERT INTO memory (principal, text, tags, project, created, source, words)
             VALUES ($1, $2, $3, $4, {NOW}, $5, to_tsvector('skein_words', $6::text))
             ON CONFLICT DO NOTHING RETURNING {COLUMNS}"
        );
        let known = format!(
            "SELECT {COLUMNS} FROM memory
             WHERE principal = $1 AND md5(text) = md5($2::text) AND text = $2::text
                AND project IS NOT DISTINCT FROM $3::text FOR UPDATE"
        );
        let (tags, words) = (tags_json(new.tags), memory_words(&text, new.tags));
        self.database.write(|queries| {
            // If another process stores the same text, this waits for it.
            let values = queries.query_opt(&insert, &[&principal, &text, &tags, &project, &new.source, &words])?;
            if let Some(row) = values {
                return Ok(memory(&row));
            }
            let known = memory(&queries.query_one(&known, &[&principal, &text, &project])?);
            let tags = merge_tags(known.tags.clone(), new.tags);
            put_tags(queries, principal, known.id, &tags, &memory_words(&text, &tags))?;
            Ok(Memory { tags, ..known })
        })
    }

    fn remember_sealed(
        &mut self,
        principal: &str,
        project: Option<&str>,
        new: &NewMemory<'_>,
        merge: &MergeSealed<'_>,
    ) -> Result<Memory, StoreError> {
        let known = format!(
            "SELECT {COLUMNS} FROM memory WHERE principal = $1 AND project IS NOT DISTINCT FROM $2::text ORDER BY id"
        );
        let insert = format!(
            "INSERT INTO memory (principal, text, tags, project, created, source, words)
             VALUES ($1, $2, $3, $4, {NOW}, $5, to_tsvector('skein_words', ''))
             RETURNING {COLUMNS}"
        );
        self.database.write(|queries| {
            // Others can read meanwhile, but not write.
            queries.execute("LOCK TABLE memory IN SHARE ROW EXCLUSIVE MODE", &[])?;
            let known = queries.query(&known, &[&principal, &project])?;
            let same = match find_same(known.iter().map(memory).collect(), merge) {
                Ok(same) => same,
                // Nothing is written.
                Err(error) => return Ok(Err(error)),
            };
            if let Some((known, tags)) = same {
                put_tags(queries, principal, known.id, &tags, "")?;
                return Ok(Ok(Memory { tags, ..known }));
            }
            let tags = tags_json(new.tags);
            let row = queries.query_one(&insert, &[&principal, &new.text, &tags, &project, &new.source])?;
            Ok(Ok(memory(&row)))
        })?
    }

    fn select(
        &mut self,
        principal: &str,
        project: &str,
        words: Option<(&str, MatchMode)>,
        scope: Option<MemoryOwner>,
    ) -> Result<Vec<Memory>, StoreError> {
        let query = match words.map(|(words, matching)| full_text(words, matching)) {
            Some(None) => return Ok(Vec::new()),
            Some(query) => query,
            None => None,
        };
        let of_project = scope.map(|scope| scope == MemoryOwner::Project);
        let select = format!(
            "SELECT {COLUMNS} FROM memory WHERE principal = $1 AND (project IS NULL OR project = $2)
             AND ($3::bool IS NULL OR (project IS NOT NULL) = $3::bool)
             AND ($4::text IS NULL OR words @@ to_tsquery('skein_words', $4::text))
             ORDER BY CASE WHEN $4::text IS NULL THEN 0
                 ELSE ts_rank(words, to_tsquery('skein_words', $4::text), 1) END DESC, id DESC"
        );
        let found =
            self.database.read(|queries| queries.query(&select, &[&principal, &project, &of_project, &query]))?;
        Ok(found.iter().map(memory).collect())
    }

    fn forget(&mut self, principal: &str, ids: &[i64]) -> Result<(), StoreError> {
        let delete = "DELETE FROM memory WHERE id = ANY ($1) AND principal = $2";
        self.database.write(|queries| queries.execute(delete, &[&ids, &principal])).map(drop)
    }
}

fn put_tags<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: i64,
    tags: &[String],
    words: &str,
) -> Result<(), postgres::Error> {
    let update = "UPDATE memory SET tags = $3, words = to_tsvector('skein_words', $4::text)
        WHERE id = $1 AND principal = $2";
    queries.execute(update, &[&id, &principal, &tags_json(tags), &words]).map(drop)
}

/// Returns the words by which a memory is found.
pub(in crate::store) fn memory_words(text: &str, tags: &[String]) -> String {
    index_words(&format!("{text} {}", tags.join(" "))).0
}

/// Builds a query of the database. `None` if there are no words.
fn full_text(words: &str, matching: MatchMode) -> Option<String> {
    let (terms, join) = match matching {
        MatchMode::Any => (split_words(words).iter().map(|word| format!("'{word}':*")).collect::<Vec<_>>(), " | "),
        MatchMode::All => {
            (QueryWord::all_of(words).iter().map(|word| format!("({})", word.as_whole())).collect(), " & ")
        }
    };
    (!terms.is_empty()).then(|| terms.join(join))
}

fn memory(row: &Row) -> Memory {
    let (tags, project): (String, Option<String>) = (row.get(2), row.get(3));
    Memory {
        id: row.get(0),
        text: row.get(1),
        tags: serde_json::from_str(&tags).unwrap_or_default(),
        scope: if project.is_some() { MemoryOwner::Project } else { MemoryOwner::User },
        created: row.get(4),
        source: row.get(5),
    }
}
