//! Opens sessions for every front end: picks mode and model, passes on the client's services, and reopens stored
//! sessions.

use std::path::PathBuf;
use std::sync::Arc;

use super::{ModeError, Project};
use crate::agents::Event;
use crate::ids::ModeId;
use crate::manifest::{ApprovalLevel, ServiceEntry};
use crate::session::{Session, SessionError, SessionPorts, SessionRoots, SessionSettings, Sessions};
use crate::store::StoredSession;
use crate::tool::Notice;
use crate::tool::ask::Asker;
use crate::tool::editor::Editor;

/// Opens the sessions of one project.
pub struct SessionLauncher {
    sessions: Sessions,
    project: Project,
    /// The settings of new sessions. A reopened session keeps its own mode and model, except for `explicit` ones.
    settings: SessionSettings,
    explicit: ExplicitSettings,
    client_services: Vec<Arc<ServiceEntry>>,
    notices: Vec<String>,
}

/// Which settings the user named for this launch, so that they apply to a reopened session too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExplicitSettings {
    pub mode: bool,
    pub model: bool,
}

/// The ports of one session that its front end implements.
pub struct ClientPorts {
    pub asker: Arc<dyn Asker>,
    /// `None` if the client lends neither files nor terminals.
    pub editor: Option<Arc<dyn Editor>>,
}

/// An open session. Notices about its folder, its mode and the services of the client are queued in it.
#[derive(Debug)]
pub struct LaunchedSession {
    pub session: Arc<Session>,
    /// All events of a reopened session, in order. Empty for a new one.
    pub events: Vec<Event>,
}

impl SessionLauncher {
    /// Creates a launcher for the project's default mode and model, within the limits of `sessions`. Fails if the mode
    /// does not exist, is internal, or is not allowed. The audit log has the last case.
    pub fn new(sessions: Sessions, project: Project, approval: Option<ApprovalLevel>) -> Result<Self, ModeError> {
        let project = project.with_grant(sessions.grant());
        let mode = project.mode.select_or_first(project.broker.plan());
        if let Some((name, exclusion)) = mode.as_ref().err().and_then(ModeError::exclusion) {
            sessions.record_managed(name, &exclusion.setting);
        }
        let mode = mode?;
        Ok(Self::in_mode(mode, sessions, project, approval))
    }

    /// Creates a launcher for another mode than the project's default. The caller has checked that it exists.
    pub fn in_mode(mode: ModeId, sessions: Sessions, project: Project, approval: Option<ApprovalLevel>) -> Self {
        let project = project.with_grant(sessions.grant());
        let settings = SessionSettings { mode, model: project.model.clone(), approval };
        let notices = project.notes.iter().cloned().chain(project.reload_notice()).collect();
        let (explicit, client_services) = (ExplicitSettings::default(), Vec::new());
        Self { sessions, project, settings, explicit, client_services, notices }
    }

    /// Adds the MCP servers that the client passes with the session.
    #[must_use]
    pub fn with_services(self, client_services: Vec<Arc<ServiceEntry>>) -> Self {
        Self { client_services, ..self }
    }

    #[must_use]
    pub fn with_explicit(self, explicit: ExplicitSettings) -> Self {
        Self { explicit, ..self }
    }

    /// Adds a notice for the user of the next session.
    pub fn add_notice(&mut self, notice: String) {
        self.notices.push(notice);
    }

    pub fn project(&self) -> &Project {
        &self.project
    }

    /// Creates a session and stores it. `ports` receives its id.
    pub async fn create(
        &self,
        roots: SessionRoots,
        ports: impl FnOnce(&str) -> ClientPorts,
    ) -> Result<LaunchedSession, SessionError> {
        let ports = |id: &str| self.session_ports(ports(id));
        let session = self.sessions.create(roots, self.settings.clone(), ports).await?;
        self.queue_notices(&session);
        Ok(LaunchedSession { session, events: Vec::new() })
    }

    /// Opens a stored session with its history and settings. A mode that is gone is replaced, with a notice. The caller
    /// then calls [`Self::resume`]. Fails if there is no session `id`.
    pub async fn reopen(
        &self,
        id: &str,
        roots: Vec<PathBuf>,
        ports: impl FnOnce(&StoredSession) -> ClientPorts,
    ) -> Result<LaunchedSession, SessionError> {
        let ports = |stored: &StoredSession| self.session_ports(ports(stored));
        let opened = self.sessions.open(id, roots, self.settings.clone(), ports).await?;
        self.queue_notices(&opened.session);
        let mode = opened.session.choice().mode.to_string();
        let stored = format!("{}/{}", opened.stored.agent, opened.stored.mode);
        if mode != stored && !self.explicit.mode {
            let notice = format!("the mode `{stored}` is gone; the session goes on in `{mode}`");
            opened.session.queue_notice(Notice::new(notice));
        }
        Ok(LaunchedSession { session: opened.session, events: opened.events })
    }

    /// Enters the mode of a reopened session and applies the explicit settings. Fails if an external agent cannot
    /// resume the session, or if the mode or model cannot be used.
    pub async fn resume(&self, session: &Session) -> Result<(), SessionError> {
        if self.explicit.mode {
            session.set_mode(self.settings.mode.clone()).await?;
        } else {
            session.reopen_external_session().await?;
        }
        if self.explicit.model {
            session.set_model(self.settings.model.clone()).await?;
        }
        Ok(())
    }

    fn queue_notices(&self, session: &Session) {
        self.notices.iter().for_each(|notice| session.queue_notice(Notice::new(notice)));
    }

    fn session_ports(&self, ClientPorts { asker, editor }: ClientPorts) -> SessionPorts {
        SessionPorts {
            broker: self.project.broker.clone(),
            models: Arc::clone(&self.project.models),
            external_agents: Arc::clone(&self.project.external_agents),
            asker,
            editor,
            client_services: self.client_services.clone(),
        }
    }
}

impl std::fmt::Debug for SessionLauncher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionLauncher").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ClientPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientPorts").field("editor", &self.editor.is_some()).finish_non_exhaustive()
    }
}
