//! Reads sessions and events with SQL. Invariant: nothing here writes.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::view::{ADMITTED, OF_PRINCIPAL, SessionView};
use super::{Cursor, FolderFilter, ListFilter, SearchHit, StoredEvent, StoredSession, UsageTotals};
use crate::principal::SessionFiles;

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
    let select = format!(
        "{SESSION} WHERE {OF_PRINCIPAL} AND {ADMITTED} AND {WITHIN} AND {HAS_PROMPT} AND s.parent IS ?7
         AND (?8 IS NULL OR s.agent || '/' || s.mode = ?8) AND (?4 IS NULL OR (s.updated_at, s.id) < (?4, ?5)) ORDER BY s.updated_at DESC, s.id DESC LIMIT ?6"
    );
    let query = view.query(connection)?;
    let values = params![query, folder, below, time, id, limit_value(filter.limit), filter.parent, filter.mode];
    connection.prepare_cached(&select)?.query_map(values, session)?.collect()
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
        Some(query) => search_words(connection, view, &query, folders, limit)?,
        None => Vec::new(),
    };
    // A verbatim search covers languages without spaces, parts of words and punctuation.
    if found.is_empty() { search_verbatim(connection, view, words, folders, limit) } else { Ok(found) }
}

fn search_words(
    connection: &Connection,
    view: &SessionView,
    query: &str,
    folders: &FolderFilter,
    limit: usize,
) -> rusqlite::Result<Vec<SearchHit>> {
    let (folder, below) = folder_params(folders);
    let select = format!(
        "SELECT s.id, s.title, s.cwd, e.seq, e.at, e.kind, snippet(event_words, 0, '', '', '…', 24)
         FROM event_words w JOIN event e ON e.key = w.rowid JOIN session s ON s.key = e.session
         WHERE event_words MATCH ?4 AND {ADMITTED} AND {WITHIN} ORDER BY bm25(event_words), e.key DESC LIMIT ?5"
    );
    let admitted = view.query(connection)?;
    let mut statement = connection.prepare_cached(&select)?;
    statement.query_map(params![admitted, folder, below, query, limit_value(Some(limit))], hit)?.collect()
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
    let words = words.split(|c: char| c.is_whitespace() || c.is_control());
    let words = words.filter(|word| word.contains(char::is_alphanumeric));
    words.map(|word| format!("\"{}\"*", word.replace('"', "\"\""))).collect()
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
