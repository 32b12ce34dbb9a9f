//! Defines the project of a folder: its trusted manifests and the result of its settings. Opens sessions in it.
//! `ProjectLoader` is a port: front ends request a folder, and the module that reads files implements it.

mod launcher;
mod mode_request;

pub use launcher::{ClientPorts, ExplicitSettings, LaunchedSession, SessionLauncher};
pub use mode_request::{ModeError, ModeRequest, default_mode, find_agent};

use std::path::Path;
use std::sync::Arc;

use crate::agents::ExternalAgents;
use crate::broker::{Broker, RuleStore};
use crate::diagnostic::Diagnostic;
use crate::ids::ModelRef;
use crate::principal::{Principal, SessionGrant};
use crate::session::{ModelSource, Session, SessionError, SessionPorts};

/// Loads the projects of folders.
pub trait ProjectLoader: Send + Sync {
    /// Returns the project of a folder as a principal sees it: with the files that it trusts and the rules that it
    /// keeps. Fails if the manifests or settings have errors.
    fn open(&self, cwd: &Path, principal: &Principal) -> Result<Project, ProjectError>;
}

/// Loads the project of a folder outside the async runtime, within the limits of the grant. Fails if the grant does not
/// admit the folder, or if its manifests or settings have errors.
pub async fn load_project(
    projects: &Arc<dyn ProjectLoader>,
    cwd: &Path,
    grant: &SessionGrant,
) -> Result<Project, ProjectError> {
    let broken = |problem: String| ProjectError { problem, diagnostics: Vec::new() };
    // Nothing of a folder that the grant does not admit is read.
    let cwd = grant.check_folder(cwd).map_err(|error| broken(error.to_string()))?;
    let (projects, principal) = (Arc::clone(projects), grant.principal().clone());
    let opened = tokio::task::spawn_blocking(move || projects.open(&cwd, &principal)).await;
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
}

impl Project {
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

impl std::fmt::Debug for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Project").field("model", &self.model).finish_non_exhaustive()
    }
}
