//! Searches the events of a PostgreSQL database.
//!
//! Hits are ranked by BM25, as in SQLite. The number of texts and their mean length are estimates from the newest
//! sessions, because counting all texts would take longer than the search.
//!
//! Invariant: `recall`, `messages` and `common_terms` never return undone events.

use std::collections::BTreeMap;

use postgres::types::ToSql;
use postgres::{Client, Row};

use super::backend::TermQuery;
use super::read::{AROUND_SESSION, folder_params, limit_value, number, snippet_around};
use super::recall::{COUNTED, READ_THROUGH, STEP, STEPS};
use super::search_terms::QueryWord;
use super::shared_view::{ADMITTED, ViewValues, WITHIN, natural};
use super::{FolderFilter, RecallMatch, RecallQuery, RecallResults, SearchHit, StoredMessage, TermStats};
use crate::store::database::Queries;

/// The number of newest sessions whose events are counted to weigh words: a sum over all would grow with the store.
const SUMMED_SESSIONS: usize = 5_000;
/// The number of texts that a verbatim search reads at once.
const PAGE: usize = 500;

/// SQL: `e` is not undone. An `undone` event restores the state after the first `restores` events of its session, so it
/// may reverse an earlier undo. From the end of the log, `kept` jumps from each undo that counts to the state it
/// restores.
const NOT_UNDONE: &str = "(NOT EXISTS (SELECT 1 FROM event u WHERE u.session = e.session AND u.seq > e.seq
        AND u.kind = 'undone')
    OR NOT EXISTS (WITH RECURSIVE kept(count) AS (
        SELECT 9223372036854775807::bigint
        UNION ALL
        SELECT CASE WHEN u.restores IS NOT NULL THEN least(u.restores, u.seq - 1) END
        FROM kept JOIN event u ON u.session = e.session AND u.kind = 'undone'
        AND u.seq = (SELECT max(x.seq) FROM event x WHERE x.session = e.session AND x.kind = 'undone'
            AND x.seq > e.seq AND x.seq <= kept.count))
    SELECT 1 FROM kept WHERE kept.count < e.seq))";

/// SQL: `$6` and `$7` are times or null, `$8` is a list of session ids.
const WHEN: &str = "($6::bigint IS NULL OR e.at >= $6::bigint) AND ($7::bigint IS NULL OR e.at < $7::bigint)
    AND NOT (s.id = ANY ($8::text[]))";

const HIT: &str = "SELECT s.id, s.title, s.cwd, e.seq, e.at, e.kind, e.text";

pub(super) fn search(
    queries: &mut Queries<'_, Client>,
    values: &ViewValues,
    words: &str,
    within: &FolderFilter,
    limit: usize,
) -> Result<Vec<SearchHit>, postgres::Error> {
    let query = RecallQuery { words: words.to_owned(), within: within.clone(), limit, ..RecallQuery::default() };
    let asked = QueryWord::all_of(words);
    let found = rank_hits(queries, values, &query, &asked, " & ", None)?;
    // A verbatim search covers languages without spaces, parts of words and punctuation.
    if found.is_empty() { search_verbatim(queries, values, &query, usize::MAX, false) } else { Ok(found) }
}

pub(super) fn recall(
    queries: &mut Queries<'_, Client>,
    values: &ViewValues,
    query: &RecallQuery,
    now: u64,
) -> Result<RecallResults, postgres::Error> {
    if query.words.trim().is_empty() {
        return Ok(RecallResults { hits: newest(queries, values, query)?, partly: false });
    }
    let asked = QueryWord::all_of(&query.words);
    for (join, partly) in [(" & ", false), (" | ", true)] {
        let hits = rank_hits(queries, values, query, &asked, join, Some(now))?;
        if !hits.is_empty() {
            return Ok(RecallResults { hits, partly: partly && asked.len() > 1 });
        }
    }
    let hits = search_verbatim(queries, values, query, READ_THROUGH, true)?;
    Ok(RecallResults { hits, partly: false })
}

/// Returns the best matches. With `now`, newer ones get up to 30 % more, and undone ones are left out.
fn rank_hits(
    queries: &mut Queries<'_, Client>,
    values: &ViewValues,
    query: &RecallQuery,
    asked: &[QueryWord],
    join: &str,
    now: Option<u64>,
) -> Result<Vec<SearchHit>, postgres::Error> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    // Only sessions that the handle sees count: the order would reveal how frequent a word is in others.
    // `OFFSET 0` keeps the planner from a join, which would read all sessions.
    // Undone events are filtered out only among the best matches, because that check queries each session's events.
    let select = format!(
        "WITH total AS MATERIALIZED (
            SELECT coalesce((SELECT sum(n.events) FROM (SELECT s.events FROM session s WHERE {ADMITTED}
                    ORDER BY s.updated_at DESC, s.id DESC LIMIT {SUMMED_SESSIONS}) n), 0)::float8 AS count,
                greatest(coalesce((SELECT avg(r.length) FROM (SELECT f.length
                    FROM (SELECT s.key FROM session s WHERE {ADMITTED} ORDER BY s.updated_at DESC, s.id DESC LIMIT 20) n
                    JOIN event f ON f.session = n.key WHERE f.length IS NOT NULL
                    ORDER BY f.key DESC LIMIT 1000) r), 1), 1)::float8 AS length),
         asked AS MATERIALIZED (
            SELECT coalesce((ts_lexize('skein_stem', w.part))[1], w.part) AS stem,
                (SELECT count(*) FROM (SELECT 1 FROM event f WHERE f.words @@ to_tsquery('skein_words', w.query)
                    AND EXISTS (SELECT 1 FROM session s WHERE s.key = f.session AND {ADMITTED} OFFSET 0)
                    LIMIT 10000) c)::float8 AS found
            FROM unnest($10::text[], $11::text[]) AS w(query, part)),
         weighed AS MATERIALIZED (
            SELECT a.stem, t.length, greatest(
                ln(greatest(n.count - a.found + 0.5, 0.5) / (a.found + 0.5)), 0.000001) AS weight
            FROM asked a, total t, (SELECT greatest(t.count, max(a.found)) AS count FROM total t, asked a
                GROUP BY t.count) n),
         best AS MATERIALIZED (
            SELECT e.key, (SELECT coalesce(sum(w.weight * f.count * 2.2
                        / (f.count + 1.2 * (0.25 + 0.75 * e.length / w.length))), 0)
                    FROM weighed w, LATERAL (SELECT coalesce(sum(cardinality(x.positions)), 0)::float8 AS count
                        FROM unnest(e.words) x WHERE starts_with(x.lexeme, w.stem)) f WHERE f.count > 0)
                * CASE WHEN $12::bigint IS NULL THEN 1.0
                    ELSE 1.0 + 0.3 / (1.0 + greatest(0, $12::bigint - e.at) / 2592000000.0) END AS rank
            FROM event e JOIN session s ON s.key = e.session
            WHERE e.words @@ to_tsquery('skein_words', $9::text) AND {ADMITTED} AND {WITHIN} AND {WHEN}
            ORDER BY rank DESC, e.key DESC LIMIT $13)
         {HIT} FROM best JOIN event e ON e.key = best.key JOIN session s ON s.key = e.session
         WHERE ($12::bigint IS NULL OR {NOT_UNDONE}) ORDER BY best.rank DESC, e.key DESC LIMIT $14"
    );
    let each: Vec<_> = asked.iter().map(QueryWord::as_prefix).collect();
    let whole = each.iter().map(|word| format!("({word})")).collect::<Vec<_>>().join(join);
    let parts: Vec<_> = asked.iter().map(|word| word.last_part().to_owned()).collect();
    let (now, limit) = (now.map(number), limit_value(Some(query.limit)));
    let candidates = limit_value(Some(query.limit.saturating_mul(4)));
    let rest: [&(dyn ToSql + Sync); 6] = [&whole, &each, &parts, &now, &candidates, &limit];
    let rows = select_hits(queries, values, query, &select, &rest)?;
    Ok(rows.iter().map(|row| hit(row, |text| snippet_of(text, &parts))).collect())
}

/// Runs a query whose first eight values are those of the view, the folder, the times and the excluded sessions.
fn select_hits(
    queries: &mut Queries<'_, Client>,
    ViewValues { principal, modes, roots }: &ViewValues,
    query: &RecallQuery,
    select: &str,
    rest: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, postgres::Error> {
    let (folder, below) = folder_params(&query.within);
    let (after, before) = (query.after.map(number), query.before.map(number));
    let fixed: [&(dyn ToSql + Sync); 8] = [principal, modes, roots, &folder, &below, &after, &before, &query.without];
    let all: Vec<_> = fixed.iter().chain(rest).copied().collect();
    queries.query(select, &all)
}

/// Returns the newest message of each session.
fn newest(
    queries: &mut Queries<'_, Client>,
    values: &ViewValues,
    query: &RecallQuery,
) -> Result<Vec<SearchHit>, postgres::Error> {
    let select = format!(
        "SELECT n.id, n.title, n.cwd, n.seq, n.at, n.kind, n.text FROM (
            SELECT DISTINCT ON (s.key) s.key, s.id, s.title, s.cwd, e.seq, e.at, e.kind, e.text
            FROM event e JOIN session s ON s.key = e.session
            WHERE e.text IS NOT NULL AND {ADMITTED} AND {WITHIN} AND {WHEN} AND {NOT_UNDONE}
            ORDER BY s.key, e.at DESC, e.seq DESC) n
         ORDER BY n.at DESC, n.key DESC LIMIT $9"
    );
    let limit = limit_value(Some(query.limit));
    let rows = select_hits(queries, values, query, &select, &[&limit])?;
    Ok(rows.iter().map(|row| hit(row, beginning)).collect())
}

/// Finds the text verbatim among the newest `most` texts.
fn search_verbatim(
    queries: &mut Queries<'_, Client>,
    values: &ViewValues,
    query: &RecallQuery,
    most: usize,
    only_standing: bool,
) -> Result<Vec<SearchHit>, postgres::Error> {
    let wanted = query.words.trim().to_lowercase();
    let select = format!(
        "{HIT}, e.key FROM event e JOIN session s ON s.key = e.session
         WHERE e.text IS NOT NULL AND {ADMITTED} AND {WITHIN} AND {WHEN} AND e.key < $9
         AND (NOT $10::bool OR {NOT_UNDONE}) ORDER BY e.key DESC LIMIT $11"
    );
    let (mut found, mut before, mut seen) = (Vec::new(), i64::MAX, 0);
    if wanted.is_empty() {
        return Ok(found);
    }
    while seen < most {
        let page = limit_value(Some(PAGE.min(most - seen)));
        let rows = select_hits(queries, values, query, &select, &[&before, &only_standing, &page])?;
        let Some(last) = rows.last() else { break };
        before = last.get(7);
        seen += rows.len();
        for row in &rows {
            if let Some(snippet) = snippet_around(row.get::<_, &str>(6), &wanted) {
                found.push(SearchHit { snippet, ..hit(row, |_| String::new()) });
            }
            if found.len() >= query.limit {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

pub(super) fn messages(
    queries: &mut Queries<'_, Client>,
    ViewValues { principal, modes, roots }: &ViewValues,
    id: &str,
    from: u64,
    limit: usize,
) -> Result<Vec<StoredMessage>, postgres::Error> {
    let select = format!(
        "SELECT e.seq, e.at, e.role, e.text FROM event e JOIN session s ON s.key = e.session
         WHERE s.id = $4 AND {ADMITTED} AND e.seq >= $5 AND e.text IS NOT NULL AND {NOT_UNDONE} ORDER BY e.seq LIMIT $6"
    );
    let (from, limit) = (number(from), limit_value(Some(limit)));
    let rows = queries.query(&select, &[principal, modes, roots, &id, &from, &limit])?;
    Ok(rows.iter().map(|row| message(row, 0)).collect())
}

pub(super) fn common_terms(
    queries: &mut Queries<'_, Client>,
    values: &ViewValues,
    terms: &TermQuery,
) -> Result<TermStats, postgres::Error> {
    let ViewValues { principal, modes, roots } = values;
    let (folder, below) = folder_params(&terms.within);
    let others = format!(
        "SELECT EXISTS (SELECT 1 FROM session s
         WHERE {ADMITTED} AND {WITHIN} AND s.events > 0 AND s.id <> ALL ($6::text[]))"
    );
    let searched: [&(dyn ToSql + Sync); 6] = [principal, modes, roots, &folder, &below, &terms.without];
    if !queries.query_one(&others, &searched)?.get::<_, bool>(0) {
        return Ok(TermStats::of_no_messages(terms.words.len()));
    }
    let mut frequency = Vec::with_capacity(terms.words.len());
    let mut with: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    // Messages of other principals count for nothing: a frequency would reveal their words. Those of excluded sessions
    // count, but are not candidates.
    let select = format!(
        "SELECT e.key, s.id = ANY ($6::text[]) FROM event e JOIN session s ON s.key = e.session
         WHERE e.words @@ to_tsquery('skein_words', $4::text) AND {ADMITTED} ORDER BY e.key DESC LIMIT $5"
    );
    let counted = limit_value(Some(COUNTED));
    for (place, word) in terms.words.iter().enumerate() {
        let rows = match QueryWord::new(word) {
            Some(word) => {
                queries.query(&select, &[principal, modes, roots, &word.as_whole(), &counted, &terms.without])?
            }
            None => Vec::new(),
        };
        frequency.push(rows.len());
        for row in rows.iter().filter(|row| !row.get::<_, bool>(1)) {
            with.entry(row.get(0)).or_default().push(place);
        }
    }
    let score = |places: &[usize]| places.iter().map(|place| (terms.weigh.word)(frequency[*place])).sum::<f64>();
    let mut ranked: Vec<_> = with.into_iter().map(|(key, places)| (score(&places), key, places)).collect();
    ranked.retain(|(score, ..)| *score >= terms.weigh.least);
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    let select = format!(
        "SELECT e.key, s.id, e.seq, e.at, e.role, e.text FROM event e JOIN session s ON s.key = e.session
         WHERE {ADMITTED} AND {WITHIN} AND e.key = ANY ($6::bigint[]) AND {NOT_UNDONE}"
    );
    // Loads the messages in steps, best first, until there are enough.
    let mut messages = Vec::new();
    for step in ranked.chunks(STEP).take(STEPS) {
        let keys: Vec<i64> = step.iter().map(|(_, key, _)| *key).collect();
        let loaded: [&(dyn ToSql + Sync); 6] = [principal, modes, roots, &folder, &below, &keys];
        let rows = queries.query(&select, &loaded)?;
        let mut found: BTreeMap<i64, (String, StoredMessage)> =
            rows.iter().map(|row| (row.get(0), (row.get(1), message(row, 2)))).collect();
        for (_, key, places) in step {
            if let Some((session, said)) = found.remove(key) {
                messages.push(RecallMatch { session, said, words: places.clone() });
            }
        }
        if messages.len() >= terms.limit {
            break;
        }
    }
    messages.truncate(terms.limit);
    if messages.is_empty() {
        return Ok(TermStats { frequency, events: 0, messages });
    }
    let count = format!("SELECT coalesce(sum(s.events), 0)::bigint FROM session s WHERE {ADMITTED}");
    let events = natural(&queries.query_one(&count, &[principal, modes, roots])?, 0);
    Ok(TermStats { frequency, events, messages })
}

/// Reads the columns `seq, at, role, text` from the column `first` on.
fn message(row: &Row, first: usize) -> StoredMessage {
    let by: Option<String> = row.get(first + 2);
    StoredMessage {
        seq: natural(row, first),
        at: natural(row, first + 1),
        by: by.unwrap_or_default(),
        text: row.get(first + 3),
    }
}

/// Reads the columns of [`HIT`].
fn hit(row: &Row, snippet: impl FnOnce(&str) -> String) -> SearchHit {
    let cwd: String = row.get(2);
    SearchHit {
        session: row.get(0),
        title: row.get(1),
        cwd: cwd.into(),
        seq: natural(row, 3),
        at: natural(row, 4),
        kind: row.get(5),
        snippet: snippet(row.get(6)),
    }
}

/// Returns the text around the first word that occurs as it was written, or else its beginning.
fn snippet_of(text: &str, words: &[String]) -> String {
    words.iter().find_map(|word| snippet_around(text, word)).unwrap_or_else(|| beginning(text))
}

fn beginning(text: &str) -> String {
    text.chars().take(AROUND_SESSION).collect()
}
