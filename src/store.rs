//! Persists data in SQLite: one file per kind of data, which several processes may use at once. All of it may be in a
//! PostgreSQL database instead, which several machines may use at once.
//!
//! Invariant: the only user of SQLite and PostgreSQL. It stores values and knows no protocol and no agent. What belongs to a principal
//! is read and written only through a handle of that principal.
//! Nothing is written to a file before it is known to be a Skein database, intact and of a known version.

mod address;
mod consents;
mod database;
mod database_key;
mod database_migrator;
mod database_schema;
mod key_check;
mod memories;
mod notifications;
mod ownership;
mod place;
mod principal_data;
mod replica;
mod retention;
mod routes;
mod sealing;
mod sessions;
mod text_ranks;
mod tokens;
mod transfer;

pub use address::StoreAddress;
pub use consents::{ConsentStore, StoredConsent};
pub use memories::{Memory, MemoryFilter, MemoryOwner, MemoryStore, NewMemory};
pub use notifications::ListenHub;
pub use ownership::{ReplicaId, SessionOwner};
pub use place::StorePlace;
pub use principal_data::{OpenSessionPolicy, RemovedPrincipal, remove_principal};
pub use replica::{FilesMarker, ReadinessError, Replica, ReplicaPeer, ReplicaSettings};
pub use retention::{RemovedSession, RetentionPolicy, find_stored, remove_expired};
pub use routes::{Correction, CorrectionStore};
pub use sealing::StoreKey;
pub use sessions::SpentAmount;
pub use sessions::{
    AuditEntry, AuditFilter, AuditFinding, AuditProblem, COUNTED, ChainReport, Cursor, EventFollower, FolderFilter,
    ListFilter, NewAuditEntry, NewEvent, NewSession, OwnerHandle, RecallMatch, RecallQuery, RecallResults, SearchHit,
    SessionChange, SessionClaim, SessionLease, SessionStore, StateEntry, StoredEvent, StoredMessage, StoredSession,
    TermStats, TermWeights, UsageKey, UsageRow, UsageTotals,
};
pub use tokens::{BrowserLogin, CreatedToken, NewToken, StoredToken, TokenState, TokenStore};
#[cfg(any(test, fuzzing))]
pub use transfer::file_of_rows;
pub use transfer::{StoreTotals, export_store, import_store, migrate_store};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::ids::TASK_WORKTREE_PREFIX;

/// How long a writer waits for another process to finish.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two attempts to open a file that another process is creating.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the store {file} cannot be used: {problem}")]
    Unusable { file: String, problem: String },
    #[error("the exported file {file} cannot be read: {problem}")]
    ExportUnreadable { file: String, problem: String },
    #[error(
        "the store {file} cannot be used: it is not skein's, and was left as it is; move it away and a new one is made"
    )]
    Foreign { file: String },
    #[error(
        "the store {file} cannot be used: it is damaged ({problem}); \
         move it away and a new one is made, or bring back a copy of it"
    )]
    Damaged { file: String, problem: String },
    #[error("an import into {file} was interrupted or still runs; the next start of skein undoes an interrupted one")]
    ImportInterrupted { file: String },
    #[error(
        "the store {file} was written by a newer skein (version {found}, this one knows {known}); \
         use that skein, or another data folder"
    )]
    Newer { file: String, found: i64, known: i64 },
    #[error("nothing was changed: {0}")]
    Failed(String),
    #[error("`{prefix}` is the beginning of several sessions: {}; type more of it", candidates.join(", "))]
    Ambiguous { prefix: String, candidates: Vec<String> },
    #[error("the session {id} was deleted while it was in use, and its newest messages are lost; start a new session")]
    Gone { id: String },
    #[error(
        "the session {id} could not be written: {problem}; make room or wait for others to finish, \
         it is tried again with the next write"
    )]
    Unwritten { id: String, problem: String },
    #[error("a part of the session {id} could not be kept and is left out: {problem}")]
    LeftOut { id: String, problem: String },
    #[error("the address of the store is wrong: {problem}")]
    Address { problem: String },
    #[error("the store {address} cannot be reached: {problem}")]
    Unreachable { address: String, problem: String },
    #[error("the password file {file} cannot be used: {problem}")]
    PasswordFile { file: String, problem: String },
    #[error("the key in SKEIN_STORE_KEY is not 64 hexadecimal digits")]
    KeyFormat,
    #[error("the store {store} is encrypted, and there is no key for it")]
    KeyMissing { store: String },
    #[error("the store {store} is encrypted with another key than the one in SKEIN_STORE_KEY")]
    WrongKey { store: String },
    #[error("the store {store} has texts that are not encrypted, so it cannot be used with SKEIN_STORE_KEY")]
    NotEncrypted { store: String },
    #[error("a text in the column {column} cannot be decrypted: {problem}")]
    Sealed { column: String, problem: String },
    #[error("the store is encrypted, so sessions cannot be searched or recalled")]
    SearchOff,
    #[error("nothing was written: line {line} of {file} is damaged: {problem}")]
    Record { file: String, line: u64, problem: String },
    #[error("nothing was written: {store} has data already ({table})")]
    Occupied { store: String, table: String },
    #[error("nothing was written: {store} would have {found}, but the source has {expected}")]
    Different { store: String, found: String, expected: String },
    #[error("nothing was removed: {count} sessions of `{principal}` are open, or were in the last hour")]
    SessionsOpen { principal: String, count: i64 },
    #[error("the store {address} needs skein {oldest} or newer, and this is skein {own}; use a newer one")]
    OldProgram { address: String, oldest: String, own: String },
    #[error("turn interrupted: another replica took over the session {id}; load it again")]
    Taken { id: String },
    #[error("the session {id} is open on replica {replica}; load it again")]
    OwnedElsewhere { id: String, replica: String },
    #[error("the files of this session are on replica {replica}; use --shared-dir with one folder on all replicas")]
    FilesElsewhere { replica: String },
    #[error("this server has no place among the replicas of the store {address} at the moment; try again")]
    NoReplica { address: String },
    #[error(
        "the store {address} passes no notifications on, as behind PgBouncer in transaction mode; \
         set `store.listen_url` to an address of PostgreSQL itself"
    )]
    NoNotifications { address: String },
    #[error("the folder {folder} cannot be shared: {problem}")]
    SharedFolder { folder: String, problem: String },
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The identity and the migrations of one database.
struct Schema {
    /// Its `application_id`. A file with a different one is not Skein's. The memory database predates these ids and has
    /// 0.
    mark: i32,
    /// `migrations[n]` migrates from version n to n + 1. A process of an older version may have the file open meanwhile, so
    /// a migration only adds to tables of the release before. An older version does not open the file afterwards: all
    /// processes of a machine start with the same program, so files need no record of older ones.
    migrations: &'static [&'static str],
}

impl Schema {
    fn latest_version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }
}

/// Opens a database and migrates it to the latest version. Fails, without changing a byte, if the file is not Skein's,
/// is damaged or was written by a newer version.
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
        keep_plans(&connection)?;
        // Not even closing the connection may write to the file until it is known to be Skein's.
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
        // In WAL mode, readers do not wait for writers, and a crash loses no committed data.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        if found < known {
            migrate(&mut connection, schema)?;
        }
        Ok(Ok(connection))
    };
    // SQLite's busy timeout does not cover every case in which several processes create the same file at once.
    let patient_until = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(opened) => return opened,
            Err(error) if is_busy(&error) && Instant::now() < patient_until => std::thread::sleep(PAUSE),
            Err(error) => return Err(failure(path, &error)),
        }
    }
}

/// The files of the store in the data folder.
pub const FILES: [&str; 4] = ["memory.db", "sessions.db", "routes.db", "tokens.db"];

/// Checks the databases of a data folder and returns their problems. It only reads, and creates no missing database.
pub fn examine(data: &Path) -> Vec<StoreError> {
    let schemas = [&memories::SCHEMA, &sessions::SCHEMA, &routes::SCHEMA, &tokens::SCHEMA];
    let there = FILES.iter().zip(schemas).map(|(name, schema)| (data.join(name), schema));
    there.filter(|(path, _)| path.exists()).filter_map(|(path, schema)| examine_one(&path, schema).err()).collect()
}

/// Keeps the plan of a prepared statement. SQLite would otherwise plan it again whenever a bound value changes, such as
/// that of `LIMIT`.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

fn examine_one(path: &Path, schema: &Schema) -> Result<(), StoreError> {
    let file = || path.display().to_string();
    // Only an import has this journal. The file itself may then have a part of the import, and looks damaged.
    if has_journal(path, "-journal") {
        return Err(StoreError::ImportInterrupted { file: file() });
    }
    let looked = || -> rusqlite::Result<(State, String)> {
        // If the journal is empty, `immutable=1` keeps SQLite from creating journal files next to the database.
        let quiet = !has_journal(path, "-wal");
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

/// Returns whether a journal of a database has content.
fn has_journal(path: &Path, suffix: &str) -> bool {
    let mut journal = path.as_os_str().to_owned();
    journal.push(suffix);
    std::fs::metadata(&journal).is_ok_and(|metadata| metadata.len() > 0)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// The content of a file before Skein changes it.
enum State {
    /// The file has no tables yet.
    Blank,
    Version(i64),
    Foreign,
}

impl State {
    fn of(connection: &mut Connection, schema: &Schema) -> rusqlite::Result<Self> {
        // All three queries see the same snapshot: another process may be creating the tables right now.
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
    // Another process may have migrated the file already.
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

/// Converts an SQLite error to a [`StoreError`] that states the remedy.
fn failure(path: &Path, error: &rusqlite::Error) -> StoreError {
    let file = path.display().to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => StoreError::Foreign { file },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { file, problem: error.to_string() },
        _ => StoreError::Unusable { file, problem: error.to_string() },
    }
}

/// Creates the file if needed and makes it readable by its owner only. This happens before SQLite opens the file,
/// because SQLite gives its journal files the same mode. An existing file is never opened here: closing it would
/// release the locks of every connection this process has to it.
fn restrict(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    match std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        Ok(_) | Err(_) => {}
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

/// Returns the folder under which a project's data is stored: the repository that contains `folder`, or `folder`
/// itself.
pub fn project_root(folder: &Path) -> PathBuf {
    let real = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let repository = real.ancestors().find(|ancestor| ancestor.join(".git").exists()).map(Path::to_owned);
    repository.unwrap_or(real)
}

/// Does the same for the folder of a session. A task in a worktree belongs to the project of the user's files.
pub fn session_project(folder: &Path) -> PathBuf {
    let root = project_root(folder);
    task_project(&root).unwrap_or(root)
}

/// Returns the folder of the user's files if `worktree` is the worktree of a task. The repository must name it as a
/// worktree, or else a forged file could lead to the data of any project.
fn task_project(worktree: &Path) -> Option<PathBuf> {
    let link = worktree.join(".git");
    // Opening a pipe would wait for its other end.
    let text = std::fs::read_to_string(Some(&link).filter(|link| link.is_file())?).ok()?;
    let entry = std::fs::canonicalize(text.strip_prefix("gitdir:")?.trim()).ok()?;
    let is_task = entry.file_name()?.to_str()?.starts_with(TASK_WORKTREE_PREFIX);
    let named = std::fs::read_to_string(entry.join("gitdir")).ok()?;
    let leads_back = std::fs::canonicalize(named.trim()).ok()? == link;
    let git = entry.parent()?.parent()?.file_name().filter(|_| is_task && leads_back)?;
    (git == ".git").then(|| entry.ancestors().nth(3).map(Path::to_owned))?
}

/// Selects the sessions of a project: those in its repository, or in exactly this folder if it is in no repository.
pub fn sessions_of_project(folder: &Path) -> FolderFilter {
    let root = session_project(folder);
    if root.join(".git").exists() { FolderFilter::Below(root) } else { FolderFilter::Folder(root) }
}
