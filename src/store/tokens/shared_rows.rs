//! Stores tokens and logins in a PostgreSQL database.

use std::sync::Arc;

use postgres::Row;

use super::rows::{LoginColumns, TokenColumns, TokenRows};
use crate::store::database::Database;
use crate::store::{StoreAddress, StoreError};

const FIND: &str = "SELECT id, principal, hash, limits, created_at, expires_at, revoked_at FROM token WHERE id = $1";
const LIST: &str = "SELECT id, principal, hash, limits, created_at, expires_at, revoked_at FROM token
    ORDER BY created_at, id";

#[derive(Debug)]
pub(super) struct SharedRows {
    database: Database,
}

impl SharedRows {
    pub(super) fn open(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        Database::open(address).map(|database| Self { database })
    }
}

impl TokenRows for SharedRows {
    fn insert(&mut self, token: &TokenColumns) -> Result<(), StoreError> {
        let TokenColumns { id, principal, hash, limits, created_at, expires_at, revoked_at } = token;
        let insert = "INSERT INTO token (id, principal, hash, limits, created_at, expires_at, revoked_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        self.database
            .write(|queries| {
                queries.execute(insert, &[id, principal, hash, limits, created_at, expires_at, revoked_at])
            })
            .map(drop)
    }

    fn find(&mut self, id: &str) -> Result<Option<TokenColumns>, StoreError> {
        let found = self.database.read(|queries| queries.query_opt(FIND, &[&id]))?;
        Ok(found.as_ref().map(columns))
    }

    fn list(&mut self) -> Result<Vec<TokenColumns>, StoreError> {
        let found = self.database.read(|queries| queries.query(LIST, &[]))?;
        Ok(found.iter().map(columns).collect())
    }

    fn revoke(&mut self, id: &str, at: i64) -> Result<bool, StoreError> {
        let update = "UPDATE token SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1";
        self.database.write(|queries| Ok(queries.execute(update, &[&id, &at])? == 1))
    }

    fn put_login(&mut self, cookie: &[u8], token: &str, csrf: &str, at: i64) -> Result<(), StoreError> {
        let insert = "INSERT INTO login (hash, token, csrf, used_at) VALUES ($1, $2, $3, $4)
            ON CONFLICT (hash) DO UPDATE SET token = excluded.token, csrf = excluded.csrf, used_at = excluded.used_at";
        self.database.write(|queries| queries.execute(insert, &[&cookie, &token, &csrf, &at])).map(drop)
    }

    fn touch_login(&mut self, cookie: &[u8], at: i64) -> Result<(), StoreError> {
        let update = "UPDATE login SET used_at = $2 WHERE hash = $1";
        self.database.write(|queries| queries.execute(update, &[&cookie, &at])).map(drop)
    }

    fn find_login(&mut self, cookie: &[u8], oldest: i64) -> Result<Option<LoginColumns>, StoreError> {
        let select = "SELECT token, csrf, used_at FROM login WHERE hash = $1 AND used_at > $2";
        let found = self.database.read(|queries| queries.query_opt(select, &[&cookie, &oldest]))?;
        Ok(found.map(|row| LoginColumns { token: row.get(0), csrf: row.get(1), used_at: row.get(2) }))
    }

    fn remove_logins(&mut self, cookie: Option<&[u8]>, oldest: i64, latest: i64) -> Result<(), StoreError> {
        let delete = "DELETE FROM login WHERE hash = $1 OR used_at <= $2 OR used_at > $3";
        self.database.write(|queries| queries.execute(delete, &[&cookie, &oldest, &latest])).map(drop)
    }
}

fn columns(row: &Row) -> TokenColumns {
    TokenColumns {
        id: row.get(0),
        principal: row.get(1),
        hash: row.get(2),
        limits: row.get(3),
        created_at: row.get(4),
        expires_at: row.get(5),
        revoked_at: row.get(6),
    }
}
