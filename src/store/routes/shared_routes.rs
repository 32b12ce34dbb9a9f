//! Stores corrections in a PostgreSQL database.

use std::sync::Arc;

use postgres::Row;

use super::MAX_ROUTES;
use super::route_rows::{RouteRows, SamePrompt, StoredRoute, find_earlier};
use crate::store::database::{Database, NOW};
use crate::store::sealing::StoreKey;
use crate::store::{StoreAddress, StoreError};

const LIST: &str = "SELECT id, prompt, mode FROM route
    WHERE principal = $1 AND md5(project) = md5($2::text) AND project = $2::text ORDER BY id";

#[derive(Debug)]
pub(super) struct SharedRoutes {
    database: Database,
}

impl SharedRoutes {
    /// A write fails if the database has another key.
    pub(super) fn open(address: &Arc<StoreAddress>, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        Database::open_with_key(address, key).map(|database| Self { database })
    }
}

impl RouteRows for SharedRoutes {
    fn list(&mut self, principal: &str, project: &str) -> Result<Vec<StoredRoute>, StoreError> {
        let found = self.database.read(|queries| queries.query(LIST, &[&principal, &project]))?;
        Ok(found.iter().map(route).collect())
    }

    fn replace(
        &mut self,
        principal: &str,
        project: &str,
        prompt: &str,
        mode: &str,
        is_same: Option<&SamePrompt<'_>>,
    ) -> Result<(), StoreError> {
        let prompt = prompt.replace('\0', " ");
        // Two servers may store the same prompt at once: the later one waits and replaces it.
        let insert = format!(
            "INSERT INTO route (principal, project, prompt, mode, created) VALUES ($1, $2, $3, $4, {NOW})
             ON CONFLICT (principal, md5(project), md5(prompt)) DO UPDATE
             SET mode = excluded.mode, created = excluded.created"
        );
        let replace = "DELETE FROM route WHERE principal = $1 AND (id = ANY ($4)
            OR (md5(project) = md5($2::text) AND md5(prompt) = md5($3::text)))";
        let prune = "DELETE FROM route WHERE principal = $1 AND md5(project) = md5($2::text) AND id NOT IN
            (SELECT id FROM route WHERE principal = $1 AND md5(project) = md5($2::text) ORDER BY id DESC LIMIT $3)";
        self.database.write(|queries| {
            let mut earlier = Vec::new();
            if let Some(is_same) = is_same {
                // Others can read meanwhile, but not write.
                queries.execute("LOCK TABLE route IN SHARE ROW EXCLUSIVE MODE", &[])?;
                let stored = queries.query(LIST, &[&principal, &project])?;
                earlier = match find_earlier(stored.iter().map(route).collect(), is_same) {
                    Ok(earlier) => earlier,
                    // Nothing is written.
                    Err(error) => return Ok(Err(error)),
                };
            }
            queries.execute(replace, &[&principal, &project, &prompt, &earlier])?;
            queries.execute(&insert, &[&principal, &project, &prompt, &mode])?;
            queries.execute(prune, &[&principal, &project, &MAX_ROUTES])?;
            Ok(Ok(()))
        })?
    }
}

fn route(row: &Row) -> StoredRoute {
    StoredRoute { id: row.get(0), prompt: row.get(1), mode: row.get(2) }
}
