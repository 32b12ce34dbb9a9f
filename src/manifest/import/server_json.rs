//! Converts a `server.json` of the MCP registry to a service manifest. Packages of npm and PyPI become programs, remote
//! servers become addresses. Nothing is downloaded.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::mcp_servers::{ServiceNameError, manifest, service_name};
use super::super::model::{HttpTransport, LOADERS, ServiceManifest, StdioTransport, Transport};
use super::{SkippedItem, suggest_sandbox};

/// A service converted from a `server.json`.
#[derive(Debug)]
pub struct RegistryServer {
    /// The name in the registry, such as `io.github.user/weather`.
    pub registry_name: String,
    pub version: Option<String>,
    pub manifest: ServiceManifest,
    /// The variables of the user's environment that the service needs.
    pub variables: Vec<String>,
    pub left_out: Vec<SkippedItem>,
}

/// Why a `server.json` cannot become a service.
#[derive(Debug, thiserror::Error)]
pub enum ServerJsonError {
    #[error("it is not a server.json of the MCP registry: {0}")]
    Format(#[from] serde_json::Error),
    #[error(transparent)]
    Name(#[from] ServiceNameError),
    #[error("it names neither a package nor a remote server")]
    Empty,
    #[error("none of its ways to run can be used: {}", .0.join("; "))]
    NothingUsable(Vec<String>),
}

/// Why one package or remote server cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnusableError {
    #[error("{kind} packages are not started by Skein")]
    PackageKind { kind: String },
    #[error("its program does not speak MCP on stdio but as {transport}")]
    PackageTransport { transport: String },
    #[error("it needs a value for `{input}`, which only you know; write the manifest by hand")]
    Input { input: String },
    #[error("it speaks the old HTTP+SSE transport, which Skein does not speak")]
    OldTransport,
    #[error("its transport {transport} is not known")]
    Transport { transport: String },
    #[error("its address begins with neither http:// nor https://")]
    Address,
    #[error("`{name}` cannot be the name of a package or a flag")]
    PackageName { name: String },
    #[error("it starts with `{program}`, which is not the program for {kind} packages")]
    Program { program: String, kind: String },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerJson {
    name: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    packages: Vec<ServerPackage>,
    #[serde(default)]
    remotes: Vec<RemoteServer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerPackage {
    /// Older files write `registry_type`.
    #[serde(alias = "registry_type")]
    registry_type: String,
    identifier: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(default, alias = "runtime_hint")]
    runtime_hint: Option<String>,
    #[serde(default)]
    transport: Option<PackageTransport>,
    #[serde(default, alias = "runtime_arguments")]
    runtime_arguments: Vec<ArgumentInput>,
    #[serde(default, alias = "package_arguments")]
    package_arguments: Vec<ArgumentInput>,
    #[serde(default, alias = "environment_variables")]
    environment_variables: Vec<NamedInput>,
}

#[derive(Debug, Deserialize)]
struct PackageTransport {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct RemoteServer {
    #[serde(rename = "type")]
    kind: String,
    url: String,
    #[serde(default)]
    headers: Vec<NamedInput>,
}

/// A value that is fixed, has a default, or comes from the user.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InputValue {
    value: Option<String>,
    #[serde(rename = "default")]
    fallback: Option<Value>,
    #[serde(alias = "is_required")]
    is_required: bool,
    #[serde(alias = "is_secret")]
    is_secret: bool,
}

#[derive(Debug, Deserialize)]
struct NamedInput {
    name: String,
    #[serde(flatten)]
    input: InputValue,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArgumentInput {
    #[serde(rename = "type")]
    kind: String,
    /// The flag of a named argument.
    #[serde(default)]
    name: Option<String>,
    #[serde(default, alias = "value_hint")]
    value_hint: Option<String>,
    #[serde(flatten)]
    input: InputValue,
}

/// Converts a `server.json`, or an answer of the registry that contains one. The service is named `name`, or by the last
/// part of its name in the registry. Prefers a package that Skein can start over a remote server.
pub fn read_server_json(text: &str, name: Option<&str>) -> Result<RegistryServer, ServerJsonError> {
    let mut value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}'))?;
    // The registry's API wraps the file.
    if let Some(inner) = value.get_mut("server").filter(|inner| inner.is_object()) {
        value = inner.take();
    }
    let server: ServerJson = serde_json::from_value(value)?;
    if server.packages.is_empty() && server.remotes.is_empty() {
        return Err(ServerJsonError::Empty);
    }
    let own_name = server.name.rsplit('/').next().unwrap_or_default();
    let name = service_name(name.unwrap_or(own_name))?;
    let mut found = ConvertedParts::default();
    let mut reasons = Vec::new();
    let mut transport = None;
    for package in &server.packages {
        let label = format!("the {} package {}", package.registry_type, package.identifier);
        match transport {
            None => match found.package(package) {
                Ok(stdio) => transport = Some(Transport::Stdio(stdio)),
                Err(error) => reasons.push(format!("{label}: {error}")),
            },
            Some(_) => found.skip(label, "another package is used"),
        }
    }
    for remote in &server.remotes {
        let label = format!("the remote server {}", remote.url);
        match transport {
            None => match found.remote(remote, name.as_str()) {
                Ok(http) => transport = Some(Transport::Http(http)),
                Err(error) => reasons.push(format!("{label}: {error}")),
            },
            Some(_) => found.skip(label, "another way to run it is used"),
        }
    }
    let Some(transport) = transport else { return Err(ServerJsonError::NothingUsable(reasons)) };
    found.left_out.extend(reasons.into_iter().map(|reason| SkippedItem { what: server.name.clone(), reason }));
    let description = server.description.trim();
    let description =
        if description.is_empty() { format!("MCP server {}", server.name) } else { description.to_owned() };
    let sandbox = match &transport {
        Transport::Stdio(stdio) => Some(suggest_sandbox(&stdio.command, &[])),
        Transport::Http(_) | Transport::Builtin(_) => None,
    };
    let mut manifest = manifest(name, server.title, description, transport);
    manifest.sandbox = sandbox;
    found.variables.sort_unstable();
    found.variables.dedup();
    Ok(RegistryServer {
        registry_name: server.name,
        version: server.version,
        manifest,
        variables: found.variables,
        left_out: found.left_out,
    })
}

/// The results of the conversion in addition to the transport.
#[derive(Debug, Default)]
struct ConvertedParts {
    variables: Vec<String>,
    left_out: Vec<SkippedItem>,
}

impl ConvertedParts {
    fn skip(&mut self, what: impl Into<String>, reason: &str) {
        self.left_out.push(SkippedItem { what: what.into(), reason: reason.to_owned() });
    }

    fn package(&mut self, package: &ServerPackage) -> Result<StdioTransport, UnusableError> {
        let transport = package.transport.as_ref().map_or("stdio", |transport| transport.kind.as_str());
        if transport != "stdio" {
            return Err(UnusableError::PackageTransport { transport: transport.to_owned() });
        }
        let kind = package.registry_type.as_str();
        let (program, separator) = match kind {
            "npm" => ("npx", "@"),
            "pypi" => ("uvx", "@"),
            other => return Err(UnusableError::PackageKind { kind: other.to_owned() }),
        };
        if let Some(hint) = package.runtime_hint.as_deref().filter(|hint| *hint != program) {
            return Err(UnusableError::Program { program: hint.to_owned(), kind: kind.to_owned() });
        }
        check_name(&package.identifier)?;
        check_name(package.version.as_deref().unwrap_or_default())?;
        let mut args = self.arguments(&package.runtime_arguments)?;
        // Without it, npx asks on its input, which is the connection.
        if program == "npx" && !args.iter().any(|argument| argument == "-y" || argument == "--yes") {
            args.insert(0, "-y".to_owned());
        }
        args.push(match package.version.as_deref().filter(|version| !version.is_empty()) {
            Some(version) => format!("{}{separator}{version}", package.identifier),
            None => package.identifier.clone(),
        });
        args.extend(self.arguments(&package.package_arguments)?);
        let mut env = BTreeMap::new();
        for variable in &package.environment_variables {
            if LOADERS.contains(&variable.name.as_str()) {
                let reason = "it makes a program load code that its manifest does not show";
                self.skip(format!("the variable {}", variable.name), reason);
                continue;
            }
            if let Some(value) = self.value(&variable.name, &variable.name, &variable.input) {
                env.insert(variable.name.clone(), value);
            }
        }
        Ok(StdioTransport { command: program.to_owned(), args, env, cwd: None })
    }

    fn remote(&mut self, remote: &RemoteServer, service: &str) -> Result<HttpTransport, UnusableError> {
        match remote.kind.as_str() {
            "streamable-http" => {}
            "sse" => return Err(UnusableError::OldTransport),
            other => return Err(UnusableError::Transport { transport: other.to_owned() }),
        }
        if remote.url.contains('{') {
            return Err(UnusableError::Input { input: remote.url.clone() });
        }
        if !["http://", "https://"].iter().any(|start| remote.url.starts_with(start)) {
            return Err(UnusableError::Address);
        }
        let mut headers = BTreeMap::new();
        for header in &remote.headers {
            let variable = variable_name(&format!("{service}_{}", header.name));
            if let Some(value) = self.value(&header.name, &variable, &header.input) {
                headers.insert(header.name.clone(), value);
            }
        }
        Ok(HttpTransport { url: remote.url.clone(), headers })
    }

    /// Converts arguments of a command line. Fails if one has no value without the user.
    fn arguments(&mut self, inputs: &[ArgumentInput]) -> Result<Vec<String>, UnusableError> {
        let mut args = Vec::new();
        for argument in inputs {
            let label = argument.name.as_deref().or(argument.value_hint.as_deref()).unwrap_or("an argument");
            let value = argument.input.literal_value().filter(|value| !has_placeholder(value));
            let flag = argument.name.as_ref().filter(|_| argument.kind == "named");
            if let Some(flag) = flag.filter(|flag| has_placeholder(flag)) {
                return Err(UnusableError::PackageName { name: flag.clone() });
            }
            let is_needed = argument.input.is_required || argument.input.value.is_some();
            match (flag, value) {
                (flag, Some(value)) => {
                    args.extend(flag.cloned());
                    args.push(value);
                }
                (_, None) if is_needed => return Err(UnusableError::Input { input: label.to_owned() }),
                (_, None) => {
                    self.skip(format!("the argument {label}"), "it is optional; add it to `args` if you need it")
                }
            }
        }
        Ok(args)
    }

    /// Returns the value of a variable or header: what the file states, or the user's `variable`. `None` if it is
    /// optional.
    fn value(&mut self, name: &str, variable: &str, input: &InputValue) -> Option<String> {
        match input.literal_value() {
            // A manifest never contains a secret, and the user fills in a `{name}`.
            Some(value) if !input.is_secret && !has_placeholder(&value) => Some(value),
            stated if stated.is_some() || input.is_required || input.is_secret => {
                self.variables.push(variable.to_owned());
                Some(format!("${{env:{variable}}}"))
            }
            _ => {
                self.skip(name.to_owned(), "it is optional; add it to the manifest if you need it");
                None
            }
        }
    }
}

impl InputValue {
    /// Returns the fixed value, else the default.
    fn literal_value(&self) -> Option<String> {
        let fallback = || match self.fallback.as_ref()? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        };
        self.value.clone().or_else(fallback)
    }
}

/// Fails for a package name or version that would be read as an option or filled in with a variable.
fn check_name(name: &str) -> Result<(), UnusableError> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "{}$;|&<>`'\"\\".contains(c);
    match name.starts_with('-') || name.contains(is_odd) {
        true => Err(UnusableError::PackageName { name: name.to_owned() }),
        false => Ok(()),
    }
}

/// Returns true if the text contains `{name}`, which the user fills in.
fn has_placeholder(text: &str) -> bool {
    text.split_once('{').is_some_and(|(_, rest)| rest.contains('}'))
}

/// Converts a text to the name of an environment variable.
fn variable_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<RegistryServer, ServerJsonError> {
        read_server_json(&value.to_string(), None)
    }

    fn with_package(package: Value) -> Value {
        json!({
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": "io.github.ada/weather", "description": "Tells the weather.", "version": "1.0.2",
            "packages": [package],
        })
    }

    fn starts(server: &RegistryServer) -> String {
        let Transport::Stdio(stdio) = &server.manifest.transport else { panic!("a program: {server:?}") };
        [std::slice::from_ref(&stdio.command), &stdio.args].concat().join(" ")
    }

    #[test]
    fn a_package_becomes_a_program_with_a_sandbox() {
        let server = read(&with_package(json!({
            "registryType": "npm", "identifier": "@ada/weather", "version": "1.0.2", "transport": {"type": "stdio"},
            "packageArguments": [
                {"type": "positional", "value": "serve"},
                {"type": "named", "name": "--units", "default": "metric"},
                {"type": "named", "name": "--debug"},
            ],
            "environmentVariables": [
                {"name": "WEATHER_KEY", "isRequired": true, "isSecret": true},
                {"name": "WEATHER_CITY", "default": "Oslo"},
                {"name": "WEATHER_PROXY"},
                {"name": "NODE_OPTIONS", "value": "--require evil"},
            ],
        })))
        .unwrap();
        assert_eq!(server.manifest.name.as_str(), "weather");
        assert_eq!(starts(&server), "npx -y @ada/weather@1.0.2 serve --units metric");
        let Transport::Stdio(stdio) = &server.manifest.transport else { panic!() };
        let env = json!({"WEATHER_KEY": "${env:WEATHER_KEY}", "WEATHER_CITY": "Oslo"});
        assert_eq!(json!(stdio.env), env);
        assert_eq!(server.variables, ["WEATHER_KEY"]);
        assert_eq!(json!(server.manifest.sandbox), json!({"files": "read-only", "network": ["registries"]}));
        let left: Vec<_> = server.left_out.iter().map(|left| left.what.as_str()).collect();
        assert_eq!(left, ["the argument --debug", "WEATHER_PROXY", "the variable NODE_OPTIONS"]);
    }

    #[test]
    fn a_python_package_is_started_by_uvx() {
        let server =
            read(&with_package(json!({"registryType": "pypi", "identifier": "weather", "version": "2"}))).unwrap();
        assert_eq!(starts(&server), "uvx weather@2");
    }

    #[test]
    fn a_remote_server_keeps_its_secrets_in_variables() {
        let server = read(&json!({"server": {
            "name": "com.example/docs", "description": "Docs.", "version": "1",
            "remotes": [
                {"type": "sse", "url": "https://example.com/sse"},
                {"type": "streamable-http", "url": "https://example.com/mcp", "headers": [
                    {"name": "Authorization", "value": "Bearer {token}", "isSecret": true, "isRequired": true},
                    {"name": "X-Region", "value": "eu"},
                ]},
            ],
        }, "_meta": {}}))
        .unwrap();
        let Transport::Http(http) = &server.manifest.transport else { panic!("{server:?}") };
        assert_eq!(http.url, "https://example.com/mcp");
        let headers = json!({"Authorization": "${env:DOCS_AUTHORIZATION}", "X-Region": "eu"});
        assert_eq!(json!(http.headers), headers);
        assert!(server.left_out[0].reason.contains("old HTTP+SSE transport"), "{:?}", server.left_out);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_reason() {
        for (package, reason) in [
            (json!({"registryType": "oci", "identifier": "x"}), "oci packages are not started by Skein"),
            (json!({"registryType": "npm", "identifier": "x", "runtimeHint": "sh"}), "it starts with `sh`"),
            (json!({"registryType": "npm", "identifier": "--call=evil"}), "cannot be the name of a package"),
            (json!({"registryType": "npm", "identifier": "x", "version": "${env:HOME}"}), "cannot be the name"),
            (
                json!({"registryType": "npm", "identifier": "x", "packageArguments": [
                    {"type": "named", "name": "--key", "value": "${env:HOME}"}
                ]}),
                "it needs a value for `--key`",
            ),
            (
                json!({"registryType": "npm", "identifier": "x", "transport": {"type": "sse"}}),
                "does not speak MCP on stdio but as sse",
            ),
            (
                json!({"registryType": "npm", "identifier": "x", "packageArguments": [
                    {"type": "positional", "valueHint": "folder", "isRequired": true}
                ]}),
                "it needs a value for `folder`",
            ),
        ] {
            let error = read(&with_package(package.clone())).unwrap_err().to_string();
            assert!(error.contains(reason), "{package}: {error}");
        }
        assert!(read(&json!({"name": "a/b"})).unwrap_err().to_string().contains("neither a package nor a remote"));
        assert!(read(&json!({"mcpServers": {}})).unwrap_err().to_string().contains("not a server.json"));
        let old = json!({"name": "a/b", "remotes": [{"type": "sse", "url": "https://example.com/sse"}]});
        assert!(read(&old).unwrap_err().to_string().contains("the old HTTP+SSE transport"));
    }
}
