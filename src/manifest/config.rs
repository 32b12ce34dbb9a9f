//! Defines the types of `config.yaml` of a user or a project: profiles, approval, permissions, hooks, models, providers,
//! server and store. `settings` decides which file wins.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::approval::ApprovalLevel;
use super::budget::{BudgetConfig, PeriodBudget};
use super::delegate::DelegateEntry;
use super::hooks::HookConfig;
use super::notifications::NotificationConfig;
use super::permission::PermissionRule;
use super::serve_config::ServeConfig;
use super::store_config::StoreConfig;
use crate::ids::{AgentName, ModeSlug, ModelRef, RoleName, ServiceName};
use crate::sandbox::SandboxSettings;

/// Settings of a user (`config.yaml` in the configuration folder) or of a project (`.skein/config.yaml`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein config file")]
pub struct Config {
    /// Format version of this file: 1.
    pub version: u64,
    /// When a call needs the user's consent; a project can only make it stricter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalLevel>,
    /// Which calls are allowed, asked about or denied; a project's rules can only deny and ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionRule>,
    /// Limits of processes, in addition to those of manifests; a project can only make them stricter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxConfig>,
    /// Limits of cost, tokens, model requests and time. Those of a project count in addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BudgetConfig>,
    /// How Skein notifies you of a permission request that stays open; only in the user's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notifications: Option<NotificationConfig>,
    /// Commands at events of a session; a project's can only refuse prompts and calls.
    #[serde(default, skip_serializing_if = "HookConfig::is_empty")]
    pub hooks: HookConfig,
    /// Where the tasks work that the orchestrator delegates; it grants nothing. The first entry for a mode decides, the
    /// user's before the project's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delegates: Vec<DelegateEntry>,
    /// Services that are off, even if a profile lists them. The services of the orchestrator stay on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disabled_services: Vec<ServiceName>,
    /// Whether prompts get excerpts of earlier sessions; true if left out. Either config can turn them off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<bool>,
    /// The active one of `profiles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, Profile>,
    /// Properties of models, by `provider:model`; only in the user's config.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<ModelRef, ModelFacts>,
    /// Additional providers, and other addresses of known ones; only in the user's config.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub providers: BTreeMap<String, ProviderAddress>,
    /// Settings of `skein serve`; only in the user's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<ServeConfig>,
    /// Settings of the store of sessions; only in the user's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,
}

/// Sandbox settings for all modes, for single modes, and for services of clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct SandboxConfig {
    /// The settings of all modes. Lists add to those of manifests, single values replace them. `enforce` and `hide`
    /// also apply to services and external agents.
    #[serde(flatten)]
    pub all: SandboxSettings,
    /// More settings by `agent/mode`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<String, SandboxSettings>,
    /// The profile of servers that an editor passes or a `.mcp.json` names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_services: Option<SandboxSettings>,
}

/// A model's context window, and its prices in US dollars per million tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// The number of tokens that fit into a request and its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub input: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub output: Option<f64>,
    /// The price of cached input; the price of `input` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cached: Option<f64>,
}

/// The address and the limits of a provider. An unknown provider must use the OpenAI API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderAddress {
    /// As `http://localhost:1234/v1`. Only a built-in provider can leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://.+$"))]
    pub base_url: Option<String>,
    /// The NAME of the environment variable that holds the key, never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Z][A-Z0-9_]*$"))]
    pub key: Option<String>,
    /// What the key admits. Requests beyond it wait in a queue.
    #[serde(default, skip_serializing_if = "ProviderLimits::is_empty")]
    pub limits: ProviderLimits,
}

/// The limits of a provider's key, for all sessions of the process together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderLimits {
    /// Requests at the same time. Without it, Skein learns the number from the provider's refusals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrency: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u32>,
    /// Tokens of requests and answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tokens_per_minute: Option<u64>,
}

impl ProviderLimits {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Models, services, and the agent and mode to start with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein profile")]
pub struct Profile {
    /// The main model, as `provider:model`. Of a list, the next model answers if one fails before it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<ProcessorModels>,
    /// A fast model for routing and compaction; the processor if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*(:.+)?$"))]
    pub accelerator: Option<ModelRef>,
    /// How a full context is handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderator: Option<Moderator>,
    /// The services that are on; all of them if left out. Built-in services stay on unless the list names one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ProfileService>>,
    /// More `services`, under the name that goose uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<Vec<ProfileService>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeSlug>,
    /// Limits of all sessions with this profile, in a day or a month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PeriodBudget>,
}

impl Profile {
    /// Returns the services that the profile lists, in order. `None` if it lists none, so that all are on.
    pub fn services(&self) -> Option<impl Iterator<Item = &ProfileService>> {
        let lists = [&self.services, &self.extensions];
        let listed = lists.iter().any(|list| list.is_some());
        listed.then(|| lists.into_iter().flatten().flatten())
    }
}

/// The main model, or a list of the main model and those that replace it when it fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ProcessorModels {
    One(ModelRef),
    Several(Vec<ModelRef>),
}

impl ProcessorModels {
    /// Returns the models in the order in which they are asked.
    pub fn models(&self) -> &[ModelRef] {
        match self {
            ProcessorModels::One(model) => std::slice::from_ref(model),
            ProcessorModels::Several(models) => models,
        }
    }
}

impl JsonSchema for ProcessorModels {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ProcessorModels".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^[a-z][a-z0-9-]*(:.+)?$";
        json_schema!({
            "anyOf": [
                {"type": "string", "pattern": pattern},
                {"type": "array", "items": {"type": "string", "pattern": pattern}, "minItems": 1},
            ],
        })
    }
}

/// A service of a profile: its name, or a mapping that also chooses what it requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ProfileService {
    Name(ServiceName),
    Detailed(DetailedService),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetailedService {
    pub name: ServiceName,
    /// Which service takes each role that the manifest of this one declares; only in the user's config.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<RoleName, ServiceName>,
}

impl ProfileService {
    pub fn name(&self) -> &ServiceName {
        match self {
            ProfileService::Name(name) => name,
            ProfileService::Detailed(detailed) => &detailed.name,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Moderator {
    Summarize,
    Truncate,
    Passive,
}
