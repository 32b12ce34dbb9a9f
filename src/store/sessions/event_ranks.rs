//! Ranks the events of an SQLite file that match a query.
//!
//! Invariant: only events count that the view admits, so the order of hits does not reveal those of others.

use rusqlite::{Connection, params};

use super::view::{ADMITTED, OF_PRINCIPAL};
use crate::store::text_ranks::{MatchedText, TextStats, best_keys, text_length};

/// The newest sessions and texts from which the mean length of a text is estimated.
const SAMPLE_SESSIONS: i64 = 20;
const SAMPLE_TEXTS: i64 = 1_000;
/// The number of texts up to which a word is counted.
const MAX_COUNTED: i64 = 10_000;

/// Returns the keys of the best matches. `admitted` is the value of the view's query. Each word is also given as a term
/// of a full-text query.
pub(super) fn best_events(
    connection: &Connection,
    admitted: &str,
    words: &[&str],
    terms: &[String],
    matches: &[MatchedText],
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    if matches.is_empty() {
        return Ok(Vec::new());
    }
    let total = format!("SELECT total(s.events) FROM session s WHERE {OF_PRINCIPAL} AND {ADMITTED}");
    let total: f64 = connection.prepare_cached(&total)?.query_row([admitted], |row| row.get(0))?;
    let (mean, found) = (mean_length(connection, admitted)?, count_texts(connection, admitted, terms)?);
    best_keys(connection, "event_words", words, matches, &TextStats { total, mean, found }, limit)
}

/// Returns the number of texts with each word.
fn count_texts(connection: &Connection, admitted: &str, terms: &[String]) -> rusqlite::Result<Vec<f64>> {
    // The weight of a single word does not change the order.
    if let [_] = terms {
        return Ok(vec![0.0]);
    }
    let select = format!(
        "SELECT count(*) FROM (SELECT 1 FROM event_words w JOIN event e ON e.key = w.rowid
            JOIN session s ON s.key = e.session WHERE event_words MATCH ?2 AND {ADMITTED} LIMIT ?3)"
    );
    let mut select = connection.prepare_cached(&select)?;
    terms.iter().map(|term| select.query_row(params![admitted, term, MAX_COUNTED], |row| row.get(0))).collect()
}

fn mean_length(connection: &Connection, admitted: &str) -> rusqlite::Result<f64> {
    let select = format!(
        "SELECT z.sz FROM (SELECT s.key FROM session s WHERE {OF_PRINCIPAL} AND {ADMITTED}
            ORDER BY s.updated_at DESC, s.id DESC LIMIT ?2) n
         JOIN event f ON f.session = n.key JOIN event_words_docsize z ON z.id = f.key ORDER BY f.key DESC LIMIT ?3"
    );
    let mut select = connection.prepare_cached(&select)?;
    let sizes = select.query_map(params![admitted, SAMPLE_SESSIONS, SAMPLE_TEXTS], |row| row.get::<_, Vec<u8>>(0))?;
    let (mut sum, mut texts) = (0.0, 0.0);
    for sizes in sizes {
        sum += text_length(&sizes?);
        texts += 1.0;
    }
    Ok(if texts > 0.0 { sum / texts } else { 1.0 })
}
