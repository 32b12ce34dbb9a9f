//! Compares the key of a command with the key that a store was created with.
//!
//! A store records a proof of its key with its first use, when it has no texts yet. From then on, it opens only with
//! this key: a wrong one is an error, not an empty history.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use super::database::Database;
use super::sealing::StoreKey;
use super::{StoreAddress, StoreError, failure};

/// SQL: the recorded key.
const FIND: &str = "SELECT proof FROM store_key LIMIT 1";

/// What to do with a key.
#[derive(Debug, PartialEq, Eq)]
enum KeyVerdict {
    Fits,
    /// The store has no key yet; the command's key becomes its key if it has no texts.
    Unrecorded,
}

/// Fails if the store does not open with the key.
fn compare(store: &str, recorded: Option<&str>, key: Option<&StoreKey>) -> Result<KeyVerdict, StoreError> {
    let store = || store.to_owned();
    match (recorded, key) {
        (None, None) => Ok(KeyVerdict::Fits),
        (None, Some(_)) => Ok(KeyVerdict::Unrecorded),
        (Some(_), None) => Err(StoreError::KeyMissing { store: store() }),
        (Some(proof), Some(key)) if proof == key.proof() => Ok(KeyVerdict::Fits),
        (Some(_), Some(_)) => Err(StoreError::WrongKey { store: store() }),
    }
}

/// Checks the key of an SQLite file, and records the key of an empty one. `texts` is SQL for whether the file has
/// texts. Fails if the file has another key or none.
pub(super) fn check_file(
    file: &Path,
    connection: &mut Connection,
    texts: &str,
    key: Option<&StoreKey>,
) -> Result<(), StoreError> {
    let fails = |error: rusqlite::Error| failure(file, &error);
    let name = file.display().to_string();
    let recorded: Option<String> = connection.query_row(FIND, [], |row| row.get(0)).optional().map_err(fails)?;
    if compare(&name, recorded.as_deref(), key)? == KeyVerdict::Fits {
        return Ok(());
    }
    let Some(key) = key else { return Ok(()) };
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fails)?;
    // Another process may have recorded its key since.
    let recorded: Option<String> = transaction.query_row(FIND, [], |row| row.get(0)).optional().map_err(fails)?;
    if compare(&name, recorded.as_deref(), Some(key))? == KeyVerdict::Fits {
        return Ok(());
    }
    if transaction.query_row(texts, [], |row| row.get(0)).map_err(fails)? {
        return Err(StoreError::NotEncrypted { store: name });
    }
    let insert = "INSERT INTO store_key (id, proof) VALUES (?1, ?2)";
    transaction.execute(insert, params![key.id(), key.proof()]).map_err(fails)?;
    transaction.commit().map_err(fails)
}

/// Checks the key of a database, and records the key of an empty one. Fails if the database has another key or none.
/// It works on a separate thread, because the caller may run async tasks.
pub(super) fn check_database(address: &Arc<StoreAddress>, key: Option<&StoreKey>) -> Result<(), StoreError> {
    let mut database = Database::open(address)?;
    let checked = std::thread::scope(|scope| scope.spawn(|| check(&mut database, key)).join());
    let broken = || StoreError::Unusable { file: address.to_string(), problem: "its check broke off".to_owned() };
    checked.unwrap_or_else(|_| Err(broken()))
}

fn check(database: &mut Database, key: Option<&StoreKey>) -> Result<(), StoreError> {
    let name = database.address().to_string();
    let recorded = database.read(|queries| queries.query_opt(FIND, &[]))?;
    let recorded: Option<String> = recorded.map(|row| row.get(0));
    if compare(&name, recorded.as_deref(), key)? == KeyVerdict::Fits {
        return Ok(());
    }
    let Some(key) = key else { return Ok(()) };
    database.transact_with(|queries, fails| {
        // Another process may have recorded its key since.
        queries.execute("LOCK TABLE store_key IN EXCLUSIVE MODE", &[]).map_err(fails)?;
        let recorded = queries.query_opt(FIND, &[]).map_err(fails)?;
        let recorded: Option<String> = recorded.map(|row| row.get(0));
        if compare(&name, recorded.as_deref(), Some(key))? == KeyVerdict::Fits {
            return Ok(());
        }
        let texts = "SELECT EXISTS (SELECT 1 FROM session) OR EXISTS (SELECT 1 FROM memory)
            OR EXISTS (SELECT 1 FROM route)";
        if queries.query_one(texts, &[]).map_err(fails)?.get(0) {
            return Err(StoreError::NotEncrypted { store: name.clone() });
        }
        let insert = "INSERT INTO store_key (id, proof) VALUES ($1, $2)";
        queries.execute(insert, &[&key.id(), &key.proof()]).map_err(fails).map(drop)
    })
}
