//! Reads sessions and events with SQL. Invariant: nothing here writes.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::event_ranks::best_events;
use super::view::{ADMITTED, OF_PRINCIPAL, SessionView};
use super::{Cursor, FolderFilter, ListFilter, SearchHit, StoredEvent, StoredSession, UsageTotals};
use crate::principal::SessionFiles;
use crate::store::text_ranks::{MatchedText, text_length};

const SESSION: &str = "SELECT s.id, s.title, s.cwd, s.roots, s.agent, s.mode, s.model, s.approval, s.created_at,
    s.updated_at, s.input, s.output, s.cached, s.cost, s.events, s.parent, s.files FROM session s";

/// SQL: `?2` is a folder or null, `?3` whether folders below it match too.
pub(super) const WITHIN: &str = "(?2 IS NULL OR s.cwd = ?2
    OR (?3 AND substr(s.cwd, 1, length(rtrim(?2, '/')) + 1) = rtrim(?2, '/') || '/'))";

/// SQL: whether the session `s` has a message. Every prompt is one.
pub(super) const HAS_PROMPT: &str = "EXISTS (SELECT 1 FROM event e WHERE e.session = s.key AND e.kind = 'message')";

/// The maximum number of candidates for an ambiguous prefix, few enough to list in an error.
pub(super) const CANDIDATES: usize = 6;

/// The number of characters shown on each side of a verbatim match.
const AROUND: usize = 60;

/// The number of characters shown of a message when no word was searched for.
pub(super) const AROUND_SESSION: usize = 160;

pub(super) fn find(connection: &Connection, view: &SessionView, id: &str) -> rusqlite::Result<Option<StoredSession>> {
    let select = format!("{SESSION} WHERE s.id = ?2 AND {ADMITTED}");
    connection.prepare_cached(&select)?.query_row([view.query(connection)?.as_str(), id], session).optional()
}

pub(super) fn events(connection: &Connection, view: &SessionView, id: &str) -> rusqlite::Result<Vec<StoredEvent>> {
    let select = format!(
        "SELECT e.seq, e.at, e.kind, e.body FROM event e JOIN session s ON s.key = e.session
         WHERE s.id = ?2 AND {ADMITTED} ORDER BY e.seq"
    );
    connection.prepare_cached(&select)?.query_map([view.query(connection)?.as_str(), id], event)?.collect()
}

/// Reads the columns `seq, at, kind, body`.
pub(super) fn event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent { seq: natural(row, 0)?, at: natural(row, 1)?, kind: row.get(2)?, body: row.get(3)? })
}

pub(super) fn list(
    connection: &Connection,
    view: &SessionView,
    filter: &ListFilter,
) -> rusqlite::Result<Vec<StoredSession>> {
    let (folder, below) = folder_params(&filter.within);
    let (time, id) = match &filter.after {
        Some(Cursor { updated_at, id }) => (Some(number(*updated_at)), id.as_str()),
        None => (None, ""),
    };
    let query = view.query(connection)?;
    let values = params![query, folder, below, time, id, limit_value(filter.limit), filter.parent, filter.mode];
    connection.prepare_cached(&list_query(filter))?.query_map(values, session)?.collect()
}

/// Returns the SQL of a list. A condition about a value or null would keep SQLite from using the index of the children,
/// or that of the order.
fn list_query(filter: &ListFilter) -> String {
    let family = match &filter.parent {
        Some(_) => "s.parent = ?7".to_owned(),
        None => format!("{OF_PRINCIPAL} AND s.parent IS NULL"),
    };
    let rest = if filter.after.is_some() { "(s.updated_at, s.id) < (?4, ?5)" } else { "?4 IS NULL" };
    format!(
        "{SESSION} WHERE {family} AND {ADMITTED} AND {WITHIN} AND {HAS_PROMPT} AND {rest}
         AND (?8 IS NULL OR ?8 IN (s.agent || '/' || s.mode, s.agent || '/*'))
         ORDER BY s.updated_at DESC, s.id DESC LIMIT ?6"
    )
}

pub(super) fn family(connection: &Connection, view: &SessionView, id: &str) -> rusqlite::Result<Vec<String>> {
    let select = format!(
        "WITH head (id) AS (SELECT coalesce(parent, id) FROM session WHERE id = ?2)
         SELECT s.id FROM session s, head WHERE (s.id = head.id OR s.parent = head.id) AND {ADMITTED}"
    );
    connection.prepare_cached(&select)?.query_map([view.query(connection)?.as_str(), id], |row| row.get(0))?.collect()
}

pub(super) fn beginning_with(
    connection: &Connection,
    view: &SessionView,
    prefix: &str,
) -> rusqlite::Result<Vec<String>> {
    if prefix.is_empty() {
        return Ok(Vec::new());
    }
    // `~` sorts after every character of an id.
    let select = format!(
        "SELECT s.id FROM session s WHERE s.id >= ?2 AND s.id < ?2 || '~' AND {ADMITTED} ORDER BY s.id LIMIT ?3"
    );
    let query = view.query(connection)?;
    let mut statement = connection.prepare_cached(&select)?;
    statement.query_map(params![query, prefix, limit_value(Some(CANDIDATES))], |row| row.get(0))?.collect()
}

pub(super) fn search(
    connection: &Connection,
    view: &SessionView,
    words: &str,
    folders: &FolderFilter,
    limit: usize,
) -> rusqlite::Result<Vec<SearchHit>> {
    let found = match full_text(words) {
        Some(query) => search_words(connection, view, words, &query, folders, limit)?,
        None => Vec::new(),
    };
    // A verbatim search covers languages without spaces, parts of words and punctuation.
    if found.is_empty() { search_verbatim(connection, view, words, folders, limit) } else { Ok(found) }
}

fn search_words(
    connection: &Connection,
    view: &SessionView,
    words: &str,
    query: &str,
    folders: &FolderFilter,
    limit: usize,
) -> rusqlite::Result<Vec<SearchHit>> {
    let (folder, below) = folder_params(folders);
    let admitted = view.query(connection)?;
    let select = format!(
        "SELECT e.key, z.sz, 1.0 FROM event_words w JOIN event e ON e.key = w.rowid JOIN session s ON s.key = e.session
         JOIN event_words_docsize z ON z.id = e.key WHERE event_words MATCH ?4 AND {ADMITTED} AND {WITHIN}"
    );
    let mut matches = connection.prepare_cached(&select)?;
    let matches = matches.query_map(params![admitted, folder, below, query], read_match)?;
    let matches = matches.collect::<rusqlite::Result<Vec<_>>>()?;
    let (plain, terms): (Vec<_>, _) = (plain_words(words).collect(), words_of(words));
    let best = best_events(connection, &admitted, &plain, &terms, &matches, limit)?;
    let select = "SELECT s.id, s.title, s.cwd, e.seq, e.at, e.kind, snippet(event_words, 0, '', '', '…', 24)
         FROM event_words w JOIN event e ON e.key = w.rowid JOIN session s ON s.key = e.session
         WHERE event_words MATCH ?1 AND w.rowid = ?2";
    let mut select = connection.prepare_cached(select)?;
    let found = best.iter().map(|key| select.query_row(params![query, key], hit).optional());
    Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Reads the key of an event, the sizes in the index, and the factor of its rank.
pub(super) fn read_match(row: &Row<'_>) -> rusqlite::Result<MatchedText> {
    let sizes: Vec<u8> = row.get(1)?;
    Ok(MatchedText { key: row.get(0)?, length: text_length(&sizes), factor: row.get(2)? })
}

fn search_verbatim(
    connection: &Connection,
    view: &SessionView,
    words: &str,
    folders: &FolderFilter,
    limit: usize,
) -> rusqlite::Result<Vec<SearchHit>> {
    let wanted = words.trim().to_lowercase();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let (folder, below) = folder_params(folders);
    let select = format!(
        "SELECT s.id, s.title, s.cwd, e.seq, e.at, e.kind, e.text
         FROM event e JOIN session s ON s.key = e.session
         WHERE e.text IS NOT NULL AND {ADMITTED} AND {WITHIN} ORDER BY e.key DESC"
    );
    let admitted = view.query(connection)?;
    let mut statement = connection.prepare_cached(&select)?;
    let mut found = Vec::new();
    for row in statement.query_map(params![admitted, folder, below], hit)? {
        let row = row?;
        if let Some(snippet) = snippet_around(&row.snippet, &wanted) {
            found.push(SearchHit { snippet, ..row });
        }
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

/// Returns the text around the first occurrence of `wanted`, ignoring case. `None` if there is none. `wanted` must be
/// in lower case.
pub(super) fn snippet_around(text: &str, wanted: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let place = lower.find(wanted)?;
    // Counted in characters, because lower case may change the length in bytes. An off-by-a-few snippet is harmless.
    let place = lower[..place].chars().count();
    let from = place.saturating_sub(AROUND);
    let length = place - from + wanted.chars().count() + AROUND;
    let part: String = text.chars().skip(from).take(length).collect();
    let (before, after) = (from > 0, text.chars().nth(from + length).is_some());
    Some(format!("{}{part}{}", if before { "…" } else { "" }, if after { "…" } else { "" }))
}

/// Builds a full-text query that matches all words as prefixes, without operators. `None` if there are no words.
fn full_text(words: &str) -> Option<String> {
    let words = words_of(words);
    (!words.is_empty()).then(|| words.join(" AND "))
}

/// Quotes each word as a prefix term of a full-text query.
pub(super) fn words_of(words: &str) -> Vec<String> {
    plain_words(words).map(|word| format!("\"{}\"*", word.replace('"', "\"\""))).collect()
}

/// Returns the words of a query that have a letter or a digit.
pub(super) fn plain_words(words: &str) -> impl Iterator<Item = &str> {
    let words = words.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| word.contains(char::is_alphanumeric))
}

pub(super) fn folder_params(folders: &FolderFilter) -> (Option<String>, bool) {
    match folders {
        FolderFilter::Anywhere => (None, false),
        FolderFilter::Folder(folder) => (Some(folder.to_string_lossy().into_owned()), false),
        FolderFilter::Below(folder) => (Some(folder.to_string_lossy().into_owned()), true),
    }
}

pub(super) fn limit_value(limit: Option<usize>) -> i64 {
    limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(i64::MAX)
}

/// Converts to SQLite's signed integers.
pub(super) fn number(natural: u64) -> i64 {
    i64::try_from(natural).unwrap_or(i64::MAX)
}

pub(super) fn natural(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(|number: i64| u64::try_from(number).unwrap_or(0))
}

pub(super) fn folders_json(folders: &[PathBuf]) -> String {
    let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
    serde_json::to_string(&folders).unwrap_or_default()
}

fn session(row: &Row<'_>) -> rusqlite::Result<StoredSession> {
    let (cwd, roots, files): (String, String, String) = (row.get(2)?, row.get(3)?, row.get(16)?);
    Ok(StoredSession {
        id: row.get(0)?,
        title: row.get(1)?,
        cwd: cwd.into(),
        roots: serde_json::from_str(&roots).unwrap_or_default(),
        agent: row.get(4)?,
        mode: row.get(5)?,
        model: row.get(6)?,
        approval: row.get(7)?,
        created_at: natural(row, 8)?,
        updated_at: natural(row, 9)?,
        spent: UsageTotals {
            input: natural(row, 10)?,
            output: natural(row, 11)?,
            cached: natural(row, 12)?,
            cost: row.get(13)?,
        },
        events: natural(row, 14)?,
        parent: row.get(15)?,
        // A place that only a newer version knows is not here.
        files: SessionFiles::from_name(&files).unwrap_or(SessionFiles::Client),
    })
}

pub(super) fn hit(row: &Row<'_>) -> rusqlite::Result<SearchHit> {
    let cwd: String = row.get(2)?;
    Ok(SearchHit {
        session: row.get(0)?,
        title: row.get(1)?,
        cwd: cwd.into(),
        seq: natural(row, 3)?,
        at: natural(row, 4)?,
        kind: row.get(5)?,
        snippet: row.get(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::schema::SCHEMA;
    use super::*;

    /// How SQLite reads the sessions of a list.
    fn plan(filter: &ListFilter) -> Vec<String> {
        let connection = Connection::open_in_memory().unwrap();
        crate::store::keep_plans(&connection).unwrap();
        for migration in SCHEMA.migrations {
            connection.execute_batch(migration).unwrap();
        }
        let query = format!("EXPLAIN QUERY PLAN {}", list_query(filter));
        let mut statement = connection.prepare(&query).unwrap();
        let values = rusqlite::params_from_iter([rusqlite::types::Null; 8]);
        let steps = statement.query_map(values, |row| row.get(3)).unwrap();
        let steps: Vec<String> = steps.collect::<rusqlite::Result<_>>().unwrap();
        steps.into_iter().filter(|step| step.contains(" s ") || step.contains("ORDER BY")).collect()
    }

    #[test]
    fn a_list_reads_only_the_sessions_that_it_may_return() {
        let all = ListFilter::default();
        assert_eq!(plan(&all), ["SEARCH s USING INDEX session_of_principal (principal=?)"]);
        let after = Some(Cursor { updated_at: 1, id: "a".to_owned() });
        let page = "SEARCH s USING INDEX session_of_principal (principal=? AND (updated_at,id)<(?,?))";
        assert_eq!(plan(&ListFilter { after, ..all.clone() }), [page]);
        let children = plan(&ListFilter { parent: Some("a".to_owned()), ..all });
        assert_eq!(children[0], "SEARCH s USING INDEX session_children (parent=?)", "not all sessions: {children:?}");
    }
}
