//! Writes queued jobs in transactions, on a single thread, and replies to the callers that wait.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::backend::{JobError, SessionWrites};
use super::job::{Job, Work};
use super::leases::{RENEWAL, RETRY, SessionLeases};
use super::pending_jobs::PendingJobs;
use crate::principal::Principal;
use crate::store::StoreError;

/// The maximum number of jobs per transaction, so that a flood of jobs cannot keep it open.
const AT_ONCE: usize = 1_024;
/// The time to collect events while no caller waits for a reply.
const GATHERS: Duration = Duration::from_millis(50);

pub(super) struct SessionWriter {
    writes: Box<dyn SessionWrites>,
    jobs: mpsc::Receiver<Job>,
    /// Jobs that could not be written yet, oldest first.
    waiting: Vec<Job>,
    /// The number of the last job.
    serial: u64,
    /// The error for each session that lost data. Its next flush by the same principal returns it.
    lost: BTreeMap<(Principal, String), StoreError>,
    pending: Arc<PendingJobs>,
    /// The open sessions; handles add and remove them.
    leases: Arc<SessionLeases>,
    /// When the leases are recorded next.
    renewal: Instant,
}

impl SessionWriter {
    pub(super) fn new(
        writes: Box<dyn SessionWrites>,
        jobs: mpsc::Receiver<Job>,
        pending: Arc<PendingJobs>,
        leases: Arc<SessionLeases>,
    ) -> Self {
        let (lost, renewal) = (BTreeMap::new(), Instant::now() + RENEWAL);
        Self { writes, jobs, waiting: Vec::new(), serial: 0, lost, pending, leases, renewal }
    }

    /// Runs until the last handle is dropped and everything is written.
    pub(super) fn run(mut self) {
        while let Some(first) = self.next_job() {
            self.add(first);
            self.gather();
            self.write();
        }
        if !self.waiting.is_empty() {
            self.write();
        }
        for job in &self.waiting {
            tracing::error!(session = job.session, "the last events of a session could not be written");
        }
    }

    /// Numbers a job, so that a store can tell whether it was written.
    fn add(&mut self, job: Job) {
        self.serial += 1;
        self.waiting.push(Job { serial: self.serial, ..job });
    }

    /// Waits for a job. In the meantime, records the open sessions and tries to write what could not be written. `None` if
    /// the last handle is dropped.
    fn next_job(&mut self) -> Option<Job> {
        loop {
            if self.leases.take_change() || Instant::now() >= self.renewal {
                self.renewal = Instant::now() + RENEWAL;
                self.record_leases();
            }
            let until_renewal = self.renewal.saturating_duration_since(Instant::now());
            let limit = if self.waiting.is_empty() { until_renewal } else { until_renewal.min(RETRY) };
            match self.jobs.recv_timeout(limit) {
                Ok(job) => return Some(job),
                Err(mpsc::RecvTimeoutError::Timeout) if !self.waiting.is_empty() => self.write(),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn record_leases(&mut self) {
        if let Err(error) = self.leases.renew_list() {
            tracing::warn!(%error, "open sessions could not be listed yet; it is tried again");
            self.renewal = Instant::now() + RETRY;
        }
        let open = self.leases.ids();
        if open.is_empty() {
            return;
        }
        if let Err(error) = self.writes.hold(&open) {
            tracing::warn!(%error, "open sessions could not be marked yet; until then, retention may remove them");
            self.renewal = Instant::now() + RETRY;
        }
    }

    /// Collects jobs for a short time, while no caller waits for a reply. The events of a turn then take few
    /// transactions, and the disk stays idle while a model request runs. A job without a reply does not end the pause,
    /// because each wake-up would also delay the thread that queues the job.
    fn gather(&mut self) {
        let until = Instant::now() + GATHERS;
        loop {
            while self.waiting.len() < AT_ONCE {
                match self.jobs.try_recv() {
                    Ok(job) => self.add(job),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            let rest = until.saturating_duration_since(Instant::now());
            let is_awaited = self.waiting.iter().any(|job| job.reply.is_some());
            if is_awaited || self.waiting.len() >= AT_ONCE || rest.is_zero() {
                return;
            }
            std::thread::park_timeout(rest);
        }
    }

    /// Writes all waiting jobs in one transaction.
    fn write(&mut self) {
        let jobs = std::mem::take(&mut self.waiting);
        // These jobs only wait for earlier ones, and there are none.
        if jobs.iter().all(|job| matches!(job.work, Work::Nothing)) {
            jobs.into_iter().for_each(|job| self.finish(job, Ok(true)));
            return;
        }
        match self.writes.transact(&jobs) {
            Ok(done) => jobs.into_iter().zip(done).for_each(|(job, done)| self.settle(job, done)),
            Err(error) => self.postpone(jobs, &error),
        }
    }

    /// Reports the result of one job after its transaction was committed.
    fn settle(&mut self, job: Job, done: Result<bool, JobError>) {
        self.pending.remove(job.size());
        let id = &job.session;
        let of_principal = || (job.principal.clone(), id.clone());
        if let (Err(JobError::NotOwner), Some(owner)) = (&done, &job.owner) {
            owner.lost.cancel();
        }
        let done = done.map_err(|error| match error {
            JobError::Data(problem) => StoreError::LeftOut { id: id.clone(), problem },
            JobError::NotOwner => StoreError::Taken { id: id.clone() },
            JobError::OwnedElsewhere { replica } => StoreError::OwnedElsewhere { id: id.clone(), replica },
        });
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
                | Work::AddUsage(..)
                | Work::Audit(_),
                Err(error),
            ) if job.reply.is_none() => {
                // A flush with the same claim is refused itself. One with a later claim has nothing to do with it.
                if !matches!(error, StoreError::Taken { .. }) {
                    self.lost.insert(of_principal(), error);
                }
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
    fn postpone(&mut self, jobs: Vec<Job>, error: &StoreError) {
        tracing::warn!(%error, "sessions could not be written");
        for job in jobs {
            match (&job.reply, &job.work) {
                // A read does not fail because a write did.
                (_, Work::Nothing) => {
                    self.finish(job, Ok(true));
                    continue;
                }
                (None, _) => {
                    self.waiting.push(job);
                    continue;
                }
                (Some(_), _) => {}
            }
            let told = match (error.clone(), &job.work) {
                (StoreError::Unusable { problem, .. }, Work::Flush) => {
                    StoreError::Unwritten { id: job.session.clone(), problem }
                }
                (other, _) => other,
            };
            self.finish(job, Err(told));
        }
    }

    /// Replies to a job that was not in a transaction.
    fn finish(&self, job: Job, answer: Result<bool, StoreError>) {
        self.pending.remove(job.size());
        job.answer(answer);
    }
}
