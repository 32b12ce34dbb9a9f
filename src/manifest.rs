//! Loads manifests: finds the files of every layer, checks each against its schema, and lets later layers override
//! earlier ones by name.
//!
//! Invariant: nothing here resolves names or starts anything; `graph` resolves them. An invalid file is reported and
//! skipped; the others are still read.

mod approval;
mod assertions;
mod budget;
mod builtin;
mod complete;
mod config;
mod configured_hooks;
mod delegate;
mod duration;
mod edit;
mod edit_entry;
mod edit_items;
mod examples;
mod files;
mod hooks;
mod import;
mod json;
mod json_schema;
mod layers;
mod managed_config;
mod managed_exclusion;
mod managed_layer;
mod managed_reload;
mod managed_telemetry;
mod marks;
mod mcp_servers;
mod migrate;
mod model;
mod notifications;
mod permission;
mod placeholder;
mod profile;
mod prompt;
mod recipe;
mod restart;
mod runtime;
mod schema;
mod serve_config;
mod settings;
mod store_config;
mod sharing;
mod stated_budgets;
mod task_workspace;
mod template;
mod yaml;

use std::path::Path as FilePath;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use approval::ApprovalLevel;
pub use assertions::{
    AgentSelector, AllowedNames, Assertion, AssertionFile, AssertionKind, ExcludedNames, ExternalSelector,
    GroupSelector, ModeSelector, ReachAssertion, SandboxAssertion, SandboxField, SandboxPresence, SandboxValue,
    ServiceSelector, TransportName, TransportSelector,
};
pub use budget::{
    BudgetConfig, BudgetLimits, BudgetPeriod, DollarAmount, DollarAmountError, PeriodBudget, TokenCount,
    TokenCountError,
};
pub use builtin::ExampleAgent;
pub use config::{
    Config, ModelFacts, Moderator, ProcessorModels, Profile, ProfileService, ProviderAddress, SandboxConfig,
};
pub use configured_hooks::ConfiguredHook;
pub use delegate::{DelegateEntry, DelegatePattern, DetailedDelegate, TaskWorkspace};
pub use duration::{DurationError, ManifestDuration};
pub use edit::{apply_edits, with_first, without_item};
pub use edit_entry::edit_entry;
pub use edit_items::{EditedItem, block_text, edit_items, item_texts, rename_entry, with_comments};
pub use files::{LinkedFile, LinkedFileError, ManifestFile, Root, is_missing, read_named};
pub use hooks::{HookCommand, HookConfig, HookEvent, HookFailure, HookGroup, HookKind, HookMatcher};
pub use import::goose_provider;
pub use import::{
    ForeignFileError, ImportedConfig, RegistryAgent, RegistryServer, ServerJsonError, SkippedItem, read_foreign,
    read_registry, read_server_json, secret_arguments, service_text, suggest_sandbox,
};
pub use json_schema::{
    RunningValidation, SchemaError, SchemaValidator, VALIDATION_TIME, ValidationFailure, check_schema,
};
pub use layers::{AgentEntry, ConfigEntry, DisableSource, Manifests, ModeEntry, ServiceEntry};
pub use managed_config::{
    AddressedProvider, DefinitionSource, ManagedConfig, ManagedDefinition, ManagedName, ManagedProvider,
    ManagedTelemetry, ModelPrice,
};
pub use managed_exclusion::{ManagedExclusion, ManagedSetting};
pub use managed_layer::{ManagedEntry, ManagedFile, ManagedLayer, ManagedRefusal};
pub use mcp_servers::{
    ServiceNameError, SessionServiceError, client_service, manifest as service_manifest, recipe_service,
    session_service,
};
pub use model::{
    AgentManifest, Capability, CodeExecution, Dependency, DependencyKind, GroupEntry, HttpTransport, LOADERS, Metadata,
    Mode, Readiness, Requires, ServiceManifest, StdioTransport, Timeouts, Transport, VERSION,
};
pub use notifications::{NotificationConfig, NotificationSettings};
pub use permission::{PermissionRule, RuleEffect, RuleTextError};
pub use placeholder::Placeholder;
pub use profile::{ProfileSelection, ServiceList};
pub use prompt::{Prompt, PromptFileError, PromptValues, Rendering, VARIABLES, fill_in, place_in_tags, variables_of};
pub use recipe::{
    Check, Extension, ExtensionKind, InputType, RecipeFile, RecipeParameter, RecipeSettings, Requirement, Retry,
    Scalar, SubRecipe,
};
pub use restart::Restart;
pub use runtime::{
    A2aRuntime, AcpRuntime, AcpTimeouts, AgentProgram, AgentRuntime, Crate, Handover, Package, VariableName,
};
pub use schema::{DocumentKind, generate as generate_schema};
pub use serve_config::{ClaimMatch, ClaimValue, PrincipalRule, ServeConfig, find_claim};
pub use settings::{ModelAllowList, ProviderAllowList, Settings};
pub use sharing::{PrincipalSharing, ServiceSharing};
pub use stated_budgets::{BudgetScope, StatedBudget};
pub use store_config::{RetentionConfig, StoreConfig};
pub use template::TemplateError;
pub use yaml::{DocumentPath, SourceFile, parse};

use crate::diagnostic::{Diagnostic, SourceLocation};

/// The origin of a manifest. Later layers override earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Builtin,
    User,
    Project,
    Extra,
    /// Passed by a client or a recipe for one session.
    Editor,
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Layer::Builtin => "built in",
            Layer::User => "user",
            Layer::Project => "project",
            Layer::Extra => "--manifests",
            Layer::Editor => "editor",
        })
    }
}

/// Reads all layers in order and combines them.
pub fn load(roots: &[(Layer, Root)]) -> (Manifests, Vec<Diagnostic>) {
    load_selected(roots, None)
}

/// Like [`load`], with the profile that the user chose for this run.
pub fn load_selected(roots: &[(Layer, Root)], selection: Option<&ProfileSelection>) -> (Manifests, Vec<Diagnostic>) {
    load_managed(roots, selection, &[])
}

/// Like [`load_selected`], within the limits of managed files. An invalid managed file is an error, so that there is no
/// plan.
pub fn load_managed(
    roots: &[(Layer, Root)],
    selection: Option<&ProfileSelection>,
    managed: &[ManagedFile],
) -> (Manifests, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let managed = ManagedLayer::read(managed, &mut diagnostics);
    let mut manifests = Manifests { managed, ..Manifests::default() };
    for (layer, root) in roots {
        if let (Layer::User, Root::Disk { path, .. }) = (layer, root)
            && is_missing(path)
        {
            continue;
        }
        if let (Layer::User, Root::Disk { path, shown }) = (layer, root)
            && path.is_file()
        {
            let (problem, help) = ("is a file, not a folder with settings", "remove the file or name a folder");
            diagnostics.push(Diagnostic::error("E001", SourceLocation::file(shown), problem, help));
            continue;
        }
        for found in root.manifests() {
            let role = role_of(*layer, &found.path);
            // The root itself has the empty path. It is found only if it cannot be read, with all its settings.
            if role == FileRole::NotOurs && found.path != FilePath::new("") {
                diagnostics.extend(manifest_outside_folders(found));
                continue;
            }
            let text = match found.text {
                Ok(text) => text,
                Err(diagnostic) => {
                    diagnostics.push(*diagnostic);
                    continue;
                }
            };
            let source = SourceFile::new(found.file, text);
            let mut reader = ManifestReader { layer: *layer, root, path: &found.path, diagnostics: &mut diagnostics };
            for document in reader.read(role, &source) {
                manifests.add(document, *layer, &source, &mut diagnostics);
            }
        }
    }
    manifests.select_profile(selection, &mut diagnostics);
    manifests.apply_profiles();
    manifests.separate_client_services();
    (manifests, diagnostics)
}

/// How a file below a root is read.
#[derive(Clone, Copy, PartialEq)]
enum FileRole {
    Manifest,
    Config,
    McpServers,
    NotOurs,
}

fn role_of(layer: Layer, path: &FilePath) -> FileRole {
    if layer == Layer::Project && path == FilePath::new(".mcp.json") {
        return FileRole::McpServers;
    }
    let inside = path.strip_prefix(".skein").unwrap_or(path);
    let at_top = inside.parent() == Some(FilePath::new(""));
    match layer {
        _ if at_top && inside.file_stem().is_some_and(|stem| stem == "config") => FileRole::Config,
        // Other folders next to agents/ and services/ belong to other features.
        Layer::User | Layer::Project if !inside.starts_with("agents") && !inside.starts_with("services") => {
            FileRole::NotOurs
        }
        _ => FileRole::Manifest,
    }
}

/// Returns a warning if the file is a manifest outside `agents/` and `services/`. `None` for files of other features.
fn manifest_outside_folders(found: ManifestFile) -> Option<Diagnostic> {
    let inside = found.path.strip_prefix(".skein").unwrap_or(&found.path);
    // Skills and recipes may include any YAML.
    if ["skills", "recipes"].iter().any(|folder| inside.starts_with(folder)) {
        return None;
    }
    let source = SourceFile::new(found.file, found.text.ok().filter(|text| text.contains("kind"))?);
    let value = yaml::parse(&source).ok()?;
    let folder = match value.get("kind")?.as_str()? {
        "agent" => "agents",
        "service" => "services",
        _ => return None,
    };
    let at = source.place(&DocumentPath::root().key("kind"));
    let (problem, help) =
        (format!("this manifest is not in `{folder}/`, so it is not used"), format!("move it to `{folder}/`"));
    Some(Diagnostic::warning("W213", at, problem, help))
}

/// A document that matches its schema.
pub(crate) enum ManifestDocument {
    /// `mode_files` has one entry per mode, in the same order.
    Agent {
        manifest: Box<AgentManifest>,
        mode_files: Vec<ModeFiles>,
    },
    Service {
        manifest: Box<ServiceManifest>,
        path: DocumentPath,
    },
    Config(Box<Config>),
}

/// The content of the files that a mode names.
#[derive(Debug)]
pub(crate) struct ModeFiles {
    pub(crate) prompt: Option<Prompt>,
    /// The lines of `examples_file`.
    pub(crate) examples: Vec<String>,
}

struct ManifestReader<'a> {
    layer: Layer,
    root: &'a Root,
    path: &'a FilePath,
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl ManifestReader<'_> {
    fn read(&mut self, role: FileRole, source: &Arc<SourceFile>) -> Vec<ManifestDocument> {
        let known = matches!(self.root, Root::Builtin).then(|| builtin::value(self.path)).flatten();
        let value = match known.map_or_else(|| yaml::parse(source), Ok) {
            Ok(value) => value,
            Err(diagnostic) => {
                self.diagnostics.push(*diagnostic);
                return Vec::new();
            }
        };
        match role {
            FileRole::McpServers => mcp_servers::read(&value, source, self.diagnostics)
                .into_iter()
                .map(|(manifest, path)| ManifestDocument::Service { manifest: Box::new(manifest), path })
                .collect(),
            FileRole::Config => self.config(value, source).into_iter().collect(),
            FileRole::Manifest | FileRole::NotOurs => self.manifest(value, source).into_iter().collect(),
        }
    }

    fn config(&mut self, mut value: Value, source: &SourceFile) -> Option<ManifestDocument> {
        if let Some(object) = value.as_object_mut() {
            complete::complete_version(object, source, self.diagnostics);
            migrate::check_version(object, source, self.diagnostics).ok()?;
        }
        self.deserialize(DocumentKind::Config, value, source).map(ManifestDocument::Config)
    }

    fn manifest(&mut self, mut value: Value, source: &Arc<SourceFile>) -> Option<ManifestDocument> {
        let Some(object) = value.as_object_mut() else {
            self.diagnostics.push(Diagnostic::error(
                "E010",
                source.place(&DocumentPath::root()),
                "a manifest must be a mapping",
                "start with `version: 1` and `kind: agent` or `kind: service`",
            ));
            return None;
        };
        complete::complete_version(object, source, self.diagnostics);
        migrate::migrate(object, source, self.diagnostics).ok()?;
        let kind = complete::complete_kind(object, source, self.diagnostics)?;
        complete::complete_texts(kind, object, source, self.diagnostics);
        if kind == DocumentKind::Service {
            let manifest = self.deserialize(kind, value, source)?;
            return Some(ManifestDocument::Service { manifest, path: DocumentPath::root() });
        }
        let manifest: Box<AgentManifest> = self.deserialize(kind, value, source)?;
        let mode_files = self.mode_files(&manifest, source);
        Some(ManifestDocument::Agent { manifest, mode_files })
    }

    fn deserialize<T: DeserializeOwned>(
        &mut self,
        kind: DocumentKind,
        value: Value,
        source: &SourceFile,
    ) -> Option<Box<T>> {
        let before = self.diagnostics.len();
        // A test checks the built-in files against their schemas. Doing so at every start would double the start time.
        if self.layer != Layer::Builtin {
            self.diagnostics.extend(schema::validate(kind, &value, source));
        }
        if crate::diagnostic::has_errors(&self.diagnostics[before..]) {
            return None;
        }
        deserialize(value, source, self.diagnostics).map(Box::new)
    }

    /// Reads the files of each mode. Reports those that are missing or broken and continues without them.
    fn mode_files(&mut self, manifest: &AgentManifest, source: &SourceFile) -> Vec<ModeFiles> {
        let mut files = Vec::with_capacity(manifest.modes.len());
        for (index, mode) in manifest.modes.iter().enumerate() {
            let at = DocumentPath::root().key("modes").index(index);
            let prompt = self.prompt(mode, &at, source);
            let examples = self.examples(mode, &at, source);
            files.push(ModeFiles { prompt, examples });
        }
        files
    }

    fn prompt(&mut self, mode: &Mode, at: &DocumentPath, source: &SourceFile) -> Option<Prompt> {
        let file = mode.prompt.as_ref()?;
        match self.root.read_linked_file(self.path, file) {
            Ok(LinkedFile { file, text }) => {
                let prompt = Prompt { file, text };
                // A built-in prompt is the same for all users, and a test checks it.
                match self.layer {
                    Layer::Builtin => {}
                    Layer::Project => self.diagnostics.extend(prompt.check(Rendering::Never)),
                    _ => self.diagnostics.extend(prompt.check(Rendering::WithStandIns)),
                }
                Some(prompt)
            }
            Err(problem) => {
                self.diagnostics.push(Diagnostic::error(
                    "E111",
                    source.place(&at.key("prompt")),
                    format!("the prompt of mode `{}` cannot be read: {problem}", mode.slug),
                    "write the prompt to that file, or correct the path; it is relative to this manifest",
                ));
                None
            }
        }
    }

    /// Returns the lines of the mode's examples file; empty if the mode names none or the file is unusable.
    fn examples(&mut self, mode: &Mode, at: &DocumentPath, source: &SourceFile) -> Vec<String> {
        let Some(file) = &mode.examples_file else { return Vec::new() };
        let (problem, help) = match self.root.read_linked_file(self.path, file) {
            Ok(LinkedFile { file, text }) => {
                let examples = examples::parse(&text);
                if !examples.is_empty() {
                    return examples;
                }
                let problem = format!("the examples file of mode `{}` has no example: {file}", mode.slug);
                (problem, "write one request per line, or remove `examples_file`")
            }
            Err(problem) => (
                format!("the examples file of mode `{}` cannot be read: {problem}", mode.slug),
                "write one request per line to that file, or correct the path; it is relative to this manifest",
            ),
        };
        self.diagnostics.push(Diagnostic::error("E115", source.place(&at.key("examples_file")), problem, help));
        Vec::new()
    }
}

/// Reads a standalone document and validates it against its schema. `None` if it is invalid or of a newer version.
pub fn read_as<T: DeserializeOwned>(
    kind: DocumentKind,
    value: Value,
    source: &SourceFile,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<T> {
    if let Some(object) = value.as_object() {
        migrate::check_version(object, source, diagnostics).ok()?;
    }
    let found = schema::validate(kind, &value, source);
    if found.is_empty() {
        return deserialize(value, source, diagnostics);
    }
    diagnostics.extend(found);
    None
}

fn deserialize<T: DeserializeOwned>(value: Value, source: &SourceFile, diagnostics: &mut Vec<Diagnostic>) -> Option<T> {
    let read = serde_json::from_value(value);
    read.map_err(|error| {
        // The schema is generated from the type, so only a rule that the schema cannot express fails here.
        diagnostics.push(Diagnostic::error(
            "E013",
            SourceLocation::file(&source.file),
            error.to_string(),
            "change the value so that it fits",
        ));
    })
    .ok()
}
