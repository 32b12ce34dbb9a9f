//! Defines the project of a folder: its trusted manifests and the result of its settings. Opens sessions in it.
//! `ProjectLoader` is a port: front ends request a folder, and the module that reads files implements it.

mod launcher;
mod mode_request;
mod session_project;

pub use launcher::{ClientPorts, ExplicitSettings, LaunchedSession, SessionLauncher};
pub use mode_request::{ModeError, ModeRequest, default_mode, find_agent};
pub use session_project::SessionProject;

use std::path::Path;
use std::sync::Arc;

use crate::agents::ExternalAgents;
use crate::broker::{Broker, RuleStore};
use crate::diagnostic::{Diagnostic, Severity};
use crate::ids::ModelRef;
use crate::principal::{Principal, SessionFiles, SessionGrant};
use crate::session::{ModelSource, Session, SessionError, SessionPorts};

/// How many errors a notice lists after the first one.
const MAX_LISTED: usize = 4;

/// Loads the projects of folders.
pub trait ProjectLoader: Send + Sync {
    /// Returns the project of a folder as a principal sees it: with the files that it trusts and the rules that it
    /// keeps. If changed manifests or settings have errors, the last valid project stays, with `reload_error`. Fails if
    /// there is no valid one.
    fn open(&self, cwd: &Path, principal: &Principal) -> Result<Project, ProjectError>;

    /// Returns what applies without a folder: no file of a project counts. Fails if the manifests or settings have
    /// errors.
    fn open_without_folder(&self, principal: &Principal) -> Result<Project, ProjectError>;
}

/// Loads the project of a session's folder outside the async runtime, within the limits of the grant. If the files are
/// not in a folder of this machine, nothing of the folder is read. Fails if the grant does not admit the folder, or if
/// its manifests or settings have errors.
pub async fn load_project(
    projects: &Arc<dyn ProjectLoader>,
    cwd: &Path,
    files: SessionFiles,
    grant: &SessionGrant,
) -> Result<Project, ProjectError> {
    let broken = |problem: String| ProjectError { problem, diagnostics: Vec::new() };
    // Nothing of a folder that the grant does not admit is read.
    let cwd = grant.check_place(cwd, files).map_err(|error| broken(error.to_string()))?;
    let (projects, principal) = (Arc::clone(projects), grant.principal().clone());
    let open = move || match files {
        SessionFiles::Server => projects.open(&cwd, &principal),
        SessionFiles::Client | SessionFiles::Own => projects.open_without_folder(&principal),
    };
    let opened = tokio::task::spawn_blocking(open).await;
    opened.unwrap_or_else(|error| Err(broken(error.to_string()))).map(|project| project.with_grant(grant))
}

/// A folder whose manifests and settings are valid.
#[derive(Clone)]
pub struct Project {
    pub broker: Broker,
    pub models: Arc<dyn ModelSource>,
    /// Runs external agents.
    pub external_agents: Arc<dyn ExternalAgents>,
    /// The mode of new sessions, from the flags, the profile or the default.
    pub mode: ModeRequest,
    /// The model of new sessions; `others` lists the alternatives.
    pub model: ModelRef,
    pub others: Vec<ModelRef>,
    /// Saves the permission rules of the user.
    pub rules: Arc<dyn RuleStore>,
    /// Notices for the user about the folder.
    pub notes: Vec<String>,
    /// The errors in the files as they are now. The project was made from older ones, which were valid.
    pub reload_error: Option<Arc<ProjectError>>,
    /// Each copy counts as a use, also one from before the files changed.
    pub usage: ProjectUse,
}

/// Counts the copies of a project, so that its loader keeps it while a session has one.
#[derive(Debug, Clone, Default)]
pub struct ProjectUse(Arc<()>);

impl ProjectUse {
    /// Returns true if there is another copy.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Project {
    /// Returns the notice about changed files that are not used. `None` if they are used.
    pub fn reload_notice(&self) -> Option<String> {
        self.reload_error.as_ref().map(|error| error.reload_notice())
    }

    /// Returns the same project within the limits of a token.
    #[must_use]
    pub fn with_grant(self, grant: &SessionGrant) -> Self {
        Self { broker: self.broker.with_grant(grant), ..self }
    }

    /// Applies the project to an open session of its folder, from the session's next turn on. Fails and changes nothing
    /// if the session's mode cannot be entered.
    pub async fn apply_to(&self, session: &Session) -> Result<(), SessionError> {
        let plan = self.broker.plan();
        let fallback = self.mode.select_or_first(plan).unwrap_or_else(|_| default_mode(&self.model));
        let ports = |now: &SessionPorts| SessionPorts {
            broker: self.broker.clone(),
            models: Arc::clone(&self.models),
            external_agents: Arc::clone(&self.external_agents),
            ..now.clone()
        };
        session.reload(ports, fallback).await
    }
}

/// Errors in the manifests or settings of a folder.
#[derive(Debug, Clone)]
pub struct ProjectError {
    pub problem: String,
    pub diagnostics: Vec<Diagnostic>,
}

impl ProjectError {
    /// Returns the errors among the diagnostics.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|found| found.severity == Severity::Error)
    }

    /// Returns the notice about changed files with these errors, which are not used.
    fn reload_notice(&self) -> String {
        let mut notice = session_project::reload_notice_of(&self.problem);
        let others = self.errors().skip(1).take(MAX_LISTED);
        others.for_each(|found| notice.push_str(&format!("\n{}: {}", found.at, found.problem)));
        notice
    }
}

impl std::fmt::Debug for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Project").field("model", &self.model).finish_non_exhaustive()
    }
}
