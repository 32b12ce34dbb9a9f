//! What holds in a folder: its manifests as far as they are trusted, and what follows from its settings. A port: front
//! doors ask for a folder, and whoever reads files opens it.

use std::path::Path;
use std::sync::Arc;

use crate::agents::ExternalAgents;
use crate::broker::{Broker, RuleStore};
use crate::diagnostic::Diagnostic;
use crate::session::ModelSource;

/// Opens folders.
pub trait ProjectLoader: Send + Sync {
    fn open(&self, cwd: &Path) -> Result<Project, ProjectError>;
}

/// A folder whose manifests are right.
#[derive(Clone)]
pub struct Project {
    pub broker: Broker,
    pub models: Arc<dyn ModelSource>,
    /// Runs agents that are programs of their own.
    pub external_agents: Arc<dyn ExternalAgents>,
    /// The agent and the mode new sessions begin in, if somebody has chosen.
    pub agent: Option<String>,
    pub mode: Option<String>,
    /// The model new sessions begin with, and those that can be chosen beside it.
    pub model: String,
    pub others: Vec<String>,
    /// Where a user's rules are kept.
    pub rules: Arc<dyn RuleStore>,
    /// What the user should know about it.
    pub notes: Vec<String>,
}

/// A folder whose manifests are wrong, or whose settings are.
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
