//! The types of `config.yaml`, the user's and a project's: which profile is used, and what may be done
//! without asking. Which file wins is decided where the layers are read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::approval::ApprovalLevel;
use super::permission::PermissionRule;
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
    pub approval: Option<ApprovalLevel>,
    /// Which calls are allowed, asked about or denied; a project's rules can only deny and ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionRule>,
    /// Which of `profiles` is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, Profile>,
    /// What is known about models, by `provider:model`; the user's config only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelFacts>,
    /// Further providers, and other addresses for known ones; the user's config only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, ProviderAddress>,
}

/// A model's window, and its prices in US dollars for a million tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// How many tokens fit into a request and its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub input: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub output: Option<f64>,
    /// Input that the provider had in its cache; as `input` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cached: Option<f64>,
}

/// Where a provider is. One that Skein does not know speaks the OpenAI dialect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderAddress {
    /// As `http://localhost:1234/v1`.
    #[schemars(regex(pattern = r"^https?://.+$"))]
    pub base_url: String,
    /// The NAME of the environment variable that holds the key, never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Z][A-Z0-9_]*$"))]
    pub key: Option<String>,
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
