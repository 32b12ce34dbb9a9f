//! Compares the key of a command with the key that a store was created with.
//!
//! A store records a proof of its key with its first use, when it has no texts yet. From then on, it opens only with
//! this key: a wrong one is an error, not an empty history.
//!
//! Invariant: a transaction that writes texts compares the key again. Another process may have recorded one since this
//! process opened the store without a key.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use super::sealing::StoreKey;
use super::{StoreError, failure};

/// SQL: the recorded key.
pub(super) const FIND: &str = "SELECT proof FROM store_key LIMIT 1";

/// What to do with a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyVerdict {
    Fits,
    /// The store has no key yet; the command's key becomes its key if it has no texts.
    Unrecorded,
}

/// Fails if the store does not open with the key.
pub(super) fn compare(store: &str, recorded: Option<&str>, key: Option<&StoreKey>) -> Result<KeyVerdict, StoreError> {
    let store = || store.to_owned();
    match (recorded, key) {
        (None, None) => Ok(KeyVerdict::Fits),
        (None, Some(_)) => Ok(KeyVerdict::Unrecorded),
        (Some(_), None) => Err(StoreError::KeyMissing { store: store() }),
        (Some(proof), Some(key)) if proof == key.proof() => Ok(KeyVerdict::Fits),
        (Some(_), Some(_)) => Err(StoreError::WrongKey { store: store() }),
    }
}

/// Fails if the store has another key than a process that has opened it.
pub(super) fn check_again(store: &str, recorded: Option<&str>, key: Option<&StoreKey>) -> Result<(), StoreError> {
    match compare(store, recorded, key)? {
        KeyVerdict::Fits => Ok(()),
        // Opening the store has recorded the key, so someone has exchanged the store.
        KeyVerdict::Unrecorded => Err(StoreError::NotEncrypted { store: store.to_owned() }),
    }
}

/// Compares the key of an SQLite file again, in the transaction that writes to it. Fails if the file has another key.
pub(super) fn check_file_again(
    file: &Path,
    transaction: &Connection,
    key: Option<&StoreKey>,
) -> Result<(), StoreError> {
    let fails = |error: rusqlite::Error| failure(file, &error);
    let mut find = transaction.prepare_cached(FIND).map_err(fails)?;
    let recorded: Option<String> = find.query_row([], |row| row.get(0)).optional().map_err(fails)?;
    check_again(&file.display().to_string(), recorded.as_deref(), key)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::SessionFiles;
    use crate::store::{MemoryOwner, NewEvent, NewMemory, NewSession, StorePlace};

    fn assert_refused(error: &StoreError) {
        assert!(matches!(error, StoreError::KeyMissing { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_store_that_got_a_key_since_takes_no_plain_text() {
        let folder = tempfile::tempdir().unwrap();
        let key: StoreKey = "a1".repeat(32).parse().unwrap();
        let plain = StorePlace::files(folder.path());
        let (sessions, memories) = (plain.sessions().unwrap(), plain.memories().unwrap());
        let routes = plain.corrections().unwrap();
        let sealed = plain.clone().with_key(Some(key));
        drop((sealed.sessions().unwrap(), sealed.memories().unwrap(), sealed.corrections().unwrap()));

        let here = Path::new("/here");
        let memory = NewMemory { text: "hush", tags: &[], scope: MemoryOwner::User, source: "test" };
        assert_refused(&memories.remember(here, &memory).unwrap_err());
        assert_refused(&routes.remember(here, "hush", "coding/qa").unwrap_err());
        let new = NewSession {
            cwd: here.to_owned(),
            roots: Vec::new(),
            agent: "goose".to_owned(),
            mode: "assistant".to_owned(),
            model: "offline".to_owned(),
            approval: None,
            parent: None,
            files: SessionFiles::Server,
        };
        let id = sessions.create(new).await.unwrap();
        let said = NewEvent { kind: "message".into(), body: "{}".to_owned(), text: Some("hush".to_owned()) };
        sessions.append(&id, said);
        assert_refused(&sessions.flush(&id).await.unwrap_err());
    }
}
