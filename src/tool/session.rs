//! Defines the session of a call, its lifetime, and the state that services keep for each session.
//!
//! Invariant: the state of a session is dropped when its context is dropped. What must outlast that is in its
//! [`StateEntries`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio_util::sync::CancellationToken;

use super::audit::{AuditSink, NoAuditLog};
use super::checkpoint::CheckpointKeeper;
use super::client_folders::ClientFolders;
use super::delegate::Delegator;
use super::editor::Editor;
use super::manage::{EnabledServices, ServiceManager};
use super::notice::{LogNotices, NoticeSink};
use super::state::{NoStateStore, StateEntries, StateStore};
use super::work_permit::WorkPermit;
use super::working_folder::WorkingFolder;
use crate::principal::{Principal, SessionGrant};
use crate::sandbox::{HiddenPaths, ProtectedWatches};
use crate::telemetry::WorkSpan;

/// The ports that the creator of a session passes to its context.
pub struct SessionContextPorts {
    /// The owner of the session, and the limits of its token.
    pub grant: SessionGrant,
    /// Paths that file tools neither read nor write, also below the roots.
    pub hidden: HiddenPaths,
    /// The editor that shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn Editor>>,
    /// Receives the notices of the session's services.
    pub notices: Arc<dyn NoticeSink>,
    /// Keeps the state of services for the next opening of the session.
    pub state: Arc<dyn StateStore>,
    /// Receives the decisions in the session.
    pub audit: Arc<dyn AuditSink>,
    /// The folders at the client. `None` if the files of the session are here.
    pub client: Option<ClientFolders>,
}

/// A session of `local` without hidden paths, editor and stored state; notices go to the log.
impl Default for SessionContextPorts {
    fn default() -> Self {
        Self {
            grant: SessionGrant::local(),
            hidden: HiddenPaths::default(),
            editor: None,
            notices: Arc::new(LogNotices),
            state: Arc::new(NoStateStore),
            audit: Arc::new(NoAuditLog),
            client: None,
        }
    }
}

impl std::fmt::Debug for SessionContextPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionContextPorts").field("hidden", &self.hidden).finish_non_exhaustive()
    }
}

/// The session of a call. A service keeps its data about a session in [`SessionStates`], so that the data ends with the
/// session.
pub struct SessionContext {
    pub id: String,
    /// The owner of the session, and the limits of its token.
    pub grant: SessionGrant,
    lifetime: SessionLifetime,
    /// Base of relative paths on this machine. If the files are at the client, it is the scratch folder.
    pub cwd: PathBuf,
    /// File tools reach paths of this machine below these. Includes the working directory.
    pub roots: Vec<PathBuf>,
    client: Option<ClientFolders>,
    /// Folder for long output and other temporary files of the session.
    pub scratch: PathBuf,
    /// Paths that file tools neither read nor write, also below the roots.
    hidden: HiddenPaths,
    protected: ProtectedWatches,
    /// The editor that shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn Editor>>,
    /// Delegates tasks for the session, if it may delegate.
    pub delegator: OnceLock<Arc<dyn Delegator>>,
    /// Manages the session's services, if it may change them.
    pub manager: OnceLock<Arc<dyn ServiceManager>>,
    /// Keeps the state of the files before a call changes them. A child session has the one of its parent.
    pub keeper: OnceLock<Arc<dyn CheckpointKeeper>>,
    /// Decides whether work may start, if other processes may take over the session.
    pub work_permit: OnceLock<Arc<dyn WorkPermit>>,
    enabled: Mutex<EnabledServices>,
    /// The span of the running turn. `None` if no turn runs.
    turn_span: Mutex<Option<WorkSpan>>,
    /// The top-level session, if this is a child session.
    family: OnceLock<SessionFamily>,
    /// Receives the notices of the session's services.
    pub notices: Arc<dyn NoticeSink>,
    /// Receives the decisions in the session.
    pub audit: Arc<dyn AuditSink>,
    state: Arc<dyn StateStore>,
    /// The values of [`SessionStates`] for this session. Only kept here, to be dropped with the session.
    states: Mutex<Vec<Arc<dyn Send + Sync>>>,
}

/// The top-level session of a child session.
struct SessionFamily {
    id: String,
    lifetime: SessionLifetime,
    protected: ProtectedWatches,
}

impl SessionContext {
    pub fn new(id: impl Into<String>, cwd: PathBuf, additional_roots: Vec<PathBuf>, scratch: PathBuf) -> Arc<Self> {
        Self::with_ports(id, cwd, additional_roots, scratch, SessionContextPorts::default())
    }

    pub fn with_ports(
        id: impl Into<String>,
        cwd: PathBuf,
        additional_roots: Vec<PathBuf>,
        scratch: PathBuf,
        ports: SessionContextPorts,
    ) -> Arc<Self> {
        let SessionContextPorts { grant, hidden, editor, notices, state, audit, client } = ports;
        let mut roots = vec![cwd.clone(), scratch.clone()];
        roots.extend(additional_roots);
        Arc::new(Self {
            id: id.into(),
            grant,
            lifetime: SessionLifetime::new(),
            cwd,
            roots,
            client,
            scratch,
            hidden,
            protected: ProtectedWatches::default(),
            editor,
            delegator: OnceLock::new(),
            manager: OnceLock::new(),
            keeper: OnceLock::new(),
            work_permit: OnceLock::new(),
            enabled: Mutex::default(),
            turn_span: Mutex::default(),
            family: OnceLock::new(),
            notices,
            audit,
            state,
            states: Mutex::default(),
        })
    }

    /// Returns the hidden path that equals or contains `path`, which must be resolved. The scratch folder is never
    /// hidden.
    pub fn find_hidden(&self, path: &Path) -> Option<PathBuf> {
        let hidden = self.hidden.covering(path)?;
        (!self.is_scratch(path)).then_some(hidden)
    }

    /// Returns the folders at the client. `None` if the files of the session are here.
    pub fn client_folders(&self) -> Option<&ClientFolders> {
        self.client.as_ref()
    }

    /// Returns the working directory as the user names it.
    pub fn working_folder(&self) -> WorkingFolder {
        match &self.client {
            Some(client) => WorkingFolder::at_client(client.cwd.clone()),
            None => WorkingFolder::here(self.cwd.clone()),
        }
    }

    /// Returns whether the owner of the session may use a path of this machine, which must be resolved. The folder of a
    /// remote session may have become a link that leads out of the roots of its token.
    pub fn admits_path(&self, path: &Path) -> bool {
        self.grant.admits_path(path) || self.is_scratch(path)
    }

    fn is_scratch(&self, path: &Path) -> bool {
        crate::root_files::resolve(&self.scratch).is_ok_and(|scratch| path.starts_with(scratch.path))
    }

    /// Returns the owner of the session and of everything that its services keep.
    pub fn principal(&self) -> &Principal {
        self.grant.principal()
    }

    /// Returns the services that the session has enabled or disabled. The result shares its state with the session.
    pub fn service_overrides(&self) -> EnabledServices {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the span of the running turn, for work of the turn in other tasks. `None` if no turn runs.
    pub fn turn_span(&self) -> Option<WorkSpan> {
        self.turn_span.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the span of the running turn. It ends only after it is removed here.
    pub fn set_turn_span(&self, span: Option<WorkSpan>) {
        *self.turn_span.lock().unwrap_or_else(PoisonError::into_inner) = span;
    }

    /// Returns the id of the top-level session, which is this one or an ancestor.
    pub fn family(&self) -> &str {
        self.family.get().map_or(&self.id, |family| &family.id)
    }

    /// Returns the time from this opening of the session to its end.
    pub fn lifetime(&self) -> &SessionLifetime {
        &self.lifetime
    }

    /// Returns the lifetime of the top-level session.
    pub fn family_lifetime(&self) -> &SessionLifetime {
        self.family.get().map_or(&self.lifetime, |family| &family.lifetime)
    }

    /// Ends the session: the services that belong to it stop, and no further one starts.
    pub fn end(&self) {
        self.lifetime.ended.cancel();
    }

    /// Returns the entries that `owner` stores for the next opening of the session.
    pub fn state_entries(&self, owner: &'static str) -> StateEntries {
        StateEntries::new(Arc::clone(&self.state), owner)
    }

    /// Keeps `state` until the session ends.
    fn own(&self, state: Arc<dyn Send + Sync>) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).push(state);
    }

    /// Returns the protected paths that the sandboxes of the session found. A child session has those of its parent, whose
    /// user accepts them for both.
    pub fn path_watches(&self) -> &ProtectedWatches {
        self.family.get().map_or(&self.protected, |family| &family.protected)
    }

    /// Makes this session a child of `parent` and shares the parent's service overrides.
    pub fn share_services(&self, parent: &SessionContext) {
        self.family.get_or_init(|| SessionFamily {
            id: parent.family().to_owned(),
            lifetime: parent.family_lifetime().clone(),
            protected: parent.path_watches().clone(),
        });
        let of_parent = parent.service_overrides();
        *self.enabled.lock().unwrap_or_else(PoisonError::into_inner) = of_parent;
    }
}

impl Drop for SessionContext {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for SessionContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionContext").field("id", &self.id).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// Identifies an open session. Unlike the id, it is not reused when the session is closed and opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SessionKey(u64);

impl SessionKey {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The time from the opening of a session to its end. Two openings of one session have different lifetimes.
#[derive(Debug, Clone)]
pub struct SessionLifetime {
    key: SessionKey,
    /// Cancelled by [`SessionContext::end`] and when the context is dropped; the pool watches it.
    ended: CancellationToken,
}

impl SessionLifetime {
    fn new() -> Self {
        Self { key: SessionKey::next(), ended: CancellationToken::new() }
    }

    /// Waits for the end of the session.
    pub async fn wait_for_end(&self) {
        self.ended.cancelled().await;
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}

impl PartialEq for SessionLifetime {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for SessionLifetime {}

impl std::hash::Hash for SessionLifetime {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// The state that a service keeps for each of its sessions.
///
/// The map holds weak references, and the session owns the values. A value is therefore dropped when the session's
/// [`SessionContext`] is dropped, on every path and without a call. Calls that run at that moment keep it until they
/// end. Entries of sessions that have ended are removed when the next session is added.
pub struct SessionStates<T> {
    states: Mutex<HashMap<SessionKey, Weak<T>>>,
}

impl<T: Send + Sync + 'static> SessionStates<T> {
    /// Returns the state of the session. Creates it on first use.
    pub fn of(&self, session: &SessionContext) -> Arc<T>
    where
        T: Default,
    {
        self.of_or(session, T::default)
    }

    /// Returns the state of the session. Creates it with `make` on first use, for example from its stored entries.
    pub fn of_or(&self, session: &SessionContext, make: impl FnOnce() -> T) -> Arc<T> {
        let key = session.lifetime.key;
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = states.get(&key).and_then(Weak::upgrade) {
            return state;
        }
        states.retain(|_, state| state.strong_count() > 0);
        let state = Arc::new(make());
        session.own(Arc::clone(&state) as Arc<dyn Send + Sync>);
        states.insert(key, Arc::downgrade(&state));
        state
    }
}

impl<T> Default for SessionStates<T> {
    fn default() -> Self {
        Self { states: Mutex::default() }
    }
}

impl<T> std::fmt::Debug for SessionStates<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionStates").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Arc<SessionContext> {
        SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into())
    }

    #[test]
    fn state_ends_with_its_session() {
        let states: SessionStates<Mutex<Vec<u8>>> = SessionStates::default();
        let session_one = session();
        states.of(&session_one).lock().unwrap().push(1);
        assert_eq!(*states.of(&session_one).lock().unwrap(), [1], "the state is kept between calls");
        let watched = Arc::downgrade(&states.of(&session_one));
        drop(session_one);
        assert_eq!(watched.strong_count(), 0, "the state is dropped with the session");
        states.of(&session());
        assert_eq!(states.states.lock().unwrap().len(), 1, "its entry is removed");
    }

    #[test]
    fn a_lifetime_ends_with_its_context() {
        let (parent, child) = (session(), session());
        child.share_services(&parent);
        let (own, family) = (child.lifetime().clone(), child.family_lifetime().clone());
        assert!(own != family && family == *parent.lifetime());
        drop(child);
        assert!(own.has_ended() && !family.has_ended());
        parent.end();
        assert!(family.has_ended());
    }

    #[test]
    fn a_session_that_is_opened_again_starts_without_state() {
        let states: SessionStates<Mutex<Vec<u8>>> = SessionStates::default();
        let (before, again) = (session(), session());
        states.of(&before).lock().unwrap().push(1);
        assert!(states.of(&again).lock().unwrap().is_empty(), "both have the same id");
    }
}
