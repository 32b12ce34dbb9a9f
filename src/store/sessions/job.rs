//! A job of the writer: a change of one session, and who waits for it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::audit::NewAuditEntry;
use super::usage_rows::{UsageKey, UsageRow};
use super::{NewEvent, NewSession, SessionChange, StateEntry};
use crate::principal::Principal;
use crate::store::StoreError;
use crate::store::ownership::OwnedSession;

/// Receives whether the session exists.
pub(super) type WriteReply = oneshot::Sender<Result<bool, StoreError>>;

pub(super) struct Job {
    /// The place of the job among all jobs of this process, from 1. The writer assigns it.
    pub(super) serial: u64,
    /// The claim with which the job was queued. `None` if it has none.
    pub(super) owner: Option<Arc<OwnedSession>>,
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
    Audit(Box<NewAuditEntry>),
    Delete(DeletedChildren),
    Copy {
        new: String,
    },
    /// Marks the session as open, which keeps it from retention.
    Hold,
    /// Gives the session back, so that another replica can claim it.
    Release,
    Flush,
    /// Only replies, once everything before it is committed.
    Nothing,
}

/// The ids of the child sessions that a deletion removed. The writer's thread sets them before it replies.
#[derive(Debug, Clone, Default)]
pub(super) struct DeletedChildren(Arc<Mutex<Vec<String>>>);

impl DeletedChildren {
    /// Replaces the ids, because a transaction may be tried again.
    pub(super) fn set(&self, ids: Vec<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ids;
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Work {
    /// Returns true if the caller relies on it even after a power failure.
    pub(super) fn is_synced(&self) -> bool {
        matches!(self, Work::Flush | Work::Delete(_))
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
    pub(super) fn answer(self, answer: Result<bool, StoreError>) {
        if let Some(reply) = self.reply {
            reply.send(answer).unwrap_or_default();
        }
    }
}
