//! Keeps sessions in memory until their first event. Front ends open sessions that the user never uses.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::leases::SessionLeases;
use super::{NewSession, SessionChange, StoredSession, UsageTotals};
use crate::principal::Principal;

/// Maximum number of sessions that are kept, not counting open ones.
pub(super) const MAX_UNUSED: usize = 1_000;

/// The sessions of this process that have no event yet. A principal reaches only its own.
#[derive(Debug, Default)]
pub(super) struct UnusedSessions(Mutex<UnusedTable>);

#[derive(Debug, Default)]
struct UnusedTable {
    sessions: HashMap<String, UnusedSession>,
    /// Counts the sessions that were added.
    last: u64,
}

#[derive(Debug)]
struct UnusedSession {
    principal: Principal,
    new: NewSession,
    created_at: u64,
    /// The place in the order of creation.
    number: u64,
}

impl UnusedSessions {
    /// Adds a session. Of those that are not open, only the newest stay.
    pub(super) fn add(
        &self,
        principal: &Principal,
        id: &str,
        new: NewSession,
        created_at: u64,
        leases: &SessionLeases,
    ) {
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        table.sessions.insert(id.to_owned(), UnusedSession { principal: principal.clone(), new, created_at, number });
        if table.sessions.len() > MAX_UNUSED {
            table.drop_closed(&leases.ids());
        }
    }

    /// Removes and returns the session, to store it. `None` if it is stored already or does not exist.
    pub(super) fn take(&self, principal: &Principal, id: &str) -> Option<NewSession> {
        let unused = &mut self.lock().sessions;
        unused.get(id).filter(|unused| unused.principal == *principal)?;
        unused.remove(id).map(|unused| unused.new)
    }

    pub(super) fn contains(&self, principal: &Principal, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|unused| unused.principal == *principal)
    }

    pub(super) fn find(&self, principal: &Principal, id: &str) -> Option<StoredSession> {
        let table = self.lock();
        let of_principal = table.sessions.get(id).filter(|unused| unused.principal == *principal);
        let UnusedSession { new, created_at, .. } = of_principal?;
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
        let mut table = self.lock();
        let of_principal = table.sessions.get_mut(id).filter(|unused| unused.principal == *principal);
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

    fn lock(&self) -> MutexGuard<'_, UnusedTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnusedTable {
    /// Drops the oldest sessions over the limit, except those in `open`, which is sorted.
    fn drop_closed(&mut self, open: &[String]) {
        let is_closed = |id: &String| open.binary_search(id).is_err();
        let closed = self.sessions.iter().filter(|(id, _)| is_closed(id));
        let mut closed: Vec<_> = closed.map(|(id, unused)| (unused.number, id.clone())).collect();
        closed.sort_unstable();
        closed.truncate(closed.len().saturating_sub(MAX_UNUSED));
        for (_, id) in closed {
            self.sessions.remove(&id);
        }
    }
}
