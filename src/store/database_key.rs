//! Compares the key of a command with that of a PostgreSQL database when it opens, and records the key of an empty one.

use std::sync::Arc;

use super::database::Database;
use super::key_check::{FIND, KeyVerdict, compare};
use super::sealing::StoreKey;
use super::{StoreAddress, StoreError};

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
        // Another process may have recorded its key since. The lock waits for transactions that write texts.
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
