//! Searches the messages of earlier sessions.
//!
//! Invariant: undone events are never returned. Apart from the author of a message, the extent of an undo is the only
//! thing the store reads from an event's body.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::event_ranks::best_events;
use super::read::{
    AROUND_SESSION, WITHIN, folder_params, hit, limit_value, natural, number, plain_words, read_match, snippet_around,
    words_of,
};
use super::view::{ADMITTED, OF_PRINCIPAL, SessionView};
use super::{FolderFilter, SearchHit};

/// A query for earlier messages. A field that is `None` or empty does not restrict it.
#[derive(Debug, Clone, Default)]
pub struct RecallQuery {
    pub words: String,
    pub within: FolderFilter,
    /// Milliseconds since 1970, inclusive.
    pub after: Option<u64>,
    /// Milliseconds since 1970, exclusive.
    pub before: Option<u64>,
    /// Ids of the sessions to exclude.
    pub without: Vec<String>,
    /// The maximum number of hits.
    pub limit: usize,
}

/// The hits of a query, best first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecallResults {
    pub hits: Vec<SearchHit>,
    /// No message has all the words; these have some of them.
    pub partly: bool,
}

/// A message of the user or the assistant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub seq: u64,
    pub at: u64,
    /// `user` or `assistant`.
    pub by: String,
    pub text: String,
}

/// A message and the query words it contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecallMatch {
    pub session: String,
    pub said: StoredMessage,
    /// Indices into the query words.
    pub words: Vec<usize>,
}

/// The frequency of each query word, and the messages that share the most of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TermStats {
    /// For each word, the number of messages in the principal's sessions that contain it, counted up to [`COUNTED`]. Zero
    /// if there is no session to search.
    pub frequency: Vec<usize>,
    /// The number of events in all sessions of the principal. Zero if there are no messages.
    pub events: u64,
    pub messages: Vec<RecallMatch>,
}

impl TermStats {
    pub(super) fn of_no_messages(words: usize) -> Self {
        Self { frequency: vec![0; words], ..Self::default() }
    }
}

/// Weighs the words that a message shares with a query.
#[derive(Debug, Clone, Copy)]
pub struct TermWeights {
    /// Returns the weight of a word from the number of messages that contain it, counted up to [`COUNTED`].
    pub word: fn(usize) -> f64,
    /// The minimum total weight of a message.
    pub least: f64,
}

/// The number of newest messages examined per word. A more frequent word says little about a message.
pub const COUNTED: usize = 400;

/// The number of newest messages that a verbatim search reads.
pub(super) const READ_THROUGH: usize = 20_000;

/// SQL: `e` is not undone. An `undone` event restores the state after the first `events` events of its session, so it may
/// reverse an earlier undo. From the end of the log, `kept` jumps from each undo that counts to the state it restores.
const STANDS: &str = "(NOT EXISTS (SELECT 1 FROM event u WHERE u.session = e.session AND u.seq > e.seq
        AND u.kind = 'undone')
    OR NOT EXISTS (WITH RECURSIVE kept(count) AS (
        SELECT 9223372036854775807
        UNION ALL
        SELECT min(json_extract(u.body, '$.events'), u.seq - 1) FROM kept JOIN event u ON u.session = e.session
        AND u.seq = (SELECT max(x.seq) FROM event x WHERE x.session = e.session AND x.kind = 'undone'
            AND x.seq > e.seq AND x.seq <= kept.count))
    SELECT 1 FROM kept WHERE kept.count < e.seq))";

/// SQL: `?4` and `?5` are times or null, `?6` is a JSON list of session ids.
const WHEN: &str = "(?4 IS NULL OR e.at >= ?4) AND (?5 IS NULL OR e.at < ?5)
    AND s.id NOT IN (SELECT value FROM json_each(?6))";

/// SQL: favours newer messages by up to 30 %, just enough to decide between equal matches.
const NEWER: &str = "(1.0 + 0.3 / (1.0 + max(0, ?8 - e.at) / 2592000000.0))";

pub(super) fn recall(
    connection: &Connection,
    view: &SessionView,
    recall: &RecallQuery,
    now: u64,
) -> rusqlite::Result<RecallResults> {
    let admitted = view.query(connection)?;
    let words = words_of(&recall.words);
    if words.is_empty() && recall.words.trim().is_empty() {
        return Ok(RecallResults { hits: newest(connection, &admitted, recall)?, partly: false });
    }
    for (join, partly) in [(" AND ", false), (" OR ", true)] {
        let hits = if words.is_empty() {
            Vec::new()
        } else {
            rank_hits(connection, &admitted, recall, &words.join(join), now)?
        };
        if !hits.is_empty() {
            return Ok(RecallResults { hits, partly: partly && words.len() > 1 });
        }
    }
    Ok(RecallResults { hits: search_verbatim(connection, &admitted, recall)?, partly: false })
}

fn rank_hits(
    connection: &Connection,
    admitted: &str,
    recall: &RecallQuery,
    query: &str,
    now: u64,
) -> rusqlite::Result<Vec<SearchHit>> {
    let select = format!(
        "SELECT e.key, z.sz, {NEWER} FROM event_words w JOIN event e ON e.key = w.rowid
         JOIN session s ON s.key = e.session JOIN event_words_docsize z ON z.id = e.key
         WHERE event_words MATCH ?7 AND {ADMITTED} AND {WITHIN} AND {WHEN}"
    );
    let (folder, below) = folder_params(&recall.within);
    let (after, before, without) = time_params(recall);
    let values = params![admitted, folder, below, after, before, without, query, number(now)];
    let mut matches = connection.prepare_cached(&select)?;
    let matches = matches.query_map(values, read_match)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let (plain, terms): (Vec<_>, _) = (plain_words(&recall.words).collect(), words_of(&recall.words));
    // Undone events are filtered out only among the best matches, because that check queries each session's events.
    let best = best_events(connection, admitted, &plain, &terms, &matches, recall.limit.saturating_mul(4))?;
    let select = format!(
        "SELECT s.id, s.title, s.cwd, e.seq, e.at, e.kind, snippet(event_words, 0, '', '', '…', 32)
         FROM event_words w JOIN event e ON e.key = w.rowid JOIN session s ON s.key = e.session
         WHERE event_words MATCH ?1 AND w.rowid = ?2 AND {STANDS}"
    );
    let mut select = connection.prepare_cached(&select)?;
    let mut hits = Vec::new();
    for key in best {
        if hits.len() >= recall.limit {
            break;
        }
        hits.extend(select.query_row(params![query, key], hit).optional()?);
    }
    Ok(hits)
}

/// Returns the newest message of each session.
fn newest(connection: &Connection, admitted: &str, recall: &RecallQuery) -> rusqlite::Result<Vec<SearchHit>> {
    let select = format!(
        "SELECT s.id, s.title, s.cwd, e.seq, max(e.at), e.kind, substr(e.text, 1, ?8)
         FROM event e JOIN session s ON s.key = e.session
         WHERE e.text IS NOT NULL AND {ADMITTED} AND {WITHIN} AND {WHEN} AND {STANDS}
         GROUP BY s.key ORDER BY max(e.at) DESC, s.key DESC LIMIT ?7"
    );
    let (folder, below) = folder_params(&recall.within);
    let (after, before, without) = time_params(recall);
    let values = params![
        admitted,
        folder,
        below,
        after,
        before,
        without,
        limit_value(Some(recall.limit)),
        limit_value(Some(AROUND_SESSION))
    ];
    connection.prepare_cached(&select)?.query_map(values, hit)?.collect()
}

/// Finds the text verbatim. Covers languages without spaces, parts of words and punctuation.
fn search_verbatim(connection: &Connection, admitted: &str, recall: &RecallQuery) -> rusqlite::Result<Vec<SearchHit>> {
    let wanted = recall.words.trim().to_lowercase();
    let select = format!(
        "SELECT s.id, s.title, s.cwd, e.seq, e.at, e.kind, e.text
         FROM event e JOIN session s ON s.key = e.session
         WHERE e.text IS NOT NULL AND {ADMITTED} AND {WITHIN} AND {WHEN} AND {STANDS} ORDER BY e.key DESC LIMIT ?7"
    );
    let (folder, below) = folder_params(&recall.within);
    let (after, before, without) = time_params(recall);
    let values = params![admitted, folder, below, after, before, without, limit_value(Some(READ_THROUGH))];
    let mut statement = connection.prepare_cached(&select)?;
    let mut found = Vec::new();
    for row in statement.query_map(values, hit)? {
        let row = row?;
        if let Some(snippet) = snippet_around(&row.snippet, &wanted) {
            found.push(SearchHit { snippet, ..row });
        }
        if found.len() >= recall.limit {
            break;
        }
    }
    Ok(found)
}

fn time_params(recall: &RecallQuery) -> (Option<i64>, Option<i64>, String) {
    let without = serde_json::to_string(&recall.without).unwrap_or_default();
    (recall.after.map(number), recall.before.map(number), without)
}

pub(super) fn read_messages(
    connection: &Connection,
    view: &SessionView,
    id: &str,
    from: u64,
    limit: usize,
) -> rusqlite::Result<Vec<StoredMessage>> {
    let select = format!(
        "SELECT e.seq, e.at, json_extract(e.body, '$.message.role'), e.text
         FROM event e JOIN session s ON s.key = e.session
         WHERE s.id = ?2 AND {ADMITTED} AND e.seq >= ?3 AND e.text IS NOT NULL AND {STANDS} ORDER BY e.seq LIMIT ?4"
    );
    let said = |row: &rusqlite::Row<'_>| {
        let by: Option<String> = row.get(2)?;
        Ok(StoredMessage { seq: natural(row, 0)?, at: natural(row, 1)?, by: by.unwrap_or_default(), text: row.get(3)? })
    };
    let values = params![view.query(connection)?, id, number(from), limit_value(Some(limit))];
    connection.prepare_cached(&select)?.query_map(values, said)?.collect()
}

/// Returns the messages in `folders` with the highest total weight of shared words, and of equals the newest. `weigh`
/// maps the frequency of a word to its weight and sets the minimum total.
pub(super) fn common_terms(
    connection: &Connection,
    view: &SessionView,
    words: &[String],
    folders: &FolderFilter,
    without: &[String],
    weigh: TermWeights,
    limit: usize,
) -> rusqlite::Result<TermStats> {
    let admitted = view.query(connection)?;
    let without = serde_json::to_string(without).unwrap_or_default();
    let (folder, below) = folder_params(folders);
    // Newest first, because other recent sessions are probably in the same project.
    let others = format!(
        "SELECT 1 FROM session s WHERE {OF_PRINCIPAL} AND {ADMITTED} AND {WITHIN} AND s.events > 0
         AND s.id NOT IN (SELECT value FROM json_each(?4)) ORDER BY s.updated_at DESC LIMIT 1"
    );
    if !connection.prepare_cached(&others)?.exists(params![admitted, folder, below, without])? {
        return Ok(TermStats::of_no_messages(words.len()));
    }
    let mut frequency = Vec::with_capacity(words.len());
    let mut with: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    // Messages of other principals count for nothing: a frequency would reveal their words. Those of excluded sessions
    // count, but are not candidates.
    let select = format!(
        "SELECT w.rowid, s.id IN (SELECT value FROM json_each(?4))
         FROM event_words w JOIN event e ON e.key = w.rowid JOIN session s ON s.key = e.session
         WHERE event_words MATCH ?2 AND {ADMITTED} ORDER BY w.rowid DESC LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&select)?;
    for (place, word) in words.iter().enumerate() {
        let query = format!("\"{}\"", word.replace('"', "\"\""));
        let values = params![admitted, query, limit_value(Some(COUNTED)), without];
        let rows = statement.query_map(values, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?)))?;
        let rows: Vec<(i64, bool)> = rows.collect::<rusqlite::Result<_>>()?;
        frequency.push(rows.len());
        for (row, is_excluded) in rows {
            if !is_excluded {
                with.entry(row).or_default().push(place);
            }
        }
    }
    let score = |places: &[usize]| places.iter().map(|place| (weigh.word)(frequency[*place])).sum::<f64>();
    let mut ranked: Vec<_> = with.into_iter().map(|(row, places)| (score(&places), row, places)).collect();
    ranked.retain(|(score, ..)| *score >= weigh.least);
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    let select = format!(
        "SELECT e.key, s.id, e.seq, e.at, json_extract(e.body, '$.message.role'), e.text
         FROM event e JOIN session s ON s.key = e.session
         WHERE {ADMITTED} AND {WITHIN} AND e.key IN (SELECT value FROM json_each(?4)) AND {STANDS}"
    );
    // Loads the messages in steps, best first, until there are enough.
    let mut messages = Vec::new();
    for step in ranked.chunks(STEP).take(STEPS) {
        let keys: Vec<i64> = step.iter().map(|(_, row, _)| *row).collect();
        let keys = serde_json::to_string(&keys).unwrap_or_default();
        let mut statement = connection.prepare_cached(&select)?;
        let row = |row: &rusqlite::Row<'_>| {
            let by: Option<String> = row.get(4)?;
            let said = StoredMessage {
                seq: natural(row, 2)?,
                at: natural(row, 3)?,
                by: by.unwrap_or_default(),
                text: row.get(5)?,
            };
            Ok((row.get::<_, i64>(0)?, (row.get::<_, String>(1)?, said)))
        };
        let found = statement.query_map(params![admitted, folder, below, keys], row)?;
        let mut found: BTreeMap<_, _> = found.collect::<rusqlite::Result<_>>()?;
        for (_, key, places) in step {
            if let Some((session, said)) = found.remove(key) {
                messages.push(RecallMatch { session, said, words: places.clone() });
            }
        }
        if messages.len() >= limit {
            break;
        }
    }
    messages.truncate(limit);
    if messages.is_empty() {
        return Ok(TermStats { frequency, events: 0, messages });
    }
    let count = format!("SELECT ifnull(sum(s.events), 0) FROM session s WHERE {OF_PRINCIPAL} AND {ADMITTED}");
    let events = connection.prepare_cached(&count)?.query_row([&admitted], |row| natural(row, 0))?;
    Ok(TermStats { frequency, events, messages })
}

/// The number of messages loaded per step, and the maximum number of steps. Many may belong to other projects.
pub(super) const STEP: usize = 64;
pub(super) const STEPS: usize = 16;
