//! The format of assertion files: statements about a plan that `skein check --assert` proves.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::approval::ApprovalLevel;

/// Statements about all modes, agents and services. A file is checked as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein assertions")]
pub struct AssertionFile {
    /// Format version of this file: 1.
    #[schemars(range(min = 1, max = 1))]
    pub version: u64,
    pub kind: AssertionKind,
    /// The approval levels that sessions may use; default: all.
    pub approval: Option<Vec<ApprovalLevel>>,
    /// Each must hold.
    #[schemars(length(min = 1))]
    pub assert: Vec<Assertion>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AssertionKind {
    Assertions,
}

/// One selector, and what must hold for everything it selects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assertion {
    /// Shown in messages and reports.
    pub name: Option<String>,
    /// Selector: the only modes that may reach something, such as `coding/devsecops`. Names may be globs.
    pub only: Option<Vec<String>>,
    /// Selector: one mode, such as `coding/security`.
    pub mode: Option<String>,
    /// Selector: modes by name, or by a property.
    pub modes: Option<ModeSelector>,
    /// Selector: agents by name, or by a property.
    pub agents: Option<AgentSelector>,
    /// Selector: services by name, or by a property.
    pub services: Option<ServiceSelector>,
    /// What the modes reach, directly or through services that require others.
    pub reach: Option<ReachAssertion>,
    /// The tool groups of the modes.
    pub groups: Option<AllowedNames>,
    /// The tools of the modes, such as `developer__shell`.
    pub tools: Option<AllowedNames>,
    /// The sandbox of the processes.
    pub sandbox: Option<SandboxAssertion>,
    /// The default approval levels of the modes.
    pub approval: Option<Vec<ApprovalLevel>>,
    /// The modes to which the agents may delegate.
    pub delegates: Option<AllowedNames>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ModeSelector {
    /// Names or globs, such as `coding/*`.
    Names(Vec<String>),
    /// Modes that list this tool group.
    Group(GroupSelector),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSelector {
    pub group: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AgentSelector {
    /// Names or globs.
    Names(Vec<String>),
    /// External agents, or all others.
    External(ExternalSelector),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalSelector {
    pub external: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ServiceSelector {
    /// Names or globs.
    Names(Vec<String>),
    /// Services with this transport.
    Transport(TransportSelector),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransportSelector {
    pub transport: TransportName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    Builtin,
    Stdio,
    Http,
}

/// What is reached: a service, a tool or the tools of a group. Names may be globs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReachAssertion {
    pub service: Option<String>,
    /// `service__tool`.
    pub tool: Option<String>,
    pub group: Option<String>,
    /// Reaching through a mode to which the agent delegates counts too.
    #[serde(default)]
    pub delegation: bool,
    /// The selected modes must not reach it. Not together with `only`.
    #[serde(default)]
    pub never: bool,
}

/// A list means: these and no others. `not` means: any but these. Names may be globs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AllowedNames {
    Only(Vec<String>),
    Not(ExcludedNames),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExcludedNames {
    pub not: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SandboxAssertion {
    /// A sandbox limits the processes.
    Presence(SandboxPresence),
    /// A sandbox limits the processes, and each field has one of these values. At the approval level `auto`,
    /// `network: ask` counts as `on`.
    #[schemars(schema_with = "sandbox_fields_schema")]
    Fields(BTreeMap<SandboxField, Vec<SandboxValue>>),
}

/// Lists the fields in the schema, so that an unknown one is reported with its line. A map would allow any key.
fn sandbox_fields_schema(generator: &mut SchemaGenerator) -> Schema {
    let values = generator.subschema_for::<Vec<SandboxValue>>();
    let fields = SandboxField::ALL.iter().map(|field| (field.as_str().to_owned(), values.clone().to_value()));
    let fields: serde_json::Map<_, _> = fields.collect();
    json_schema!({"type": "object", "properties": fields, "additionalProperties": false})
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxPresence {
    Present,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxField {
    Files,
    /// What happens with hosts in no list.
    Network,
    /// The listed hosts. Each must be in this list.
    Hosts,
    Caches,
    Git,
    Enforce,
}

impl SandboxField {
    const ALL: [Self; 6] = [Self::Files, Self::Network, Self::Hosts, Self::Caches, Self::Git, Self::Enforce];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Network => "network",
            Self::Hosts => "hosts",
            Self::Caches => "caches",
            Self::Git => "git",
            Self::Enforce => "enforce",
        }
    }
}

/// A value of a field. YAML reads a bare `off` or `on` as a boolean.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SandboxValue {
    Switch(bool),
    Word(String),
}

impl SandboxValue {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Switch(true) => "on",
            Self::Switch(false) => "off",
            Self::Word(word) => word,
        }
    }
}
