//! Stores the audit log: one append-only chain of entries per session, with ids and hashes and without message text.
//!
//! An entry contains the SHA-256 of the entry before, as [`AuditEntry::line`] writes it. The head of a chain has the
//! hash of its last entry. A chain outlives its session.
//!
//! Invariant: nothing here changes or removes an entry.

mod chain;

use ring::hmac;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::read::{limit_value, natural, number};
use super::view::SessionView;
pub use chain::{AuditFinding, AuditProblem, ChainReport};
pub(super) use chain::{ChainCheck, ChainHead, verify};

/// Bytes of the key of a principal.
const KEY_BYTES: usize = 32;
/// Bytes of a pseudonym, which is written in hexadecimal.
const PSEUDONYM_BYTES: usize = 8;
/// The place of a hash in the first entry of a chain.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";
pub(super) const COLUMNS: &str =
    "session, seq, at, pseudonym, actor, kind, subject, call, decision, source, rule, arguments, previous";

/// A decision to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// The mode that acts, as `agent/mode`.
    pub actor: String,
    pub kind: &'static str,
    /// A tool, a host, or an event of hooks.
    pub subject: String,
    pub call: Option<String>,
    pub decision: &'static str,
    /// What decided.
    pub source: &'static str,
    /// The rule, level or setting that applied.
    pub rule: Option<String>,
    /// Only their HMAC is stored.
    pub arguments: Option<Vec<u8>>,
}

/// A stored decision. The order of the fields is that of [`AuditEntry::line`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub session: String,
    /// Starts at 1, without gaps.
    pub sequence: u64,
    /// Milliseconds since 1970.
    pub time: u64,
    pub pseudonym: String,
    pub actor: String,
    pub kind: String,
    pub subject: String,
    pub call: Option<String>,
    pub decision: String,
    pub source: String,
    pub rule: Option<String>,
    /// HMAC-SHA-256 of the arguments, with the key of the principal.
    pub arguments: Option<String>,
    /// SHA-256 of the line of the entry before; zeros in the first entry.
    pub previous: String,
}

impl AuditEntry {
    /// Returns the entry as one line of JSON without a line end. Its SHA-256 is in the next entry.
    pub fn line(&self) -> String {
        // Serialization does not fail: the fields are texts and numbers.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the entry that follows the head of a chain. A NUL in a text becomes a space, because PostgreSQL refuses
    /// it.
    pub(super) fn after(head: ChainHead, key: &[u8], id: &str, new: &NewAuditEntry, at: i64) -> Self {
        let plain = |text: &str| text.replace('\0', " ");
        Self {
            session: id.to_owned(),
            sequence: head.entries + 1,
            time: u64::try_from(at).unwrap_or_default(),
            pseudonym: pseudonym(key),
            actor: plain(&new.actor),
            kind: new.kind.to_owned(),
            subject: plain(&new.subject),
            call: new.call.as_deref().map(plain),
            decision: new.decision.to_owned(),
            source: new.source.to_owned(),
            rule: new.rule.as_deref().map(plain),
            arguments: new.arguments.as_deref().map(|arguments| hex(&sign(key, arguments))),
            previous: head.hash,
        }
    }

    pub(super) fn hash(&self) -> String {
        let hash: [u8; 32] = Sha256::digest(self.line()).into();
        hex(&hash)
    }
}

/// Selects entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub session: Option<String>,
    /// Milliseconds since 1970.
    pub since: Option<u64>,
    pub kind: Option<String>,
    pub decision: Option<String>,
    /// Keeps the newest entries.
    pub limit: Option<usize>,
}

/// Appends an entry to the chain of a session. The transaction assigns its number, so no other process assigns the
/// same.
pub(super) fn append(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    new: &NewAuditEntry,
    at: i64,
) -> rusqlite::Result<bool> {
    let key = key(transaction, principal)?;
    let head = "SELECT entries, hash FROM audit_head WHERE session = ?1";
    let mut head = transaction.prepare_cached(head)?;
    let found = |row: &Row<'_>| Ok(ChainHead { entries: natural(row, 0)?, hash: row.get(1)? });
    let head = head.query_row([id], found).optional()?.unwrap_or_default();
    let entry = AuditEntry::after(head, &key, id, new, at);
    let insert =
        format!("INSERT INTO audit_entry ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)");
    transaction.prepare_cached(&insert)?.execute(params![
        entry.session,
        number(entry.sequence),
        at,
        entry.pseudonym,
        entry.actor,
        entry.kind,
        entry.subject,
        entry.call,
        entry.decision,
        entry.source,
        entry.rule,
        entry.arguments,
        entry.previous
    ])?;
    let head = "INSERT INTO audit_head (session, entries, hash) VALUES (?1, ?2, ?3)
        ON CONFLICT (session) DO UPDATE SET entries = excluded.entries, hash = excluded.hash";
    transaction.prepare_cached(head)?.execute(params![id, number(entry.sequence), entry.hash()])?;
    // The count continues from its own value, so that it keeps a difference to a head that was changed.
    let count = "UPDATE session SET audited = audited + 1 WHERE id = ?1";
    transaction.prepare_cached(count)?.execute([id])?;
    Ok(true)
}

/// Returns the key of a principal. Creates it with the first entry.
fn key(transaction: &Transaction<'_>, principal: &str) -> rusqlite::Result<Vec<u8>> {
    let select = "SELECT key FROM audit_key WHERE principal = ?1";
    let known = transaction.prepare_cached(select)?.query_row([principal], |row| row.get(0)).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    let mut key = vec![0_u8; KEY_BYTES];
    // Without random numbers there is no pseudonym, and the entry is reported as lost.
    getrandom::fill(&mut key).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.to_string().into()))?;
    let insert = "INSERT INTO audit_key (principal, key) VALUES (?1, ?2)";
    transaction.prepare_cached(insert)?.execute(params![principal, key])?;
    Ok(key)
}

/// Reads entries, oldest first.
pub(super) fn read(
    connection: &Connection,
    view: &SessionView,
    filter: &AuditFilter,
) -> rusqlite::Result<Vec<AuditEntry>> {
    let own = own_pseudonym(connection, view)?;
    let select = format!(
        "SELECT {COLUMNS} FROM audit_entry
         WHERE (?1 IS NULL OR session = ?1) AND (?2 IS NULL OR at >= ?2) AND (?3 IS NULL OR kind = ?3)
         AND (?4 IS NULL OR decision = ?4) AND (?5 IS NULL OR pseudonym = ?5)
         ORDER BY at DESC, session DESC, seq DESC LIMIT ?6"
    );
    let AuditFilter { session, since, kind, decision, limit } = filter;
    let values = params![session, since.map(number), kind, decision, own, limit_value(*limit)];
    let rows = connection.prepare_cached(&select)?.query_map(values, entry)?.collect::<rusqlite::Result<Vec<_>>>();
    rows.map(|mut rows| {
        rows.reverse();
        rows
    })
}

/// Returns the pseudonym to which a handle is limited. `None` if it sees all entries.
fn own_pseudonym(connection: &Connection, view: &SessionView) -> rusqlite::Result<Option<String>> {
    if view.principal().is_local() {
        return Ok(None);
    }
    let select = "SELECT key FROM audit_key WHERE principal = ?1";
    let key: Option<Vec<u8>> =
        connection.prepare_cached(select)?.query_row([view.principal().name()], |row| row.get(0)).optional()?;
    // No entry has an empty pseudonym.
    Ok(Some(key.map(|key| pseudonym(&key)).unwrap_or_default()))
}

pub(super) fn names(connection: &Connection, view: &SessionView) -> rusqlite::Result<Vec<(String, String)>> {
    let mut statement = connection.prepare_cached("SELECT principal, key FROM audit_key ORDER BY principal")?;
    let row = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?));
    let keys = statement.query_map([], row)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_seen = |name: &String| view.principal().is_local() || name == view.principal().name();
    Ok(keys.into_iter().filter(|(name, _)| is_seen(name)).map(|(name, key)| (pseudonym(&key), name)).collect())
}

/// Returns the sessions of chains that the handle sees.
pub(super) fn sessions(connection: &Connection, view: &SessionView, prefix: &str) -> rusqlite::Result<Vec<String>> {
    let own = own_pseudonym(connection, view)?;
    let select = "SELECT h.session FROM audit_head h WHERE substr(h.session, 1, length(?1)) = ?1
        AND (?2 IS NULL OR EXISTS (SELECT 1 FROM audit_entry e WHERE e.session = h.session AND e.pseudonym = ?2))
        ORDER BY h.session LIMIT 6";
    connection.prepare_cached(select)?.query_map(params![prefix, own], |row| row.get(0))?.collect()
}

/// Reads the columns of [`COLUMNS`].
fn entry(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    Ok(AuditEntry {
        session: row.get(0)?,
        sequence: natural(row, 1)?,
        time: natural(row, 2)?,
        pseudonym: row.get(3)?,
        actor: row.get(4)?,
        kind: row.get(5)?,
        subject: row.get(6)?,
        call: row.get(7)?,
        decision: row.get(8)?,
        source: row.get(9)?,
        rule: row.get(10)?,
        arguments: row.get(11)?,
        previous: row.get(12)?,
    })
}

pub(super) fn pseudonym(key: &[u8]) -> String {
    let whole = sign(key, b"pseudonym");
    hex(whole.get(..PSEUDONYM_BYTES).unwrap_or(&whole))
}

fn sign(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "audit/audit_tests.rs"]
mod tests;
