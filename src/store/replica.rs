//! Keeps the place of this process among the replicas that share a store: joins, sends heartbeats, claims sessions.
//!
//! Invariant: a replica that may have expired owns nothing. If no heartbeat succeeds before the expiry, counted from when
//! the last one was sent, the process ends its claims and joins again under another id.

mod claims;
mod files_marker;

pub use files_marker::FilesMarker;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use subtle::ConstantTimeEq as _;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::database::{Database, PROGRAM, migration_failure, unusable};
use super::database_migrator::{MigrationError, check_joining};
use super::ownership::{OwnedSession, ReplicaId, SessionOwner};
use super::{StoreAddress, StoreError};
use crate::clock::since_boot;
use claims::ClaimAnswer;

/// How long before its expiry a replica starts no more work.
const WORK_MARGIN: Duration = Duration::from_secs(3);
/// Heartbeats within one expiry.
const BEATS_PER_EXPIRY: u32 = 3;
/// The pause after a heartbeat that failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often the process compares its expiry with the time.
const EXPIRY_POLL: Duration = Duration::from_millis(100);
/// How long the database may take for a claim.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Look-ups of other replicas at once, each with its own connection.
const MAX_LOOK_UPS: usize = 2;

const JOIN: &str = "INSERT INTO replica (id, address, secret, files, is_shared, program, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + make_interval(secs => $7))";
const BEAT: &str = "UPDATE replica SET expires_at = clock_timestamp() + make_interval(secs => $2)
    WHERE id = $1 AND NOT is_dead";
const ALIVE: &str = "SELECT 1 FROM replica WHERE id = $1 AND NOT is_dead AND expires_at > clock_timestamp()";
const PEERS: &str = "SELECT id, address, secret FROM replica WHERE id <> $1 AND address IS NOT NULL AND NOT is_dead
    AND expires_at > clock_timestamp() ORDER BY id";
const LEAVE: &str = "UPDATE replica SET is_dead = TRUE WHERE id = $1";
/// Rows of replicas that nothing refers to for long.
const SWEEP: &str = "DELETE FROM replica r WHERE r.expires_at < clock_timestamp() - interval '1 day'
    AND NOT EXISTS (SELECT 1 FROM ownership o WHERE o.replica = r.id)";
const SWEEP_WRITERS: &str = "DELETE FROM writer WHERE at < clock_timestamp() - interval '30 days'";
/// The oldest replica that uses another folder, if one of both folders is meant for all replicas.
const OTHER_FOLDER: &str = "SELECT r.id FROM replica r JOIN replica own ON own.id = $1
    WHERE r.id <> own.id AND NOT r.is_dead AND r.expires_at > clock_timestamp()
        AND r.files <> own.files AND (r.is_shared OR own.is_shared)
        AND (r.started_at, r.id) < (own.started_at, own.id)
    ORDER BY r.started_at, r.id LIMIT 1";

/// What other replicas know about a process.
#[derive(Debug, Clone)]
pub struct ReplicaSettings {
    /// Where other replicas reach this one. `None`: it takes no requests of others.
    pub address: Option<SocketAddr>,
    pub files: FilesMarker,
    /// How long after the last heartbeat another replica may take over.
    pub expiry: Duration,
}

/// Another replica that owns a session.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplicaPeer {
    pub id: ReplicaId,
    /// `None`: it takes no requests of others.
    pub address: Option<SocketAddr>,
    /// What it requires of other replicas.
    pub secret: String,
}

/// The secret stays out of logs.
impl std::fmt::Debug for ReplicaPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicaPeer").field("id", &self.id).field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why this replica must get no clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadinessError {
    #[error("the store does not answer")]
    Overdue,
    #[error("replica {replica} uses another folder than `{folder}`; start all replicas with the same --shared-dir")]
    OtherFolder { replica: String, folder: String },
    #[error("the folder `{folder}` cannot be used: {problem}")]
    NoFolder { folder: String, problem: String },
}

/// The place of this process among the replicas. Clones share it.
#[derive(Clone)]
pub struct Replica {
    shared: Arc<ReplicaShared>,
}

/// The secret stays out of logs.
impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("id", &self.id()).finish_non_exhaustive()
    }
}

struct ReplicaShared {
    address: Arc<StoreAddress>,
    settings: ReplicaSettings,
    secret: String,
    membership: Mutex<Arc<Membership>>,
    /// Connections that are not in use: one for heartbeats, one for claims. A request that takes too long keeps its own.
    beat_link: Mutex<Option<Database>>,
    claim_link: Mutex<Option<Database>>,
    /// Limits the connections that look for other replicas: each client of another replica does so.
    look_ups: Semaphore,
    /// Another replica with another folder, as of the last heartbeat.
    other_folder: Mutex<Option<String>>,
}

/// One place among the replicas. It ends when the process may have expired.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) id: ReplicaId,
    /// Until when the replica may start work, as boot time.
    deadline: watch::Sender<Duration>,
    /// Cancelled when the claims of this place may be void.
    pub(super) ended: CancellationToken,
}

impl Membership {
    fn new(id: ReplicaId, deadline: Duration) -> Arc<Self> {
        Arc::new(Self { id, deadline: watch::Sender::new(deadline), ended: CancellationToken::new() })
    }

    /// Waits until the replica may start work. Fails if `owned` is lost first.
    pub(super) async fn admit_work(&self, owned: &OwnedSession) -> Result<(), StoreError> {
        let mut deadline = self.deadline.subscribe();
        loop {
            owned.check()?;
            if since_boot() < *deadline.borrow_and_update() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = owned.lost.cancelled() => {}
                // The sender lives as long as `self`.
                changed = deadline.changed() => if changed.is_err() {
                    return Err(StoreError::Taken { id: owned.session.clone() });
                },
            }
        }
    }

    fn is_overdue(&self) -> bool {
        since_boot() >= *self.deadline.borrow()
    }
}

/// A claim that succeeded.
#[derive(Debug)]
pub(super) struct ClaimedSession {
    pub(super) owned: Arc<OwnedSession>,
    pub(super) membership: Arc<Membership>,
}

impl Replica {
    /// Joins the replicas of a store. It may wait for the network. Fails if the database cannot be used.
    pub fn join(address: &Arc<StoreAddress>, settings: ReplicaSettings) -> Result<Self, StoreError> {
        let mut random = [0_u8; 32];
        getrandom::fill(&mut random)
            .map_err(|error| unusable(address, format!("the system gives no random numbers: {error}")))?;
        let secret: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (id, sent) = (ReplicaId::random(), since_boot());
        let mut link = Database::open(address)?;
        // The caller may run async tasks.
        let joined = std::thread::scope(|scope| {
            let join = || insert(&mut link, &id, None, &settings, &secret);
            scope.spawn(join).join()
        });
        joined.map_err(|_| unusable(address, "joining its replicas broke off".to_owned()))??;
        let membership = Membership::new(id, deadline(sent, settings.expiry));
        let shared = ReplicaShared {
            address: Arc::clone(address),
            settings,
            secret,
            membership: Mutex::new(membership),
            beat_link: Mutex::new(Some(link)),
            claim_link: Mutex::default(),
            look_ups: Semaphore::new(MAX_LOOK_UPS),
            other_folder: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn id(&self) -> ReplicaId {
        self.membership().id.clone()
    }

    /// Returns whether another replica has shown the secret.
    pub fn admits(&self, secret: &str) -> bool {
        self.shared.secret.as_bytes().ct_eq(secret.as_bytes()).into()
    }

    pub fn expiry(&self) -> Duration {
        self.shared.settings.expiry
    }

    pub(super) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&lock(&self.shared.membership))
    }

    /// Returns a token that is cancelled when this process loses its place, and all its claims with it.
    pub fn end_signal(&self) -> CancellationToken {
        self.membership().ended.clone()
    }

    /// Fails with the reason if clients must not be sent to this replica.
    pub fn check_readiness(&self) -> Result<(), ReadinessError> {
        let membership = self.membership();
        if membership.ended.is_cancelled() || membership.is_overdue() {
            return Err(ReadinessError::Overdue);
        }
        let files = &self.shared.settings.files;
        let folder = files.folder.display().to_string();
        if let Err(error) = files.check() {
            return Err(ReadinessError::NoFolder { folder, problem: error.to_string() });
        }
        match lock(&self.shared.other_folder).clone() {
            Some(replica) => Err(ReadinessError::OtherFolder { replica, folder }),
            None => Ok(()),
        }
    }

    /// Sends heartbeats until `stop` is cancelled, and ends the claims of this process when it has expired.
    pub async fn run(&self, stop: &CancellationToken) {
        tokio::join!(self.send_beats(stop), self.watch_expiry(stop));
    }

    /// Notices the expiry also while a heartbeat waits for its answer, and after the process was paused.
    async fn watch_expiry(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EXPIRY_POLL) => self.end_if_expired(),
            }
        }
    }

    async fn send_beats(&self, stop: &CancellationToken) {
        let interval = self.expiry() / BEATS_PER_EXPIRY;
        // The first one is sent at once: the start may have taken long, and it looks for replicas with another folder.
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = match self.beat().await {
                Ok(()) => interval,
                Err(error) => {
                    tracing::warn!(%error, replica = %self.id(), "the heartbeat failed");
                    RETRY_DELAY.min(interval)
                }
            };
        }
    }

    /// Sends one heartbeat. If this process has expired, or another replica has declared it dead, it ends its claims and
    /// joins again.
    /// Fails if the database does not answer.
    pub async fn beat(&self) -> Result<(), StoreError> {
        self.end_if_expired();
        let membership = self.membership();
        if membership.ended.is_cancelled() {
            return self.rejoin().await;
        }
        let (id, expiry, sent) = (membership.id.clone(), self.expiry(), since_boot());
        let work = move |link: &mut Database| {
            link.write(|queries| {
                let beaten = queries.execute(BEAT, &[&id.as_str(), &expiry.as_secs_f64()])?;
                queries.execute(SWEEP, &[])?;
                queries.execute(SWEEP_WRITERS, &[])?;
                let other = queries.query_opt(OTHER_FOLDER, &[&id.as_str()])?;
                Ok((beaten == 1, other.map(|row| row.get::<_, String>(0))))
            })
        };
        let limit = self.expiry() / BEATS_PER_EXPIRY;
        let (is_alive, other) = match self.on_link(&self.shared.beat_link, limit, work).await {
            Ok(beaten) => beaten,
            Err(error) => {
                self.end_if_expired();
                return Err(error);
            }
        };
        if !is_alive {
            tracing::warn!(replica = %membership.id, "another replica has declared this one dead");
            membership.ended.cancel();
            return self.rejoin().await;
        }
        *lock(&self.shared.other_folder) = other;
        membership.deadline.send_replace(deadline(sent, expiry));
        self.end_if_expired();
        Ok(())
    }

    /// Ends the claims if the last heartbeat was sent so long ago that others may have taken over.
    fn end_if_expired(&self) {
        let membership = self.membership();
        let expiry = *membership.deadline.borrow() + margin(self.expiry());
        if since_boot() >= expiry && !membership.ended.is_cancelled() {
            tracing::warn!(replica = %membership.id, "no heartbeat reached the store in time; the sessions are given up");
            membership.ended.cancel();
        }
    }

    async fn rejoin(&self) -> Result<(), StoreError> {
        let (id, sent) = (ReplicaId::random(), since_boot());
        let (settings, secret, new) = (self.shared.settings.clone(), self.shared.secret.clone(), id.clone());
        let earlier = self.id();
        let work = move |link: &mut Database| insert(link, &new, Some(&earlier), &settings, &secret);
        self.on_link(&self.shared.beat_link, CLAIM_TIMEOUT.min(self.expiry()), work).await?;
        tracing::info!(replica = %id, "the server has joined the replicas again");
        *lock(&self.shared.membership) = Membership::new(id, deadline(sent, self.expiry()));
        Ok(())
    }

    /// Gives up the place, so that others need not wait for the expiry. The caller has stored everything.
    pub async fn leave(&self) {
        let membership = self.membership();
        membership.ended.cancel();
        let id = membership.id.clone();
        let work = move |link: &mut Database| link.write(|queries| queries.execute(LEAVE, &[&id.as_str()]));
        if let Err(error) = self.on_link(&self.shared.beat_link, RETRY_DELAY * 5, work).await {
            tracing::warn!(%error, "other replicas wait for the expiry of this one");
        }
    }

    /// Returns whether another replica is alive, as the database knows it.
    pub async fn is_alive(&self, replica: &ReplicaId) -> Result<bool, StoreError> {
        let _turn = self.shared.look_ups.acquire().await;
        let id = replica.clone();
        let work = move |link: &mut Database| link.read(|queries| queries.query_opt(ALIVE, &[&id.as_str()]));
        self.on_link(&self.shared.claim_link, CLAIM_TIMEOUT, work).await.map(|row| row.is_some())
    }

    /// Returns the other replicas that are alive and take requests.
    pub async fn peers(&self) -> Result<Vec<ReplicaPeer>, StoreError> {
        let _turn = self.shared.look_ups.acquire().await;
        let id = self.id();
        let work = move |link: &mut Database| link.read(|queries| queries.query(PEERS, &[&id.as_str()]));
        let rows = self.on_link(&self.shared.claim_link, CLAIM_TIMEOUT, work).await?;
        let peer = |row: &postgres::Row| {
            let address: String = row.get(1);
            let address = address.parse().ok();
            ReplicaPeer { id: ReplicaId::from(row.get::<_, String>(0)), address, secret: row.get(2) }
        };
        Ok(rows.iter().map(peer).collect())
    }

    /// Claims a session that no live replica owns. Returns the owner if there is one. Fails if this process has no place
    /// among the replicas, or cannot reach the files of the session.
    pub(super) async fn claim(&self, session: &str) -> Result<Result<ClaimedSession, ReplicaPeer>, StoreError> {
        let membership = self.membership();
        let no_place = || StoreError::NoReplica { address: self.shared.address.to_string() };
        if membership.ended.is_cancelled() {
            return Err(no_place());
        }
        let (id, own) = (session.to_owned(), membership.id.clone());
        let work = move |link: &mut Database| link.write(|queries| claims::claim(queries, &id, &own));
        let answer = self.on_link(&self.shared.claim_link, CLAIM_TIMEOUT, work).await?;
        match answer {
            ClaimAnswer::Owned { epoch } => {
                let owner = SessionOwner { replica: membership.id.clone(), epoch };
                let lost = membership.ended.child_token();
                let owned = Arc::new(OwnedSession { session: session.to_owned(), owner, lost });
                Ok(Ok(ClaimedSession { owned, membership }))
            }
            ClaimAnswer::Elsewhere(peer) => Ok(Err(peer)),
            ClaimAnswer::OtherFiles { replica } => Err(StoreError::FilesElsewhere { replica }),
            ClaimAnswer::NoSession => Err(StoreError::Gone { id: session.to_owned() }),
            ClaimAnswer::NoReplica => {
                membership.ended.cancel();
                Err(no_place())
            }
        }
    }

    /// Returns the first claim of a session that does not exist yet. The job that creates the session writes it.
    pub(super) fn first_claim(&self, session: &str) -> Result<ClaimedSession, StoreError> {
        let membership = self.membership();
        if membership.ended.is_cancelled() {
            return Err(StoreError::NoReplica { address: self.shared.address.to_string() });
        }
        let owner = SessionOwner { replica: membership.id.clone(), epoch: 1 };
        let lost = membership.ended.child_token();
        let owned = Arc::new(OwnedSession { session: session.to_owned(), owner, lost });
        Ok(ClaimedSession { owned, membership })
    }

    /// Runs `work` with a free connection, for at most `limit`. A connection that takes longer is not used again.
    async fn on_link<T: Send + 'static>(
        &self,
        link: &Mutex<Option<Database>>,
        limit: Duration,
        work: impl FnOnce(&mut Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let free = lock(link).take();
        let mut database = free.unwrap_or_else(|| Database::new(&self.shared.address));
        let done = crate::task::run_blocking(move || {
            let result = work(&mut database);
            (database, result)
        });
        match tokio::time::timeout(limit, done).await {
            Ok(Ok((database, result))) => {
                *lock(link) = Some(database);
                result
            }
            Ok(Err(error)) => Err(unusable(&self.shared.address, format!("a request broke off: {error}"))),
            Err(_) => Err(unusable(&self.shared.address, format!("no answer within {} s", limit.as_secs_f64()))),
        }
    }
}

/// Joins as `id`. The earlier place of this process ends with it: a late heartbeat may have renewed it, and others would
/// take this process for its owner.
fn insert(
    link: &mut Database,
    id: &ReplicaId,
    earlier: Option<&ReplicaId>,
    settings: &ReplicaSettings,
    secret: &str,
) -> Result<(), StoreError> {
    let address = settings.address.map(|address| address.to_string());
    let (files, is_shared) = (&settings.files.id, settings.files.is_shared);
    let expiry = settings.expiry.as_secs_f64();
    let joined = link.write(|queries| match check_joining(queries.client, PROGRAM) {
        Ok(()) => {
            if let Some(earlier) = earlier {
                queries.execute(LEAVE, &[&earlier.as_str()])?;
            }
            let values: [&(dyn postgres::types::ToSql + Sync); 7] =
                [&id.as_str(), &address, &secret, files, &is_shared, &PROGRAM, &expiry];
            queries.execute(JOIN, &values).map(|_| Ok(()))
        }
        Err(MigrationError::Query(error)) => Err(error),
        Err(refusal) => Ok(Err(refusal)),
    })?;
    joined.map_err(|refusal| migration_failure(link.address(), refusal))
}

/// How long before the expiry no work starts. Short expiries, as in tests, have a short margin.
fn margin(expiry: Duration) -> Duration {
    WORK_MARGIN.min(expiry / 5)
}

fn deadline(sent: Duration, expiry: Duration) -> Duration {
    sent + expiry - margin(expiry)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(membership: &Membership) -> OwnedSession {
        let owner = SessionOwner { replica: membership.id.clone(), epoch: 1 };
        OwnedSession { session: "s1".to_owned(), owner, lost: membership.ended.child_token() }
    }

    #[tokio::test]
    async fn work_waits_for_a_heartbeat_and_ends_with_the_place() {
        let membership = Membership::new(ReplicaId::random(), since_boot() + Duration::from_secs(60));
        let session = owned(&membership);
        membership.admit_work(&session).await.unwrap();
        membership.deadline.send_replace(Duration::ZERO);
        let waited = tokio::time::timeout(Duration::from_millis(50), membership.admit_work(&session)).await;
        assert!(waited.is_err(), "after the deadline, work waits");
        let (admitted, ()) = tokio::join!(membership.admit_work(&session), async {
            membership.deadline.send_replace(since_boot() + Duration::from_secs(60));
        });
        admitted.unwrap();
        membership.deadline.send_replace(Duration::ZERO);
        let (admitted, ()) = tokio::join!(membership.admit_work(&session), async { membership.ended.cancel() });
        assert!(matches!(admitted, Err(StoreError::Taken { .. })));
    }

    #[test]
    fn a_replica_stops_three_seconds_before_its_expiry() {
        let expiry = Duration::from_secs(15);
        assert_eq!(deadline(Duration::from_secs(100), expiry), Duration::from_secs(112));
        assert_eq!(margin(Duration::from_secs(2)), Duration::from_millis(400));
    }
}
