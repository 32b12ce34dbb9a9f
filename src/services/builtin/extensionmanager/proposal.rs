//! Proposes a service to the user: reads a `server.json` of the MCP registry, shows exactly what would run, and writes
//! the manifest if the user agrees.
//!
//! Invariant: the user is asked at every approval level, and nothing starts or is written before the answer.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rmcp::model::MetaObject;
use serde_json::{Map, Value, json};

use super::super::answer::{self, ToolRefusal, ToolReply};
use super::super::developer::paths;
use super::super::fetch::url_argument;
use crate::manifest::{RegistryServer, Transport, read_server_json, service_text};
use crate::services::suggest_groups;
use crate::tool::ask::{ConsentSubject, PermissionRequest, PermissionResponse, SERVICE_ADDITION};
use crate::tool::manage::{ManifestText, ServiceManager};
use crate::tool::{CallContext, strip_to_line};

/// Maximum bytes of a file; a server.json has a few kilobytes.
const MAX_FILE: u64 = 1_000_000;

/// Returns the tool's metadata for the gate: the argument that is a URL, and that the tool itself asks the user.
pub(super) fn tool_meta() -> MetaObject {
    let mut meta = url_argument("url");
    meta.insert("skein/asks_itself".to_owned(), json!(true));
    meta
}

/// Reads a file of the session. Fails if it is outside of the session's roots, hidden or too large.
pub(super) fn read_file(path: &str, context: &CallContext) -> Result<String, ToolRefusal> {
    let place = paths::target(context, path)?;
    let shown = paths::display_path(&context.session, &place);
    let refuse = |error: std::io::Error| ToolRefusal::io("read", &shown, &error);
    let file = paths::anchor(&context.session, &place).and_then(|anchor| anchor.read()).map_err(refuse)?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(refuse)?;
    match text.len() as u64 > MAX_FILE {
        true => Err(ToolRefusal::new(format!("`{shown}` is too large for a server.json"))),
        false => Ok(text),
    }
}

/// A service that the user may add.
pub(super) struct Proposal {
    server: RegistryServer,
    /// The file or URL that describes the service.
    from: String,
}

impl Proposal {
    /// Converts a `server.json`. Fails if Skein cannot run any of its packages and remote servers.
    pub(super) fn read(text: &str, from: &str, name: Option<&str>) -> Result<Self, ToolRefusal> {
        let server = read_server_json(text, name).map_err(|error| {
            let reason = strip_to_line(&error.to_string());
            ToolRefusal::new(format!("`{}` cannot become a service: {reason}", strip_to_line(from)))
        })?;
        Ok(Self { server, from: strip_to_line(from) })
    }

    /// Asks the user, then starts the service once, writes its manifest and enables it for the session.
    pub(super) async fn settle(
        mut self,
        config: &Path,
        manager: &dyn ServiceManager,
        context: &CallContext,
    ) -> ToolReply {
        let name = self.server.manifest.name.clone();
        if config.as_os_str().is_empty() {
            return Err(ToolRefusal::new("this skein has no settings folder, so it cannot add a service"));
        }
        let file = config.join("services").join(format!("{name}.yaml"));
        let manifest = |text: String| ManifestText { name: name.clone(), file: file.clone(), text };
        let entry = manager.check_manifest(manifest(self.text()), context).map_err(ToolRefusal::of)?;
        self.ask(&file, context).await?;
        let catalog = manager
            .probe(&entry, context)
            .await
            .map_err(|error| ToolRefusal::new(format!("{error}. Nothing was written; tell the user what it needs")))?;
        self.server.manifest.groups = suggest_groups(&catalog.tools);
        let text = self.text();
        let entry = manager.check_manifest(manifest(text.clone()), context).map_err(ToolRefusal::of)?;
        write(&file, &text).map_err(|error| ToolRefusal::io("write", &file.to_string_lossy(), &error))?;
        let mut change = manager.add(entry, context);
        change.tools = catalog.tools.iter().map(|tool| strip_to_line(tool.name.as_str())).collect();
        let tools = if change.tools.is_empty() { "it has no tools".to_owned() } else { change.tools.join(", ") };
        let modes = if change.modes.is_empty() { "none lists `mcp`".to_owned() } else { change.modes.join(", ") };
        let text = format!(
            "the user added `{name}`, and it is enabled for this session. Its tools: {}. Modes that have it: {modes}",
            answer::truncate(&tools, 2_000)
        );
        let mut data = json!(change);
        data["file"] = json!(file);
        Ok(answer::with_data(text, data))
    }

    fn text(&self) -> String {
        let RegistryServer { registry_name, version, .. } = &self.server;
        let version = version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
        let comment = format!("Added from {} ({registry_name}{version}).", self.from);
        service_text(&self.server.manifest, &comment)
    }

    /// Shows the user what will run. Fails unless the user agrees.
    async fn ask(&self, file: &Path, context: &CallContext) -> Result<(), ToolRefusal> {
        let name = &self.server.manifest.name;
        let by_hand = format!("the user can add it in a terminal with `skein services add {name}`");
        let Some(asker) = context.asker() else {
            return Err(ToolRefusal::new(format!("no user can be asked about `{name}`; {by_hand}")));
        };
        let arguments = self.request_arguments(file);
        let request = PermissionRequest {
            call: None,
            by: None,
            apart: None,
            chain: context.chain(),
            tool: SERVICE_ADDITION.to_owned(),
            title: Some(format!("Add the service {name} and start it")),
            always: ConsentSubject::of(SERVICE_ADDITION, &arguments, false, None),
            arguments,
            target: None,
            change: None,
            protected: None,
            rule: None,
        };
        let response = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ToolRefusal::new("the call was cancelled")),
            response = asker.ask(request) => response,
        };
        tracing::info!(service = %name, ?response, "the user was asked about a service to add");
        match response {
            // An answer covers this service as it is shown, and no other one.
            PermissionResponse::Allow | PermissionResponse::AllowAlways => Ok(()),
            PermissionResponse::Refuse | PermissionResponse::RefuseAlways => {
                Err(ToolRefusal::new(format!("the user does not want the service `{name}`; do not propose it again")))
            }
            PermissionResponse::Unavailable => {
                Err(ToolRefusal::new(format!("no user can be asked about `{name}`; {by_hand}")))
            }
        }
    }

    /// Returns what the request shows: the program or address, variables, sandbox and file.
    fn request_arguments(&self, file: &Path) -> Map<String, Value> {
        let manifest = &self.server.manifest;
        let mut shown = Map::new();
        let mut show = |key: &str, value: Value| drop(shown.insert(key.to_owned(), value));
        show("service", json!(manifest.name));
        show("described_by", json!(self.from));
        match &manifest.transport {
            Transport::Stdio(stdio) => {
                show("runs", json!([std::slice::from_ref(&stdio.command), &stdio.args].concat()));
                show("environment", json!(stdio.env));
                show("sandbox", json!(manifest.sandbox));
            }
            Transport::Http(http) => {
                show("connects_to", json!(http.url));
                show("headers", json!(http.headers));
            }
            Transport::Builtin(_) => {}
        }
        show("writes", json!(file));
        if !self.server.left_out.is_empty() {
            let left_out = self.server.left_out.iter().map(|left| format!("{}: {}", left.what, left.reason));
            show("left_out", json!(left_out.collect::<Vec<_>>()));
        }
        shown
    }
}

/// Writes a new file for the user alone. Fails if it exists.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()
}
