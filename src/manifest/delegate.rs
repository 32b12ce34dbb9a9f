//! Defines to which modes an agent may delegate, and where the tasks work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{AgentName, ModeId};

/// Modes to which an agent may delegate: a pattern, or a mapping with the place where the tasks work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum DelegateEntry {
    Pattern(DelegatePattern),
    Detailed(DetailedDelegate),
}

/// `agent/mode`, `agent/*` for every mode of an agent that is not internal, or `*/*` for those of all other agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DelegatePattern(
    #[schemars(regex(pattern = r"^(\*/\*|[a-z][a-z0-9]*([_-][a-z0-9]+)*/(\*|[a-z][a-z0-9]*([_-][a-z0-9]+)*))$"))]
    pub  String,
);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetailedDelegate {
    pub to: DelegatePattern,
    /// Where a task works: in the folders of the session that delegates it, or in its own git worktree.
    #[serde(default)]
    pub workspace: TaskWorkspace,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TaskWorkspace {
    #[default]
    Shared,
    Worktree,
}

impl DelegateEntry {
    pub fn pattern(&self) -> &str {
        match self {
            DelegateEntry::Pattern(pattern) => &pattern.0,
            DelegateEntry::Detailed(detailed) => &detailed.to.0,
        }
    }

    pub fn workspace(&self) -> TaskWorkspace {
        match self {
            DelegateEntry::Pattern(_) => TaskWorkspace::default(),
            DelegateEntry::Detailed(detailed) => detailed.workspace,
        }
    }

    /// Returns whether `mode` is one of the modes that `agent` may delegate to with this entry.
    pub(super) fn covers(&self, agent: &AgentName, mode: &ModeId) -> bool {
        match self.pattern().split_once('/') {
            Some(("*", _)) => mode.agent != *agent,
            Some((wanted, "*")) => wanted == mode.agent.as_str(),
            Some((wanted, slug)) => wanted == mode.agent.as_str() && slug == mode.mode.as_str(),
            None => false,
        }
    }
}
