//! Encrypts titles, events and the state of services on their way to a store of either kind, and decrypts them.
//!
//! The body of an event is encrypted together with its text, and the column of the text is empty. So no index has a
//! word of it, and searches are refused.

use super::audit::{AuditEntry, AuditFilter, ChainReport};
use super::backend::{JobError, SessionReads, SessionWrites, TermQuery};
use super::job::{Job, Work};
use super::usage_rows::{UsageKey, UsageRow};
use super::view::SessionView;
use super::{
    FolderFilter, ListFilter, NewEvent, RecallQuery, RecallResults, SearchHit, SessionChange, SpentAmount, StateEntry,
    StoredEvent, StoredMessage, StoredSession, TermStats,
};
use crate::store::StoreError;
use crate::store::sealing::StoreKey;

/// The names under which columns are encrypted.
const TITLE: &str = "session.title";
const BODY: &str = "event.body";
const STATE: &str = "state.value";

/// Encrypts the body and the text of an event as one.
pub(in crate::store) fn seal_body(key: &StoreKey, body: &str, text: Option<&str>) -> Result<String, StoreError> {
    let both = serde_json::to_string(&(body, text)).map_err(|error| StoreError::Failed(error.to_string()))?;
    key.seal(BODY, both.as_bytes())
}

/// Returns the body and the text of an event.
pub(in crate::store) fn open_body(key: &StoreKey, sealed: &str) -> Result<(String, Option<String>), StoreError> {
    let both = key.open(BODY, sealed)?;
    serde_json::from_slice(&both)
        .map_err(|_| StoreError::Sealed { column: BODY.to_owned(), problem: "it has another form".to_owned() })
}

/// Writes to another store what it has encrypted.
#[derive(Debug)]
pub(super) struct SealedWrites {
    pub(super) inner: Box<dyn SessionWrites>,
    pub(super) key: StoreKey,
}

impl SealedWrites {
    fn seal(&self, work: &Work) -> Result<Work, StoreError> {
        Ok(match work {
            Work::Append(event) => {
                let body = seal_body(&self.key, &event.body, event.text.as_deref())?;
                Work::Append(NewEvent { kind: event.kind.clone(), body, text: None })
            }
            Work::Change(change) => {
                let title = change.title.as_ref().map(|title| self.key.seal(TITLE, title.as_bytes())).transpose()?;
                Work::Change(Box::new(SessionChange { title, ..(**change).clone() }))
            }
            Work::PutState(entry) => {
                let value = self.key.seal(STATE, &entry.value)?.into_bytes();
                Work::PutState(StateEntry { value, ..entry.clone() })
            }
            Work::Create(new) => Work::Create(new.clone()),
            Work::RemoveState { owner, key } => Work::RemoveState { owner: owner.clone(), key: key.clone() },
            Work::AddUsage(key, more) => Work::AddUsage(key.clone(), *more),
            // It names no text: its arguments are a hash.
            Work::Audit(entry) => Work::Audit(entry.clone()),
            Work::Delete(children) => Work::Delete(children.clone()),
            Work::Copy { new } => Work::Copy { new: new.clone() },
            Work::Hold => Work::Hold,
            Work::Release => Work::Release,
            Work::Flush => Work::Flush,
            Work::Nothing => Work::Nothing,
        })
    }
}

impl SessionWrites for SealedWrites {
    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Result<bool, JobError>>, StoreError> {
        let seal = |job: &Job| {
            let (principal, session) = (job.principal.clone(), job.session.clone());
            let (serial, owner, at, work) = (job.serial, job.owner.clone(), job.at, self.seal(&job.work)?);
            Ok::<_, StoreError>(Job { serial, owner, principal, session, at, work, reply: None })
        };
        let sealed = jobs.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
        self.inner.transact(&sealed)
    }

    fn hold(&mut self, sessions: &[String]) -> Result<(), StoreError> {
        self.inner.hold(sessions)
    }
}

/// Decrypts what another store reads.
#[derive(Debug)]
pub(super) struct SealedReads {
    pub(super) inner: Box<dyn SessionReads>,
    pub(super) key: StoreKey,
}

impl SealedReads {
    fn open_session(&self, stored: StoredSession) -> Result<StoredSession, StoreError> {
        let title = stored.title.as_ref().map(|title| self.key.open_text(TITLE, title)).transpose()?;
        Ok(StoredSession { title, ..stored })
    }

    fn open_events(&self, stored: Vec<StoredEvent>) -> Result<Vec<StoredEvent>, StoreError> {
        let open = |event: StoredEvent| {
            Ok::<_, StoreError>(StoredEvent { body: open_body(&self.key, &event.body)?.0, ..event })
        };
        stored.into_iter().map(open).collect()
    }
}

impl SessionReads for SealedReads {
    fn find(&mut self, view: &SessionView, id: &str) -> Result<Option<StoredSession>, StoreError> {
        let stored = self.inner.find(view, id)?;
        stored.map(|stored| self.open_session(stored)).transpose()
    }

    fn events(&mut self, view: &SessionView, id: &str) -> Result<Vec<StoredEvent>, StoreError> {
        let stored = self.inner.events(view, id)?;
        self.open_events(stored)
    }

    fn events_before(
        &mut self,
        view: &SessionView,
        id: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let stored = self.inner.events_before(view, id, before, limit)?;
        self.open_events(stored)
    }

    fn events_after(
        &mut self,
        view: &SessionView,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let stored = self.inner.events_after(view, id, after, limit)?;
        self.open_events(stored)
    }

    fn list(&mut self, view: &SessionView, filter: &ListFilter) -> Result<Vec<StoredSession>, StoreError> {
        let stored = self.inner.list(view, filter)?;
        stored.into_iter().map(|stored| self.open_session(stored)).collect()
    }

    fn has_folder(&mut self, folder: &str) -> Result<bool, StoreError> {
        self.inner.has_folder(folder)
    }

    fn family(&mut self, view: &SessionView, id: &str) -> Result<Vec<String>, StoreError> {
        self.inner.family(view, id)
    }

    fn beginning_with(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.inner.beginning_with(view, prefix)
    }

    fn search(&mut self, _: &SessionView, _: &str, _: &FolderFilter, _: usize) -> Result<Vec<SearchHit>, StoreError> {
        Err(StoreError::SearchOff)
    }

    fn recall(&mut self, _: &SessionView, _: &RecallQuery, _: u64) -> Result<RecallResults, StoreError> {
        Err(StoreError::SearchOff)
    }

    fn messages(&mut self, _: &SessionView, _: &str, _: u64, _: usize) -> Result<Vec<StoredMessage>, StoreError> {
        Err(StoreError::SearchOff)
    }

    /// Finds nothing, so that prompts get no excerpts of earlier sessions.
    fn common_terms(&mut self, _: &SessionView, terms: &TermQuery) -> Result<TermStats, StoreError> {
        Ok(TermStats { frequency: vec![0; terms.words.len()], ..TermStats::default() })
    }

    fn state(&mut self, view: &SessionView, id: &str) -> Result<Vec<StateEntry>, StoreError> {
        let stored = self.inner.state(view, id)?;
        let unreadable = || StoreError::Sealed { column: STATE.to_owned(), problem: "it is not encrypted".to_owned() };
        let open = |entry: StateEntry| {
            let sealed = std::str::from_utf8(&entry.value).map_err(|_| unreadable())?;
            let value = self.key.open(STATE, sealed)?;
            Ok::<_, StoreError>(StateEntry { value, ..entry })
        };
        stored.into_iter().map(open).collect()
    }

    fn find_uuid(&mut self, view: &SessionView, uuid: &str) -> Result<Option<String>, StoreError> {
        self.inner.find_uuid(view, uuid)
    }

    fn usage(&mut self, view: &SessionView, key: &UsageKey) -> Result<UsageRow, StoreError> {
        self.inner.usage(view, key)
    }

    fn spending(&mut self, view: &SessionView, id: &str, since: u64) -> Result<Vec<SpentAmount>, StoreError> {
        self.inner.spending(view, id, since)
    }

    fn principals(&mut self, view: &SessionView) -> Result<Vec<String>, StoreError> {
        self.inner.principals(view)
    }

    fn audit_entries(&mut self, view: &SessionView, filter: &AuditFilter) -> Result<Vec<AuditEntry>, StoreError> {
        self.inner.audit_entries(view, filter)
    }

    fn audit_names(&mut self, view: &SessionView) -> Result<Vec<(String, String)>, StoreError> {
        self.inner.audit_names(view)
    }

    fn verify_audit(&mut self) -> Result<ChainReport, StoreError> {
        self.inner.verify_audit()
    }

    fn audit_sessions(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.inner.audit_sessions(view, prefix)
    }
}
