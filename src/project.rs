//! Defines the project of a folder: its trusted manifests and the result of its settings. `ProjectLoader` is a port:
//! front ends request a folder, and the module that reads files implements it.

use std::path::Path;
use std::sync::Arc;

use crate::agents::ExternalAgents;
use crate::broker::{Broker, RuleStore};
use crate::diagnostic::Diagnostic;
use crate::ids::ModelRef;
use crate::session::ModelSource;

/// Loads the projects of folders.
pub trait ProjectLoader: Send + Sync {
    fn open(&self, cwd: &Path) -> Result<Project, ProjectError>;
}

/// A folder whose manifests and settings are valid.
#[derive(Clone)]
pub struct Project {
    pub broker: Broker,
    pub models: Arc<dyn ModelSource>,
    /// Runs external agents.
    pub external_agents: Arc<dyn ExternalAgents>,
    /// The agent and mode of new sessions. `None` if neither the user nor the settings choose one.
    pub agent: Option<String>,
    pub mode: Option<String>,
    /// The model of new sessions; `others` lists the alternatives.
    pub model: ModelRef,
    pub others: Vec<ModelRef>,
    /// Saves the permission rules of the user.
    pub rules: Arc<dyn RuleStore>,
    /// Notices for the user about the folder.
    pub notes: Vec<String>,
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
