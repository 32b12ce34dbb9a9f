//! Claims sessions for this process, and gives them back when nothing uses them any more. With files as a store, every
//! process may write, and a claim does nothing.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use super::job::{Job, Work};
use super::{NewSession, SessionStore, Shared, id};
use crate::principal::Principal;
use crate::store::ownership::{OwnedSession, SessionOwner};
use crate::store::replica::{ClaimedSession, Membership};
use crate::store::{Replica, ReplicaPeer, StoreError};

/// The claims of this process, by the top-level session.
pub(super) type ClaimTable = tokio::sync::Mutex<HashMap<String, Weak<OwnerHandle>>>;

/// Keeps a session with this process. Dropping the last handle gives the session back, after its queued writes.
pub struct OwnerHandle {
    shared: Arc<Shared>,
    principal: Principal,
    pub(super) owned: Arc<OwnedSession>,
    membership: Arc<Membership>,
    /// Whether what the last owner left is repaired.
    settled: tokio::sync::Mutex<bool>,
}

impl OwnerHandle {
    pub fn owner(&self) -> &SessionOwner {
        &self.owned.owner
    }

    /// Returns a token that is cancelled when another replica may have the session.
    pub fn end_signal(&self) -> &CancellationToken {
        &self.owned.lost
    }

    /// Locks the repair of what the last owner left. The value is true once it is done.
    pub async fn settle(&self) -> tokio::sync::MutexGuard<'_, bool> {
        self.settled.lock().await
    }

    /// Fails if another replica may have the session.
    pub fn check(&self) -> Result<(), StoreError> {
        self.owned.check()
    }

    /// Waits until this process may start a model request or a call for the session. Fails if another replica may have
    /// the session.
    pub async fn admit_work(&self) -> Result<(), StoreError> {
        self.membership.admit_work(&self.owned).await
    }
}

impl Drop for OwnerHandle {
    fn drop(&mut self) {
        self.shared.queue_release(&self.principal, &self.owned);
    }
}

impl std::fmt::Debug for OwnerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnerHandle").field("owned", &self.owned).finish_non_exhaustive()
    }
}

/// The outcome of a claim.
#[derive(Debug)]
pub enum SessionClaim {
    /// This process may write the session, through this store.
    Own(SessionStore),
    /// Another replica has the session.
    Elsewhere(ReplicaPeer),
}

impl Shared {
    /// Queues a job, in order with all others. Wakes the writer if the caller waits for it.
    pub(super) fn queue(&self, job: Job) {
        self.pending.add(job.size());
        let (session, waits) = (job.session.clone(), job.reply.is_some());
        let is_sent = self.queue.as_ref().is_some_and(|queue| queue.send(job).is_ok());
        if !is_sent {
            tracing::error!(session, "the writer of sessions is gone");
        } else if waits {
            self.wake_writer();
        }
    }

    /// Ends the pause in which the writer collects jobs.
    pub(super) fn wake_writer(&self) {
        if let Some(writer) = &self.writer {
            writer.thread().unpark();
        }
    }

    fn queue_release(&self, principal: &Principal, owned: &Arc<OwnedSession>) {
        self.queue(Job {
            serial: 0,
            owner: Some(Arc::clone(owned)),
            principal: principal.clone(),
            session: owned.session.clone(),
            at: id::now(),
            work: Work::Release,
            reply: None,
        });
    }
}

impl SessionStore {
    /// Returns the place of this process among the replicas. `None` if the store is not shared.
    pub fn replica(&self) -> Option<&Replica> {
        self.shared.replica.as_ref()
    }

    /// Returns the claim with which this handle writes. `None` if it has none, or needs none.
    pub fn ownership(&self) -> Option<&Arc<OwnerHandle>> {
        self.owner.as_ref()
    }

    /// Claims a session, or shares the claim that this process has already. Fails if the handle admits no such session,
    /// or its files are elsewhere.
    pub async fn claim(&self, id: &str) -> Result<SessionClaim, StoreError> {
        let Some(replica) = &self.shared.replica else { return Ok(SessionClaim::Own(self.clone())) };
        // Also waits for earlier writes of this process, which must not come after the claim.
        let stored = self.find(id).await?.ok_or_else(|| StoreError::Gone { id: id.to_owned() })?;
        let top = stored.parent.unwrap_or(stored.id);
        let mut claims = self.shared.claims.lock().await;
        claims.retain(|_, handle| handle.strong_count() > 0);
        let known = claims.get(&top).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.check().is_ok()) {
            return Ok(SessionClaim::Own(self.with_owner(known)));
        }
        match replica.claim(&top).await? {
            Ok(claimed) => {
                let handle = self.handle(claimed, false);
                claims.insert(top, Arc::downgrade(&handle));
                Ok(SessionClaim::Own(self.with_owner(handle)))
            }
            Err(peer) => Ok(SessionClaim::Elsewhere(peer)),
        }
    }

    /// Creates a session that this process owns. Returns its id, and the store through which it is written.
    pub async fn create_owned(&self, new: NewSession) -> Result<(String, Self), StoreError> {
        let replica = match &self.shared.replica {
            Some(replica) if new.parent.is_none() => replica,
            // A child session belongs to the owner of its parent.
            _ => return Ok((self.create(new).await?, self.clone())),
        };
        let id = id::new(id::now())?;
        let handle = self.handle(replica.first_claim(&id)?, true);
        self.shared.claims.lock().await.insert(id.clone(), Arc::downgrade(&handle));
        let store = self.with_owner(handle);
        // Other replicas must be able to load it at once.
        store.ask(&id, Work::Create(Box::new(new))).await?;
        Ok((id, store))
    }

    fn handle(&self, claimed: ClaimedSession, settled: bool) -> Arc<OwnerHandle> {
        let ClaimedSession { owned, membership } = claimed;
        let (shared, principal) = (Arc::clone(&self.shared), self.principal().clone());
        Arc::new(OwnerHandle { shared, principal, owned, membership, settled: tokio::sync::Mutex::new(settled) })
    }

    fn with_owner(&self, owner: Arc<OwnerHandle>) -> Self {
        Self { owner: Some(owner), ..self.clone() }
    }
}
