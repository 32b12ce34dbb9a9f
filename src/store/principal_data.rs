//! Removes what a store keeps for one principal, with the key of its pseudonym. Its entries of the audit log stay, and can
//! no longer be traced back to it.
//!
//! Invariant: nothing of another principal is changed.

use std::path::Path;
use std::sync::Arc;

use postgres::Row;
use rusqlite::{Connection, TransactionBehavior, params};

use super::database::{Database, PRESENT, Queries};
use super::retention::{RemovedSession, find_open, make_session, read_session};
use super::sessions::{MAX_LEASE_LEFT, current_time};
use super::{Schema, StoreAddress, StoreError, StorePlace, failure, memories, open, routes, sessions, tokens};
use crate::principal::Principal;

/// What happens to a principal with open sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenSessionPolicy {
    /// Nothing is removed.
    Refuse,
    /// The sessions are removed too. Their turns fail when they store something.
    Remove,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovedPrincipal {
    /// Their files are still there.
    pub sessions: Vec<RemovedSession>,
    /// Tokens, memories, corrections and rules.
    pub others: usize,
}

impl RemovedPrincipal {
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.others == 0
    }
}

/// SQL: `$1` is the principal. SQLite numbers parameters in the same way.
const LOGINS: &str = "DELETE FROM login WHERE token IN (SELECT id FROM token WHERE principal = $1)";
const TOKENS: &str = "DELETE FROM token WHERE principal = $1";
const MEMORIES: &str = "DELETE FROM memory WHERE principal = $1";
const CORRECTIONS: &str = "DELETE FROM route WHERE principal = $1";
const CONSENTS: &str = "DELETE FROM consent WHERE principal = $1";
const USAGE: &str = "DELETE FROM budget WHERE principal = $1";
const PSEUDONYM: &str = "DELETE FROM audit_key WHERE principal = $1";
const SESSIONS: &str = "DELETE FROM session WHERE principal = $1 RETURNING id, cwd, files, parent";
/// SQL: the sessions, and whether a mark says that they are open. `$2` is the present, `$3` the latest mark that counts.
const MARKED_SESSIONS: &str = "SELECT id, busy_until BETWEEN $2 AND $3 FROM session WHERE principal = $1";
const OPEN_ON_REPLICAS: &str =
    "SELECT count(*) FROM session s WHERE s.principal = $1 AND (s.busy_until BETWEEN $2 AND $3
    OR EXISTS (SELECT 1 FROM ownership o JOIN replica r ON r.id = o.replica
        WHERE o.session = s.id AND NOT r.is_dead AND r.expires_at > clock_timestamp()))";
/// SQL: locks the owners before the sessions, as the writers do.
const LOCK_OWNERS: &str = "SELECT 1 FROM ownership o JOIN session s ON s.id = o.session WHERE s.principal = $1
    ORDER BY o.session FOR UPDATE OF o";

/// Removes everything of a principal from a store. It may wait for another process or the network, and must run on a
/// blocking thread. Fails if a session is open and the policy refuses that; then nothing is removed. `note` learns of the
/// sessions before they are gone.
pub fn remove_principal(
    place: &StorePlace,
    principal: &Principal,
    policy: OpenSessionPolicy,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> Result<RemovedPrincipal, StoreError> {
    match place.address() {
        Some(address) => remove_from_database(address, principal, policy, note),
        None => remove_from_files(place.data(), principal, policy, note),
    }
}

/// Returns the latest mark that counts.
fn latest_mark(now: i64) -> i64 {
    now.saturating_add(i64::try_from(MAX_LEASE_LEFT).unwrap_or(i64::MAX))
}

/// Returns the number of sessions that are open, by their marks or the lists of running processes.
fn count_open(connection: &Connection, principal: &str, data: &Path) -> rusqlite::Result<Result<i64, StoreError>> {
    let listed = match find_open(data) {
        Ok(listed) => listed,
        Err(error) => return Ok(Err(error)),
    };
    let now = i64::try_from(current_time()).unwrap_or(i64::MAX);
    let mut select = connection.prepare(&sqlite_form(MARKED_SESSIONS))?;
    let rows = select.query_map(params![principal, now, latest_mark(now)], |row| {
        Ok(row.get::<_, bool>(1)? || listed.contains(&row.get::<_, String>(0)?))
    })?;
    let mut count = 0;
    for is_open in rows {
        count += i64::from(is_open?);
    }
    Ok(Ok(count))
}

fn check_open(principal: &Principal, policy: OpenSessionPolicy, count: i64) -> Result<(), StoreError> {
    if count == 0 || policy == OpenSessionPolicy::Remove {
        return Ok(());
    }
    Err(StoreError::SessionsOpen { principal: principal.to_string(), count })
}

fn remove_from_database(
    address: &Arc<StoreAddress>,
    principal: &Principal,
    policy: OpenSessionPolicy,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> Result<RemovedPrincipal, StoreError> {
    let name = principal.name();
    Database::open(address)?.transact_with(|queries, fails| {
        queries.query(LOCK_OWNERS, &[&name]).map_err(fails)?;
        // Locks the sessions, so that no process opens one between the statements.
        let lock = "SELECT 1 FROM session WHERE principal = $1 ORDER BY id FOR UPDATE";
        queries.query(lock, &[&name]).map_err(fails)?;
        let now: i64 = queries.query_one(PRESENT, &[]).map_err(fails)?.get(0);
        let counted = queries.query_one(OPEN_ON_REPLICAS, &[&name, &now, &latest_mark(now)]);
        let open: i64 = counted.map_err(fails)?.get(0);
        check_open(principal, policy, open)?;
        let removed = remove_rows(queries, name).map_err(fails)?;
        note(&removed.sessions);
        Ok(removed)
    })
}

fn remove_rows<C: postgres::GenericClient>(
    queries: &mut Queries<'_, C>,
    name: &str,
) -> Result<RemovedPrincipal, postgres::Error> {
    queries.execute(LOGINS, &[&name])?;
    let mut others = 0;
    for statement in [TOKENS, MEMORIES, CORRECTIONS, CONSENTS] {
        others += queries.execute(statement, &[&name])?;
    }
    let removed: Vec<Row> = queries.query(SESSIONS, &[&name])?;
    let sessions: Vec<_> = removed.iter().map(read_session).collect();
    let ids: Vec<&str> = sessions.iter().map(|session| session.id.as_str()).collect();
    queries.execute("DELETE FROM ownership WHERE session = ANY ($1::text[])", &[&ids])?;
    queries.execute(USAGE, &[&name])?;
    queries.execute(PSEUDONYM, &[&name])?;
    Ok(RemovedPrincipal { sessions, others: usize::try_from(others).unwrap_or(usize::MAX) })
}

fn remove_from_files(
    data: &Path,
    principal: &Principal,
    policy: OpenSessionPolicy,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> Result<RemovedPrincipal, StoreError> {
    let name = principal.name();
    let open = in_file(data, "sessions.db", &sessions::SCHEMA, |connection| count_open(connection, name, data))?;
    check_open(principal, policy, open.transpose()?.unwrap_or_default())?;
    // First the tokens, so that no client opens a session meanwhile.
    let of_tokens = in_file(data, "tokens.db", &tokens::SCHEMA, |connection| {
        connection.execute(&sqlite_form(LOGINS), [name])?;
        let count =
            connection.execute(&sqlite_form(TOKENS), [name])? + connection.execute(&sqlite_form(CONSENTS), [name])?;
        overwrite(connection, None)?;
        Ok(count)
    })?;
    let of_sessions = in_file(data, "sessions.db", &sessions::SCHEMA, |connection| {
        let sessions = remove_sessions(connection, principal, policy, data, note)?;
        overwrite(connection, Some("event_words"))?;
        Ok(sessions)
    })?;
    let of_memories = in_file(data, "memory.db", &memories::SCHEMA, |connection| {
        let count = connection.execute(&sqlite_form(MEMORIES), [name])?;
        overwrite(connection, Some("memory_words"))?;
        Ok(count)
    })?;
    let of_routes = in_file(data, "routes.db", &routes::SCHEMA, |connection| {
        let count = connection.execute(&sqlite_form(CORRECTIONS), [name])?;
        overwrite(connection, None)?;
        Ok(count)
    })?;
    let sessions = of_sessions.transpose()?.unwrap_or_default();
    Ok(RemovedPrincipal { sessions, others: [of_tokens, of_memories, of_routes].into_iter().flatten().sum() })
}

/// Runs `work` on a file of the store. `None` if the file does not exist.
fn in_file<T>(
    data: &Path,
    name: &str,
    schema: &Schema,
    work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
) -> Result<Option<T>, StoreError> {
    let file = data.join(name);
    if !file.exists() {
        return Ok(None);
    }
    let mut connection = open(&file, schema)?;
    // Overwrites the space of deleted rows.
    let is_set = connection.pragma_update(None, "secure_delete", true);
    let done = is_set.and_then(|()| work(&mut connection));
    done.map(Some).map_err(|error| failure(&file, &error))
}

/// Removes the rest of deleted texts: words that an index only marks as deleted, and earlier pages in the log. If another
/// process reads the file just now, those pages go with a later checkpoint.
fn overwrite(connection: &Connection, index: Option<&str>) -> rusqlite::Result<()> {
    if let Some(index) = index {
        connection.execute(&format!("INSERT INTO {index} ({index}) VALUES ('optimize')"), [])?;
    }
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Deletes the sessions, unless one was opened meanwhile.
fn remove_sessions(
    connection: &mut Connection,
    principal: &Principal,
    policy: OpenSessionPolicy,
    data: &Path,
    note: &mut dyn FnMut(&[RemovedSession]),
) -> rusqlite::Result<Result<Vec<RemovedSession>, StoreError>> {
    let name = principal.name();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let open = count_open(&transaction, name, data)?;
    if let Err(error) = open.and_then(|open| check_open(principal, policy, open)) {
        return Ok(Err(error));
    }
    // Deleting the events first avoids one cascade look-up per event.
    let events = "DELETE FROM event WHERE session IN (SELECT key FROM session WHERE principal = ?1)";
    transaction.execute(events, [name])?;
    let removed = {
        let mut delete = transaction.prepare(&sqlite_form(SESSIONS))?;
        let rows = delete.query_map([name], |row| {
            let (cwd, files, parent): (String, String, Option<String>) = (row.get(1)?, row.get(2)?, row.get(3)?);
            Ok(make_session(row.get(0)?, cwd, &files, parent.as_ref()))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    transaction.execute(&sqlite_form(USAGE), [name])?;
    transaction.execute(&sqlite_form(PSEUDONYM), [name])?;
    note(&removed);
    transaction.commit()?;
    Ok(Ok(removed))
}

fn sqlite_form(sql: &str) -> String {
    sql.replace('$', "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_of_about_an_hour_and_lists_count_as_open() {
        let data = tempfile::tempdir().unwrap();
        let store = super::super::SessionStore::open(data.path()).unwrap();
        let connection = open(&data.path().join("sessions.db"), &sessions::SCHEMA).unwrap();
        let now = i64::try_from(current_time()).unwrap();
        for (id, until) in [
            ("past", now - 1_000),
            ("open", now + 60_000),
            // Marked by another process after this one has read the clock.
            ("new", now + 3_660_000),
            ("ahead", now + 86_400_000),
            ("listed", 0),
        ] {
            let insert = "INSERT INTO session
                    (id, principal, cwd, roots, agent, mode, model, created_at, updated_at, events, busy_until)
                VALUES (?1, 'ann', '/here', '[]', 'goose', 'assistant', 'offline', 0, 0, 1, ?2)";
            connection.execute(insert, params![id, until]).unwrap();
        }
        assert_eq!(count_open(&connection, "ann", data.path()).unwrap().unwrap(), 2);
        let lease = store.hold("listed");
        assert_eq!(count_open(&connection, "ann", data.path()).unwrap().unwrap(), 3);
        assert_eq!(count_open(&connection, "bob", data.path()).unwrap().unwrap(), 0);
        drop(lease);
    }
}
