//! What a kind of store does for sessions: SQLite in `file_backend`, PostgreSQL in `shared_reads` and `shared_writes`.
//!
//! Both are used on blocking threads only, one call at a time.

use super::audit::{AuditEntry, AuditFilter, ChainReport};
use super::job::Job;
use super::usage_rows::{UsageKey, UsageRow};
use super::view::SessionView;
use super::{
    FolderFilter, ListFilter, RecallQuery, RecallResults, SearchHit, SpentAmount, StateEntry, StoredEvent,
    StoredMessage, StoredSession, TermStats, TermWeights,
};
use crate::store::StoreError;

/// The query of `SessionStore::common_terms`.
#[derive(Debug)]
pub(super) struct TermQuery {
    pub(super) words: Vec<String>,
    pub(super) within: FolderFilter,
    /// Ids of the sessions to exclude.
    pub(super) without: Vec<String>,
    pub(super) weigh: TermWeights,
    pub(super) limit: usize,
}

/// Why one job could not be written. It would fail again, and does not concern other jobs.
#[derive(Debug, thiserror::Error)]
pub(super) enum JobError {
    /// The store cannot keep the data.
    #[error("{0}")]
    Data(String),
    /// The process that queued the job does not own the session any more.
    #[error("another replica took over the session")]
    NotOwner,
    /// The job needs no claim, but a live replica has one.
    #[error("the session is open on replica {replica}")]
    OwnedElsewhere { replica: String },
}

/// Writes jobs.
pub(super) trait SessionWrites: Send + std::fmt::Debug {
    /// Applies all jobs or none. Returns for each whether its session exists, or the error that only concerns this job.
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Result<bool, JobError>>, StoreError>;

    /// Records that these sessions are open for [`LEASE_TIME`](super::leases::LEASE_TIME) from now, by the clock that
    /// all processes with this store share.
    fn hold(&mut self, sessions: &[String]) -> Result<(), StoreError>;
}

/// Reads what a view admits. Each method does what the one of the same name in `SessionStore` says.
pub(super) trait SessionReads: Send + std::fmt::Debug {
    fn find(&mut self, view: &SessionView, id: &str) -> Result<Option<StoredSession>, StoreError>;

    fn events(&mut self, view: &SessionView, id: &str) -> Result<Vec<StoredEvent>, StoreError>;

    fn events_before(
        &mut self,
        view: &SessionView,
        id: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError>;

    fn events_after(
        &mut self,
        view: &SessionView,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError>;

    fn list(&mut self, view: &SessionView, filter: &ListFilter) -> Result<Vec<StoredSession>, StoreError>;

    /// Returns whether a session of any principal has this folder.
    fn has_folder(&mut self, folder: &str) -> Result<bool, StoreError>;

    fn family(&mut self, view: &SessionView, id: &str) -> Result<Vec<String>, StoreError>;

    /// Returns a few ids that begin with `prefix`, in order.
    fn beginning_with(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError>;

    fn search(
        &mut self,
        view: &SessionView,
        words: &str,
        within: &FolderFilter,
        limit: usize,
    ) -> Result<Vec<SearchHit>, StoreError>;

    fn recall(&mut self, view: &SessionView, query: &RecallQuery, now: u64) -> Result<RecallResults, StoreError>;

    fn messages(
        &mut self,
        view: &SessionView,
        id: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError>;

    fn common_terms(&mut self, view: &SessionView, terms: &TermQuery) -> Result<TermStats, StoreError>;

    fn state(&mut self, view: &SessionView, id: &str) -> Result<Vec<StateEntry>, StoreError>;

    fn find_uuid(&mut self, view: &SessionView, uuid: &str) -> Result<Option<String>, StoreError>;

    fn usage(&mut self, view: &SessionView, key: &UsageKey) -> Result<UsageRow, StoreError>;

    fn spending(&mut self, view: &SessionView, id: &str, since: u64) -> Result<Vec<SpentAmount>, StoreError>;

    fn principals(&mut self, view: &SessionView) -> Result<Vec<String>, StoreError>;

    fn audit_entries(&mut self, view: &SessionView, filter: &AuditFilter) -> Result<Vec<AuditEntry>, StoreError>;

    fn audit_names(&mut self, view: &SessionView) -> Result<Vec<(String, String)>, StoreError>;

    fn verify_audit(&mut self) -> Result<ChainReport, StoreError>;

    fn audit_sessions(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError>;
}
