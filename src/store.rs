//! What lasts, in SQLite: one file for each kind of thing, usable by several processes at once.
//!
//! Invariant: the only user of SQLite. Stores values; knows no protocol and no agent.

mod memories;
mod routes;
mod sessions;

pub use memories::{Memory, MemoryFilter, MemoryOwner, MemoryStore, NewMemory};
pub use routes::{Correction, CorrectionStore};
pub use sessions::{
    COUNTED, Cursor, FolderFilter, ListFilter, NewEvent, NewSession, RecallMatch, RecallQuery, RecallResults,
    SearchHit, SessionChange, SessionStore, StoredEvent, StoredMessage, StoredSession, TermStats, TermWeights,
    UsageTotals,
};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

/// How long a writer waits for another process to finish.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to open a file that others are making.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store {file} cannot be used: {problem}")]
    Unusable { file: String, problem: String },
    #[error(
        "the store {file} cannot be used: it is not skein's, and was left as it is; move it away and a new one is made"
    )]
    Foreign { file: String },
    #[error(
        "the store {file} cannot be used: it is damaged ({problem}); \
         move it away and a new one is made, or bring back a copy of it"
    )]
    Damaged { file: String, problem: String },
    #[error(
        "the store {file} was written by a newer skein (version {found}, this one knows {known}); \
         use that skein, or another data folder"
    )]
    Newer { file: String, found: i64, known: i64 },
    #[error("nothing was changed: {0}")]
    Failed(#[from] rusqlite::Error),
    #[error("`{prefix}` is the beginning of several sessions: {}; type more of it", candidates.join(", "))]
    Ambiguous { prefix: String, candidates: Vec<String> },
    #[error(
        "the session {id} was deleted while it was in use, and what was said since is not kept; start a new session"
    )]
    Gone { id: String },
    #[error(
        "the session {id} could not be written: {problem}; make room or wait for others to finish, \
         it is tried again with the next write"
    )]
    Unwritten { id: String, problem: String },
    #[error("a part of the session {id} could not be kept and is left out: {problem}")]
    LeftOut { id: String, problem: String },
}

/// What a database must be to be opened, and how it comes to be that.
struct Schema {
    /// Its `application_id`: a file with another one is somebody else's. Memories are older than marks, theirs is 0.
    mark: i32,
    /// `migrations[n]` leads from version n to n + 1.
    migrations: &'static [&'static str],
}

impl Schema {
    fn latest_version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }
}

/// Opens a database and brings it up to date. Whatever is not ours, or not whole, is left byte for byte as it is.
fn open(path: &Path, schema: &Schema) -> Result<Connection, StoreError> {
    let file = || path.display().to_string();
    let unusable = |error: std::io::Error| StoreError::Unusable { file: file(), problem: error.to_string() };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(unusable)?;
    }
    restrict(path).map_err(unusable)?;
    let attempt = || -> rusqlite::Result<Result<Connection, StoreError>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        // Until it is known to be ours, not even closing it may write to it.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let found = match State::of(&mut connection, schema)? {
            State::Foreign => return Ok(Err(StoreError::Foreign { file: file() })),
            State::Blank => 0,
            State::Version(found) => found,
        };
        let known = schema.latest_version();
        if found > known {
            return Ok(Err(StoreError::Newer { file: file(), found, known }));
        }
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        // Readers do not wait for writers, and a crash loses nothing that was committed.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        if found < known {
            migrate(&mut connection, schema)?;
        }
        Ok(Ok(connection))
    };
    // Where several make the same file at once SQLite does not always wait by itself.
    let patient_until = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(opened) => return opened,
            Err(error) if is_busy(&error) && Instant::now() < patient_until => std::thread::sleep(PAUSE),
            Err(error) => return Err(failure(path, &error)),
        }
    }
}

/// The files of the store, below the data folder.
pub const FILES: [&str; 3] = ["memory.db", "sessions.db", "routes.db"];

/// What is wrong with the databases of a data folder. They are only read; those that are not there are not made.
pub fn examine(data: &Path) -> Vec<StoreError> {
    let schemas = [&memories::SCHEMA, &sessions::SCHEMA, &routes::SCHEMA];
    let there = FILES.iter().zip(schemas).map(|(name, schema)| (data.join(name), schema));
    there.filter(|(path, _)| path.exists()).filter_map(|(path, schema)| examine_one(&path, schema).err()).collect()
}

fn examine_one(path: &Path, schema: &Schema) -> Result<(), StoreError> {
    let file = || path.display().to_string();
    let looked = || -> rusqlite::Result<(State, String)> {
        // With nothing in its journal a file is read without making one beside it.
        let mut journal = path.as_os_str().to_owned();
        journal.push("-wal");
        let quiet = std::fs::metadata(&journal).map_or(true, |metadata| metadata.len() == 0);
        let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let address = format!("file:{escaped}{}", if quiet { "?immutable=1" } else { "" });
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(address, flags)?;
        connection.busy_timeout(PATIENCE)?;
        let state = State::of(&mut connection, schema)?;
        let whole = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok((state, whole))
    };
    match looked().map_err(|error| failure(path, &error))? {
        (State::Foreign, _) => Err(StoreError::Foreign { file: file() }),
        (State::Version(found), _) if found > schema.latest_version() => {
            Err(StoreError::Newer { file: file(), found, known: schema.latest_version() })
        }
        (_, whole) if whole != "ok" => Err(StoreError::Damaged { file: file(), problem: whole }),
        _ => Ok(()),
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// What a file holds before it is touched.
enum State {
    /// Nothing yet.
    Blank,
    Version(i64),
    Foreign,
}

impl State {
    fn of(connection: &mut Connection, schema: &Schema) -> rusqlite::Result<Self> {
        // One moment for all three: another process may be making the tables just now.
        let moment = connection.transaction()?;
        let mark: i32 = moment.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version: i64 = moment.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let tables: i64 = moment.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok(match (tables, mark, version) {
            (0, 0, 0) => State::Blank,
            (1.., mark, 1..) if mark == schema.mark => State::Version(version),
            _ => State::Foreign,
        })
    }
}

fn migrate(connection: &mut Connection, schema: &Schema) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for (version, migration) in (0_i64..).zip(schema.migrations) {
        if version >= found {
            transaction.execute_batch(migration)?;
            transaction.pragma_update(None, "user_version", version + 1)?;
        }
    }
    transaction.pragma_update(None, "application_id", schema.mark)?;
    transaction.commit()
}

/// What SQLite says of a file, in words that say what to do.
fn failure(path: &Path, error: &rusqlite::Error) -> StoreError {
    let file = path.display().to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => StoreError::Foreign { file },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { file, problem: error.to_string() },
        _ => StoreError::Unusable { file, problem: error.to_string() },
    }
}

/// Nobody else on the machine reads what a user keeps. It is done before SQLite opens the file: those that it
/// puts beside have the same mode. The file is never opened here if it is there: closing it would take away the
/// locks of every connection that this process has to it.
fn restrict(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    match std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        Ok(_) | Err(_) => {}
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

/// The folder a project's things are kept under: the repository that `folder` lies in, or the folder itself.
pub fn project_root(folder: &Path) -> PathBuf {
    let real = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let repository = real.ancestors().find(|ancestor| ancestor.join(".git").exists()).map(Path::to_owned);
    repository.unwrap_or(real)
}

/// The sessions of a project: those that work in its repository, or in this very folder if it is in none.
pub fn sessions_of_project(folder: &Path) -> FolderFilter {
    let root = project_root(folder);
    if root.join(".git").exists() { FolderFilter::Below(root) } else { FolderFilter::Folder(root) }
}
