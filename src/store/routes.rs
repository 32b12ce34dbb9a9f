//! Stores the modes that a user chose instead of the router's choice, per project.

mod file_routes;
mod route_rows;
mod shared_routes;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::sealing::StoreKey;
use super::{Schema, StoreAddress, StoreError, database_key};
use crate::principal::Principal;
use file_routes::FileRoutes;
use route_rows::{RouteRows, StoredRoute};
use shared_routes::SharedRoutes;

/// The bytes `skro` in ASCII. A file with a different `application_id` is not Skein's.
const MARK: i32 = 0x736b_726f;

/// The number of bytes kept of a prompt, enough to recognise it.
const MAX_PROMPT: usize = 2_000;
/// The number of corrections kept per project; the oldest are deleted.
const MAX_ROUTES: i64 = 500;
/// The name under which the column is encrypted.
const PROMPT: &str = "route.prompt";

pub(super) const SCHEMA: Schema = Schema {
    mark: MARK,
    migrations: &[
        "
    CREATE TABLE route (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        project TEXT NOT NULL,
        prompt TEXT NOT NULL,
        mode TEXT NOT NULL,
        created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
        UNIQUE (project, prompt)
    );
",
        "
    CREATE TABLE route_of_principal (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        -- The owner. Corrections of older versions belong to the user of the machine.
        principal TEXT NOT NULL,
        project TEXT NOT NULL,
        prompt TEXT NOT NULL,
        mode TEXT NOT NULL,
        created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
        UNIQUE (principal, project, prompt)
    );
    INSERT INTO route_of_principal (id, principal, project, prompt, mode, created)
        SELECT id, 'local', project, prompt, mode, created FROM route;
    DROP TABLE route;
    ALTER TABLE route_of_principal RENAME TO route;
",
        "
    -- The key that encrypts texts, if one does.
    CREATE TABLE store_key (id TEXT PRIMARY KEY, proof TEXT NOT NULL);
",
    ],
};

/// A prompt and the mode that the user chose for it, as `agent/mode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    pub prompt: String,
    pub mode: String,
}

/// Stores the corrections of one principal in all projects. Each project sees only its own. Clones share one store.
#[derive(Debug, Clone)]
pub struct CorrectionStore {
    rows: Arc<Mutex<Box<dyn RouteRows>>>,
    /// Encrypts prompts. `None`: they are stored as they are.
    key: Option<StoreKey>,
    principal: Principal,
}

impl CorrectionStore {
    /// Opens the store in an SQLite file. Fails if the file is encrypted.
    pub fn open(file: &Path, principal: Principal) -> Result<Self, StoreError> {
        Ok(Self::open_file(file, None)?.of(principal))
    }

    /// Opens the store in an SQLite file with the corrections of `local`. Fails if the file has another key or none.
    pub(super) fn open_file(file: &Path, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        Ok(Self::new(Box::new(FileRoutes::open(file, key)?), key.cloned()))
    }

    /// Opens the store in a database with the corrections of `local`. It may wait for the network. Fails if the database
    /// has another key or none.
    pub(super) fn connect(address: &Arc<StoreAddress>, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        database_key::check_database(address, key)?;
        Ok(Self::new(Box::new(SharedRoutes::open(address, key)?), key.cloned()))
    }

    fn new(rows: Box<dyn RouteRows>, key: Option<StoreKey>) -> Self {
        Self { rows: Arc::new(Mutex::new(rows)), key, principal: Principal::local() }
    }

    /// Returns the corrections of another principal in the same store.
    #[must_use]
    pub fn of(&self, principal: Principal) -> Self {
        Self { principal, ..self.clone() }
    }

    /// Stores a correction; it replaces an earlier one for the same prompt. The caller must make sure that the prompt
    /// contains no secret.
    pub fn remember(&self, project: &Path, prompt: &str, mode: &str) -> Result<(), StoreError> {
        let (principal, project) = (self.principal.name(), project.to_string_lossy());
        let end = (0..=MAX_PROMPT.min(prompt.len())).rev().find(|at| prompt.is_char_boundary(*at));
        let prompt = &prompt[..end.unwrap_or_default()];
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(key) = &self.key else { return rows.replace(principal, &project, prompt, mode, None) };
        let is_same = |stored: &str| -> Result<bool, StoreError> { Ok(key.open(PROMPT, stored)? == prompt.as_bytes()) };
        rows.replace(principal, &project, &key.seal(PROMPT, prompt.as_bytes())?, mode, Some(&is_same))
    }

    /// Returns the corrections of a project, oldest first.
    pub fn corrections(&self, project: &Path) -> Result<Vec<Correction>, StoreError> {
        let stored = {
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.list(self.principal.name(), &project.to_string_lossy())?
        };
        let correction = |StoredRoute { prompt, mode, .. }: StoredRoute| {
            let prompt = match &self.key {
                Some(key) => key.open_text(PROMPT, &prompt)?,
                None => prompt,
            };
            Ok::<_, StoreError>(Correction { prompt, mode })
        };
        stored.into_iter().map(correction).collect()
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn opened(folder: &Path) -> CorrectionStore {
        CorrectionStore::open(&folder.join("routes.db"), Principal::local()).unwrap()
    }

    fn told(routes: &CorrectionStore, project: &str) -> Vec<(String, String)> {
        let found = routes.corrections(Path::new(project)).unwrap();
        found.into_iter().map(|correction| (correction.prompt, correction.mode)).collect()
    }

    fn pair(prompt: &str, mode: &str) -> (String, String) {
        (prompt.to_owned(), mode.to_owned())
    }

    #[test]
    fn a_later_choice_wins_and_projects_are_apart() {
        let folder = tempfile::tempdir().unwrap();
        let routes = opened(folder.path());
        for (project, prompt, mode) in [
            ("/a", "fix it", "coding/backend"),
            ("/a", "draw it", "coding/frontend"),
            ("/b", "fix it", "coding/qa"),
            ("/a", "fix it", "coding/frontend"),
        ] {
            routes.remember(Path::new(project), prompt, mode).unwrap();
        }
        drop(routes);
        let routes = opened(folder.path());
        assert_eq!(told(&routes, "/a"), [pair("draw it", "coding/frontend"), pair("fix it", "coding/frontend")]);
        assert_eq!(told(&routes, "/b"), [pair("fix it", "coding/qa")]);
        assert_eq!(told(&routes, "/c"), []);
    }

    #[test]
    fn long_prompts_are_cut_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let routes = opened(folder.path());
        routes.remember(Path::new("/a"), &"é".repeat(MAX_PROMPT), "coding/qa").unwrap();
        assert_eq!(told(&routes, "/a")[0].0.len(), MAX_PROMPT);
        for at in 0..MAX_ROUTES {
            routes.remember(Path::new("/a"), &at.to_string(), "coding/qa").unwrap();
        }
        let kept = told(&routes, "/a");
        assert_eq!(kept.len(), usize::try_from(MAX_ROUTES).unwrap());
        assert_eq!(kept[0].0, "0", "the oldest has gone");
    }

    #[test]
    fn principals_have_their_own_corrections() {
        let folder = tempfile::tempdir().unwrap();
        let ann = CorrectionStore::open(&folder.path().join("routes.db"), Principal::new("ann").unwrap()).unwrap();
        let local = opened(folder.path());
        ann.remember(Path::new("/a"), "fix it", "coding/qa").unwrap();
        assert_eq!(told(&local, "/a"), []);
        local.remember(Path::new("/a"), "fix it", "coding/backend").unwrap();
        assert_eq!(told(&ann, "/a"), [pair("fix it", "coding/qa")]);
        assert_eq!(told(&local, "/a"), [pair("fix it", "coding/backend")]);
    }

    #[test]
    fn corrections_of_an_older_version_become_those_of_local() {
        let folder = tempfile::tempdir().unwrap();
        let before = Connection::open(folder.path().join("routes.db")).unwrap();
        before.execute_batch(SCHEMA.migrations[0]).unwrap();
        let rows = format!(
            "PRAGMA application_id = {MARK}; PRAGMA user_version = 1;
             INSERT INTO route (project, prompt, mode) VALUES ('/a', 'fix it', 'coding/qa');"
        );
        before.execute_batch(&rows).unwrap();
        drop(before);
        assert_eq!(told(&opened(folder.path()), "/a"), [pair("fix it", "coding/qa")]);
    }
}
