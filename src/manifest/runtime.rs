//! Defines how an external agent is reached. A program is installed, or a package of npm, PyPI or crates.io, as in the
//! registry of the Agent Client Protocol. A remote agent has an address.
//!
//! Invariant: pure. These types only describe an agent; `external` starts it or connects to it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::ManifestDuration;
use super::restart::Restart;
use crate::sandbox::SandboxSettings;

/// An external agent: a program that speaks the Agent Client Protocol on stdio, or a remote agent that speaks A2A.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum AgentRuntime {
    Acp(Box<AcpRuntime>),
    A2a(A2aRuntime),
}

/// A remote agent that speaks A2A 1.0 with JSON-RPC. Its card is at `.well-known/agent-card.json` below `url`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct A2aRuntime {
    /// An address that begins with http:// or https://.
    #[schemars(regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
    /// Sent with every request; `${env:NAME}` is resolved when a session opens and never logged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub timeouts: AcpTimeouts,
}

/// Exactly one of `command`, `npx`, `uvx` and `cargo` names the program to start; the schema enforces that.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [
    {"required": ["command"]}, {"required": ["npx"]}, {"required": ["uvx"]}, {"required": ["cargo"]}
]))]
pub struct AcpRuntime {
    /// The program to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1))]
    pub command: Option<String>,
    /// An npm package, started with `npx -y`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Package")]
    pub npx: Option<Package>,
    /// A PyPI package, started with `uvx`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Package")]
    pub uvx: Option<Package>,
    /// A program that `cargo install` put on the PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Crate")]
    pub cargo: Option<Crate>,
    /// Arguments of the program, after those of a package.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables in addition to the minimal environment; they override a package's variables. `${env:NAME}` is resolved
    /// at start.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Variables that it inherits from your environment, if they are set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inherit: Vec<VariableName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// How it reaches the services it depends on.
    #[serde(skip_serializing_if = "Handover::is_stdio")]
    pub mcp: Handover,
    /// Limits of the agent's process, in all its modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSettings>,
    pub timeouts: AcpTimeouts,
    pub restart: Restart,
}

/// A package as the registry of the Agent Client Protocol writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name, with `@VERSION` to pin a version.
    #[schemars(length(min = 1))]
    pub package: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Crate {
    /// Its name, with `@VERSION` to pin a version.
    #[serde(rename = "crate")]
    #[schemars(length(min = 1))]
    pub name: String,
    /// The program in the crate; the crate's name if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1))]
    pub bin: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// The name of an environment variable: letters, digits and _.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct VariableName(#[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))] pub String);

/// `stdio`: a child process of the agent. `http`: a local address, for an agent that supports HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    #[default]
    Stdio,
    Http,
}

impl Handover {
    fn is_stdio(&self) -> bool {
        *self == Handover::Stdio
    }
}

/// How long to wait for the agent to start, and for an update while it works before it counts as degraded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcpTimeouts {
    pub start: ManifestDuration,
    pub stale: ManifestDuration,
}

impl Default for AcpTimeouts {
    fn default() -> Self {
        // A package that is not installed is downloaded first.
        Self { start: ManifestDuration::seconds(60), stale: ManifestDuration::seconds(300) }
    }
}

/// The program to start, with unresolved placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProgram {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

impl AcpRuntime {
    pub fn program(&self) -> AgentProgram {
        let (command, own) = match (&self.npx, &self.uvx, &self.cargo) {
            (Some(npx), ..) => ("npx", vec!["-y".to_owned(), npx.package.clone()]),
            (_, Some(uvx), _) => ("uvx", vec![uvx.package.clone()]),
            (.., Some(cargo)) => (cargo.bin(), Vec::new()),
            _ => (self.command.as_deref().unwrap_or_default(), Vec::new()),
        };
        let (packed, set) = self.package_options();
        AgentProgram {
            command: command.to_owned(),
            args: own.iter().chain(packed).chain(&self.args).cloned().collect(),
            env: set
                .into_iter()
                .flatten()
                .chain(&self.env)
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }

    /// Returns help for the case that the program is not installed.
    pub fn missing_help(&self) -> String {
        match (&self.npx, &self.uvx, &self.cargo) {
            (Some(_), ..) => "install Node.js, which brings npx".to_owned(),
            (_, Some(_), _) => "install uv, which brings uvx".to_owned(),
            (.., Some(cargo)) => format!("install it with `cargo install --locked {}`", cargo.name),
            _ => {
                let command = self.command.as_deref().unwrap_or_default();
                format!("install {command}, put it on the PATH, or write its whole path into the manifest")
            }
        }
    }

    /// Returns the arguments and variables of the package.
    fn package_options(&self) -> (&[String], Option<&BTreeMap<String, String>>) {
        match (self.npx.as_ref().or(self.uvx.as_ref()), &self.cargo) {
            (Some(package), _) => (&package.args, Some(&package.env)),
            (_, Some(cargo)) => (&cargo.args, Some(&cargo.env)),
            _ => (&[], None),
        }
    }
}

impl Crate {
    pub fn bin(&self) -> &str {
        let name = self.name.split_once('@').map_or(self.name.as_str(), |(name, _)| name);
        self.bin.as_deref().unwrap_or(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn started(runtime: Value) -> String {
        let runtime: AcpRuntime = serde_json::from_value(runtime).unwrap();
        let AgentProgram { command, args, env } = runtime.program();
        let set: Vec<_> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        [set, vec![command], args].concat().join(" ")
    }

    #[test]
    fn a_program_is_started_as_it_stands() {
        assert_eq!(started(json!({"command": "goose", "args": ["acp"], "env": {"A": "1"}})), "A=1 goose acp");
    }

    #[test]
    fn manifest_overrides_package_arguments_and_variables() {
        let package = json!({"package": "@scope/agent@1.2", "args": ["--acp"], "env": {"A": "1", "B": "1"}});
        let with = |key: &str| json!({key: package, "args": ["--more"], "env": {"B": "2"}});
        assert_eq!(started(with("npx")), "A=1 B=2 npx -y @scope/agent@1.2 --acp --more");
        assert_eq!(started(with("uvx")), "A=1 B=2 uvx @scope/agent@1.2 --acp --more");
    }

    #[test]
    fn a_crate_is_started_by_the_name_of_its_program() {
        assert_eq!(started(json!({"cargo": {"crate": "agent@0.3.1", "args": ["acp"]}})), "agent acp");
        assert_eq!(started(json!({"cargo": {"crate": "agent-cli", "bin": "agent"}})), "agent");
    }

    #[test]
    fn whoever_lacks_the_program_is_told_what_brings_it() {
        let help = |runtime: Value| serde_json::from_value::<AcpRuntime>(runtime).unwrap().missing_help();
        assert!(help(json!({"cargo": {"crate": "agent@0.3.1"}})).contains("`cargo install --locked agent@0.3.1`"));
        assert!(help(json!({"npx": {"package": "x"}})).contains("Node.js"));
        assert!(help(json!({"uvx": {"package": "x"}})).contains("install uv"));
        assert!(help(json!({"command": "goose"})).starts_with("install goose,"));
    }
}
