//! Defines the types of agent and service files, exactly as written. The JSON Schemas in `schemas/` are generated from
//! these types, so an editor shows these doc comments as help.
//!
//! Invariant: names are plain text here. A missing field means the narrowest choice: no groups, no dependencies, no
//! delegates.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::ApprovalLevel;
use super::delegate::DelegateEntry;
use super::duration::ManifestDuration;
use super::restart::Restart;
use super::runtime::AgentRuntime;
use super::sharing::{PrincipalSharing, ServiceSharing};
use crate::ids::{AgentName, GroupName, ModeSlug, RoleName, ServiceName, ToolName};
use crate::sandbox::SandboxSettings;

/// The format version that this build reads and writes.
pub const VERSION: u64 = 1;

/// An agent: something that answers prompts, in one or more modes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein agent manifest")]
pub struct AgentManifest {
    /// Format version of this file: 1.
    pub version: u64,
    pub kind: AgentKind,
    pub name: AgentName,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// One sentence on what the agent is for.
    #[schemars(length(min = 1))]
    pub description: String,
    /// Media types the agent accepts (Agent Communication Protocol).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_content_types: Vec<String>,
    /// Media types the agent answers with (Agent Communication Protocol).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_content_types: Vec<String>,
    #[serde(default)]
    pub metadata: Metadata,
    /// An external program that speaks the Agent Client Protocol, or a remote A2A agent; without it Skein runs the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<AgentRuntime>,
    /// The mode a session starts in; the first one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<ModeSlug>,
    /// Modes this agent may delegate to: `agent/mode`, `agent/*` or `*/*`, each alone or with where the tasks work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delegates: Vec<DelegateEntry>,
    #[schemars(length(min = 1))]
    pub modes: Vec<Mode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgentKind {
    Agent,
}

/// The metadata of an agent manifest in the Agent Communication Protocol. Skein uses `dependencies` and `capabilities`;
/// it keeps and shows the rest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The agent's own version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Every service that any of the modes may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// The abilities of the agent, for routing and for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<Capability>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Person>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contributors: Vec<Person>,
    /// SPDX licence identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documentation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programming_language: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub natural_languages: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recommended_models: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// Anything else, kept unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Capability {
    Word(String),
    Described(DescribedCapability),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DescribedCapability {
    pub name: String,
    #[serde(default)]
    pub description: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Person {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    #[serde(rename = "type")]
    pub kind: String,
    pub url: String,
}

/// A required service: its name, or a mapping with details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Dependency {
    Name(ServiceName),
    Detailed(DetailedDependency),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetailedDependency {
    /// Only `tool` (a service) has an effect; `agent` and `model` are kept for readers of the manifest.
    #[serde(rename = "type", default)]
    pub kind: DependencyKind,
    pub name: ServiceName,
    /// True if the mode works without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DependencyKind {
    #[default]
    Tool,
    Agent,
    Model,
}

impl Dependency {
    pub fn name(&self) -> &ServiceName {
        match self {
            Dependency::Name(name) => name,
            Dependency::Detailed(detailed) => &detailed.name,
        }
    }

    pub fn kind(&self) -> DependencyKind {
        match self {
            Dependency::Name(_) => DependencyKind::Tool,
            Dependency::Detailed(detailed) => detailed.kind,
        }
    }

    pub fn optional(&self) -> bool {
        match self {
            Dependency::Name(_) => false,
            Dependency::Detailed(detailed) => detailed.optional,
        }
    }
}

/// A mode of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    pub slug: ModeSlug,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// One sentence on what the mode does.
    #[schemars(length(min = 1))]
    pub description: String,
    /// When a request belongs to this mode; the router uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_to_use: Option<String>,
    /// Typical requests; the router learns from them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// A text file with more examples, one per line, relative to this file. Skein ignores blank lines and lines that
    /// start with `#`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examples_file: Option<String>,
    /// The Markdown file with the mode's prompt, relative to this file. Required unless the agent is external.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The tools that the mode may use. An empty or missing list means no tools.
    #[serde(default)]
    pub tool_groups: Vec<GroupEntry>,
    /// The services that the mode uses.
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// When a call needs the user's consent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalLevel>,
    /// Whether the model may call tools from code it writes.
    #[serde(default, skip_serializing_if = "CodeExecution::is_off")]
    pub code_execution: CodeExecution,
    /// Whether prompts in the mode get excerpts of earlier sessions; true if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<bool>,
    /// Limits of the commands that the mode runs; not for a mode of an external agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSettings>,
    /// Used by Skein itself and never offered to users. Only built-in modes may be internal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal: bool,
}

/// A tool group: its name, or a mapping that restricts it to some files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GroupEntry {
    Name(GroupName),
    Files(FilesGroup),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesGroup {
    pub group: GroupName,
    /// A regular expression that every path argument of a call must match.
    pub files: String,
}

impl GroupEntry {
    pub fn group(&self) -> &GroupName {
        match self {
            GroupEntry::Name(group) => group,
            GroupEntry::Files(narrowed) => &narrowed.group,
        }
    }

    pub fn files(&self) -> Option<&str> {
        match self {
            GroupEntry::Name(_) => None,
            GroupEntry::Files(narrowed) => Some(&narrowed.files),
        }
    }
}

/// `auto`: on if the schemas of the mode's tools exceed 8 kB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CodeExecution {
    #[default]
    Off,
    On,
    Auto,
}

impl CodeExecution {
    fn is_off(&self) -> bool {
        *self == CodeExecution::Off
    }
}

/// A service: an MCP server that agents can use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Skein service manifest")]
pub struct ServiceManifest {
    /// Format version of this file: 1.
    pub version: u64,
    pub kind: ServiceKind,
    pub name: ServiceName,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// One sentence on what the service offers.
    #[schemars(length(min = 1))]
    pub description: String,
    pub transport: Transport,
    /// The agent that owns this service; no other agent may use it. Only built-in services have an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AgentName>,
    /// `planned` services are listed and never started.
    #[serde(default)]
    pub status: Readiness,
    /// One instance for all sessions, or one per session. The default is `shared`, unless `sandbox` depends on the
    /// session or the service requires others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ServiceSharing>,
    /// Which principals of `skein serve` share an instance: `principal` (default) or `all`. Not in projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<PrincipalSharing>,
    /// Services that this one requires, by name or by role; they are hidden from the modes that use it.
    #[serde(default, skip_serializing_if = "Requires::is_empty")]
    pub requires: Requires,
    /// The tools of each tool group.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupName, Vec<ToolName>>,
    /// The only tools that modes may use; all of them if left out. Groups narrow them further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub available_tools: Option<Vec<ToolName>>,
    #[serde(default)]
    pub timeouts: Timeouts,
    #[serde(default)]
    pub restart: Restart,
    /// Limits of the service's process; only for `stdio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSettings>,
    /// Settings of the service. Only built-in services have any: `fetch` reads `allow_hosts`, a list of `host` or
    /// `host:port` that it may reach although they are not public.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<BTreeMap<String, Value>>,
}

impl ServiceManifest {
    /// Returns how sessions share the service. A process whose sandbox depends on the session is not shared.
    pub fn sharing(&self) -> ServiceSharing {
        let is_per_root = self.sandbox.as_ref().is_some_and(SandboxSettings::is_per_root);
        let default = if is_per_root { ServiceSharing::Session } else { ServiceSharing::Shared };
        if self.calls_for_session() { ServiceSharing::Session } else { self.scope.unwrap_or(default) }
    }

    /// Returns true if all principals share the instances of the service.
    pub fn is_shared_by_all(&self) -> bool {
        self.shared_by == Some(PrincipalSharing::All)
    }

    /// Returns true if the program of the service calls other services. Such a call belongs to a session, so sessions
    /// cannot share the program. A built-in service passes the session on with each call.
    pub fn calls_for_session(&self) -> bool {
        !self.requires.is_empty() && !matches!(self.transport, Transport::Builtin(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    Service,
}

/// How Skein connects to the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Transport {
    /// Compiled into Skein; only built-in manifests may use it.
    Builtin(ServiceName),
    /// A child process that speaks MCP on its standard input and output.
    Stdio(StdioTransport),
    /// A server that speaks MCP over streamable HTTP.
    Http(HttpTransport),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StdioTransport {
    #[schemars(length(min = 1))]
    pub command: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables in addition to the minimal environment; `${env:NAME}` is resolved at start and never logged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Variables that make a program load code that its manifest does not show. No service or external agent may set one.
/// Variables that legitimate services also need, such as `PATH`, `PYTHONPATH` or `GIT_SSH_COMMAND`, are shown before a
/// project is trusted.
pub const LOADERS: [&str; 9] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "DYLD_INSERT_LIBRARIES",
    "NODE_OPTIONS",
    "PYTHONSTARTUP",
    "BASH_ENV",
    "PERL5OPT",
    "RUBYOPT",
];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpTransport {
    /// An address that begins with http:// or https://.
    #[schemars(regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
    /// Sent with every request; `${env:NAME}` is resolved at start and never logged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Readiness {
    #[default]
    Ready,
    Planned,
}

/// A list of services, or a mapping of roles to services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Requires {
    Services(Vec<ServiceName>),
    Roles(BTreeMap<RoleName, ServiceName>),
}

impl Default for Requires {
    fn default() -> Self {
        Requires::Services(Vec::new())
    }
}

impl Requires {
    pub fn is_empty(&self) -> bool {
        match self {
            Requires::Services(services) => services.is_empty(),
            Requires::Roles(roles) => roles.is_empty(),
        }
    }

    /// Returns each required service with its role. In a plain list, the role is the name of the service.
    pub fn roles(&self) -> Vec<(RoleName, &ServiceName)> {
        match self {
            Requires::Services(services) => {
                services.iter().map(|service| (RoleName::new(service.as_str()), service)).collect()
            }
            Requires::Roles(roles) => roles.iter().map(|(role, service)| (role.clone(), service)).collect(),
        }
    }
}

/// How long to wait for the service to start, for a call, and after the last use before it is stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    pub start: ManifestDuration,
    pub call: ManifestDuration,
    pub idle: ManifestDuration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            start: ManifestDuration::seconds(20),
            call: ManifestDuration::seconds(120),
            idle: ManifestDuration::seconds(300),
        }
    }
}
