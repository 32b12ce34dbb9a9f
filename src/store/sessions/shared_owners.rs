//! Checks in each transaction that its process still owns the sessions that it writes, and that the batch is new.

use std::collections::{BTreeMap, BTreeSet};

use postgres::GenericClient;
use serde::{Deserialize, Serialize};

use super::backend::JobError;
use super::job::{Job, Work};
use super::read::number;
use crate::store::Replica;
use crate::store::database::Queries;
use crate::store::ownership::OwnedSession;

/// Sets the number of the last job, and returns what is known of the batch before. A second transaction with the same
/// numbers waits here until the first has ended. The database ends the transaction of a process that is paused, and with
/// it its locks.
const BEGIN: &str = "INSERT INTO writer AS w (id, written, previous) VALUES ($1, $2, 0)
    ON CONFLICT (id) DO UPDATE SET previous = w.written, written = greatest(w.written, excluded.written),
        previous_exceptions = w.exceptions, exceptions = '[]', at = clock_timestamp()
    RETURNING previous, previous_exceptions, set_config('idle_in_transaction_session_timeout', '5000', TRUE)";
const END: &str = "UPDATE writer SET exceptions = $2 WHERE id = $1";
/// Locks the claims that still hold. A take-over waits for the commit.
const HOLD: &str = "SELECT o.session, o.epoch FROM ownership o
    JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS held (session, epoch, replica)
        ON o.session = held.session AND o.epoch = held.epoch AND o.replica = held.replica
    ORDER BY o.session FOR SHARE OF o";
/// The first claim of a session, unless another replica has declared this one dead.
const ADD: &str = "INSERT INTO ownership (session, replica, epoch, last_replica, files)
    SELECT $1, r.id, 1, r.id, r.files FROM replica r WHERE r.id = $2 AND NOT r.is_dead
    ON CONFLICT (session) DO NOTHING";
const RELEASE: &str = "UPDATE ownership SET replica = NULL WHERE session = $1 AND epoch = $2 AND replica = $3";
/// The live owner of a session or of its parent, other than this replica. The lock keeps others from claiming the session.
const OTHER_OWNER: &str = "SELECT o.replica FROM ownership o JOIN replica r ON r.id = o.replica
    WHERE o.session = coalesce((SELECT s.parent FROM session s WHERE s.id = $1), $1)
        AND r.id <> $2 AND NOT r.is_dead AND r.expires_at > clock_timestamp() FOR SHARE OF o";

/// The claims that hold until the end of the transaction, as session and epoch.
pub(super) type ClaimSet = BTreeSet<(String, i64)>;

/// What an earlier transaction did, whose answer may be lost.
#[derive(Debug, Default)]
pub(super) struct EarlierBatch {
    /// The number of its last job.
    last: u64,
    /// The jobs that it did not do.
    exceptions: BTreeMap<u64, JobException>,
}

/// Why a job was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JobException {
    NoSession,
    NotOwner,
    Data,
}

impl EarlierBatch {
    /// Returns the result of a job. `None` if the job is new.
    pub(super) fn result(&self, job: &Job) -> Option<Result<bool, JobError>> {
        (job.serial <= self.last).then(|| match self.exceptions.get(&job.serial) {
            None => Ok(true),
            Some(JobException::NoSession) => Ok(false),
            Some(JobException::NotOwner) => Err(JobError::NotOwner),
            Some(JobException::Data) => Err(JobError::Data("the database cannot keep it".to_owned())),
        })
    }
}

/// Begins a batch. Returns what is known of the one before.
pub(super) fn begin_batch<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    writer: &str,
    jobs: &[Job],
) -> Result<EarlierBatch, postgres::Error> {
    let last = number(jobs.iter().map(|job| job.serial).max().unwrap_or_default());
    let row = queries.query_one(BEGIN, &[&writer, &last])?;
    let (last, exceptions): (i64, String) = (row.get(0), row.get(1));
    let exceptions: Vec<(u64, JobException)> = serde_json::from_str(&exceptions).unwrap_or_default();
    Ok(EarlierBatch { last: u64::try_from(last).unwrap_or_default(), exceptions: exceptions.into_iter().collect() })
}

/// Keeps the results of a batch, in case its answer is lost. Most batches have no exceptions.
pub(super) fn end_batch<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    writer: &str,
    jobs: &[Job],
    done: &[Result<bool, JobError>],
) -> Result<(), postgres::Error> {
    let exception = |(job, result): (&Job, &Result<bool, JobError>)| {
        let exception = match result {
            Ok(true) => return None,
            Ok(false) => JobException::NoSession,
            Err(JobError::NotOwner | JobError::OwnedElsewhere { .. }) => JobException::NotOwner,
            Err(JobError::Data(_)) => JobException::Data,
        };
        Some((job.serial, exception))
    };
    let exceptions: Vec<_> = jobs.iter().zip(done).filter_map(exception).collect();
    if exceptions.is_empty() {
        return Ok(());
    }
    // Serialization does not fail: these are numbers and names.
    let exceptions = serde_json::to_string(&exceptions).unwrap_or_default();
    queries.execute(END, &[&writer, &exceptions]).map(drop)
}

/// Locks the claims of the jobs and returns those that hold.
pub(super) fn hold_claims<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    jobs: &[Job],
) -> Result<ClaimSet, postgres::Error> {
    let owned = jobs.iter().filter_map(|job| job.owner.as_deref());
    let claims: BTreeSet<(&str, i64, &str)> =
        owned.map(|it| (it.session.as_str(), number(it.owner.epoch), it.owner.replica.as_str())).collect();
    if claims.is_empty() {
        return Ok(ClaimSet::new());
    }
    let sessions: Vec<&str> = claims.iter().map(|(session, ..)| *session).collect();
    let epochs: Vec<i64> = claims.iter().map(|(_, epoch, _)| *epoch).collect();
    let replicas: Vec<&str> = claims.iter().map(|(.., replica)| *replica).collect();
    let held = queries.query(HOLD, &[&sessions, &epochs, &replicas])?;
    Ok(held.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Returns an inner error if the job must not be written. A process without a place among replicas needs no claims.
pub(super) fn check_owner<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    job: &Job,
    held: &ClaimSet,
    replica: Option<&Replica>,
) -> Result<Result<(), JobError>, postgres::Error> {
    let Some(replica) = replica else { return Ok(Ok(())) };
    match &job.work {
        Work::Create(new) if new.parent.is_none() => {
            let Some(owned) = &job.owner else { return Ok(Err(JobError::NotOwner)) };
            let added = queries.execute(ADD, &[&job.session, &owned.owner.replica.as_str()])?;
            Ok(if added == 1 { Ok(()) } else { Err(JobError::NotOwner) })
        }
        Work::Create(_)
        | Work::Append(_)
        | Work::Change(_)
        | Work::PutState(_)
        | Work::RemoveState { .. }
        | Work::Flush => Ok(match &job.owner {
            Some(owned) if is_held(held, owned) => Ok(()),
            Some(_) | None => Err(JobError::NotOwner),
        }),
        Work::Delete(_) => match job.owner.as_deref().filter(|owned| is_held(held, owned)) {
            Some(_) => Ok(Ok(())),
            None => {
                let other = queries.query_opt(OTHER_OWNER, &[&job.session, &replica.id().as_str()])?;
                let other = other.map(|row| JobError::OwnedElsewhere { replica: row.get(0) });
                Ok(other.map_or(Ok(()), Err))
            }
        },
        // These change nothing that a session has. A decision is recorded even if its session is lost.
        Work::AddUsage(..) | Work::Audit(_) | Work::Copy { .. } | Work::Hold | Work::Release | Work::Nothing => {
            Ok(Ok(()))
        }
    }
}

fn is_held(held: &ClaimSet, owned: &OwnedSession) -> bool {
    held.contains(&(owned.session.clone(), number(owned.owner.epoch)))
}

/// Gives a session back, unless another claim followed.
pub(super) fn release<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    owned: &OwnedSession,
) -> Result<bool, postgres::Error> {
    let (epoch, replica) = (number(owned.owner.epoch), owned.owner.replica.as_str());
    queries.execute(RELEASE, &[&owned.session, &epoch, &replica]).map(|_| true)
}
