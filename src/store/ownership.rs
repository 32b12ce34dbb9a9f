//! Says which replica may write a session. Each claim of a session has a higher epoch than the one before, and every write
//! carries the epoch of its claim. So a replica that was paused or cut off cannot write after another one took over.
//!
//! Invariant: PostgreSQL decides who owns a session, by its own clock. Nothing here compares clocks of two machines.

use std::fmt;

use tokio_util::sync::CancellationToken;

use super::StoreError;

/// Names a replica: one process that shares the store. A process that lost its place gets another id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(String);

impl ReplicaId {
    pub(super) fn random() -> Self {
        Self(crate::ids::random_id("replica"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ReplicaId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The replica that may run and write a session, and the number of its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOwner {
    pub replica: ReplicaId,
    /// From 1, and higher with each claim.
    pub epoch: u64,
}

/// A claim of this process on a session. Queued writes refer to it.
#[derive(Debug)]
pub(super) struct OwnedSession {
    /// The top-level session. Its owner owns the child sessions too.
    pub(super) session: String,
    pub(super) owner: SessionOwner,
    /// Cancelled when the session belongs to another replica, or may do so.
    pub(super) lost: CancellationToken,
}

impl OwnedSession {
    /// Fails if another replica may have taken over the session.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.lost.is_cancelled() {
            true => Err(StoreError::Taken { id: self.session.clone() }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_claim_says_that_the_turn_was_interrupted() {
        let owner = SessionOwner { replica: ReplicaId::random(), epoch: 3 };
        let owned = OwnedSession { session: "s1".to_owned(), owner, lost: CancellationToken::new() };
        owned.check().unwrap();
        owned.lost.cancel();
        let refused = owned.check().unwrap_err().to_string();
        assert!(refused.contains("turn interrupted") && refused.contains("s1"), "{refused}");
    }
}
