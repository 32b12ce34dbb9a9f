//! Stores consents in a PostgreSQL database.

use std::sync::Arc;

use super::StoredConsent;
use super::consent_rows::ConsentRows;
use crate::store::database::{Database, NOW};
use crate::store::{StoreAddress, StoreError};

const LIST: &str = "SELECT id, rule FROM consent WHERE principal = $1 ORDER BY id DESC";
const REMOVE: &str = "DELETE FROM consent WHERE principal = $1 AND id = $2";

#[derive(Debug)]
pub(super) struct SharedConsents {
    database: Database,
}

impl SharedConsents {
    pub(super) fn open(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        Database::open(address).map(|database| Self { database })
    }
}

impl ConsentRows for SharedConsents {
    fn keep(&mut self, principal: &str, rule: &str) -> Result<(), StoreError> {
        let insert = format!(
            "INSERT INTO consent (principal, rule, created) VALUES ($1, $2, {NOW})
             ON CONFLICT (principal, md5(rule)) DO NOTHING"
        );
        self.database.write(|queries| queries.execute(&insert, &[&principal, &rule])).map(drop)
    }

    fn list(&mut self, principal: &str) -> Result<Vec<StoredConsent>, StoreError> {
        let rows = self.database.read(|queries| queries.query(LIST, &[&principal]))?;
        Ok(rows.iter().map(|row| StoredConsent { id: row.get(0), rule: row.get(1) }).collect())
    }

    fn remove(&mut self, principal: &str, id: i64) -> Result<bool, StoreError> {
        let removed = self.database.write(|queries| queries.execute(REMOVE, &[&principal, &id]))?;
        Ok(removed == 1)
    }
}
