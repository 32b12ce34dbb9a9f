//! Stores sessions as events, in a file or a database that several processes may use at once.
//!
//! An event has a kind, a JSON body that only its writer understands, and the text by which a search finds it. Only
//! `recall` reads bodies: for the author of a message, and for the point up to which a user undid the session. State
//! that services keep for a session is stored as entries, which are replaced and removed.
//!
//! **One writer.** A separate thread writes the queued jobs in as few transactions as possible, so appending never
//! blocks. Events that cannot be written for a transient reason (a full disk, a file locked by another process) stay
//! queued until the next write.
//!
//! **NORMAL and FULL.** With a write-ahead log, a commit at `synchronous=NORMAL` survives the end of the process, even
//! `kill -9`, because the kernel already has the bytes. Only a power failure can lose it. At `FULL`, SQLite syncs the
//! log, which takes milliseconds on a disk. So the many commits during a turn are NORMAL, and the one that `flush`
//! waits for at the end of the turn is FULL. `flush` increments a counter in the session's row, so it writes even if
//! nothing else is queued. Syncing the log once makes every earlier commit durable as well.
//!
//! **Reading** uses a separate connection, so that a long search delays no turn. A read first waits for the queued jobs,
//! so it sees everything this process queued before it. It does not wait for a sync.
//!
//! Invariant: appending never waits, and events for which `flush` has returned are on disk.

mod audit;
mod audit_access;
mod backend;
mod claims;
mod deletion;
mod event_ranks;
mod file_backend;
mod folder_use;
mod follower;
mod id;
mod job;
mod leases;
mod open_list;
mod opening;
mod pending_jobs;
mod query;
mod read;
mod recall;
mod schema;
mod sealed_backend;
pub(super) mod search_terms;
mod session_in_use;
mod shared_audit;
mod shared_owners;
mod shared_reads;
mod shared_search;
mod shared_view;
mod shared_writes;
mod spending_rows;
mod state;
mod transcript;
mod unused_sessions;
mod usage_access;
mod usage_rows;
mod view;
mod writer;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use serde::Serialize;
use tokio::sync::oneshot;

pub use audit::{AuditEntry, AuditFilter, AuditFinding, AuditProblem, ChainReport, NewAuditEntry};
pub use claims::{OwnerHandle, SessionClaim};
pub use follower::EventFollower;
pub(super) use id::{is_plain, now as current_time};
pub use leases::SessionLease;
pub(super) use leases::{LEASE_TIME, MAX_LEASE_LEFT};
pub(super) use open_list::list_open;
pub use recall::{COUNTED, RecallMatch, RecallQuery, RecallResults, StoredMessage, TermStats, TermWeights};
pub(super) use schema::SCHEMA;
pub(super) use sealed_backend::{open_body, seal_body};
pub(super) use shared_writes::EventFacts;
pub use spending_rows::SpentAmount;
pub use state::StateEntry;
pub use usage_rows::{UsageKey, UsageRow};

use super::{Replica, StoreError};
use crate::principal::{Principal, SessionFiles, SessionGrant};
use backend::{SessionReads, TermQuery};
use job::{Job, Work};
use leases::SessionLeases;
use pending_jobs::PendingJobs;
use query::QueryRunner;
use unused_sessions::UnusedSessions;
use view::SessionView;

/// The age in milliseconds after which a session without events is deleted.
const EMPTY_FOR: u64 = 7 * 24 * 60 * 60 * 1_000;

/// A session to create. Folders are stored as text; bytes that are not UTF-8 become `�`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    pub cwd: PathBuf,
    pub roots: Vec<PathBuf>,
    pub agent: String,
    pub mode: String,
    pub model: String,
    pub approval: Option<String>,
    pub parent: Option<String>,
    pub files: SessionFiles,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub kind: Cow<'static, str>,
    /// JSON, stored and returned unchanged.
    pub body: String,
    /// The text by which a search finds the event. `None` excludes it from searches.
    pub text: Option<String>,
}

/// A change to a session. A field that is `None` keeps its value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionChange {
    pub title: Option<String>,
    pub agent: Option<String>,
    pub mode: Option<String>,
    pub model: Option<String>,
    pub approval: Option<String>,
    /// Added to the stored totals.
    pub spent: Option<UsageTotals>,
}

/// Tokens and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct UsageTotals {
    pub input: u64,
    pub output: u64,
    /// The part of the input that was cached.
    pub cached: u64,
    /// `None` if the cost is unknown.
    pub cost: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredSession {
    pub id: String,
    pub title: Option<String>,
    pub cwd: PathBuf,
    pub roots: Vec<PathBuf>,
    pub agent: String,
    pub mode: String,
    pub model: String,
    pub approval: Option<String>,
    /// The id of the parent session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip)]
    pub files: SessionFiles,
    /// Milliseconds since 1970, like all times here.
    pub created_at: u64,
    pub updated_at: u64,
    #[serde(flatten)]
    pub spent: UsageTotals,
    pub events: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Starts at 1, without gaps.
    pub seq: u64,
    pub at: u64,
    pub kind: String,
    pub body: String,
}

/// Selects sessions by their working folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FolderFilter {
    #[default]
    Anywhere,
    /// Exactly this folder.
    Folder(PathBuf),
    /// This folder and everything below it.
    Below(PathBuf),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    pub within: FolderFilter,
    /// Lists the child sessions of this session; `None` lists the sessions without a parent.
    pub parent: Option<String>,
    /// Lists only sessions in this mode, as `agent/mode`, or of this agent, as `agent/*`.
    pub mode: Option<String>,
    /// The end of the previous page.
    pub after: Option<Cursor>,
    pub limit: Option<usize>,
}

/// A position in the list that stays valid when sessions are added or deleted. A changed session moves to the top, and
/// so out of the pages still to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub updated_at: u64,
    pub id: String,
}

impl From<&StoredSession> for Cursor {
    fn from(last: &StoredSession) -> Self {
        Self { updated_at: last.updated_at, id: last.id.clone() }
    }
}

/// An event that matches a search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SearchHit {
    pub session: String,
    pub title: Option<String>,
    pub cwd: PathBuf,
    pub seq: u64,
    pub at: u64,
    pub kind: String,
    /// The matched words with the text around them.
    pub snippet: String,
}

/// A handle to the sessions of one principal. Clones share one store; dropping the last one waits until everything is
/// written. For a handle, the sessions of other principals do not exist.
#[derive(Debug, Clone)]
pub struct SessionStore {
    shared: Arc<Shared>,
    view: Arc<SessionView>,
    /// The claim with which this handle writes. `None` if it only reads, or the store needs no claims.
    owner: Option<Arc<OwnerHandle>>,
}

#[derive(Debug)]
struct Shared {
    /// The file or the address.
    name: String,
    reader: Arc<QueryRunner>,
    queue: Option<mpsc::Sender<Job>>,
    pending: Arc<PendingJobs>,
    writer: Option<std::thread::JoinHandle<()>>,
    unused: UnusedSessions,
    /// The open sessions. The writer's thread reads them.
    leases: Arc<SessionLeases>,
    /// The place of this process among the replicas. `None` if the store is not shared.
    replica: Option<Replica>,
    claims: claims::ClaimTable,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The writer closes the file last and checkpoints it.
        self.reader.close();
        self.queue = None;
        self.wake_writer();
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!(store = self.name, "the writer of sessions broke off");
        }
    }
}

impl SessionStore {
    /// Returns a handle to the same store that sees what the grant admits.
    #[must_use]
    pub fn for_grant(&self, grant: &SessionGrant) -> Self {
        Self { shared: Arc::clone(&self.shared), view: Arc::new(SessionView::of(grant)), owner: None }
    }

    fn principal(&self) -> &Principal {
        self.view.principal()
    }

    /// Creates a session and returns its id. Ids are never reused. A session is stored with its first event; a child
    /// session is stored at once. Fails if its parent session has been deleted.
    pub async fn create(&self, new: NewSession) -> Result<String, StoreError> {
        let now = id::now();
        let id = id::new(now)?;
        match new.parent.clone() {
            Some(parent) => {
                self.store_unused(&parent);
                if !self.ask(&id, Work::Create(Box::new(new))).await? {
                    return Err(StoreError::Gone { id: parent });
                }
            }
            None => self.shared.unused.add(self.principal(), &id, new, now, &self.shared.leases),
        }
        Ok(id)
    }

    /// Queues the creation of a session that is only in memory.
    fn store_unused(&self, id: &str) {
        if let Some(new) = self.shared.unused.take(self.principal(), id) {
            self.queue(id, Work::Create(Box::new(new)), None);
        }
    }

    /// Queues an event after all others. `flush` reports whether it was written.
    pub fn append(&self, id: &str, event: NewEvent) {
        self.store_unused(id);
        self.queue(id, Work::Append(event), None);
    }

    /// Returns the bytes of queued events.
    pub fn backlog(&self) -> usize {
        self.shared.pending.bytes()
    }

    /// Queues a change, in order with the events.
    pub fn change(&self, id: &str, change: SessionChange) {
        if self.shared.unused.change(self.principal(), id, &change) {
            return;
        }
        self.store_unused(id);
        self.queue(id, Work::Change(Box::new(change)), None);
    }

    /// Queues an entry, in order with the events. It replaces an entry of the same owner and key.
    pub fn put_state(&self, id: &str, entry: StateEntry) {
        self.store_unused(id);
        self.queue(id, Work::PutState(entry), None);
    }

    /// Queues the removal of an entry.
    pub fn remove_state(&self, id: &str, owner: &str, key: &str) {
        if self.shared.unused.contains(self.principal(), id) {
            return;
        }
        self.queue(id, Work::RemoveState { owner: owner.to_owned(), key: key.to_owned() }, None);
    }

    /// Returns the entries of a session, sorted by owner and key.
    pub async fn state(&self, id: &str) -> Result<Vec<StateEntry>, StoreError> {
        let id = id.to_owned();
        self.read(move |reads, view| reads.state(view, &id)).await
    }

    /// Queues the UUID of a session, by which the REST API names it. A session has one at most.
    pub fn put_uuid(&self, id: &str, uuid: &str) {
        self.put_state(id, StateEntry { owner: state::UUID_OWNER.to_owned(), key: uuid.to_owned(), value: Vec::new() });
    }

    /// Returns the id of the session with this UUID. `None` if there is none.
    pub async fn find_uuid(&self, uuid: &str) -> Result<Option<String>, StoreError> {
        let uuid = uuid.to_owned();
        self.read(move |reads, view| reads.find_uuid(view, &uuid)).await
    }

    /// Waits until everything queued for this session is on disk. Fails if some of it could not be written.
    pub async fn flush(&self, id: &str) -> Result<(), StoreError> {
        if self.shared.unused.contains(self.principal(), id) {
            return Ok(());
        }
        self.ask(id, Work::Flush).await.map(drop)
    }

    pub async fn find(&self, id: &str) -> Result<Option<StoredSession>, StoreError> {
        if let Some(unused) = self.shared.unused.find(self.principal(), id) {
            return Ok(Some(unused).filter(|unused| self.view.admits(unused)));
        }
        let id = id.to_owned();
        self.read(move |reads, view| reads.find(view, &id)).await
    }

    /// Returns the events of a session in order.
    pub async fn events(&self, id: &str) -> Result<Vec<StoredEvent>, StoreError> {
        let id = id.to_owned();
        self.read(move |reads, view| reads.events(view, &id)).await
    }

    /// Lists the sessions that have a message, newest first.
    pub async fn list(&self, filter: ListFilter) -> Result<Vec<StoredSession>, StoreError> {
        self.read(move |reads, view| reads.list(view, &filter)).await
    }

    /// Returns a session, its parent, and the child sessions of either.
    pub async fn family(&self, id: &str) -> Result<Vec<String>, StoreError> {
        if self.shared.unused.contains(self.principal(), id) {
            return Ok(vec![id.to_owned()]);
        }
        let id = id.to_owned();
        self.read(move |reads, view| reads.family(view, &id)).await
    }

    /// Finds the events that contain all these words, best match first. The query has no special characters.
    pub async fn search(&self, words: &str, within: FolderFilter, limit: usize) -> Result<Vec<SearchHit>, StoreError> {
        let words = words.to_owned();
        self.read(move |reads, view| reads.search(view, &words, &within, limit)).await
    }

    /// Finds messages of earlier sessions, best match first, then newest. Without words, returns the newest message of
    /// each session.
    pub async fn recall(&self, recall: RecallQuery) -> Result<RecallResults, StoreError> {
        self.read(move |reads, view| reads.recall(view, &recall, id::now())).await
    }

    /// Returns the messages of a session that are not undone, in order, starting at event `from`.
    pub async fn messages(&self, id: &str, from: u64, limit: usize) -> Result<Vec<StoredMessage>, StoreError> {
        let id = id.to_owned();
        self.read(move |reads, view| reads.messages(view, &id, from, limit)).await
    }

    /// Returns at most `limit` messages that share the most terms with `words`. It examines a bounded number of
    /// messages. `within` may read the disk: it runs on the thread that reads. It must not own a store, which cannot be
    /// closed there.
    pub async fn common_terms(
        &self,
        words: Vec<String>,
        within: impl FnOnce() -> FolderFilter + Send + 'static,
        without: Vec<String>,
        weigh: TermWeights,
        limit: usize,
    ) -> Result<TermStats, StoreError> {
        let search = move |reads: &mut dyn SessionReads, view: &SessionView| {
            let terms = TermQuery { words, within: within(), without, weigh, limit };
            reads.common_terms(view, &terms)
        };
        self.read_as_it_is(search).await
    }

    /// Copies a session with its events and returns the new id. The copy's usage is zero. `None` if the session does
    /// not exist.
    pub async fn copy(&self, id: &str) -> Result<Option<String>, StoreError> {
        if !self.admits(id).await? {
            return Ok(None);
        }
        self.store_unused(id);
        let new = id::new(id::now())?;
        let found = self.ask(id, Work::Copy { new: new.clone() }).await?;
        Ok(found.then_some(new))
    }

    /// Returns whether a client of this handle may name the session. The writer itself compares only the principal.
    async fn admits(&self, id: &str) -> Result<bool, StoreError> {
        // A database would refuse the job as broken.
        if id.contains('\0') {
            return Ok(false);
        }
        Ok(self.view.is_whole() || self.find(id).await?.is_some())
    }

    /// Finds the session with this id or id prefix. Fails if several ids start with the prefix.
    pub async fn resolve(&self, prefix: &str) -> Result<Option<String>, StoreError> {
        let prefix = prefix.trim().to_ascii_lowercase();
        let beginning = prefix.clone();
        let candidates = self.read(move |reads, view| reads.beginning_with(view, &beginning)).await?;
        match candidates.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only.clone())),
            [first, ..] if *first == prefix => Ok(Some(prefix)),
            _ => Err(StoreError::Ambiguous { prefix, candidates }),
        }
    }

    fn queue(&self, id: &str, work: Work, reply: Option<job::WriteReply>) {
        let owner = self.owner.as_ref().map(|handle| Arc::clone(&handle.owned));
        let (principal, session, at) = (self.principal().clone(), id.to_owned(), id::now());
        self.shared.queue(Job { serial: 0, owner, principal, session, at, work, reply });
    }

    async fn ask(&self, id: &str, work: Work) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.queue(id, work, Some(reply));
        // Without a writer thread, the job was dropped, and its reply channel with it.
        answer.await.unwrap_or_else(|_| Err(self.unusable("its writer broke off; the log may tell why")))
    }

    fn unusable(&self, problem: &str) -> StoreError {
        StoreError::Unusable { file: self.shared.name.clone(), problem: problem.to_owned() }
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sessions_files_tests.rs"]
mod files_tests;

#[cfg(test)]
#[path = "sessions_state_tests.rs"]
mod state_tests;
