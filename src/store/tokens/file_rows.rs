//! Stores tokens and logins in an SQLite file.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::SCHEMA;
use super::rows::{LoginColumns, TokenColumns, TokenRows};
use crate::store::{StoreError, failure, open};

const SELECT: &str = "SELECT id, principal, hash, limits, created_at, expires_at, revoked_at FROM token";

#[derive(Debug)]
pub(super) struct FileRows {
    connection: Connection,
    file: PathBuf,
}

impl FileRows {
    /// Opens the file, creating it if it does not exist.
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: open(file, &SCHEMA)?, file: file.to_owned() })
    }

    fn work<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        work(&self.connection).map_err(|error| failure(&self.file, &error))
    }
}

impl TokenRows for FileRows {
    fn insert(&mut self, token: &TokenColumns) -> Result<(), StoreError> {
        let TokenColumns { id, principal, hash, limits, created_at, expires_at, revoked_at } = token;
        let insert = "INSERT INTO token (id, principal, hash, limits, created_at, expires_at, revoked_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let values = params![id, principal, hash, limits, created_at, expires_at, revoked_at];
        self.work(|connection| connection.execute(insert, values)).map(drop)
    }

    fn find(&mut self, id: &str) -> Result<Option<TokenColumns>, StoreError> {
        let select = format!("{SELECT} WHERE id = ?1");
        self.work(|connection| connection.prepare_cached(&select)?.query_row([id], columns).optional())
    }

    fn list(&mut self) -> Result<Vec<TokenColumns>, StoreError> {
        self.work(|connection| {
            let mut select = connection.prepare_cached(&format!("{SELECT} ORDER BY created_at, id"))?;
            select.query_map([], columns)?.collect::<rusqlite::Result<Vec<_>>>()
        })
    }

    fn revoke(&mut self, id: &str, at: i64) -> Result<bool, StoreError> {
        let update = "UPDATE token SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1";
        self.work(|connection| Ok(connection.execute(update, params![id, at])? == 1))
    }

    fn put_login(&mut self, cookie: &[u8], token: &str, csrf: &str, at: i64) -> Result<(), StoreError> {
        let insert = "INSERT OR REPLACE INTO login (hash, token, csrf, used_at) VALUES (?1, ?2, ?3, ?4)";
        self.work(|connection| connection.execute(insert, params![cookie, token, csrf, at])).map(drop)
    }

    fn touch_login(&mut self, cookie: &[u8], at: i64) -> Result<(), StoreError> {
        let update = "UPDATE login SET used_at = ?2 WHERE hash = ?1";
        self.work(|connection| connection.execute(update, params![cookie, at])).map(drop)
    }

    fn find_login(&mut self, cookie: &[u8], oldest: i64) -> Result<Option<LoginColumns>, StoreError> {
        let select = "SELECT token, csrf, used_at FROM login WHERE hash = ?1 AND used_at > ?2";
        let row = |row: &Row<'_>| Ok(LoginColumns { token: row.get(0)?, csrf: row.get(1)?, used_at: row.get(2)? });
        self.work(|connection| connection.prepare_cached(select)?.query_row(params![cookie, oldest], row).optional())
    }

    fn remove_logins(&mut self, cookie: Option<&[u8]>, oldest: i64, latest: i64) -> Result<(), StoreError> {
        let delete = "DELETE FROM login WHERE hash = ?1 OR used_at <= ?2 OR used_at > ?3";
        self.work(|connection| connection.execute(delete, params![cookie, oldest, latest])).map(drop)
    }
}

fn columns(row: &Row<'_>) -> rusqlite::Result<TokenColumns> {
    Ok(TokenColumns {
        id: row.get(0)?,
        principal: row.get(1)?,
        hash: row.get(2)?,
        limits: row.get(3)?,
        created_at: row.get(4)?,
        expires_at: row.get(5)?,
        revoked_at: row.get(6)?,
    })
}
