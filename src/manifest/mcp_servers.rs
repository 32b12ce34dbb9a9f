//! Reads a project's `.mcp.json`, in which other tools keep their MCP servers, as service manifests. Also creates the
//! services of clients and recipes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::duration::ManifestDuration;
use super::model::{
    HttpTransport, LOADERS, Readiness, Requires, ServiceKind, ServiceManifest, StdioTransport, Timeouts, Transport,
    VERSION,
};
use super::recipe::{Extension, ExtensionKind};
use super::restart::Restart;
use super::yaml::{DocumentPath, SourceFile};
use super::{Layer, ServiceEntry};
use crate::diagnostic::Diagnostic;
use crate::ids::{ServiceName, ToolName};

pub(super) fn read(
    value: &Value,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) -> Vec<(ServiceManifest, DocumentPath)> {
    let at = DocumentPath::root().key("mcpServers");
    let Some(servers) = value.get("mcpServers").and_then(Value::as_object) else {
        found.push(Diagnostic::error(
            "E012",
            source.place(&DocumentPath::root()),
            "the mapping `mcpServers` is missing",
            "write `{\"mcpServers\": {\"name\": {\"command\": …}}}`",
        ));
        return Vec::new();
    };
    let mut services = Vec::new();
    for (name, server) in servers {
        let at = at.key(name);
        if server.get("disabled") == Some(&Value::Bool(true)) {
            continue;
        }
        match service(name, server) {
            Ok(manifest) => services.push((manifest, at)),
            // The file belongs to other tools, so a server that Skein cannot use is only a warning.
            Err(error) => found.push(Diagnostic::warning(
                "W204",
                source.key_place(&at),
                format!("the server `{name}` is left out: {error}"),
                error.help(),
            )),
        }
    }
    services
}

/// Why a server of `.mcp.json` cannot be used.
#[derive(Debug, thiserror::Error)]
enum McpServerError {
    #[error("{}", ServiceNameError::PROBLEM)]
    Name(#[from] ServiceNameError),
    #[error("the old HTTP+SSE transport is not spoken")]
    OldTransport,
    #[error("its url has no http:// or https://")]
    Url,
    #[error("it has both a command and a url")]
    CommandAndUrl,
    #[error("it has neither a command nor a url")]
    NoTransport,
    #[error(transparent)]
    Field(#[from] ServerFieldError),
}

impl McpServerError {
    fn help(&self) -> &'static str {
        match self {
            Self::Name(_) => ServiceNameError::HELP,
            Self::OldTransport => "use the server's streamable HTTP address, with `\"type\": \"http\"`",
            Self::Url => "write the whole address, with http:// or https://",
            Self::CommandAndUrl | Self::NoTransport | Self::Field(_) => {
                "give it a `command` with `args` and `env`, or a `url` with `headers`"
            }
        }
    }
}

/// A name that cannot be converted to a service name.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{}; {}", Self::PROBLEM, Self::HELP)]
pub struct ServiceNameError;

impl ServiceNameError {
    const PROBLEM: &str = "its name cannot be made one that a manifest can hold";
    const HELP: &str = "rename it: a letter first, then at most 31 letters, digits and -";
}

/// A field of a server, in the form that several tools share, with a value of the wrong type.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerFieldError {
    #[error("`args` is not a list")]
    ArgsNotList,
    #[error("an entry of `args` is not text")]
    ArgumentNotText,
    #[error("`env` or `headers` is not a mapping")]
    NotMapping,
    #[error("the value of `{key}` is not text")]
    ValueNotText { key: String },
}

fn service(name: &str, server: &Value) -> Result<ServiceManifest, McpServerError> {
    let text = |key: &str| server.get(key).and_then(Value::as_str);
    let transport = match (text("command"), text("url")) {
        (Some(command), None) => Transport::Stdio(StdioTransport {
            command: variables(command),
            args: strings(server.get("args"))?,
            env: map(server.get("env"))?,
            cwd: text("cwd").map(variables),
        }),
        (None, Some(_)) if text("type") == Some("sse") => {
            return Err(McpServerError::OldTransport);
        }
        (None, Some(url)) if !["http://", "https://", "${"].iter().any(|start| url.starts_with(start)) => {
            return Err(McpServerError::Url);
        }
        (None, Some(url)) => {
            Transport::Http(HttpTransport { url: variables(url), headers: map(server.get("headers"))? })
        }
        (Some(_), Some(_)) => return Err(McpServerError::CommandAndUrl),
        (None, None) => return Err(McpServerError::NoTransport),
    };
    let description = text("description").map_or_else(|| format!("MCP server {name} of .mcp.json"), str::to_owned);
    Ok(manifest(service_name(name)?, Some(name.to_owned()), description, transport))
}

/// Creates the manifest of a service with defaults for everything else.
pub fn manifest(
    name: ServiceName,
    title: Option<String>,
    description: String,
    transport: Transport,
) -> ServiceManifest {
    ServiceManifest {
        version: VERSION,
        kind: ServiceKind::Service,
        name,
        title,
        description,
        transport,
        owner: None,
        status: Readiness::Ready,
        scope: None,
        shared_by: None,
        requires: Requires::default(),
        groups: BTreeMap::new(),
        available_tools: None,
        timeouts: Timeouts::default(),
        restart: Restart::default(),
        sandbox: None,
        settings: None,
    }
}

/// Why a server of a client or an extension of a recipe cannot become a service of its session.
#[derive(Debug, thiserror::Error)]
pub enum SessionServiceError {
    #[error("its settings contain `${{env:`, which only manifests may use; let the editor fill in the value")]
    ClientVariable,
    #[error("it sets {variable}, which makes a program load code that the recipe does not show")]
    Loader { variable: String },
    #[error("it has no `{0}`")]
    MissingField(&'static str),
    #[error("its `uri` is \"{uri}\", which begins with neither http:// nor https://")]
    Uri { uri: String },
    #[error("the old HTTP+SSE transport is not spoken")]
    ClientOldTransport,
    #[error("the old HTTP+SSE transport is not spoken; use the server's `streamable_http` address")]
    OldTransport,
    #[error("extensions of type {} are goose's own", .0.as_str())]
    GooseOnly(ExtensionKind),
    #[error(transparent)]
    Name(#[from] ServiceNameError),
    #[error("there is another service of the name `{0}`; rename it")]
    NameTaken(ServiceName),
}

/// Creates a service from a server that a client passes for one session. Its values are literal: clients fill in
/// variables themselves and may not use Skein's. If the name is `taken`, the service becomes `editor-NAME`.
pub fn client_service(
    name: &str,
    transport: Transport,
    taken: impl Fn(&str) -> bool,
) -> Result<ServiceEntry, SessionServiceError> {
    let written = serde_json::to_string(&transport).unwrap_or_default();
    if written.contains("${env:") {
        return Err(SessionServiceError::ClientVariable);
    }
    let description = format!("MCP server {name} of the editor");
    let name_of = free_name(name, "editor", taken)?;
    Ok(session_entry(manifest(name_of, Some(name.to_owned()), description, transport), "session/new"))
}

/// Converts an extension of a recipe to a service of its session. `None` if the service is built in. If the name is
/// `taken`, the service becomes `recipe-NAME`.
pub fn recipe_service(
    extension: &Extension,
    taken: impl Fn(&str) -> bool,
) -> Result<Option<ServiceEntry>, SessionServiceError> {
    let transport = match extension.kind {
        ExtensionKind::Builtin | ExtensionKind::Platform => return Ok(None),
        ExtensionKind::Stdio => {
            let command = extension.cmd.clone().filter(|command| !command.trim().is_empty());
            let mut env = extension.envs.clone();
            env.extend(extension.env_keys.iter().map(|name| (name.clone(), format!("${{env:{name}}}"))));
            if let Some(name) = env.keys().find(|name| LOADERS.contains(&name.as_str())) {
                return Err(SessionServiceError::Loader { variable: name.clone() });
            }
            let command = command.ok_or(SessionServiceError::MissingField("cmd"))?;
            Transport::Stdio(StdioTransport { command, args: extension.args.clone(), env, cwd: None })
        }
        ExtensionKind::StreamableHttp => {
            let url = extension.uri.clone().ok_or(SessionServiceError::MissingField("uri"))?;
            if !["http://", "https://", "${env:", "{{"].iter().any(|start| url.starts_with(start)) {
                return Err(SessionServiceError::Uri { uri: url });
            }
            Transport::Http(HttpTransport { url, headers: extension.headers.clone() })
        }
        ExtensionKind::Sse => return Err(SessionServiceError::OldTransport),
        ExtensionKind::Frontend | ExtensionKind::InlinePython => {
            return Err(SessionServiceError::GooseOnly(extension.kind));
        }
    };
    let title = extension.display_name.clone().unwrap_or_else(|| extension.name.clone());
    let description = extension.description.clone().filter(|text| !text.trim().is_empty());
    let description = description.unwrap_or_else(|| format!("MCP server {} of the recipe", extension.name));
    let name = free_name(&extension.name, "recipe", taken)?;
    let mut manifest = manifest(name, Some(title), description, transport);
    if let Some(seconds) = extension.timeout {
        manifest.timeouts.call = ManifestDuration::seconds(seconds);
    }
    let mut entry = session_entry(manifest, "recipe");
    let only: Vec<_> = extension.available_tools.iter().map(ToolName::new).collect();
    entry.only = (!only.is_empty()).then_some(only);
    Ok(Some(entry))
}

/// Creates a built-in service for one session, which a front end provides. `settings` distinguish it from others of its
/// kind.
pub fn session_service(
    name: &str,
    description: &str,
    call: ManifestDuration,
    settings: BTreeMap<String, Value>,
) -> ServiceEntry {
    let transport = Transport::Builtin(ServiceName::new(name));
    let mut manifest = manifest(ServiceName::new(name), None, description.to_owned(), transport);
    manifest.timeouts.call = call;
    manifest.settings = Some(settings);
    session_entry(manifest, "skein")
}

/// Converts a name to a valid service name, with `prefix` if it is taken. Fails if both are taken.
fn free_name(name: &str, prefix: &str, taken: impl Fn(&str) -> bool) -> Result<ServiceName, SessionServiceError> {
    let mut free = service_name(name)?;
    if taken(free.as_str()) {
        free = service_name(&format!("{prefix}-{name}"))?;
    }
    if taken(free.as_str()) {
        return Err(SessionServiceError::NameTaken(free));
    }
    Ok(free)
}

fn session_entry(manifest: ServiceManifest, origin: &str) -> ServiceEntry {
    ServiceEntry {
        manifest,
        layer: Layer::Editor,
        source: SourceFile::new(origin, ""),
        path: DocumentPath::root(),
        overrides: Vec::new(),
        enabled: true,
        disabled_by: None,
        only: None,
    }
}

/// Converts `GitHub Tools` to `github-tools`. Fails if the result is not a valid name.
pub(super) fn service_name(name: &str) -> Result<ServiceName, ServiceNameError> {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .flat_map(|word| word.split('_'))
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let clean = words.join("-");
    let fits = clean.len() <= 32 && clean.starts_with(|c: char| c.is_ascii_lowercase());
    if fits { Ok(ServiceName::new(clean)) } else { Err(ServiceNameError) }
}

/// Converts `${NAME}`, the form of these files, to `${env:NAME}`, the form of manifests.
fn variables(text: &str) -> String {
    text.replace("${env:", "${").replace("${", "${env:")
}

fn strings(value: Option<&Value>) -> Result<Vec<String>, ServerFieldError> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let items = value.as_array().ok_or(ServerFieldError::ArgsNotList)?;
    items.iter().map(|item| item.as_str().map(variables).ok_or(ServerFieldError::ArgumentNotText)).collect()
}

fn map(value: Option<&Value>) -> Result<BTreeMap<String, String>, ServerFieldError> {
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let entries = value.as_object().ok_or(ServerFieldError::NotMapping)?;
    entries
        .iter()
        .map(|(key, value)| {
            let value = value.as_str().ok_or_else(|| ServerFieldError::ValueNotText { key: key.clone() })?;
            Ok((key.clone(), variables(value)))
        })
        .collect()
}
