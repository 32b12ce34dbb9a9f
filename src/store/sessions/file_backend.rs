//! Reads and writes sessions in an SQLite file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params};

use super::audit::{self, AuditEntry, AuditFilter, ChainReport};
use super::backend::{JobError, SessionReads, SessionWrites, TermQuery};
use super::job::{Job, Work};
use super::leases::LEASE_TIME;
use super::read::{self, folders_json, number};
use super::usage_rows::{self, UsageKey, UsageRow};
use super::view::SessionView;
use super::{
    EMPTY_FOR, FolderFilter, ListFilter, NewEvent, NewSession, RecallQuery, RecallResults, SCHEMA, SearchHit,
    SessionChange, SpentAmount, StateEntry, StoredEvent, StoredMessage, StoredSession, TermStats, id, recall,
    spending_rows, state, transcript,
};
use crate::store::sealing::StoreKey;
use crate::store::{PATIENCE, StoreError, failure, keep_plans, key_check, open};

/// How long the mark of open sessions waits for another process.
const BRIEFLY: Duration = Duration::from_millis(100);

/// The connection of the writer.
#[derive(Debug)]
pub(super) struct FileWrites {
    connection: Connection,
    file: PathBuf,
    key: Option<StoreKey>,
}

impl FileWrites {
    /// Opens the file, creating it if it does not exist, and deletes old sessions without events. Fails if it has another
    /// key or none.
    pub(super) fn open(file: &Path, key: Option<&StoreKey>) -> Result<Self, StoreError> {
        let mut connection = open(file, &SCHEMA)?;
        key_check::check_file(file, &mut connection, "SELECT EXISTS (SELECT 1 FROM session)", key)?;
        sweep(&connection).map_err(|error| failure(file, &error))?;
        Ok(Self { connection, file: file.to_owned(), key: key.cloned() })
    }
}

impl SessionWrites for FileWrites {
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Result<bool, JobError>>, StoreError> {
        let done = transact(&mut self.connection, &self.file, self.key.as_ref(), jobs)?;
        Ok(done.into_iter().map(|result| result.map_err(|error| JobError::Data(error.to_string()))).collect())
    }

    fn hold(&mut self, sessions: &[String]) -> Result<(), StoreError> {
        // The mark can wait, and the reads behind it must not.
        self.connection.busy_timeout(BRIEFLY).map_err(|error| failure(&self.file, &error))?;
        let held = hold(&mut self.connection, sessions, id::now().saturating_add(LEASE_TIME));
        self.connection.busy_timeout(PATIENCE).map_err(|error| failure(&self.file, &error))?;
        held.map_err(|error| failure(&self.file, &error))
    }
}

/// The connection for reading.
#[derive(Debug)]
pub(super) struct FileReads {
    connection: Connection,
    file: PathBuf,
}

impl FileReads {
    /// Opens a file that exists.
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        let fails = |error| failure(file, &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags).map_err(fails)?;
        connection.busy_timeout(PATIENCE).map_err(fails)?;
        keep_plans(&connection).map_err(fails)?;
        Ok(Self { connection, file: file.to_owned() })
    }

    fn map_failure<T>(&self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| failure(&self.file, &error))
    }
}

impl SessionReads for FileReads {
    fn find(&mut self, view: &SessionView, id: &str) -> Result<Option<StoredSession>, StoreError> {
        self.map_failure(read::find(&self.connection, view, id))
    }

    fn events(&mut self, view: &SessionView, id: &str) -> Result<Vec<StoredEvent>, StoreError> {
        self.map_failure(read::events(&self.connection, view, id))
    }

    fn events_before(
        &mut self,
        view: &SessionView,
        id: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.map_failure(transcript::read_before(&self.connection, view, id, before, limit))
    }

    fn events_after(
        &mut self,
        view: &SessionView,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.map_failure(transcript::read_after(&self.connection, view, id, after, limit))
    }

    fn list(&mut self, view: &SessionView, filter: &ListFilter) -> Result<Vec<StoredSession>, StoreError> {
        self.map_failure(read::list(&self.connection, view, filter))
    }

    fn has_folder(&mut self, folder: &str) -> Result<bool, StoreError> {
        let select = "SELECT EXISTS (SELECT 1 FROM session WHERE cwd = ?1)";
        self.map_failure(self.connection.query_row(select, [folder], |row| row.get(0)))
    }

    fn family(&mut self, view: &SessionView, id: &str) -> Result<Vec<String>, StoreError> {
        self.map_failure(read::family(&self.connection, view, id))
    }

    fn beginning_with(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.map_failure(read::beginning_with(&self.connection, view, prefix))
    }

    fn search(
        &mut self,
        view: &SessionView,
        words: &str,
        within: &FolderFilter,
        limit: usize,
    ) -> Result<Vec<SearchHit>, StoreError> {
        self.map_failure(read::search(&self.connection, view, words, within, limit))
    }

    fn recall(&mut self, view: &SessionView, query: &RecallQuery, now: u64) -> Result<RecallResults, StoreError> {
        self.map_failure(recall::recall(&self.connection, view, query, now))
    }

    fn messages(
        &mut self,
        view: &SessionView,
        id: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        self.map_failure(recall::read_messages(&self.connection, view, id, from, limit))
    }

    fn common_terms(&mut self, view: &SessionView, terms: &TermQuery) -> Result<TermStats, StoreError> {
        let TermQuery { words, within, without, weigh, limit } = terms;
        self.map_failure(recall::common_terms(&self.connection, view, words, within, without, *weigh, *limit))
    }

    fn state(&mut self, view: &SessionView, id: &str) -> Result<Vec<StateEntry>, StoreError> {
        self.map_failure(state::read(&self.connection, view, id))
    }

    fn find_uuid(&mut self, view: &SessionView, uuid: &str) -> Result<Option<String>, StoreError> {
        self.map_failure(state::find_uuid(&self.connection, view, uuid))
    }

    fn usage(&mut self, view: &SessionView, key: &UsageKey) -> Result<UsageRow, StoreError> {
        self.map_failure(usage_rows::read(&self.connection, view.principal().name(), key))
    }

    fn spending(&mut self, view: &SessionView, id: &str, since: u64) -> Result<Vec<SpentAmount>, StoreError> {
        self.map_failure(spending_rows::read(&self.connection, view, id, since))
    }

    fn principals(&mut self, view: &SessionView) -> Result<Vec<String>, StoreError> {
        self.map_failure(spending_rows::read_principals(&self.connection, view))
    }

    fn audit_entries(&mut self, view: &SessionView, filter: &AuditFilter) -> Result<Vec<AuditEntry>, StoreError> {
        self.map_failure(audit::read(&self.connection, view, filter))
    }

    fn audit_names(&mut self, view: &SessionView) -> Result<Vec<(String, String)>, StoreError> {
        self.map_failure(audit::names(&self.connection, view))
    }

    fn verify_audit(&mut self) -> Result<ChainReport, StoreError> {
        self.map_failure(audit::verify(&self.connection))
    }

    fn audit_sessions(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.map_failure(audit::sessions(&self.connection, view, prefix))
    }
}

fn hold(connection: &mut Connection, sessions: &[String], until: u64) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Not the later one of both: an earlier mark may come from a clock that was ahead.
    let update = "UPDATE session SET busy_until = ?2 WHERE id = ?1";
    for id in sessions {
        transaction.prepare_cached(update)?.execute(params![id, number(until)])?;
    }
    transaction.commit()
}

/// Deletes old sessions without events.
fn sweep(connection: &Connection) -> rusqlite::Result<()> {
    let before = number(id::now().saturating_sub(EMPTY_FOR));
    // The query takes no write lock; usually there is nothing to delete.
    let any = "SELECT EXISTS (SELECT 1 FROM session WHERE updated_at < ?1 AND events = 0)";
    if connection.query_row(any, [before], |row| row.get(0))? {
        connection.execute("DELETE FROM session WHERE updated_at < ?1 AND events = 0", [before])?;
    }
    Ok(())
}

/// Applies all jobs or none. An error that only concerns one job becomes the result of that job. Fails if the file has
/// another key.
fn transact(
    connection: &mut Connection,
    file: &Path,
    key: Option<&StoreKey>,
    jobs: &[Job],
) -> Result<Vec<rusqlite::Result<bool>>, StoreError> {
    let fails = |error: rusqlite::Error| failure(file, &error);
    let synced = jobs.iter().any(|job| job.work.is_synced());
    connection.pragma_update(None, "synchronous", if synced { "FULL" } else { "NORMAL" }).map_err(fails)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fails)?;
    key_check::check_file_again(file, &transaction, key)?;
    let mut done = Vec::with_capacity(jobs.len());
    for job in jobs {
        match apply(&transaction, job) {
            // Some errors end the transaction themselves.
            Err(error) if !of_one_job(&error) || transaction.is_autocommit() => return Err(fails(error)),
            result => done.push(result),
        }
    }
    transaction.commit().map_err(fails)?;
    Ok(done)
}

/// Returns true for an error that would recur for this job and does not concern the others.
fn of_one_job(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        None | Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch)
    )
}

fn apply(transaction: &Transaction<'_>, job: &Job) -> rusqlite::Result<bool> {
    let (principal, id, at) = (job.principal.name(), job.session.as_str(), number(job.at));
    match &job.work {
        Work::Create(new) => create(transaction, principal, id, new, at),
        Work::Append(event) => append(transaction, principal, id, event, at),
        Work::Change(change) => apply_change(transaction, principal, id, change, at),
        Work::PutState(entry) => state::put(transaction, principal, id, entry),
        Work::RemoveState { owner, key } => state::remove(transaction, principal, id, owner, key),
        Work::AddUsage(key, more) => usage_rows::add(transaction, principal, key, more),
        Work::Audit(entry) => audit::append(transaction, principal, id, entry, at),
        Work::Delete(deleted) => {
            // Deleting the events first avoids one cascade look-up per event.
            let events = "DELETE FROM event
                WHERE session IN (SELECT key FROM session WHERE (id = ?1 OR parent = ?1) AND principal = ?2)";
            transaction.prepare_cached(events)?.execute([id, principal])?;
            // A turn in another process may have created a child since the caller looked for them.
            let children = "DELETE FROM session WHERE parent = ?1 AND principal = ?2 RETURNING id";
            let mut children = transaction.prepare_cached(children)?;
            let ids = children.query_map([id, principal], |row| row.get(0))?;
            deleted.set(ids.collect::<rusqlite::Result<_>>()?);
            let session = "DELETE FROM session WHERE id = ?1 AND principal = ?2";
            Ok(transaction.prepare_cached(session)?.execute([id, principal])? == 1)
        }
        Work::Copy { new } => copy(transaction, principal, id, new, at),
        Work::Flush => {
            let count = "UPDATE session SET flushes = flushes + 1 WHERE id = ?1 AND principal = ?2";
            Ok(transaction.prepare_cached(count)?.execute([id, principal])? == 1)
        }
        Work::Hold => {
            let update = "UPDATE session SET busy_until = ?3 WHERE id = ?1 AND principal = ?2";
            let until = number(job.at.saturating_add(LEASE_TIME));
            Ok(transaction.prepare_cached(update)?.execute(params![id, principal, until])? == 1)
        }
        // Files have no owner.
        Work::Release | Work::Nothing => Ok(true),
    }
}

/// Creates a session. Returns false if its parent session does not exist.
fn create(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    new: &NewSession,
    at: i64,
) -> rusqlite::Result<bool> {
    let insert = "INSERT INTO session
            (id, cwd, roots, agent, mode, model, approval, created_at, updated_at, parent, principal, files)
        SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11
        WHERE ?9 IS NULL OR EXISTS (SELECT 1 FROM session WHERE id = ?9 AND principal = ?10)";
    let inserted = transaction.prepare_cached(insert)?.execute(params![
        id,
        new.cwd.to_string_lossy(),
        folders_json(&new.roots),
        new.agent,
        new.mode,
        new.model,
        new.approval,
        at,
        new.parent,
        principal,
        new.files.as_str()
    ])?;
    Ok(inserted == 1)
}

/// Appends an event. The transaction assigns its number, so no other process can assign the same.
fn append(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    event: &NewEvent,
    at: i64,
) -> rusqlite::Result<bool> {
    let last = "SELECT key, events FROM session WHERE id = ?1 AND principal = ?2";
    let mut last = transaction.prepare_cached(last)?;
    let last = last.query_row([id, principal], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((key, last)): Option<(i64, i64)> = last else { return Ok(false) };
    // Full-text search ignores everything after a NUL.
    let text = event.text.as_deref().map(|text| text.replace('\0', " "));
    let insert = "INSERT INTO event (session, seq, at, kind, body, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    transaction.prepare_cached(insert)?.execute(params![key, last + 1, at, event.kind, event.body, text])?;
    let count = "UPDATE session SET events = ?2, updated_at = max(updated_at, ?3) WHERE key = ?1";
    transaction.prepare_cached(count)?.execute([key, last + 1, at])?;
    Ok(true)
}

fn apply_change(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    change: &SessionChange,
    at: i64,
) -> rusqlite::Result<bool> {
    let update = "UPDATE session SET
            title = coalesce(?2, title), agent = coalesce(?3, agent), mode = coalesce(?4, mode),
            model = coalesce(?5, model), approval = coalesce(?6, approval),
            input = input + ?7, output = output + ?8, cached = cached + ?9,
            cost = CASE WHEN ?10 IS NULL THEN cost ELSE coalesce(cost, 0) + ?10 END,
            updated_at = max(updated_at, ?11)
        WHERE id = ?1 AND principal = ?12";
    let spent = change.spent.unwrap_or_default();
    let changed = transaction.prepare_cached(update)?.execute(params![
        id,
        change.title,
        change.agent,
        change.mode,
        change.model,
        change.approval,
        number(spent.input),
        number(spent.output),
        number(spent.cached),
        spent.cost,
        at,
        principal
    ])?;
    Ok(changed == 1)
}

fn copy(transaction: &Transaction<'_>, principal: &str, id: &str, new: &str, at: i64) -> rusqlite::Result<bool> {
    let session = "INSERT INTO session
            (id, cwd, roots, agent, mode, model, approval, title, created_at, updated_at, events, principal,
             files)
        SELECT ?2, cwd, roots, agent, mode, model, approval, title, ?3, ?3, events, principal, files
        FROM session WHERE id = ?1 AND principal = ?4";
    if transaction.prepare_cached(session)?.execute(params![id, new, at, principal])? == 0 {
        return Ok(false);
    }
    let events = "INSERT INTO event (session, seq, at, kind, body, text)
        SELECT ?2, e.seq, e.at, e.kind, e.body, e.text FROM event e JOIN session s ON s.key = e.session
        WHERE s.id = ?1 ORDER BY e.seq";
    let key = transaction.last_insert_rowid();
    transaction.prepare_cached(events)?.execute(params![id, key])?;
    state::copy(transaction, id, key)?;
    Ok(true)
}
