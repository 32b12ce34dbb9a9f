//! Defines the types of a managed file: the limits that an administrator sets. `managed_layer` applies them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::approval::ApprovalLevel;
use super::budget::BudgetConfig;
use super::config::SandboxConfig;
use super::permission::PermissionRule;
use crate::ids::ModelRef;

/// Settings of an administrator. A key that is left out limits nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein managed settings")]
pub struct ManagedConfig {
    /// Format version of this file: 1.
    pub version: u64,
    /// The loosest approval level of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalLevel>,
    /// Which calls are denied or need consent. No other rule overrides these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionRule>,
    /// Limits of processes, in addition to all others. With `enforce: required`, no command runs without a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxConfig>,
    /// The only providers that receive requests. Each has its built-in address, or the one that is stated here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<ManagedProvider>>,
    /// The only models, as `provider:model`; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The only hosts that tools and processes in a sandbox reach: `HOST`, `HOST:PORT`, `*.HOST`, or an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// The only agents or modes, as `agent`, `agent/mode` or a glob. The orchestrator is always there. A name stands for
    /// the definition that Skein ships; `{name, from: user}` also allows others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<ManagedName>>,
    /// The only services, as names or globs. The services of the orchestrator are always there. A name stands for the
    /// definition that Skein ships; `{name, from: user}` also allows others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ManagedName>>,
    /// The receivers and the content of telemetry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<ManagedTelemetry>,
    /// Limits of cost, tokens, model requests and time, in addition to all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BudgetConfig>,
    /// Prices by `provider:model`. If `limits` limits the cost, only these and the published ones count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prices: BTreeMap<ModelRef, ModelPrice>,
}

/// Limits of the export of telemetry. A key that is left out limits nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManagedTelemetry {
    /// The only receivers, as `https://collector.example.com`, with every path below. An empty list allows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Vec<String>>,
    /// Whether spans may have the text of messages and calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<bool>,
}

/// The price of a model, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    #[schemars(range(min = 0))]
    pub input: f64,
    #[schemars(range(min = 0))]
    pub output: f64,
    /// The price of cached input; the price of `input` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cached: Option<f64>,
}

impl ManagedConfig {
    /// The keys that set limits.
    pub const KEYS: [&str; 11] = [
        "approval",
        "permissions",
        "sandbox",
        "providers",
        "models",
        "hosts",
        "agents",
        "services",
        "telemetry",
        "limits",
        "prices",
    ];
}

/// An agent, a mode or a service that managed settings allow: its name, or a mapping that also states whose definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ManagedName {
    Name(String),
    Definition(ManagedDefinition),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManagedDefinition {
    /// A name or glob.
    pub name: String,
    pub from: DefinitionSource,
}

/// Whose definition of an agent or service counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DefinitionSource {
    /// Only that of Skein itself, as for a name alone.
    Skein,
    /// Also those of users, trusted projects, `--manifests` and editors.
    User,
}

impl ManagedName {
    pub fn name(&self) -> &str {
        match self {
            ManagedName::Name(name) => name,
            ManagedName::Definition(definition) => &definition.name,
        }
    }

    /// Returns true if definitions count that Skein does not ship.
    pub fn admits_others(&self) -> bool {
        match self {
            ManagedName::Name(_) => false,
            ManagedName::Definition(definition) => definition.from == DefinitionSource::User,
        }
    }
}

/// A provider that managed settings allow: its name, or a mapping that also states its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ManagedProvider {
    Name(String),
    Addressed(AddressedProvider),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressedProvider {
    pub name: String,
    /// As `https://models.example.com/v1`. No other address of this provider is allowed.
    #[schemars(regex(pattern = r"^https?://.+$"))]
    pub base_url: String,
}

impl ManagedProvider {
    pub fn name(&self) -> &str {
        match self {
            ManagedProvider::Name(name) => name,
            ManagedProvider::Addressed(provider) => &provider.name,
        }
    }

    /// Returns the stated address. `None` means the built-in one.
    pub fn base_url(&self) -> Option<&str> {
        match self {
            ManagedProvider::Name(_) => None,
            ManagedProvider::Addressed(provider) => Some(&provider.base_url),
        }
    }
}
