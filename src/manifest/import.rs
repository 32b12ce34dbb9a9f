//! Imports the configuration of other tools as services and settings. Reads goose's `config.yaml`, the MCP server files
//! of Claude Desktop, Zed, VS Code and others, entries of the Agent Client Protocol registry, and servers of the MCP
//! registry.
//!
//! Invariant: nothing is written here, and no value that may be a secret is in the result.

mod goose;
mod registry;
mod secrets;
mod server_json;
mod servers;

use std::collections::{BTreeMap, BTreeSet};

use jsonc_parser::ParseOptions;
use jsonc_parser::errors::{ParseError, ParseErrorKind};
use serde_json::Value;

use super::json::Strict;
use super::mcp_servers::{ServerFieldError, ServiceNameError};
use super::model::{ServiceManifest, Transport};
use super::yaml::{self, SourceFile};
use super::{ApprovalLevel, ManifestDuration};
use crate::diagnostic::Diagnostic;
use crate::ids::ModelRef;
use crate::sandbox::{FileAccess, NetworkSettings, OtherHosts, SandboxSettings};
pub use goose::goose_provider;
pub use registry::{RegistryAgent, read_registry};
use secrets::ImportedSecrets;
pub use secrets::secret_arguments;
pub use server_json::{RegistryServer, ServerJsonError, read_server_json};

/// The result of importing a file of another tool.
#[derive(Debug, Default)]
pub struct ImportedConfig {
    /// The kind of file, such as `a goose config.yaml`.
    pub from: &'static str,
    pub services: Vec<ServiceManifest>,
    /// The model, as `provider:model`.
    pub processor: Option<ModelRef>,
    pub approval: Option<ApprovalLevel>,
    /// The variables that services need, each with these services.
    pub variables: BTreeMap<String, BTreeSet<String>>,
    /// The variables that may stay unset, because they have an empty default.
    pub optional: BTreeSet<String>,
    pub left_out: Vec<SkippedItem>,
}

/// Something that could not be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedItem {
    pub what: String,
    pub reason: String,
}

impl ImportedConfig {
    fn skip(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.left_out.push(SkippedItem { what: what.into(), reason: reason.into() });
    }
}

/// Why a server or an extension is not imported.
#[derive(Debug, thiserror::Error)]
enum SkipReason {
    #[error(transparent)]
    Name(#[from] ServiceNameError),
    #[error(transparent)]
    Field(#[from] ServerFieldError),
    #[error("it has no `{0}`")]
    MissingField(&'static str),
    #[error("the old HTTP+SSE transport is not spoken; use the server's streamable HTTP address")]
    OldTransport,
    #[error("it has both a command and a url")]
    CommandAndUrl,
    #[error("it has neither a command nor a url")]
    NoTransport,
    #[error("it is an extension of Zed, which brings its own program")]
    ZedExtension,
    #[error("it is part of goose; {instead}")]
    PartOfGoose { instead: String },
    #[error("extensions of type {kind} are goose's own")]
    GooseOnly { kind: String },
    #[error("its address begins with neither http:// nor https://")]
    Address,
    #[error("a `${{` has no closing brace")]
    OpenPlaceholder,
    #[error("it uses ${{{name}}}, which only its editor can fill in")]
    EditorVariable { name: String },
    #[error("it uses a `${{…}}` that only its editor can fill in")]
    EditorPlaceholder,
}

/// Why a file of another tool cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ForeignFileError {
    #[error("{}{}", .0.problem, .0.at.span.as_ref().map(|span| format!(" in line {}", span.line)).unwrap_or_default())]
    Syntax(Box<Diagnostic>),
    #[error("not valid JSON: {} in line {}", .0.kind(), .0.line_display())]
    JsonSyntax(#[source] ParseError),
    #[error("not valid JSON: {0}")]
    DuplicateKey(String),
    #[error("it has none of `mcpServers`, `context_servers`, `servers` or goose's `extensions`")]
    UnknownFormat,
}

/// Imports a file, which it recognises by its content. Fails if the format is unknown or the file is invalid.
pub fn read_foreign(file: &str, text: &str) -> Result<ImportedConfig, ForeignFileError> {
    let text = text.trim_start_matches('\u{feff}');
    let is_json = ["{", "//", "/*"].iter().any(|start| text.trim_start().starts_with(start));
    let value = match is_json {
        true => parse_jsonc(text)?,
        false => yaml::parse(&SourceFile::new(file, text)).map_err(ForeignFileError::Syntax)?,
    };
    let mut secrets = ImportedSecrets::default();
    let mut moved = ImportedConfig::default();
    let mapping = |key: &str| value.get(key).and_then(Value::as_object);
    if let Some(found) = mapping("mcpServers") {
        moved.from = "an mcpServers file";
        servers::read(found, &mut secrets, &mut moved);
        skip_project_servers(&value, &mut moved);
    } else if let Some(found) = mapping("context_servers") {
        moved.from = "Zed's settings";
        servers::read(found, &mut secrets, &mut moved);
    } else if let Some(found) = mapping("servers").or(value.pointer("/mcp/servers").and_then(Value::as_object)) {
        moved.from = "VS Code's MCP servers";
        servers::read(found, &mut secrets, &mut moved);
    } else if let Some(config) = goose::goose_config(&value) {
        moved.from = "a goose config.yaml";
        goose::read(config, &mut secrets, &mut moved);
    } else {
        return Err(ForeignFileError::UnknownFormat);
    }
    for name in &secrets.without_default {
        moved.skip(format!("the default of {name}"), "it may be a secret; set the variable");
    }
    moved.optional = secrets.optional();
    moved.variables = secrets.into_variables();
    Ok(moved)
}

/// Reports the servers that Claude Code keeps for single projects in the same file. They are not for all projects, so
/// they are not imported.
fn skip_project_servers(value: &Value, moved: &mut ImportedConfig) {
    for (project, held) in value.get("projects").and_then(Value::as_object).into_iter().flatten() {
        for name in held.get("mcpServers").and_then(Value::as_object).into_iter().flat_map(|servers| servers.keys()) {
            let reason = format!("it is for {project} alone; put it into the .mcp.json there, then `skein trust`");
            moved.skip(name, reason);
        }
    }
}

/// Parses JSON as editors write it: with comments and trailing commas, but nothing else that is not JSON.
fn parse_jsonc(text: &str) -> Result<Value, ForeignFileError> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = jsonc_parser::parse_to_serde_value::<Strict>(text, &options);
    parsed.map(|strict| strict.0).map_err(|error| match error.kind() {
        // The crate has no position for an error of the type that it fills.
        ParseErrorKind::Custom(message) => ForeignFileError::DuplicateKey(message.clone()),
        _ => ForeignFileError::JsonSyntax(error),
    })
}

/// Formats a service manifest as a file that begins with a comment. Text is written as JSON strings, which are always
/// valid YAML.
pub fn service_text(manifest: &ServiceManifest, comment: &str) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let mut lines = vec![
        // A comment is one line, so that third-party text cannot end it.
        format!("# {}", comment.replace(char::is_control, " ")),
        format!("version: {}", manifest.version),
        "kind: service".to_owned(),
        format!("name: {}", manifest.name),
    ];
    lines.extend(manifest.title.iter().map(|title| format!("title: {}", text(title))));
    lines.push(format!("description: {}", text(&manifest.description)));
    lines.push("transport:".to_owned());
    let transport = serde_json::to_value(&manifest.transport).unwrap_or_default();
    write_below(&transport, 1, &mut lines);
    if let Some(tools) = &manifest.available_tools {
        lines.push(format!("available_tools: {}", serde_json::json!(tools)));
    }
    if manifest.timeouts.call != ManifestDuration::seconds(120) {
        lines.push(format!("timeouts: {{call: {}}}", manifest.timeouts.call));
    }
    if !manifest.groups.is_empty() {
        lines.push("groups:".to_owned());
        lines.extend(manifest.groups.iter().map(|(group, tools)| format!("  {group}: {}", serde_json::json!(tools))));
    }
    if let Some(sandbox) = &manifest.sandbox {
        lines.push("sandbox:".to_owned());
        write_below(&serde_json::to_value(sandbox).unwrap_or_default(), 1, &mut lines);
    } else if let Transport::Stdio(stdio) = &manifest.transport {
        lines.push(
            "# Without a sandbox, the process has all your rights. To limit it, list the hosts it needs:".to_owned(),
        );
        lines.push(format!("# sandbox: {{files: read-only, network: [{}]}}", package_hosts(&stdio.command)));
    }
    escape_for_yaml(&(lines.join("\n") + "\n"))
}

/// Escapes the characters that JSON allows in a text and YAML does not. They occur only in quoted texts.
fn escape_for_yaml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns the hosts that a program needs at least. Package runners download the package.
fn package_hosts(command: &str) -> &'static str {
    if runs_packages(command) { "registries" } else { "" }
}

/// Returns true for a program that downloads a package and runs it.
fn runs_packages(command: &str) -> bool {
    let program = command.rsplit('/').next().unwrap_or_default();
    ["npx", "uvx", "bunx", "pipx", "pnpm", "uv"].contains(&program)
}

/// Suggests the sandbox profile of a service: it writes nothing, and reaches the package registries if its program
/// downloads a package, and `hosts`.
pub fn suggest_sandbox(command: &str, hosts: &[String]) -> SandboxSettings {
    let registries = runs_packages(command).then(|| "registries".to_owned());
    let allow: Vec<_> = registries.into_iter().chain(hosts.iter().cloned()).collect();
    let network = match allow.is_empty() {
        true => NetworkSettings::Word(OtherHosts::Off),
        false => NetworkSettings::List(allow),
    };
    SandboxSettings { files: Some(FileAccess::ReadOnly), network: Some(network), ..SandboxSettings::default() }
}

/// Maximum bytes of a key before its colon. Escapes make it up to six times as long.
const MAX_SHORT_KEY: usize = 128;

/// Writes mappings with one key per line, and everything else as JSON.
fn write_below(value: &Value, depth: usize, lines: &mut Vec<String>) {
    let Some(entries) = value.as_object() else { return };
    let indent = "  ".repeat(depth);
    for (key, value) in entries {
        let plain =
            key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && key.chars().any(|c| !c.is_ascii_digit());
        let key = if plain { key.clone() } else { Value::from(key.as_str()).to_string() };
        // YAML ends the search for the colon after 1,024 characters, unless a mark begins the line of the key.
        let key = if key.len() <= MAX_SHORT_KEY { key } else { format!("? {key}\n{indent}") };
        if value.as_object().is_some_and(|inner| !inner.is_empty()) {
            lines.push(format!("{indent}{key}:"));
            write_below(value, depth + 1, lines);
        } else {
            lines.push(format!("{indent}{key}: {value}"));
        }
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
