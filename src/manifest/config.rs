//! The types of `config.yaml`, the user's and a project's: which profile is used, and what may be done
//! without asking. Which file wins is decided where the layers are read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::approval::Approval;
use crate::ids::{AgentName, ModeSlug, ServiceName};

/// Settings of a user (`config.yaml` in the configuration folder) or of a project (`.skein/config.yaml`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein config file")]
pub struct Config {
    /// Format version of this file: 1.
    pub version: u64,
    /// When a call needs a person's consent; a project can only make it stricter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Which of `profiles` is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, Profile>,
}

/// Models, services and the place to start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The main model, as `provider:model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*(:.+)?$"))]
    pub processor: Option<String>,
    /// A fast model for routing and compaction; the processor if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*(:.+)?$"))]
    pub accelerator: Option<String>,
    /// What happens when the context fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderator: Option<Moderator>,
    /// The user's services that are enabled; all of them if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ServiceName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeSlug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Moderator {
    Summarize,
    Truncate,
    Passive,
}
