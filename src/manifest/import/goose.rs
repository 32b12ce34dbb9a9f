//! Imports goose's `config.yaml`: extensions, provider, model and approval mode.

use serde_json::{Map, Value};

use super::super::mcp_servers::{manifest, service_name};
use super::super::model::{HttpTransport, Readiness, ServiceManifest, StdioTransport, Transport};
use super::super::{ApprovalLevel, Layer, ManifestDuration, Root, load};
use super::secrets::ImportedSecrets;
use super::servers::{environment, headers, strings};
use super::{ImportedConfig, SkipReason};
use crate::ids::{ModelRef, ToolName};

/// goose's provider names, and Skein's.
const PROVIDERS: [(&str, &str); 10] = [
    ("openai", "openai"),
    ("anthropic", "anthropic"),
    ("google", "google"),
    ("gemini", "google"),
    ("ollama", "ollama"),
    ("openrouter", "openrouter"),
    ("groq", "groq"),
    ("deepseek", "deepseek"),
    ("mistral", "mistral"),
    ("xai", "xai"),
];

/// Returns Skein's name of a goose provider. `None` if Skein does not know it.
pub fn goose_provider(theirs: &str) -> Option<&'static str> {
    PROVIDERS.iter().find(|(name, _)| *name == theirs).map(|(_, ours)| *ours)
}

pub(super) fn goose_config(value: &Value) -> Option<&Map<String, Value>> {
    let config = value.as_object()?;
    let ours =
        config.get("extensions").is_some_and(Value::is_object) || config.keys().any(|key| key.starts_with("GOOSE_"));
    ours.then_some(config)
}

pub(super) fn read(config: &Map<String, Value>, secrets: &mut ImportedSecrets, moved: &mut ImportedConfig) {
    model(config, moved);
    if let Some(mode) = config.get("GOOSE_MODE").and_then(Value::as_str) {
        match mode {
            "auto" => moved.approval = Some(ApprovalLevel::Auto),
            "approve" => moved.approval = Some(ApprovalLevel::Ask),
            "smart_approve" => moved.approval = Some(ApprovalLevel::Smart),
            "chat" => moved.approval = Some(ApprovalLevel::Deny),
            _ => moved.skip("GOOSE_MODE", "Skein knows no such mode; choose an `approval`"),
        }
    }
    let extensions = config.get("extensions").and_then(Value::as_object);
    for (key, extension) in extensions.into_iter().flatten() {
        // Some versions keep the fields one level deeper.
        let inner = extension.get("config").filter(|inner| inner.is_object()).unwrap_or(extension);
        if extension.get("enabled") == Some(&Value::Bool(false)) {
            moved.skip(key, "it is switched off there");
            continue;
        }
        match service(key, inner, secrets, moved) {
            Ok(service) => moved.services.push(service),
            Err(reason) => moved.skip(key, reason.to_string()),
        }
    }
    let read = ["extensions", "GOOSE_PROVIDER", "GOOSE_MODEL", "GOOSE_MODE"];
    for key in config.keys().filter(|key| !read.contains(&key.as_str())) {
        moved.skip(
            key,
            if key.ends_with("_HOST") || key.ends_with("_BASE_URL") {
                "addresses of models stand in `providers` of your config.yaml (docs/models.md)"
            } else {
                "Skein has no such setting"
            },
        );
    }
}

fn model(config: &Map<String, Value>, moved: &mut ImportedConfig) {
    let text = |key: &str| config.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    match (text("GOOSE_PROVIDER"), text("GOOSE_MODEL")) {
        (Some(provider), Some(model)) => match goose_provider(provider) {
            Some(ours) => moved.processor = Some(ModelRef::from(format!("{ours}:{model}"))),
            None => moved.skip(
                format!("GOOSE_PROVIDER {provider}"),
                "Skein does not know it; if it speaks the OpenAI dialect, add it to `providers` (docs/models.md)",
            ),
        },
        (Some(_), None) => moved.skip("GOOSE_PROVIDER", "there is no GOOSE_MODEL next to it"),
        (None, Some(_)) => moved.skip("GOOSE_MODEL", "there is no GOOSE_PROVIDER next to it"),
        (None, None) => {}
    }
}

fn service(
    key: &str,
    value: &Value,
    secrets: &mut ImportedSecrets,
    moved: &mut ImportedConfig,
) -> Result<ServiceManifest, SkipReason> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let title = text("name").unwrap_or(key);
    let name = service_name(key)?;
    let transport = match text("type").unwrap_or("stdio") {
        "stdio" => {
            let command = text("cmd").ok_or(SkipReason::MissingField("cmd"))?;
            let mut env = environment(name.as_str(), value.get("envs"), secrets, moved)?;
            // goose keeps the values of these in its keyring.
            for variable in
                value.get("env_keys").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
            {
                env.insert(variable.to_owned(), secrets.reference(name.as_str(), variable));
            }
            Transport::Stdio(StdioTransport {
                command: secrets.text(name.as_str(), "command", command)?,
                args: secrets.arguments(name.as_str(), command, &strings(value.get("args"))?)?,
                env,
                cwd: text("cwd").map(|cwd| secrets.text(name.as_str(), "cwd", cwd)).transpose()?,
            })
        }
        "streamable_http" => Transport::Http(HttpTransport {
            url: secrets.address(name.as_str(), text("uri").ok_or(SkipReason::MissingField("uri"))?)?,
            headers: headers(name.as_str(), value.get("headers"), secrets)?,
        }),
        "sse" => return Err(SkipReason::OldTransport),
        "builtin" | "platform" => return Err(SkipReason::PartOfGoose { instead: ours(name.as_str()) }),
        other => return Err(SkipReason::GooseOnly { kind: other.to_owned() }),
    };
    let tools = value.get("available_tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let tools: Vec<_> = tools.iter().filter_map(Value::as_str).map(ToolName::new).collect();
    let description = text("description").map_or_else(|| format!("MCP server {title}"), str::to_owned);
    let mut manifest = manifest(name, Some(title.to_owned()), description, transport);
    manifest.available_tools = (!tools.is_empty()).then_some(tools);
    let seconds = value.get("timeout").and_then(Value::as_u64).and_then(|seconds| u32::try_from(seconds).ok());
    if let Some(seconds) = seconds.filter(|seconds| (1..=86_400).contains(seconds)) {
        manifest.timeouts.call = ManifestDuration::seconds(seconds);
    }
    Ok(manifest)
}

/// goose's names of built-in extensions, in the form of a service name, and Skein's services with another name.
const SERVICES: [(&str, &str); 9] = [
    ("analyze", "developer"),
    ("auto-visualiser", "autovisualiser"),
    ("chat-recall", "chatrecall"),
    ("computer-controller", "computercontroller"),
    ("extension-manager", "extensionmanager"),
    ("moim", "tom"),
    ("skills", "knowledge"),
    ("subagents", "summon"),
    ("top-of-mind", "tom"),
];

/// Names Skein's alternative to a built-in extension of goose.
fn ours(name: &str) -> String {
    if name == "code-execution" {
        return "modes have the setting `code_execution` instead".to_owned();
    }
    let service = SERVICES.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours);
    let (manifests, _) = load(&[(Layer::Builtin, Root::Builtin)]);
    match manifests.services.get(service).map(|entry| &entry.manifest) {
        Some(ours) if ours.status == Readiness::Planned => format!("Skein's own service `{service}` is only planned"),
        Some(ours) if ours.owner.is_some() => format!("Skein has its own service `{service}`, which `auto` uses"),
        Some(_) => format!("Skein has its own service `{service}`"),
        None => "see `skein services` for what Skein has instead".to_owned(),
    }
}
