//! Imports the server mapping that Claude Desktop, `.mcp.json`, Zed and VS Code share, with the fields that each adds.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::mcp_servers::{ServerFieldError, manifest, service_name};
use super::super::model::{HttpTransport, LOADERS, ServiceManifest, StdioTransport, Transport};
use super::secrets::ImportedSecrets;
use super::{ImportedConfig, SkipReason};

pub(super) fn read(servers: &Map<String, Value>, secrets: &mut ImportedSecrets, moved: &mut ImportedConfig) {
    for (name, server) in servers {
        let off =
            server.get("disabled") == Some(&Value::Bool(true)) || server.get("enabled") == Some(&Value::Bool(false));
        if off {
            moved.skip(name, "it is switched off there");
            continue;
        }
        let server = ServerEntry { name, value: server };
        match server.service(secrets, moved) {
            Ok(service) => moved.services.push(service),
            Err(reason) => moved.skip(name, reason.to_string()),
        }
    }
}

/// One entry of the server mapping.
struct ServerEntry<'a> {
    name: &'a str,
    value: &'a Value,
}

impl ServerEntry<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key).and_then(Value::as_str)
    }

    fn service(
        &self,
        secrets: &mut ImportedSecrets,
        moved: &mut ImportedConfig,
    ) -> Result<ServiceManifest, SkipReason> {
        let name = service_name(self.name)?;
        let (command, from) = match self.value.get("command") {
            // Older versions of Zed have path, args and env below `command`.
            Some(Value::Object(inner)) => (inner.get("path").and_then(Value::as_str), self.value.get("command")),
            Some(command) => (command.as_str(), Some(self.value)),
            None => (None, Some(self.value)),
        };
        let empty = Value::Null;
        let from = from.unwrap_or(&empty);
        let transport = match (command, self.text("url").or(self.text("serverUrl"))) {
            (Some(command), None) => Transport::Stdio(StdioTransport {
                command: secrets.text(name.as_str(), "command", command)?,
                args: secrets.arguments(name.as_str(), command, &strings(from.get("args"))?)?,
                env: environment(name.as_str(), from.get("env"), secrets, moved)?,
                cwd: self.text("cwd").map(|cwd| secrets.text(name.as_str(), "cwd", cwd)).transpose()?,
            }),
            (None, Some(_)) if self.text("type") == Some("sse") => return Err(SkipReason::OldTransport),
            (None, Some(url)) => Transport::Http(HttpTransport {
                url: secrets.address(name.as_str(), url)?,
                headers: headers(name.as_str(), self.value.get("headers"), secrets)?,
            }),
            (Some(_), Some(_)) => return Err(SkipReason::CommandAndUrl),
            (None, None) if self.value.get("settings").is_some() => return Err(SkipReason::ZedExtension),
            (None, None) => return Err(SkipReason::NoTransport),
        };
        for (key, reason) in NOT_CARRIED {
            let there = self.value.get(key).is_some_and(|value| {
                value.as_array().is_none_or(|list| !list.is_empty()) && *value != Value::Bool(false)
            });
            if there {
                moved.skip(format!("{key} of {}", self.name), reason.replace("NAME", name.as_str()));
            }
        }
        let description = self.text("description").filter(|text| !text.trim().is_empty());
        let description = description.map_or_else(|| format!("MCP server {}", self.name), str::to_owned);
        Ok(manifest(name, Some(self.name.to_owned()), description, transport))
    }
}

/// Known fields that are not imported, and why. `NAME` stands for the name of the service.
const NOT_CARRIED: &[(&str, &str)] = &[
    ("envFile", "files with variables are not read; set what it holds in your environment"),
    ("autoApprove", "consent is given in Skein, with `approval`"),
    ("alwaysAllow", "consent is given in Skein, with `approval`"),
    ("oauth", "settings of a login are not imported; log in with `skein services login NAME`"),
    ("sandboxEnabled", "a sandbox is not imported; describe it with `sandbox` in services/NAME.yaml"),
];

pub(super) fn strings(value: Option<&Value>) -> Result<Vec<String>, ServerFieldError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let items = value.as_array().ok_or(ServerFieldError::ArgsNotList)?;
    items.iter().map(|item| scalar(item).ok_or(ServerFieldError::ArgumentNotText)).collect()
}

pub(super) fn environment(
    service: &str,
    value: Option<&Value>,
    secrets: &mut ImportedSecrets,
    moved: &mut ImportedConfig,
) -> Result<BTreeMap<String, String>, SkipReason> {
    let mut kept = BTreeMap::new();
    for (name, value) in entries(value)? {
        if LOADERS.contains(&name.as_str()) {
            moved.skip(format!("{name} of {service}"), "it makes a program load code that its manifest does not show");
            continue;
        }
        kept.insert(name.clone(), secrets.value(service, &name, &name, &value)?);
    }
    Ok(kept)
}

pub(super) fn headers(
    service: &str,
    value: Option<&Value>,
    secrets: &mut ImportedSecrets,
) -> Result<BTreeMap<String, String>, SkipReason> {
    let mut kept = BTreeMap::new();
    for (name, value) in entries(value)? {
        let variable = format!("{service}_{name}");
        kept.insert(name.clone(), secrets.value(service, &name, &variable, &value)?);
    }
    Ok(kept)
}

fn entries(value: Option<&Value>) -> Result<Vec<(String, String)>, ServerFieldError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let entries = value.as_object().ok_or(ServerFieldError::NotMapping)?;
    let text = |(key, value): (&String, &Value)| {
        let not_text = || ServerFieldError::ValueNotText { key: key.clone() };
        scalar(value).map(|value| (key.clone(), value)).ok_or_else(not_text)
    };
    entries.iter().map(text).collect()
}

/// Converts a scalar to text. People write numbers and booleans without quotes.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
