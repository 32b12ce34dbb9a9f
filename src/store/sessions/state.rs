//! Stores the state that services keep for a session: entries by owner and key.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::view::{ADMITTED, SessionView};

/// A stored entry. Only its owner understands the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    pub owner: String,
    pub key: String,
    pub value: Vec<u8>,
}

/// The owner of the entry whose key is the UUID of the session. No service has a name with a colon.
pub(super) const UUID_OWNER: &str = "skein:uuid";

pub(super) fn read(connection: &Connection, view: &SessionView, id: &str) -> rusqlite::Result<Vec<StateEntry>> {
    let select = format!(
        "SELECT t.owner, t.key, t.value FROM state t JOIN session s ON s.key = t.session
         WHERE s.id = ?2 AND {ADMITTED} ORDER BY t.owner, t.key"
    );
    let entry = |row: &rusqlite::Row<'_>| Ok(StateEntry { owner: row.get(0)?, key: row.get(1)?, value: row.get(2)? });
    connection.prepare_cached(&select)?.query_map([view.query(connection)?.as_str(), id], entry)?.collect()
}

/// Returns the id of the admitted session with this UUID. `None` if there is none.
pub(super) fn find_uuid(connection: &Connection, view: &SessionView, uuid: &str) -> rusqlite::Result<Option<String>> {
    // The owner is a literal, so that SQLite can use the partial index.
    let select = format!(
        "SELECT s.id FROM state t JOIN session s ON s.key = t.session
         WHERE t.owner = '{UUID_OWNER}' AND t.key = ?2 AND {ADMITTED} ORDER BY s.key LIMIT 1"
    );
    let query = view.query(connection)?;
    connection.prepare_cached(&select)?.query_row([query.as_str(), uuid], |row| row.get(0)).optional()
}

/// Returns false if the principal has no session `id`.
pub(super) fn put(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    entry: &StateEntry,
) -> rusqlite::Result<bool> {
    let insert = "INSERT OR REPLACE INTO state (session, owner, key, value)
        SELECT key, ?2, ?3, ?4 FROM session WHERE id = ?1 AND principal = ?5";
    let values = params![id, entry.owner, entry.key, entry.value, principal];
    Ok(transaction.prepare_cached(insert)?.execute(values)? == 1)
}

pub(super) fn remove(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    owner: &str,
    key: &str,
) -> rusqlite::Result<bool> {
    let delete = "DELETE FROM state WHERE session = (SELECT key FROM session WHERE id = ?1 AND principal = ?4)
        AND owner = ?2 AND key = ?3";
    transaction.prepare_cached(delete)?.execute([id, owner, key, principal])?;
    Ok(true)
}

/// Copies the entries of session `id` to the session with the key `new`, except for its UUID.
pub(super) fn copy(transaction: &Transaction<'_>, id: &str, new: i64) -> rusqlite::Result<()> {
    let insert = "INSERT INTO state (session, owner, key, value)
        SELECT ?2, t.owner, t.key, t.value FROM state t JOIN session s ON s.key = t.session
        WHERE s.id = ?1 AND t.owner <> ?3";
    transaction.prepare_cached(insert)?.execute(params![id, new, UUID_OWNER])?;
    Ok(())
}
