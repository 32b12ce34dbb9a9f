//! Stores the audit log in a PostgreSQL database. Invariant: nothing here changes or removes an entry.

use std::collections::BTreeMap;

use postgres::types::ToSql;
use postgres::{GenericClient, Row};

use super::audit::{AuditEntry, AuditFilter, COLUMNS, ChainCheck, ChainHead, ChainReport, NewAuditEntry, pseudonym};
use super::read::{CANDIDATES, limit_value, number};
use super::shared_view::natural;
use super::view::SessionView;
use crate::store::database::Queries;

/// Appends an entry to the chain of a session. The head stays locked until the commit, so no other process assigns the
/// same number. The session is locked before the head, as in a batch of several sessions.
pub(super) fn append<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: &str,
    new: &NewAuditEntry,
    at: i64,
) -> Result<bool, postgres::Error> {
    queries.execute("UPDATE session SET audited = audited + 1 WHERE id = $1", &[&id])?;
    let key = key(queries, principal)?;
    let lock = "INSERT INTO audit_head AS h (session, entries, hash) VALUES ($1, $2, $3)
        ON CONFLICT (session) DO UPDATE SET entries = h.entries RETURNING h.entries, h.hash";
    let none = ChainHead::default();
    let head = queries.query_one(lock, &[&id, &number(none.entries), &none.hash])?;
    let entry = AuditEntry::after(ChainHead { entries: natural(&head, 0), hash: head.get(1) }, &key, id, new, at);
    let insert =
        format!("INSERT INTO audit_entry ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)");
    let (sequence, hash) = (number(entry.sequence), entry.hash());
    let AuditEntry { session, pseudonym, actor, kind, subject, call, decision, source, .. } = &entry;
    let AuditEntry { rule, arguments, previous, .. } = &entry;
    let values: [&(dyn ToSql + Sync); 13] =
        [session, &sequence, &at, pseudonym, actor, kind, subject, call, decision, source, rule, arguments, previous];
    queries.execute(&insert, &values)?;
    let head = "UPDATE audit_head SET entries = $2, hash = $3 WHERE session = $1";
    queries.execute(head, &[&id, &sequence, &hash]).map(|_| true)
}

/// Returns the key of a principal. Creates it with the first entry; two random UUIDs have 244 random bits.
fn key<C: GenericClient>(queries: &mut Queries<'_, C>, principal: &str) -> Result<Vec<u8>, postgres::Error> {
    let select = "SELECT key FROM audit_key WHERE principal = $1";
    if let Some(known) = queries.query_opt(select, &[&principal])? {
        return Ok(known.get(0));
    }
    let insert = "INSERT INTO audit_key (principal, key)
        VALUES ($1, decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'))
        ON CONFLICT (principal) DO NOTHING";
    queries.execute(insert, &[&principal])?;
    // Another process may have been first.
    Ok(queries.query_one(select, &[&principal])?.get(0))
}

/// Reads entries, oldest first.
pub(super) fn read<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    view: &SessionView,
    filter: &AuditFilter,
) -> Result<Vec<AuditEntry>, postgres::Error> {
    let own = own_pseudonym(queries, view)?;
    let select = format!(
        "SELECT {COLUMNS} FROM audit_entry
         WHERE ($1::text IS NULL OR session = $1::text) AND ($2::bigint IS NULL OR at >= $2::bigint)
         AND ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR decision = $4::text)
         AND ($5::text IS NULL OR pseudonym = $5::text)
         ORDER BY at DESC, session DESC, seq DESC LIMIT $6"
    );
    let AuditFilter { session, since, kind, decision, limit } = filter;
    let (since, limit) = (since.map(number), limit_value(*limit));
    let rows = queries.query(&select, &[session, &since, kind, decision, &own, &limit])?;
    Ok(rows.iter().rev().map(entry).collect())
}

/// Returns the pseudonym to which a handle is limited. `None` if it sees all entries.
fn own_pseudonym<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    view: &SessionView,
) -> Result<Option<String>, postgres::Error> {
    if view.principal().is_local() {
        return Ok(None);
    }
    let principal = view.principal().name();
    let found = queries.query_opt("SELECT key FROM audit_key WHERE principal = $1", &[&principal])?;
    // No entry has an empty pseudonym.
    Ok(Some(found.map(|row| pseudonym(row.get(0))).unwrap_or_default()))
}

pub(super) fn names<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    view: &SessionView,
) -> Result<Vec<(String, String)>, postgres::Error> {
    let own = Some(view.principal()).filter(|principal| !principal.is_local()).map(|principal| principal.name());
    let select = "SELECT principal, key FROM audit_key WHERE $1::text IS NULL OR principal = $1::text
        ORDER BY principal";
    let rows = queries.query(select, &[&own])?;
    Ok(rows.iter().map(|row| (pseudonym(row.get(1)), row.get(0))).collect())
}

/// Returns the sessions of chains that the handle sees.
pub(super) fn sessions<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    view: &SessionView,
    prefix: &str,
) -> Result<Vec<String>, postgres::Error> {
    if prefix.contains('\0') {
        return Ok(Vec::new());
    }
    let own = own_pseudonym(queries, view)?;
    let select = "SELECT h.session FROM audit_head h WHERE starts_with(h.session, $1::text)
        AND ($2::text IS NULL OR EXISTS (SELECT 1 FROM audit_entry e
            WHERE e.session = h.session AND e.pseudonym = $2::text))
        ORDER BY h.session LIMIT $3";
    let rows = queries.query(select, &[&prefix, &own, &limit_value(Some(CANDIDATES))])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Checks all chains, and reads `page` entries at once. The caller provides a transaction in which all statements see
/// the same rows.
pub(super) fn verify<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    page: usize,
) -> Result<ChainReport, postgres::Error> {
    let heads = queries.query("SELECT session, entries, hash FROM audit_head", &[])?;
    let head = |row: &Row| (row.get(0), ChainHead { entries: natural(row, 1), hash: row.get(2) });
    let heads: BTreeMap<String, ChainHead> = heads.iter().map(head).collect();
    let counts = queries.query("SELECT id, audited FROM session WHERE audited > 0 ORDER BY id", &[])?;
    let counts = counts.iter().map(|row| (row.get(0), natural(row, 1))).collect();
    let total: Option<i64> = queries.query_one("SELECT sum(chains)::bigint FROM audit_total", &[])?.get(0);
    let mut check = ChainCheck::new(heads, counts, total.and_then(|chains| u64::try_from(chains).ok()));
    let select = format!(
        "SELECT {COLUMNS} FROM audit_entry WHERE (session, seq) > ($1::text, $2::bigint)
         ORDER BY session, seq LIMIT $3"
    );
    let (mut session, mut sequence, page) = (String::new(), i64::MIN, limit_value(Some(page)));
    loop {
        let rows = queries.query(&select, &[&session, &sequence, &page])?;
        let Some(last) = rows.last() else { return Ok(check.finish()) };
        (session, sequence) = (last.get(0), last.get(1));
        rows.iter().for_each(|row| check.add(&entry(row)));
    }
}

/// Reads the columns of [`COLUMNS`].
fn entry(row: &Row) -> AuditEntry {
    AuditEntry {
        session: row.get(0),
        sequence: natural(row, 1),
        time: natural(row, 2),
        pseudonym: row.get(3),
        actor: row.get(4),
        kind: row.get(5),
        subject: row.get(6),
        call: row.get(7),
        decision: row.get(8),
        source: row.get(9),
        rule: row.get(10),
        arguments: row.get(11),
        previous: row.get(12),
    }
}
