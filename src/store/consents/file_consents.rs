//! Stores consents in an SQLite file that also has the tokens of principals.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::StoredConsent;
use super::consent_rows::ConsentRows;
use crate::store::{StoreError, failure, open, tokens};

#[derive(Debug)]
pub(super) struct FileConsents {
    connection: Connection,
    file: PathBuf,
}

impl FileConsents {
    /// Opens the file, creating it if it does not exist.
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: open(file, &tokens::SCHEMA)?, file: file.to_owned() })
    }

    fn work<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        work(&self.connection).map_err(|error| failure(&self.file, &error))
    }
}

impl ConsentRows for FileConsents {
    fn keep(&mut self, principal: &str, rule: &str) -> Result<(), StoreError> {
        let insert = "INSERT INTO consent (principal, rule) VALUES (?1, ?2) ON CONFLICT (principal, rule) DO NOTHING";
        self.work(|connection| connection.execute(insert, params![principal, rule])).map(drop)
    }

    fn list(&mut self, principal: &str) -> Result<Vec<StoredConsent>, StoreError> {
        let select = "SELECT id, rule FROM consent WHERE principal = ?1 ORDER BY id DESC";
        self.work(|connection| {
            let mut select = connection.prepare_cached(select)?;
            let rows = select.query_map([principal], |row| Ok(StoredConsent { id: row.get(0)?, rule: row.get(1)? }))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })
    }

    fn remove(&mut self, principal: &str, id: i64) -> Result<bool, StoreError> {
        let delete = "DELETE FROM consent WHERE principal = ?1 AND id = ?2";
        self.work(|connection| Ok(connection.execute(delete, params![principal, id])? == 1))
    }
}
