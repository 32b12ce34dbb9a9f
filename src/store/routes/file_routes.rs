//! Stores corrections in an SQLite file.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, TransactionBehavior, params};

use super::route_rows::{RouteRows, SamePrompt, StoredRoute, find_earlier};
use super::{MAX_ROUTES, SCHEMA};
use crate::store::sealing::StoreKey;
use crate::store::{StoreError, key_check, open};

#[derive(Debug)]
pub(super) struct FileRoutes {
    connection: Connection,
    file: PathBuf,
    key: Option<StoreKey>,
}

impl FileRoutes {
    /// Opens the file, creating it if it does not exist. Fails if it has another key or none.
    pub(super) fn open(file: &Path, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        let mut connection = open(file, &SCHEMA)?;
        key_check::check_file(file, &mut connection, "SELECT EXISTS (SELECT 1 FROM route)", key)?;
        Ok(Self { connection, file: file.to_owned(), key: key.cloned() })
    }
}

impl RouteRows for FileRoutes {
    fn list(&mut self, principal: &str, project: &str) -> Result<Vec<StoredRoute>, StoreError> {
        Ok(read_routes(&self.connection, principal, project)?)
    }

    fn replace(
        &mut self,
        principal: &str,
        project: &str,
        prompt: &str,
        mode: &str,
        is_same: Option<&SamePrompt<'_>>,
    ) -> Result<(), StoreError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        key_check::check_file_again(&self.file, &transaction, self.key.as_ref())?;
        let earlier = match is_same {
            Some(is_same) => find_earlier(read_routes(&transaction, principal, project)?, is_same)?,
            None => Vec::new(),
        };
        let replace = "DELETE FROM route WHERE principal = ?1 AND project = ?2 AND prompt = ?3";
        transaction.execute(replace, params![principal, project, prompt])?;
        for id in earlier {
            transaction.execute("DELETE FROM route WHERE id = ?1 AND principal = ?2", params![id, principal])?;
        }
        let insert = "INSERT INTO route (principal, project, prompt, mode) VALUES (?1, ?2, ?3, ?4)";
        transaction.execute(insert, params![principal, project, prompt, mode])?;
        let prune = "DELETE FROM route WHERE principal = ?1 AND project = ?2 AND id NOT IN
                     (SELECT id FROM route WHERE principal = ?1 AND project = ?2 ORDER BY id DESC LIMIT ?3)";
        transaction.execute(prune, params![principal, project, MAX_ROUTES])?;
        transaction.commit()?;
        Ok(())
    }
}

fn read_routes(connection: &Connection, principal: &str, project: &str) -> rusqlite::Result<Vec<StoredRoute>> {
    let select = "SELECT id, prompt, mode FROM route WHERE principal = ?1 AND project = ?2 ORDER BY id";
    let mut query = connection.prepare(select)?;
    let route = |row: &Row<'_>| Ok(StoredRoute { id: row.get(0)?, prompt: row.get(1)?, mode: row.get(2)? });
    query.query_map([principal, project], route)?.collect()
}
