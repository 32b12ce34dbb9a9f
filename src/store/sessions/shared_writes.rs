//! Writes sessions to a PostgreSQL database.
//!
//! Every commit is durable, so a flush has nothing to write. Columns have no NUL characters, which PostgreSQL refuses.
//!
//! Invariant: every transaction holds the claims of its jobs until it commits, and writes each job once, also if the
//! answer to a commit is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres::GenericClient;
use serde::Deserialize;

use super::backend::{JobError, SessionWrites};
use super::job::{Job, Work};
use super::leases::LEASE_TIME;
use super::read::{folders_json, number};
use super::search_terms::index_words;
use super::state::UUID_OWNER;
use super::usage_rows::{UsageKey, UsageRow};
use super::{EMPTY_FOR, NewEvent, NewSession, SessionChange, StateEntry, id, shared_audit, shared_owners};
use crate::store::database::{
    Database, PRESENT, Queries, TransactionError, is_of_conflict, is_of_connection, is_of_data, problem, unusable,
};
use crate::store::notifications::NotifySender;
use crate::store::sealing::StoreKey;
use crate::store::{Replica, StoreAddress, StoreError};

/// How long the writer tries to reach the database again before its callers get the error.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// The connection of the writer.
#[derive(Debug)]
pub(super) struct SharedWrites {
    database: Database,
    /// Names this writer in the table of batches.
    writer: String,
    /// The place of this process among the replicas. `None` if it writes without claims.
    replica: Option<Replica>,
    notify: NotifySender,
}

impl SharedWrites {
    /// Connects, and deletes old sessions without events. A write fails if the database has another key.
    pub(super) fn open(
        address: &Arc<StoreAddress>,
        key: Option<&StoreKey>,
        replica: Option<Replica>,
    ) -> Result<Self, StoreError> {
        let mut database = Database::open_with_key(address, key)?;
        let before = number(id::now().saturating_sub(EMPTY_FOR));
        // The caller may run async tasks.
        let swept = std::thread::scope(|scope| {
            let sweep = || database.write(|queries| queries.execute(SWEEP, &[&before]));
            scope.spawn(sweep).join()
        });
        swept.map_err(|_| unusable(address, "its clean-up broke off".to_owned()))??;
        let (writer, notify) = (crate::ids::random_id("writer"), NotifySender::start(address)?);
        Ok(Self { database, writer, replica, notify })
    }
}

/// A session that a live replica owns may still get its first event.
const SWEEP: &str = "WITH gone AS (
        DELETE FROM session s WHERE s.updated_at < $1 AND s.events = 0 AND NOT EXISTS (
            SELECT 1 FROM ownership o JOIN replica r ON r.id = o.replica
            WHERE o.session = s.id AND NOT r.is_dead AND r.expires_at > clock_timestamp())
        RETURNING s.id)
    DELETE FROM ownership o USING gone WHERE o.session = gone.id";

impl SessionWrites for SharedWrites {
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Result<bool, JobError>>, StoreError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let batch = Batch { jobs, writer: &self.writer, replica: self.replica.as_ref() };
            let mut news = BTreeMap::new();
            let mut done = self.database.transact(|queries| batch.write(queries, &mut news, BatchErrors::EndBatch));
            // The database ends a transaction at the first error. A second attempt isolates each job.
            if matches!(&done, Err(TransactionError::Query(error)) if is_of_data(error)) {
                news.clear();
                done = self.database.transact(|queries| batch.write(queries, &mut news, BatchErrors::LeaveOut));
            }
            match done {
                Ok(done) => {
                    news.iter().for_each(|(session, seq)| self.notify.send(session, *seq));
                    return Ok(done);
                }
                // The batch may be committed. It has the same numbers in the next attempt, which then writes nothing.
                Err(TransactionError::Query(error)) if is_of_connection(&error) && Instant::now() < until => {
                    tracing::warn!(problem = problem(&error), "the connection to the store broke");
                }
                // Servers add to what several principals have used, in any order.
                Err(TransactionError::Query(error)) if is_of_conflict(&error) && Instant::now() < until => {
                    tracing::debug!(problem = problem(&error), "another server was in the way");
                }
                Err(TransactionError::Store(StoreError::Unreachable { problem, .. })) if Instant::now() < until => {
                    tracing::debug!(problem, "the store cannot be reached");
                }
                Err(TransactionError::Query(error)) => {
                    return Err(unusable(self.database.address(), problem(&error)));
                }
                Err(TransactionError::Store(error)) => return Err(error),
            }
            std::thread::sleep(RETRY_DELAY);
        }
    }

    fn hold(&mut self, sessions: &[String]) -> Result<(), StoreError> {
        let lease = number(LEASE_TIME);
        self.database.write(|queries| {
            // The same order as in `lock_sessions`.
            let lock = "SELECT key FROM session WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE";
            queries.query(lock, &[&sessions])?;
            let update = format!("UPDATE session SET busy_until = ({PRESENT}) + $2 WHERE id = ANY ($1::text[])");
            queries.execute(&update, &[&sessions, &lease]).map(drop)
        })
    }
}

/// What an error of one job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchErrors {
    /// It ends the whole batch.
    EndBatch,
    /// Only that job is left out.
    LeaveOut,
}

/// The jobs of one transaction.
struct Batch<'a> {
    jobs: &'a [Job],
    writer: &'a str,
    replica: Option<&'a Replica>,
}

/// The newest event of each session that a batch appended to.
type SessionNews = BTreeMap<String, u64>;

impl Batch<'_> {
    fn write<C: GenericClient>(
        &self,
        queries: &mut Queries<'_, C>,
        news: &mut SessionNews,
        errors: BatchErrors,
    ) -> Result<Vec<Result<bool, JobError>>, postgres::Error> {
        let earlier = shared_owners::begin_batch(queries, self.writer, self.jobs)?;
        let held = shared_owners::hold_claims(queries, self.jobs)?;
        lock_sessions(queries, self.jobs)?;
        let mut done = Vec::with_capacity(self.jobs.len());
        for job in self.jobs {
            // The answer to an earlier batch was lost.
            if let Some(result) = earlier.result(job) {
                done.push(result);
                continue;
            }
            if let Err(refusal) = shared_owners::check_owner(queries, job, &held, self.replica)? {
                done.push(Err(refusal));
                continue;
            }
            if errors == BatchErrors::EndBatch {
                done.push(Ok(apply(queries, job, news)?));
                continue;
            }
            queries.execute("SAVEPOINT job", &[])?;
            done.push(match apply(queries, job, news) {
                Err(error) if is_of_data(&error) => {
                    queries.execute("ROLLBACK TO SAVEPOINT job", &[])?;
                    Err(JobError::Data(problem(&error)))
                }
                result => Ok(result?),
            });
            queries.execute("RELEASE SAVEPOINT job", &[])?;
        }
        shared_owners::end_batch(queries, self.writer, self.jobs, &done)?;
        Ok(done)
    }
}

/// Locks the sessions of all jobs in one order, so that two servers do not wait for each other.
fn lock_sessions<C: GenericClient>(queries: &mut Queries<'_, C>, jobs: &[Job]) -> Result<(), postgres::Error> {
    let sessions: BTreeSet<&str> = jobs.iter().map(|job| job.session.as_str()).collect();
    if sessions.len() < 2 {
        return Ok(());
    }
    let sessions: Vec<&str> = sessions.into_iter().collect();
    let lock = "SELECT key FROM session WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE";
    queries.query(lock, &[&sessions]).map(drop)
}

fn apply<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    job: &Job,
    news: &mut SessionNews,
) -> Result<bool, postgres::Error> {
    let (principal, id, at) = (job.principal.name(), job.session.as_str(), number(job.at));
    match &job.work {
        Work::Create(new) => create(queries, principal, id, new, at),
        Work::Append(event) => {
            let seq = append(queries, principal, id, event, at)?;
            news.extend(seq.map(|seq| (id.to_owned(), seq)));
            Ok(seq.is_some())
        }
        Work::Change(change) => apply_change(queries, principal, id, change, at),
        Work::PutState(entry) => put_state(queries, principal, id, entry),
        Work::RemoveState { owner, key } => {
            let delete = "DELETE FROM state WHERE owner = $2 AND key = $3
                AND session = (SELECT s.key FROM session s WHERE s.id = $1 AND s.principal = $4)";
            queries.execute(delete, &[&id, &owner, &key, &principal]).map(|_| true)
        }
        Work::AddUsage(key, more) => add_usage(queries, principal, key, more),
        Work::Audit(entry) => shared_audit::append(queries, principal, id, entry, at),
        Work::Delete(deleted) => {
            let session = "DELETE FROM session WHERE id = $1 AND principal = $2";
            let is_deleted = queries.execute(session, &[&id, &principal])? == 1;
            if is_deleted {
                queries.execute("DELETE FROM ownership WHERE session = $1", &[&id])?;
                // A turn in another process may have created a child since the caller looked for them. Without its
                // parent, it can create none.
                let children = "DELETE FROM session WHERE parent = $1 AND principal = $2 RETURNING id";
                let children = queries.query(children, &[&id, &principal])?;
                deleted.set(children.iter().map(|row| row.get(0)).collect());
            }
            Ok(is_deleted)
        }
        Work::Copy { new } => copy(queries, principal, id, new, at),
        Work::Flush => {
            let exists = "SELECT 1 FROM session WHERE id = $1 AND principal = $2";
            Ok(queries.query_opt(exists, &[&id, &principal])?.is_some())
        }
        Work::Hold => {
            let update = format!("UPDATE session SET busy_until = ({PRESENT}) + $3 WHERE id = $1 AND principal = $2");
            let lease = number(LEASE_TIME);
            Ok(queries.execute(&update, &[&id, &principal, &lease])? == 1)
        }
        Work::Release => match &job.owner {
            Some(owned) => shared_owners::release(queries, owned),
            None => Ok(true),
        },
        Work::Nothing => Ok(true),
    }
}

/// Creates a session. Returns false if its parent session does not exist.
fn create<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: &str,
    new: &NewSession,
    at: i64,
) -> Result<bool, postgres::Error> {
    if let Some(parent) = &new.parent {
        // The lock lets no other process delete the parent before the child is stored.
        let lock = "SELECT 1 FROM session WHERE id = $1 AND principal = $2 FOR SHARE";
        if queries.query_opt(lock, &[parent, &principal])?.is_none() {
            return Ok(false);
        }
    }
    let insert = "INSERT INTO session
            (id, cwd, roots, agent, mode, model, approval, created_at, updated_at, parent, principal, files)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $10, $11)";
    let (cwd, roots, files) = (new.cwd.to_string_lossy(), folders_json(&new.roots), new.files.as_str());
    let NewSession { agent, mode, model, approval, parent, .. } = new;
    let values: [&(dyn postgres::types::ToSql + Sync); 11] =
        [&id, &cwd, &roots, agent, mode, model, approval, &at, parent, &principal, &files];
    queries.execute(insert, &values).map(|_| true)
}

/// Appends an event and returns its number. `None` if there is no such session. The update locks the session's row, so
/// no other process can assign the same number.
fn append<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: &str,
    event: &NewEvent,
    at: i64,
) -> Result<Option<u64>, postgres::Error> {
    let count = "UPDATE session SET events = events + 1, updated_at = greatest(updated_at, $3)
        WHERE id = $1 AND principal = $2 RETURNING key, events";
    let Some(row) = queries.query_opt(count, &[&id, &principal, &at])? else { return Ok(None) };
    let (key, seq): (i64, i64) = (row.get(0), row.get(1));
    let text = event.text.as_deref().map(without_nul);
    let (words, length) = text.as_deref().map(index_words).unzip();
    let EventFacts { role, restores } = EventFacts::of(event);
    let insert = "INSERT INTO event (session, seq, at, kind, body, text, role, restores, words, length)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, to_tsvector('skein_words', $9::text), $10)";
    let values: [&(dyn postgres::types::ToSql + Sync); 10] =
        [&key, &seq, &at, &event.kind, &event.body, &text, &role, &restores, &words, &length];
    queries.execute(insert, &values)?;
    Ok(u64::try_from(seq).ok())
}

/// What queries need of the body of an event. Bodies that cannot be read have none.
#[derive(Debug, Default)]
pub(in crate::store) struct EventFacts {
    pub(in crate::store) role: Option<String>,
    pub(in crate::store) restores: Option<i64>,
}

impl EventFacts {
    pub(in crate::store) fn of(event: &NewEvent) -> Self {
        #[derive(Deserialize)]
        struct MessageRole {
            role: Option<String>,
        }
        #[derive(Deserialize)]
        struct MessageBody {
            message: Option<MessageRole>,
        }
        #[derive(Deserialize)]
        struct UndoneBody {
            events: Option<i64>,
        }
        let is_undo = event.kind == "undone";
        let message = event.text.as_ref().and_then(|_| serde_json::from_str::<MessageBody>(&event.body).ok());
        let undone = is_undo.then(|| serde_json::from_str::<UndoneBody>(&event.body).ok()).flatten();
        Self {
            role: message.and_then(|body| body.message).and_then(|message| message.role),
            restores: undone.and_then(|body| body.events),
        }
    }
}

fn apply_change<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: &str,
    change: &SessionChange,
    at: i64,
) -> Result<bool, postgres::Error> {
    let update = "UPDATE session SET
            title = coalesce($2, title), agent = coalesce($3, agent), mode = coalesce($4, mode),
            model = coalesce($5, model), approval = coalesce($6, approval),
            input = input + $7, output = output + $8, cached = cached + $9,
            cost = CASE WHEN $10::float8 IS NULL THEN cost ELSE coalesce(cost, 0) + $10::float8 END,
            updated_at = greatest(updated_at, $11)
        WHERE id = $1 AND principal = $12";
    let spent = change.spent.unwrap_or_default();
    let (input, output, cached) = (number(spent.input), number(spent.output), number(spent.cached));
    let title = change.title.as_deref().map(without_nul);
    let SessionChange { agent, mode, model, approval, .. } = change;
    let values: [&(dyn postgres::types::ToSql + Sync); 12] =
        [&id, &title, agent, mode, model, approval, &input, &output, &cached, &spent.cost, &at, &principal];
    Ok(queries.execute(update, &values)? == 1)
}

fn put_state<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: &str,
    entry: &StateEntry,
) -> Result<bool, postgres::Error> {
    let insert = "INSERT INTO state (session, owner, key, value)
        SELECT s.key, $2::text, $3::text, $4::bytea FROM session s WHERE s.id = $1 AND s.principal = $5
        ON CONFLICT (session, owner, key) DO UPDATE SET value = excluded.value";
    Ok(queries.execute(insert, &[&id, &entry.owner, &entry.key, &entry.value, &principal])? == 1)
}

fn add_usage<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    key: &UsageKey,
    more: &UsageRow,
) -> Result<bool, postgres::Error> {
    let insert = "INSERT INTO budget AS b (principal, scope, period, cost, tokens, requests, milliseconds)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (principal, scope, period) DO UPDATE SET
            cost = b.cost + excluded.cost, tokens = b.tokens + excluded.tokens,
            requests = b.requests + excluded.requests, milliseconds = b.milliseconds + excluded.milliseconds";
    let (tokens, requests, milliseconds) = (number(more.tokens), number(more.requests), number(more.milliseconds));
    let UsageKey { scope, period } = key;
    queries.execute(insert, &[&principal, scope, period, &more.cost, &tokens, &requests, &milliseconds]).map(|_| true)
}

fn copy<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    principal: &str,
    id: &str,
    new: &str,
    at: i64,
) -> Result<bool, postgres::Error> {
    // The lock keeps another process from appending between the statements.
    let source = "SELECT key FROM session WHERE id = $1 AND principal = $2 FOR UPDATE";
    let Some(source) = queries.query_opt(source, &[&id, &principal])? else { return Ok(false) };
    let source: i64 = source.get(0);
    let session = "INSERT INTO session
            (id, cwd, roots, agent, mode, model, approval, title, created_at, updated_at, events, principal, files)
        SELECT $2::text, cwd, roots, agent, mode, model, approval, title, $3::bigint, $3::bigint, events, principal,
            files
        FROM session WHERE key = $1 RETURNING key";
    let key: i64 = queries.query_one(session, &[&source, &new, &at])?.get(0);
    let events = "INSERT INTO event (session, seq, at, kind, body, text, role, restores, words, length)
        SELECT $2::bigint, seq, at, kind, body, text, role, restores, words, length
        FROM event WHERE session = $1 ORDER BY seq";
    queries.execute(events, &[&source, &key])?;
    let state = "INSERT INTO state (session, owner, key, value)
        SELECT $2::bigint, owner, key, value FROM state WHERE session = $1 AND owner <> $3";
    queries.execute(state, &[&source, &key, &UUID_OWNER]).map(|_| true)
}

fn without_nul(text: &str) -> String {
    text.replace('\0', " ")
}
