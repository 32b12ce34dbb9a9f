//! What lasts, in SQLite: one file for each kind of thing, usable by several processes at once.
//!
//! Invariant: the only user of SQLite. Stores values; knows no protocol and no agent.

mod memories;

pub use memories::{Filter, Memories, Memory, NewMemory, Reach};

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

/// How long a writer waits for another process to finish.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store {file} cannot be used: {problem}")]
    Unusable { file: String, problem: String },
    #[error("the store {file} was written by a newer skein (version {found}, this one knows {known})")]
    Newer { file: String, found: i64, known: i64 },
    #[error("nothing was changed: {0}")]
    Failed(#[from] rusqlite::Error),
}

/// Opens a database and brings it up to date: `migrations[n]` leads from version n to n + 1.
fn open(path: &Path, migrations: &[&str]) -> Result<Connection, StoreError> {
    let unusable = |problem: &dyn std::fmt::Display| StoreError::Unusable {
        file: path.display().to_string(),
        problem: problem.to_string(),
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| unusable(&error))?;
    }
    // Before SQLite opens it: the files that it puts beside have the same mode.
    restrict(path).map_err(|error| unusable(&error))?;
    let attempt = || -> rusqlite::Result<(Connection, i64)> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        // Readers do not wait for writers, and a crash loses nothing that was committed.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        for (version, migration) in (0_i64..).zip(migrations) {
            if version >= found {
                transaction.execute_batch(migration)?;
                transaction.pragma_update(None, "user_version", version + 1)?;
            }
        }
        transaction.commit()?;
        Ok((connection, found))
    };
    let (connection, found) = attempt().map_err(|error| unusable(&error))?;
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(StoreError::Newer { file: path.display().to_string(), found, known });
    }
    Ok(connection)
}

/// Nobody else on the machine reads what a user keeps.
fn restrict(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// The folder a project's things are kept under: the repository that `folder` lies in, or the folder itself.
pub fn project_root(folder: &Path) -> PathBuf {
    let real = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let repository = real.ancestors().find(|ancestor| ancestor.join(".git").exists()).map(Path::to_owned);
    repository.unwrap_or(real)
}
