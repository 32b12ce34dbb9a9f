//! Keeps sessions in memory until their first event. Front ends open sessions that the user never uses.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{NewSession, SessionChange, StoredSession, UsageTotals};
use crate::principal::Principal;

/// The sessions of this process that have no event yet. A principal reaches only its own.
#[derive(Debug, Default)]
pub(super) struct UnusedSessions(Mutex<HashMap<String, UnusedSession>>);

#[derive(Debug)]
struct UnusedSession {
    principal: Principal,
    new: NewSession,
    created_at: u64,
}

impl UnusedSessions {
    pub(super) fn add(&self, principal: &Principal, id: &str, new: NewSession, created_at: u64) {
        self.lock().insert(id.to_owned(), UnusedSession { principal: principal.clone(), new, created_at });
    }

    /// Removes and returns the session, to store it. `None` if it is stored already or does not exist.
    pub(super) fn take(&self, principal: &Principal, id: &str) -> Option<NewSession> {
        let mut unused = self.lock();
        unused.get(id).filter(|unused| unused.principal == *principal)?;
        unused.remove(id).map(|unused| unused.new)
    }

    pub(super) fn contains(&self, principal: &Principal, id: &str) -> bool {
        self.lock().get(id).is_some_and(|unused| unused.principal == *principal)
    }

    pub(super) fn find(&self, principal: &Principal, id: &str) -> Option<StoredSession> {
        let unused = self.lock();
        let UnusedSession { new, created_at, .. } = unused.get(id).filter(|unused| unused.principal == *principal)?;
        let new = new.clone();
        Some(StoredSession {
            id: id.to_owned(),
            title: None,
            cwd: new.cwd,
            roots: new.roots,
            agent: new.agent,
            mode: new.mode,
            model: new.model,
            approval: new.approval,
            parent: new.parent,
            files: new.files,
            created_at: *created_at,
            updated_at: *created_at,
            spent: UsageTotals::default(),
            events: 0,
        })
    }

    /// Applies a change of settings. Returns false if the session must be stored for the change.
    pub(super) fn change(&self, principal: &Principal, id: &str, change: &SessionChange) -> bool {
        let mut unused = self.lock();
        let of_principal = unused.get_mut(id).filter(|unused| unused.principal == *principal);
        let Some(UnusedSession { new, .. }) = of_principal else { return false };
        if change.title.is_some() || change.spent.is_some() {
            return false;
        }
        let settings =
            [(&mut new.agent, &change.agent), (&mut new.mode, &change.mode), (&mut new.model, &change.model)];
        for (setting, value) in settings {
            if let Some(value) = value {
                setting.clone_from(value);
            }
        }
        new.approval = change.approval.clone().or(new.approval.take());
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, UnusedSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
