//! Defines the session of a call, and the state that services keep for each session.
//!
//! Invariant: the state of a session is dropped when its context is dropped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::delegate::Delegator;
use super::editor::Editor;
use super::manage::{EnabledServices, ServiceManager};
use super::notice::{LogNotices, NoticeSink};
use crate::sandbox::HiddenPaths;

/// The ports that the creator of a session passes to its context.
pub struct SessionContextPorts {
    /// Paths that file tools neither read nor write, also below the roots.
    pub hidden: Arc<HiddenPaths>,
    /// The editor that shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn Editor>>,
    /// Receives the notices of the session's services.
    pub notices: Arc<dyn NoticeSink>,
}

/// No hidden paths and no editor; notices go to the log.
impl Default for SessionContextPorts {
    fn default() -> Self {
        Self { hidden: Arc::default(), editor: None, notices: Arc::new(LogNotices) }
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
    /// Tells apart two openings of the same session.
    key: SessionKey,
    /// Base of relative paths.
    pub cwd: PathBuf,
    /// File tools reach paths below these. Includes the working directory.
    pub roots: Vec<PathBuf>,
    /// Folder for long output and other temporary files of the session.
    pub scratch: PathBuf,
    /// Paths that file tools neither read nor write, also below the roots.
    hidden: Arc<HiddenPaths>,
    /// The editor that shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn Editor>>,
    /// Delegates tasks for the session, if it may delegate.
    pub delegator: OnceLock<Arc<dyn Delegator>>,
    /// Manages the session's services, if it may change them.
    pub manager: OnceLock<Arc<dyn ServiceManager>>,
    enabled: Mutex<EnabledServices>,
    /// Id of the top-level session, if this is a child session.
    family: OnceLock<String>,
    /// Receives the notices of the session's services.
    pub notices: Arc<dyn NoticeSink>,
    /// The values of [`SessionStates`] for this session. Only kept here, to be dropped with the session.
    states: Mutex<Vec<Arc<dyn Send + Sync>>>,
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
        let SessionContextPorts { hidden, editor, notices } = ports;
        let mut roots = vec![cwd.clone(), scratch.clone()];
        roots.extend(additional_roots);
        Arc::new(Self {
            id: id.into(),
            key: SessionKey::next(),
            cwd,
            roots,
            scratch,
            hidden,
            editor,
            delegator: OnceLock::new(),
            manager: OnceLock::new(),
            enabled: Mutex::default(),
            family: OnceLock::new(),
            notices,
            states: Mutex::default(),
        })
    }

    /// Returns the hidden path that equals or contains `path`, which must be resolved. The scratch folder is never
    /// hidden.
    pub fn find_hidden(&self, path: &Path) -> Option<PathBuf> {
        let hidden = self.hidden.covering(path)?;
        let scratch = crate::root_files::resolve(&self.scratch).is_ok_and(|scratch| path.starts_with(scratch.path));
        (!scratch).then_some(hidden)
    }

    /// Returns the services that the session has enabled or disabled. The result shares its state with the session.
    pub fn service_overrides(&self) -> EnabledServices {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the id of the top-level session, which is this one or an ancestor.
    pub fn family(&self) -> &str {
        self.family.get().unwrap_or(&self.id)
    }

    /// Keeps `state` until the session ends.
    fn own(&self, state: Arc<dyn Send + Sync>) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).push(state);
    }

    /// Makes this session a child of `parent` and shares the parent's service overrides.
    pub fn share_services(&self, parent: &SessionContext) {
        self.family.get_or_init(|| parent.family().to_owned());
        let of_parent = parent.service_overrides();
        *self.enabled.lock().unwrap_or_else(PoisonError::into_inner) = of_parent;
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

/// The state that a service keeps for each of its sessions.
///
/// The map holds weak references, and the session owns the values. A value is therefore dropped when the session's
/// [`SessionContext`] is dropped, on every path and without a call. Calls that run at that moment keep it until they
/// end. Entries of sessions that have ended are removed when the next session is added.
pub struct SessionStates<T> {
    states: Mutex<HashMap<SessionKey, Weak<T>>>,
}

impl<T: Default + Send + Sync + 'static> SessionStates<T> {
    /// Returns the state of the session. Creates it on first use.
    pub fn of(&self, session: &SessionContext) -> Arc<T> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = states.get(&session.key).and_then(Weak::upgrade) {
            return state;
        }
        states.retain(|_, state| state.strong_count() > 0);
        let state = Arc::new(T::default());
        session.own(Arc::clone(&state) as Arc<dyn Send + Sync>);
        states.insert(session.key, Arc::downgrade(&state));
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
    fn a_session_that_is_opened_again_starts_without_state() {
        let states: SessionStates<Mutex<Vec<u8>>> = SessionStates::default();
        let (before, again) = (session(), session());
        states.of(&before).lock().unwrap().push(1);
        assert!(states.of(&again).lock().unwrap().is_empty(), "both have the same id");
    }
}
