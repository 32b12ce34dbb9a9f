//! Removes sessions that are older or more than a policy allows.
//!
//! A session and its child sessions are removed together. The age of a family is the time since its last change.
//!
//! Invariant: a session is never removed while a process has it open, nor within an hour after its last change. A process
//! marks a session as open before it reads it, and the condition is checked under the lock of the whole family. The clock
//! of one machine decides nothing about a database, and a jump of the clock does not close a session in a file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::{GenericClient, Row};
use rusqlite::{Connection, TransactionBehavior, params};

use super::database::{Database, PRESENT, Queries};
use super::sessions::{LEASE_TIME, MAX_LEASE_LEFT, SCHEMA, current_time, list_open};
use super::{StoreError, StorePlace, failure, open};
use crate::principal::SessionFiles;

/// The number of families that one transaction removes at most.
const AT_ONCE: i64 = 200;

/// Which sessions to keep. A field that is `None` does not restrict it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Removes sessions without a change for longer than this.
    pub age: Option<Duration>,
    /// Keeps this many sessions of each principal, the ones that changed last. Child sessions do not count.
    pub count: Option<u32>,
}

/// A removed session, whose files are still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedSession {
    pub id: String,
    pub cwd: PathBuf,
    pub files: SessionFiles,
    pub is_child: bool,
}

/// SQL: the first members of families to remove, with the time of their last change. `$1` is the time before which a
/// change is too old, `$2` the number of sessions to keep per principal, and `$5` the number of rows. `$3` is the
/// present, `$4` an hour before, and `$6` the latest mark that counts. SQLite numbers parameters in the same way.
const EXPIRED: &str = "SELECT f.key, f.id FROM (
        SELECT h.*, row_number() OVER (PARTITION BY h.principal ORDER BY h.changed DESC, h.id DESC) AS place FROM (
            SELECT s.key, s.id, s.principal, s.busy_until BETWEEN $3 AND $6 AS is_open,
                CASE WHEN c.changed > s.updated_at THEN c.changed ELSE s.updated_at END AS changed,
                coalesce(c.open_children, 0) AS open_children
            FROM session s LEFT JOIN (
                SELECT parent, max(updated_at) AS changed,
                    sum(CASE WHEN busy_until BETWEEN $3 AND $6 THEN 1 ELSE 0 END) AS open_children
                FROM session WHERE parent IS NOT NULL GROUP BY parent) c ON c.parent = s.id
            WHERE s.parent IS NULL) h) f
    WHERE (f.changed < $1 OR f.place > $2) AND f.changed < $4 AND NOT f.is_open AND f.open_children = 0
    ORDER BY f.changed, f.id LIMIT $5";

/// Removes what the policy does not keep, and returns it. One call removes a limited number of families in one
/// transaction; the caller removes their files and calls again, until nothing is returned. It may wait for another
/// process or the network, and must run on a blocking thread. `note` learns of the sessions before they are gone.
pub fn remove_expired(
    place: &StorePlace,
    policy: RetentionPolicy,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> Result<Vec<RemovedSession>, StoreError> {
    if policy == RetentionPolicy::default() {
        return Ok(Vec::new());
    }
    if let Some(address) = place.address() {
        return remove_from_database(&mut Database::open(address)?, policy, note);
    }
    let file = place.data().join("sessions.db");
    if !file.exists() {
        return Ok(Vec::new());
    }
    let limits = Limits::new(policy, current_time());
    let removed = remove_rows(&mut open(&file, &SCHEMA)?, limits, place.data(), note);
    removed.map_err(|error| failure(&file, &error))?
}

/// The values of [`EXPIRED`].
#[derive(Debug, Clone, Copy)]
struct Limits {
    oldest: i64,
    count: i64,
    now: i64,
    quiet: i64,
    latest_mark: i64,
}

impl Limits {
    fn new(policy: RetentionPolicy, now: u64) -> Self {
        let time = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Self {
            oldest: policy.age.map_or(i64::MIN, |age| time(now.saturating_sub(millis(age)))),
            count: policy.count.map_or(i64::MAX, i64::from),
            now: time(now),
            quiet: time(now.saturating_sub(LEASE_TIME)),
            latest_mark: time(now.saturating_add(MAX_LEASE_LEFT)),
        }
    }
}

/// Removes a number of families from an SQLite file.
fn remove_rows(
    connection: &mut Connection,
    limits: Limits,
    data: &Path,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> rusqlite::Result<Result<Vec<RemovedSession>, StoreError>> {
    // The transaction excludes other writers, so nothing is opened between the statements.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // A process lists a session before it marks it in the file.
    let open = match find_open(data) {
        Ok(open) => open,
        Err(error) => return Ok(Err(error)),
    };
    let Limits { oldest, count, now, quiet, latest_mark } = limits;
    let mut removed = Vec::new();
    {
        let mut select = transaction.prepare(&EXPIRED.replace('$', "?"))?;
        // Open sessions are left out below, and must not take the places of others.
        let rows = AT_ONCE.saturating_add(i64::try_from(open.len()).unwrap_or(i64::MAX));
        let heads = select.query_map(params![oldest, count, now, quiet, rows, latest_mark], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })?;
        let mut heads = heads.collect::<rusqlite::Result<Vec<_>>>()?;
        let open_families = find_families(&transaction, &open)?;
        heads.retain(|(_, id)| !open_families.contains(id));
        heads.truncate(usize::try_from(AT_ONCE).unwrap_or(usize::MAX));
        // Deleting the events first avoids one cascade look-up per event.
        let mut events = transaction
            .prepare("DELETE FROM event WHERE session IN (SELECT key FROM session WHERE key = ?1 OR parent = ?2)")?;
        let mut delete = transaction
            .prepare("DELETE FROM session WHERE key = ?1 OR parent = ?2 RETURNING id, cwd, files, parent")?;
        for (key, id) in heads {
            events.execute(params![key, id])?;
            let rows = delete.query_map(params![key, id], |row| {
                let (cwd, files, parent): (String, String, Option<String>) = (row.get(1)?, row.get(2)?, row.get(3)?);
                Ok(make_session(row.get(0)?, cwd, &files, parent.as_ref()))
            })?;
            for row in rows {
                removed.push(row?);
            }
        }
    }
    note(&removed);
    transaction.commit()?;
    Ok(Ok(removed))
}

/// Returns those of the sessions that a store has, of any principal. It may wait for another process or the network, and
/// must run on a blocking thread.
pub fn find_stored(place: &StorePlace, ids: &[String]) -> Result<BTreeSet<String>, StoreError> {
    if let Some(address) = place.address() {
        let select = "SELECT id FROM session WHERE id = ANY ($1::text[])";
        let rows = Database::open(address)?.read(|queries| queries.query(select, &[&ids]))?;
        return Ok(rows.iter().map(|row| row.get(0)).collect());
    }
    let file = place.data().join("sessions.db");
    if !file.exists() {
        return Ok(BTreeSet::new());
    }
    let connection = open(&file, &SCHEMA)?;
    let find = || -> rusqlite::Result<BTreeSet<String>> {
        let mut select = connection.prepare("SELECT EXISTS (SELECT 1 FROM session WHERE id = ?1)")?;
        let mut stored = BTreeSet::new();
        for id in ids {
            if select.query_row([id], |row| row.get(0))? {
                stored.insert(id.clone());
            }
        }
        Ok(stored)
    };
    find().map_err(|error| failure(&file, &error))
}

/// Returns the sessions that any process has open. Fails if this is not known.
pub(super) fn find_open(data: &Path) -> Result<BTreeSet<String>, StoreError> {
    list_open(data).map_err(|error| StoreError::Failed(format!("it is not known which sessions are open: {error}")))
}

/// Returns the ids of the first members of the families of these sessions.
fn find_families(connection: &Connection, open: &BTreeSet<String>) -> rusqlite::Result<BTreeSet<String>> {
    let mut select = connection.prepare("SELECT coalesce(parent, id) FROM session WHERE id = ?1")?;
    let mut families = BTreeSet::new();
    for id in open {
        for family in select.query_map([id], |row| row.get(0))? {
            families.insert(family?);
        }
    }
    Ok(families)
}

/// SQL: locks the owner of a family, then its sessions, in the order of the writers. `$1` is the id of its first member.
const LOCK_OWNER: &str = "SELECT 1 FROM ownership WHERE session = $1 FOR UPDATE";
const LOCK_FAMILY: &str = "SELECT 1 FROM session WHERE id = $1 OR parent = $1 ORDER BY id FOR UPDATE";
/// SQL: whether a family was opened or changed meanwhile. `$2` is the present, `$3` an hour before, `$4` the latest mark
/// that counts.
const IN_USE: &str = "SELECT EXISTS (SELECT 1 FROM session s WHERE (s.id = $1 OR s.parent = $1)
        AND (s.busy_until BETWEEN $2 AND $4 OR s.updated_at >= $3))
    OR EXISTS (SELECT 1 FROM ownership o JOIN replica r ON r.id = o.replica
        WHERE o.session = $1 AND NOT r.is_dead AND r.expires_at > clock_timestamp())";
const REMOVE_FAMILY: &str = "DELETE FROM session WHERE id = $1 OR parent = $1 RETURNING id, cwd, files, parent";

/// Removes a number of families from a database.
fn remove_from_database(
    database: &mut Database,
    policy: RetentionPolicy,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> Result<Vec<RemovedSession>, StoreError> {
    database.write(|queries| {
        let Limits { oldest, count, now, quiet, latest_mark } = read_limits(queries, policy)?;
        let mut found = Vec::new();
        for expired in queries.query(EXPIRED, &[&oldest, &count, &now, &quiet, &AT_ONCE, &latest_mark])? {
            let id: String = expired.get(1);
            queries.query(LOCK_OWNER, &[&id])?;
            queries.query(LOCK_FAMILY, &[&id])?;
            // A new statement sees what other processes have written before the locks. Such a mark may end later than
            // any that counted when the transaction began.
            let Limits { now, quiet, latest_mark, .. } = read_limits(queries, policy)?;
            if queries.query_one(IN_USE, &[&id, &now, &quiet, &latest_mark])?.get(0) {
                continue;
            }
            found.extend(queries.query(REMOVE_FAMILY, &[&id])?.iter().map(read_session));
            queries.execute("DELETE FROM ownership WHERE session = $1", &[&id])?;
        }
        note(&found);
        Ok(found)
    })
}

/// Reads the clock of the database.
fn read_limits<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    policy: RetentionPolicy,
) -> Result<Limits, postgres::Error> {
    let present: i64 = queries.query_one(PRESENT, &[])?.get(0);
    Ok(Limits::new(policy, u64::try_from(present).unwrap_or_default()))
}

pub(super) fn read_session(row: &Row) -> RemovedSession {
    let (cwd, files, parent): (String, String, Option<String>) = (row.get(1), row.get(2), row.get(3));
    make_session(row.get(0), cwd, &files, parent.as_ref())
}

pub(super) fn make_session(id: String, cwd: String, files: &str, parent: Option<&String>) -> RemovedSession {
    let files = SessionFiles::from_name(files).unwrap_or(SessionFiles::Client);
    RemovedSession { id, cwd: cwd.into(), files, is_child: parent.is_some() }
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;
