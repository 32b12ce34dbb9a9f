//! Ranks texts of an SQLite file by BM25, from the texts that one principal sees.
//!
//! SQLite's own function counts all texts of the index. The order of hits would then reveal how frequent a word is in the
//! texts of other principals.

use std::collections::HashMap;

use rusqlite::{Connection, params};
use serde_json::json;

/// The characters of a word from which on it also counts as the beginning of longer words. Shorter ones begin too many.
const MIN_PREFIX: usize = 3;

/// SQL: the texts in which each word occurs, once per occurrence. `?1` is the value of `term_ranges`.
const OCCURRENCES: &str = "WITH asked AS MATERIALIZED (
        SELECT value ->> 'place' AS place, value ->> 'from' AS low, value ->> 'to' AS high FROM json_each(?1))
    SELECT a.place, v.doc FROM asked a CROSS JOIN temp.stored_terms v WHERE v.term >= a.low AND v.term < a.high";

/// A text that matches a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatchedText {
    pub(super) key: i64,
    /// The number of its words.
    pub(super) length: f64,
    /// A factor of its rank.
    pub(super) factor: f64,
}

/// What is known of the texts that the principal sees.
#[derive(Debug)]
pub(super) struct TextStats {
    /// Their number.
    pub(super) total: f64,
    /// Their mean length.
    pub(super) mean: f64,
    /// How many of them have each word of the query.
    pub(super) found: Vec<f64>,
}

/// Returns the best `limit` of the matches in the index, and of equals the newest first.
pub(super) fn best_keys(
    connection: &Connection,
    index: &str,
    words: &[&str],
    matches: &[MatchedText],
    stats: &TextStats,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    if matches.is_empty() {
        return Ok(Vec::new());
    }
    let none = vec![0.0; words.len()];
    let mut counts: HashMap<i64, Vec<f64>> = matches.iter().map(|text| (text.key, none.clone())).collect();
    let ranges = term_ranges(connection, index, words)?;
    let mut select = connection.prepare_cached(OCCURRENCES)?;
    let mut rows = select.query([ranges])?;
    while let Some(row) = rows.next()? {
        let (place, key): (i64, i64) = (row.get(0)?, row.get(1)?);
        let count = counts.get_mut(&key).and_then(|counts| counts.get_mut(usize::try_from(place).ok()?));
        if let Some(count) = count {
            *count += 1.0;
        }
    }
    Ok(sort_matches(matches, &counts, stats, limit))
}

/// Returns the terms of `index` that count for each word, as JSON. Creates temporary tables of the connection.
fn term_ranges(connection: &Connection, index: &str, words: &[&str]) -> rusqlite::Result<String> {
    let tables = format!(
        "CREATE VIRTUAL TABLE IF NOT EXISTS temp.asked_words
            USING fts5(text, tokenize='porter unicode61 remove_diacritics 2');
         CREATE VIRTUAL TABLE IF NOT EXISTS temp.asked_terms USING fts5vocab(temp, asked_words, instance);
         CREATE VIRTUAL TABLE IF NOT EXISTS temp.stored_terms USING fts5vocab(main, {index}, instance);
         DELETE FROM temp.asked_words;"
    );
    connection.execute_batch(&tables)?;
    let mut insert = connection.prepare_cached("INSERT INTO temp.asked_words (rowid, text) VALUES (?1, ?2)")?;
    for (place, word) in (0_i64..).zip(words) {
        insert.execute(params![place, word])?;
    }
    // A word such as `foo-bar` counts by its last part.
    let select = "SELECT doc, term, max(offset) FROM temp.asked_terms GROUP BY doc ORDER BY doc";
    let mut select = connection.prepare_cached(select)?;
    let stems = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let stems = stems.collect::<rusqlite::Result<Vec<(i64, String)>>>()?;
    let range = |(place, stem): &(i64, String)| {
        let end = if stem.chars().count() < MIN_PREFIX { '\u{1}' } else { char::MAX };
        json!({"place": place, "from": stem, "to": format!("{stem}{end}")})
    };
    Ok(stems.iter().map(range).collect::<serde_json::Value>().to_string())
}

/// Reads the number of words of a text from the index, which has one number per column.
pub(super) fn text_length(sizes: &[u8]) -> f64 {
    let (mut total, mut value) = (0.0, 0.0);
    for byte in sizes {
        value = value * 128.0 + f64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            total += value;
            value = 0.0;
        }
    }
    total
}

/// Returns the keys of the best matches by BM25. `counts` has the occurrences of each word by text.
fn sort_matches(
    matches: &[MatchedText],
    counts: &HashMap<i64, Vec<f64>>,
    TextStats { total, mean, found }: &TextStats,
    limit: usize,
) -> Vec<i64> {
    let weight = |found: &f64| ((total - found + 0.5).max(0.5) / (found + 0.5)).ln().max(0.000_001);
    let weights: Vec<f64> = found.iter().map(weight).collect();
    let rank = |text: &MatchedText| {
        let share = 1.2 * (0.25 + 0.75 * text.length / mean.max(1.0));
        let counts = counts.get(&text.key).into_iter().flatten();
        let ranks = counts.zip(&weights).map(|(count, weight)| weight * count * 2.2 / (count + share));
        text.factor * ranks.sum::<f64>()
    };
    let mut ranked: Vec<_> = matches.iter().map(|text| (rank(text), text.key)).collect();
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    ranked.into_iter().take(limit).map(|(_, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_words_and_short_texts_rank_higher() {
        let text = |key: i64, length: f64| MatchedText { key, length, factor: 1.0 };
        let matches = [text(1, 10.0), text(2, 10.0), text(3, 10.0), text(4, 5.0), text(5, 10.0)];
        let counts = [(1, [1.0, 0.0]), (2, [1.0, 1.0]), (3, [0.0, 1.0]), (4, [0.0, 1.0]), (5, [0.0, 1.0])];
        let counts = counts.into_iter().map(|(key, counts)| (key, counts.to_vec())).collect();
        let stats = TextStats { total: 100.0, mean: 10.0, found: vec![2.0, 4.0] };
        assert_eq!(sort_matches(&matches, &counts, &stats, 4), [2, 4, 1, 5]);
    }

    #[test]
    fn lengths_are_those_of_the_index() {
        assert!((text_length(&[3]) - 3.0).abs() < f64::EPSILON);
        assert!((text_length(&[0x81, 0x00, 2]) - 130.0).abs() < f64::EPSILON);
    }

    #[test]
    fn words_become_ranges_of_stems() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE VIRTUAL TABLE words USING fts5(text)").unwrap();
        for (words, [first, second]) in [
            (["Rivers", "foo-Cafés"], [("river", "river\u{10ffff}"), ("cafe", "cafe\u{10ffff}")]),
            (["to", "be"], [("to", "to\u{1}"), ("be", "be\u{1}")]),
        ] {
            let range = |place: i64, (from, to): (&str, &str)| json!({"place": place, "from": from, "to": to});
            let expected = json!([range(0, first), range(1, second)]);
            let ranges = term_ranges(&connection, "words", &words).unwrap();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&ranges).unwrap(), expected);
        }
    }
}
