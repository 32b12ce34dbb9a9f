//! Writes queued jobs in transactions, on a single thread, and replies to the callers that wait.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::read::{folders_json, number};
use super::usage_rows::{self, UsageKey, UsageRow};
use super::{NewEvent, NewSession, SessionChange, StateEntry, state};
use crate::principal::Principal;
use crate::store::{StoreError, failure};

/// Receives whether the session exists.
pub(super) type WriteReply = oneshot::Sender<Result<bool, StoreError>>;

/// The maximum number of jobs per transaction, so that a flood of jobs cannot keep it open.
const AT_ONCE: usize = 1_024;
/// The time to collect events while no caller waits for a reply.
const GATHERS: Duration = Duration::from_millis(50);

pub(super) struct Job {
    /// The owner of the session. A job for a session of another principal finds no session.
    pub(super) principal: Principal,
    pub(super) session: String,
    pub(super) at: u64,
    pub(super) work: Work,
    pub(super) reply: Option<WriteReply>,
}

pub(super) enum Work {
    Create(Box<NewSession>),
    Append(NewEvent),
    Change(Box<SessionChange>),
    PutState(StateEntry),
    RemoveState {
        owner: String,
        key: String,
    },
    AddUsage(UsageKey, UsageRow),
    Delete,
    Copy {
        new: String,
    },
    Flush,
    /// Only replies, once everything before it is committed.
    Nothing,
}

impl Work {
    /// Returns true if the caller relies on it even after a power failure.
    fn is_synced(&self) -> bool {
        matches!(self, Work::Flush | Work::Delete)
    }
}

pub(super) struct SessionWriter {
    connection: Connection,
    jobs: mpsc::Receiver<Job>,
    file: PathBuf,
    /// Jobs that could not be written yet, oldest first.
    waiting: Vec<Job>,
    /// The error for each session that lost data. Its next flush by the same principal returns it.
    lost: BTreeMap<(Principal, String), StoreError>,
    /// Bytes of queued events; `append` adds to it.
    unwritten: Arc<AtomicUsize>,
}

impl SessionWriter {
    pub(super) fn new(
        connection: Connection,
        jobs: mpsc::Receiver<Job>,
        file: PathBuf,
        unwritten: Arc<AtomicUsize>,
    ) -> Self {
        Self { connection, jobs, file, waiting: Vec::new(), lost: BTreeMap::new(), unwritten }
    }

    /// Runs until the last handle is dropped and everything is written.
    pub(super) fn run(mut self) {
        while let Ok(first) = self.jobs.recv() {
            self.waiting.push(first);
            self.gather();
            let room = AT_ONCE.saturating_sub(self.waiting.len());
            self.waiting.extend(self.jobs.try_iter().take(room));
            self.write();
        }
        if !self.waiting.is_empty() {
            self.write();
        }
        for job in &self.waiting {
            tracing::error!(session = job.session, "the last events of a session could not be written");
        }
    }

    /// Waits briefly for more jobs while no caller waits for a reply. The events of a turn then take few transactions,
    /// and the disk stays idle while a model request runs.
    fn gather(&mut self) {
        let until = Instant::now() + GATHERS;
        while self.waiting.len() < AT_ONCE && self.waiting.iter().all(|job| job.reply.is_none()) {
            match self.jobs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(job) => self.waiting.push(job),
                Err(_) => return,
            }
        }
    }

    /// Writes all waiting jobs in one transaction.
    fn write(&mut self) {
        let jobs = std::mem::take(&mut self.waiting);
        // These jobs only wait for earlier ones, and there are none.
        if jobs.iter().all(|job| matches!(job.work, Work::Nothing)) {
            jobs.into_iter().for_each(|job| job.answer(Ok(true)));
            return;
        }
        match transact(&mut self.connection, &jobs) {
            Ok(done) => jobs.into_iter().zip(done).for_each(|(job, done)| self.settle(job, done)),
            Err(error) => self.postpone(jobs, &error),
        }
    }

    /// Reports the result of one job after its transaction was committed.
    fn settle(&mut self, job: Job, done: rusqlite::Result<bool>) {
        self.unwritten.fetch_sub(job.size(), Ordering::Relaxed);
        let id = &job.session;
        let of_principal = || (job.principal.clone(), id.clone());
        let done = done.map_err(|error| StoreError::LeftOut { id: id.clone(), problem: error.to_string() });
        match (&job.work, done) {
            (Work::Append(_) | Work::Change(_), Ok(true)) => {}
            (Work::Append(_) | Work::Change(_), Ok(false)) => {
                self.lost.insert(of_principal(), StoreError::Gone { id: id.clone() });
            }
            // The session was deleted, and its state with it.
            (Work::PutState(_) | Work::RemoveState { .. }, Ok(_)) => {}
            (
                Work::Append(_)
                | Work::Change(_)
                | Work::Create(_)
                | Work::PutState(_)
                | Work::RemoveState { .. }
                | Work::AddUsage(..),
                Err(error),
            ) if job.reply.is_none() => {
                self.lost.insert(of_principal(), error);
            }
            (Work::Flush, done) => {
                let answer = match (self.lost.remove(&of_principal()), done) {
                    (Some(lost), _) => Err(lost),
                    (None, Ok(false)) => Err(StoreError::Gone { id: id.clone() }),
                    (None, done) => done,
                };
                job.answer(answer);
            }
            (_, done) => job.answer(done),
        }
    }

    /// Handles a failed transaction: jobs without a caller stay queued, the others get the error.
    fn postpone(&mut self, jobs: Vec<Job>, error: &rusqlite::Error) {
        tracing::warn!(%error, "sessions could not be written");
        for job in jobs {
            match (&job.reply, &job.work) {
                (None, _) => {
                    self.waiting.push(job);
                    continue;
                }
                // A read does not fail because a write did.
                (Some(_), Work::Nothing) => {
                    job.answer(Ok(true));
                    continue;
                }
                (Some(_), _) => {}
            }
            let told = match (failure(&self.file, error), &job.work) {
                (StoreError::Unusable { problem, .. }, Work::Flush) => {
                    StoreError::Unwritten { id: job.session.clone(), problem }
                }
                (other, _) => other,
            };
            job.answer(Err(told));
        }
    }
}

impl Job {
    /// Returns the bytes of its event or entry.
    pub(super) fn size(&self) -> usize {
        match &self.work {
            Work::Append(event) => event.body.len() + event.text.as_ref().map_or(0, String::len),
            Work::PutState(entry) => entry.value.len(),
            _ => 0,
        }
    }

    /// Sends the reply; does nothing if the caller no longer waits.
    fn answer(self, answer: Result<bool, StoreError>) {
        if let Some(reply) = self.reply {
            reply.send(answer).unwrap_or_default();
        }
    }
}

/// Applies all jobs or none. An error that only concerns one job becomes the result of that job.
fn transact(connection: &mut Connection, jobs: &[Job]) -> rusqlite::Result<Vec<rusqlite::Result<bool>>> {
    let synced = jobs.iter().any(|job| job.work.is_synced());
    connection.pragma_update(None, "synchronous", if synced { "FULL" } else { "NORMAL" })?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut done = Vec::with_capacity(jobs.len());
    for job in jobs {
        match apply(&transaction, job) {
            // Some errors end the transaction themselves.
            Err(error) if !of_one_job(&error) || transaction.is_autocommit() => return Err(error),
            result => done.push(result),
        }
    }
    transaction.commit()?;
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
        Work::Delete => {
            // Deleting the events first avoids one cascade look-up per event.
            let events = "DELETE FROM event
                WHERE session = (SELECT key FROM session WHERE id = ?1 AND principal = ?2)";
            transaction.prepare_cached(events)?.execute([id, principal])?;
            let session = "DELETE FROM session WHERE id = ?1 AND principal = ?2";
            Ok(transaction.prepare_cached(session)?.execute([id, principal])? == 1)
        }
        Work::Copy { new } => copy(transaction, principal, id, new, at),
        Work::Flush => {
            let count = "UPDATE session SET flushes = flushes + 1 WHERE id = ?1 AND principal = ?2";
            Ok(transaction.prepare_cached(count)?.execute([id, principal])? == 1)
        }
        Work::Nothing => Ok(true),
    }
}

fn create(
    transaction: &Transaction<'_>,
    principal: &str,
    id: &str,
    new: &NewSession,
    at: i64,
) -> rusqlite::Result<bool> {
    let insert = "INSERT INTO session
            (id, cwd, roots, agent, mode, model, approval, created_at, updated_at, parent, principal, files)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11)";
    transaction.prepare_cached(insert)?.execute(params![
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
    Ok(true)
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
