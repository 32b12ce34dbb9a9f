//! Opens the sessions of tool calls: new ones, and those that an earlier answer named.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::folders::{RootError, WorkFolders};
use super::tools::AskArguments;
use crate::adapter::client_asker::McpAsker;
use crate::ids::ModeId;
use crate::manifest::ApprovalLevel;
use crate::principal::SessionFiles;
use crate::project::{
    ClientPorts, LaunchedSession, Project, ProjectLoader, SessionLauncher, SessionProject, load_project,
};
use crate::session::{Session, SessionRoots, Sessions};

/// Maximum number of idle sessions that stay open and keep their consents. A call for another one opens it again from
/// the store.
const MAX_IDLE_SESSIONS: usize = 16;

pub(super) struct OpenSessions {
    sessions: Sessions,
    projects: Arc<dyn ProjectLoader>,
    cwd: PathBuf,
    folders: WorkFolders,
    approval: Option<ApprovalLevel>,
    /// The open sessions, last used at the end. Locked while a session is opened, so that it is open at most once.
    open: tokio::sync::Mutex<Vec<Arc<OpenSession>>>,
}

/// The reason why a session was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Folder(#[from] RootError),
    /// The project has errors, which the message describes.
    #[error("{problem}")]
    Project { problem: String },
    /// The client's token does not admit the folder.
    #[error("{problem}")]
    Limit { problem: String },
    #[error("there is no mode `{mode}` in {}", .cwd.display())]
    UnknownMode { mode: ModeId, cwd: PathBuf },
    #[error("there can be no session: {reason}")]
    Create { reason: String },
    #[error("there is no session `{id}`; leave `session` out for a new one")]
    UnknownSession { id: String },
    #[error("the session `{id}` cannot be opened: {reason}")]
    Reopen { id: String, reason: String },
    #[error("the session `{id}` is one of {of}, and this is {mode}; leave `session` out for a new one")]
    OtherMode { id: String, of: String, mode: ModeId },
    #[error("the session `{id}` works in {}; leave `cwd` out, or `session`", .cwd.display())]
    OtherFolder { id: String, cwd: PathBuf },
}

/// An open session of a tool.
pub(super) struct OpenSession {
    pub(super) session: Arc<Session>,
    pub(super) mode: ModeId,
    pub(super) asker: Arc<McpAsker>,
    project: SessionProject,
    /// The session was opened again and its external agent, if any, has not resumed it yet.
    pub(super) reopened: AtomicBool,
    /// Notices about the folder. `None` once they were taken.
    notes: Mutex<Option<Vec<String>>>,
}

impl OpenSession {
    /// Takes the notices for the next answer: about the folder and about missing services. Empty until there are new
    /// ones.
    pub(super) async fn notes(&self) -> Vec<String> {
        let Some(mut notes) = self.notes.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Vec::new();
        };
        if let Ok(binding) = self.session.binding().await {
            notes.extend(binding.missing_service_notices());
        }
        notes
    }
}

impl OpenSessions {
    pub(super) fn new(
        sessions: Sessions,
        projects: Arc<dyn ProjectLoader>,
        cwd: PathBuf,
        roots: &[PathBuf],
        approval: Option<ApprovalLevel>,
    ) -> Self {
        let roots: Vec<_> = roots.iter().chain([&cwd]).cloned().collect();
        Self {
            sessions,
            projects,
            folders: WorkFolders::new(&roots),
            cwd,
            approval,
            open: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the folders in which sessions may work.
    pub(super) fn folders(&self) -> &WorkFolders {
        &self.folders
    }

    /// Opens the session that the arguments name, or a new one. Fails if its folder is not allowed, or if the named
    /// session is unknown or has another mode or folder. A call that is dropped leaves open sessions as they are.
    pub(super) async fn open(&self, mode: &ModeId, wanted: &AskArguments) -> Result<Arc<OpenSession>, OpenError> {
        let mut open = self.open.lock().await;
        // Another replica may have them.
        open.retain(|talk| !talk.session.is_taken());
        // A token may allow fewer open sessions.
        let others = self.sessions.grant().limits().sessions.map_or(MAX_IDLE_SESSIONS, |limit| {
            usize::try_from(limit.saturating_sub(1)).unwrap_or(MAX_IDLE_SESSIONS).min(MAX_IDLE_SESSIONS)
        });
        if !open.iter().any(|talk| wanted.session.as_deref() == Some(talk.session.id())) {
            close_idle(&mut open, others, is_busy);
        }
        let talk = match wanted.session.as_deref() {
            None => self.create(mode, self.place(wanted.cwd.as_deref()).await?).await?,
            Some(id) => match open.iter().find(|talk| talk.session.id() == id).cloned() {
                Some(talk) => {
                    let cwd = SessionRoots::of(talk.session.context()).cwd;
                    check(id, &talk.mode.to_string(), &cwd, mode, wanted)?;
                    self.reload(&talk).await;
                    open.retain(|other| !Arc::ptr_eq(other, &talk));
                    talk
                }
                None => self.reopen(id, mode, wanted).await?,
            },
        };
        add_newest(&mut open, Arc::clone(&talk), is_busy);
        Ok(talk)
    }

    /// Returns the folder with links resolved. Fails if sessions may not work there. A remote client learns nothing of
    /// folders that its token does not admit, and cannot have them allowed.
    fn resolve(&self, folder: &Path) -> Result<PathBuf, OpenError> {
        let grant = self.sessions.grant();
        if grant.principal().is_local() {
            return Ok(self.folders.resolve(folder)?);
        }
        grant.check_folder(folder).map_err(|error| OpenError::Limit { problem: error.to_string() })
    }

    /// Returns the folders of a new session. A remote client that names none gets the first root of its token, or an
    /// empty folder.
    async fn place(&self, wanted: Option<&Path>) -> Result<SessionRoots, OpenError> {
        match wanted {
            None if self.sessions.grant().is_remote() => {
                self.sessions.default_roots().await.map_err(|error| OpenError::Create { reason: error.to_string() })
            }
            wanted => Ok(SessionRoots::here(self.resolve(wanted.unwrap_or(&self.cwd))?, Vec::new())),
        }
    }

    async fn create(&self, mode: &ModeId, roots: SessionRoots) -> Result<Arc<OpenSession>, OpenError> {
        let launcher = self.launcher(&roots.cwd, roots.files, mode).await?;
        let asker = Arc::new(McpAsker::new(Some(Arc::clone(&launcher.project().rules))));
        let created = launcher.create(roots, |_| ports(&asker)).await;
        let launched = created.map_err(|error| OpenError::Create { reason: error.to_string() })?;
        Ok(open_session(launched, mode, asker, launcher.project().clone()))
    }

    /// Applies changed manifests and settings to an open session, from its next turn on.
    async fn reload(&self, talk: &OpenSession) {
        let roots = SessionRoots::of(talk.session.context());
        let loaded = load_project(&self.projects, &roots.cwd, roots.files, self.sessions.grant()).await;
        talk.project.reload(&talk.session, loaded).await;
        let notices: Vec<_> = talk.session.take_notices().into_iter().map(|notice| notice.text).collect();
        if !notices.is_empty() {
            talk.notes.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().extend(notices);
        }
    }

    async fn reopen(&self, id: &str, mode: &ModeId, wanted: &AskArguments) -> Result<Arc<OpenSession>, OpenError> {
        let unusable =
            |error: &dyn std::fmt::Display| OpenError::Reopen { id: id.to_owned(), reason: error.to_string() };
        let stored = self.sessions.store().find(id).await.map_err(|error| unusable(&error))?;
        let stored = stored.ok_or_else(|| OpenError::UnknownSession { id: id.to_owned() })?;
        let of = format!("{}/{}", stored.agent, stored.mode);
        check(id, &of, &stored.cwd, mode, wanted)?;
        // A session that another program created may be in any folder.
        if stored.files == SessionFiles::Server {
            self.resolve(&stored.cwd)?;
        }
        // The manifests and the trust of the session's folder apply.
        let launcher = self.launcher(&stored.cwd, stored.files, mode).await?;
        let asker = Arc::new(McpAsker::new(Some(Arc::clone(&launcher.project().rules))));
        let opened = launcher.reopen(id, Vec::new(), |_| ports(&asker)).await;
        let opened = opened.map_err(|error| unusable(&error))?;
        let talk = open_session(opened, mode, asker, launcher.project().clone());
        talk.reopened.store(true, Ordering::Relaxed);
        Ok(talk)
    }

    /// Returns the launcher for sessions in `cwd`. Fails if its project has errors or does not have the mode.
    async fn launcher(&self, cwd: &Path, files: SessionFiles, mode: &ModeId) -> Result<SessionLauncher, OpenError> {
        let project = load_project(&self.projects, cwd, files, self.sessions.grant()).await;
        let project = project.map_err(|broken| OpenError::Project { problem: broken.problem })?;
        if !project.broker.plan().is_selectable(mode) {
            return Err(OpenError::UnknownMode { mode: mode.clone(), cwd: cwd.to_owned() });
        }
        Ok(SessionLauncher::in_mode(mode.clone(), self.sessions.clone(), project, self.approval))
    }
}

fn is_busy(talk: &Arc<OpenSession>) -> bool {
    talk.session.is_busy()
}

/// Adds a session as the last used one. Closes idle ones if there are too many.
fn add_newest<S>(open: &mut Vec<S>, session: S, is_busy: impl Fn(&S) -> bool) {
    open.push(session);
    close_idle(open, MAX_IDLE_SESSIONS, is_busy);
}

/// Closes the idle sessions that were not used for the longest time, until at most `count` are left.
fn close_idle<S>(open: &mut Vec<S>, count: usize, is_busy: impl Fn(&S) -> bool) {
    let mut idle = open.iter().filter(|session| !is_busy(session)).count();
    open.retain(|session| {
        let goes = idle > count && !is_busy(session);
        idle -= usize::from(goes);
        !goes
    });
}

fn open_session(launched: LaunchedSession, mode: &ModeId, asker: Arc<McpAsker>, project: Project) -> Arc<OpenSession> {
    let notes = launched.session.take_notices().into_iter().map(|notice| notice.text).collect();
    Arc::new(OpenSession {
        session: launched.session,
        mode: mode.clone(),
        asker,
        project: SessionProject::new(project),
        reopened: AtomicBool::new(false),
        notes: Mutex::new(Some(notes)),
    })
}

fn ports(asker: &Arc<McpAsker>) -> ClientPorts {
    ClientPorts { asker: Arc::clone(asker) as Arc<_>, editor: None }
}

fn check(id: &str, of: &str, cwd: &Path, mode: &ModeId, wanted: &AskArguments) -> Result<(), OpenError> {
    if of != mode.to_string() {
        return Err(OpenError::OtherMode { id: id.to_owned(), of: of.to_owned(), mode: mode.clone() });
    }
    let resolved = |folder: &Path| folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match wanted.cwd.as_deref().filter(|wanted| resolved(wanted) != resolved(cwd)) {
        Some(_) => Err(OpenError::OtherFolder { id: id.to_owned(), cwd: cwd.to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_with_a_turn_is_not_closed() {
        // A turn runs in the first one.
        let is_busy = |session: &usize| *session == 0;
        let mut open = Vec::new();
        (0..=MAX_IDLE_SESSIONS).for_each(|session| add_newest(&mut open, session, is_busy));
        assert_eq!(open, (0..=MAX_IDLE_SESSIONS).collect::<Vec<_>>());
        add_newest(&mut open, MAX_IDLE_SESSIONS + 1, is_busy);
        open.retain(|session| *session != 2);
        add_newest(&mut open, 2, is_busy);
        let left = [0].into_iter().chain(3..=MAX_IDLE_SESSIONS + 1).chain([2]);
        assert_eq!(open, left.collect::<Vec<_>>(), "1 is closed, and 2 was used again");
    }
}
