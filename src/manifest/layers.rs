//! Combines layers: later layers override earlier ones by name, within limits that protect what Skein relies on.
//!
//! Invariant: the orchestrator, its services and all internal modes are the built-in ones; no other layer can change
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::managed_exclusion::ManagedExclusion;
use super::managed_layer::ManagedLayer;
use super::model::{AgentManifest, Mode, ServiceManifest};
use super::prompt::Prompt;
use super::sharing::ServiceSharing;
use super::yaml::{DocumentPath, SourceFile};
use super::{Config, Layer, ManifestDocument, ModeFiles, Profile, SandboxConfig, Transport};
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::ids::{AgentName, GroupName, ModeId, ServiceName, ToolName};
use crate::sandbox::{Enforcement, SandboxSettings};

/// The only agent that cannot be overridden.
const ORCHESTRATOR: &str = "orchestrator";

/// The winning manifest for each name.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    pub agents: BTreeMap<AgentName, AgentEntry>,
    pub services: BTreeMap<ServiceName, ServiceEntry>,
    pub configs: Vec<ConfigEntry>,
    /// The value of `--sandbox`, which overrides `enforce` of manifests and of the user's config.
    pub sandbox_flag: Option<Enforcement>,
    /// The limits of the administrator.
    pub managed: ManagedLayer,
    pub(super) profile: Option<SelectedProfile>,
    /// The compiled-in groups of built-in services, which no layer can extend.
    pub(super) builtin_groups: BTreeMap<ServiceName, BTreeMap<GroupName, Vec<ToolName>>>,
}

/// The profile that the user chose for this run.
#[derive(Debug, Clone)]
pub(super) enum SelectedProfile {
    /// A profile of a config.
    Named(String),
    /// The profile of a file.
    File { profile: Box<Profile>, source: Arc<SourceFile> },
}

#[derive(Debug, Clone)]
pub struct AgentEntry {
    /// The manifest as read, with its modes moved to `modes`.
    pub manifest: AgentManifest,
    pub modes: Vec<ModeEntry>,
    pub layer: Layer,
    pub source: Arc<SourceFile>,
    /// The files that this one overrides, earliest first.
    pub overrides: Vec<String>,
}

impl AgentEntry {
    /// Returns the mode to use when only the agent is named.
    pub fn default_mode(&self) -> Option<ModeId> {
        let first = self.modes.first().map(|entry| &entry.mode.slug);
        let slug = self.manifest.default_mode.as_ref().or(first)?;
        Some(ModeId::new(self.manifest.name.clone(), slug.clone()))
    }

    pub fn is_external(&self) -> bool {
        self.manifest.runtime.is_some()
    }
}

#[derive(Debug, Clone)]
pub struct ModeEntry {
    pub mode: Mode,
    pub prompt: Option<Prompt>,
    /// The router's training examples: `examples`, then the lines of `examples_file`.
    pub examples: Vec<String>,
    /// The file of the mode; an internal mode stays in the built-in file when its agent is overridden.
    pub source: Arc<SourceFile>,
    pub path: DocumentPath,
    pub layer: Layer,
}

#[derive(Debug, Clone)]
pub struct ServiceEntry {
    pub manifest: ServiceManifest,
    pub layer: Layer,
    pub source: Arc<SourceFile>,
    /// Its position in the file; a `.mcp.json` has several services.
    pub path: DocumentPath,
    pub overrides: Vec<String>,
    /// False for a service that an active profile leaves out or a config disables.
    pub enabled: bool,
    /// What turned the service off. `None` if nothing did.
    pub disabled_by: Option<DisableSource>,
    /// The tools that modes may use; `None` means all.
    pub only: Option<Vec<ToolName>>,
}

/// What turns a service off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisableSource {
    /// A profile that lists its services without this one: its name or its file.
    Profile(String),
    /// The list `disabled_services` of this file.
    Config(String),
    /// A managed list of the only services, without this one.
    Managed(ManagedExclusion),
}

/// Writes the reason as the end of a sentence.
impl std::fmt::Display for DisableSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DisableSource::Profile(profile) => write!(f, "the profile `{profile}` leaves it out"),
            DisableSource::Config(file) => write!(f, "it is disabled by `disabled_services` in {file}"),
            DisableSource::Managed(exclusion) => write!(f, "{exclusion}"),
        }
    }
}

impl ServiceEntry {
    /// Returns the location of its name: the field, or the key in a `.mcp.json`.
    pub fn name_place(&self) -> SourceLocation {
        name_place(&self.source, &self.path)
    }

    /// Returns the path of its command or URL; a `.mcp.json` has no `transport` key.
    pub fn transport_path(&self) -> DocumentPath {
        if self.path != DocumentPath::root() {
            return self.path.clone();
        }
        let form = match &self.manifest.transport {
            Transport::Builtin(_) => "builtin",
            Transport::Stdio(_) => "stdio",
            Transport::Http(_) => "http",
        };
        self.path.key("transport").key(form)
    }

    /// Returns true for a third-party or client-provided service, which the group `mcp` covers.
    pub fn user_installed(&self) -> bool {
        let ours = matches!(self.manifest.transport, Transport::Builtin(_)) && self.layer != Layer::Editor;
        self.layer != Layer::Builtin && !ours
    }

    /// Returns true for a server of an editor, a recipe or a `.mcp.json`, whose author does not write manifests.
    pub fn is_of_client(&self) -> bool {
        self.layer == Layer::Editor || self.path != DocumentPath::root()
    }

    /// Returns true if a mode with the group `mcp` gets this service.
    pub fn is_in_mcp(&self) -> bool {
        self.user_installed() && self.enabled
    }
}

#[derive(Debug, Clone)]
pub struct ConfigEntry {
    pub config: Config,
    pub layer: Layer,
    pub source: Arc<SourceFile>,
}

impl Manifests {
    /// Gives each session its own process of a client's server if their profile depends on the session.
    pub(super) fn separate_client_services(&mut self) {
        let of_clients = self.sandbox_configs(Layer::User).find_map(|config| config.client_services.as_ref());
        if of_clients.is_some_and(SandboxSettings::is_per_root) {
            for entry in self.services.values_mut().filter(|entry| entry.is_of_client()) {
                entry.manifest.scope = Some(ServiceSharing::Session);
            }
        }
    }

    /// Returns the section `sandbox` of the configs of a layer.
    pub fn sandbox_configs(&self, layer: Layer) -> impl Iterator<Item = &SandboxConfig> {
        self.configs.iter().filter(move |entry| entry.layer == layer).filter_map(|entry| entry.config.sandbox.as_ref())
    }

    pub(super) fn add(
        &mut self,
        document: ManifestDocument,
        layer: Layer,
        source: &Arc<SourceFile>,
        found: &mut Vec<Diagnostic>,
    ) {
        match document {
            ManifestDocument::Agent { manifest, mode_files } => {
                self.add_agent(*manifest, mode_files, layer, source, found)
            }
            ManifestDocument::Service { manifest, path } => self.add_service(*manifest, path, layer, source, found),
            ManifestDocument::Config(config) => {
                if let Some(earlier) = self.configs.iter().find(|earlier| earlier.layer == layer) {
                    let first = SourceLocation::file(&earlier.source.file);
                    return found.push(duplicate_error(
                        "config file",
                        layer,
                        SourceLocation::file(&source.file),
                        first,
                    ));
                }
                self.configs.push(ConfigEntry { config: *config, layer, source: Arc::clone(source) });
            }
        }
    }

    fn add_agent(
        &mut self,
        mut manifest: AgentManifest,
        mode_files: Vec<ModeFiles>,
        layer: Layer,
        source: &Arc<SourceFile>,
        found: &mut Vec<Diagnostic>,
    ) {
        let at_name = DocumentPath::root().key("name");
        let modes = std::mem::take(&mut manifest.modes);
        let mut modes: Vec<_> = modes
            .into_iter()
            .zip(mode_files)
            .enumerate()
            .map(|(index, (mode, files))| ModeEntry {
                examples: [mode.examples.clone(), files.examples].concat(),
                prompt: files.prompt,
                mode,
                source: Arc::clone(source),
                path: DocumentPath::root().key("modes").index(index),
                layer,
            })
            .collect();
        if layer != Layer::Builtin {
            modes.retain(|entry| !internal_elsewhere(entry, found));
        }
        let mut overrides = Vec::new();
        if let Some(earlier) = self.agents.get_mut(&manifest.name) {
            if earlier.layer == layer {
                let what = format!("agent `{}`", manifest.name);
                return found.push(duplicate_error(
                    &what,
                    layer,
                    source.place(&at_name),
                    earlier.source.place(&at_name),
                ));
            }
            if manifest.name.as_str() == ORCHESTRATOR {
                return found.push(Diagnostic::error(
                    "E102",
                    source.place(&at_name),
                    "the agent `orchestrator` is part of Skein and cannot be overridden",
                    "choose another name",
                ));
            }
            overrides.append(&mut earlier.overrides);
            overrides.push(earlier.source.file.clone());
            // Skein relies on internal modes, so they survive when their file is overridden.
            for inherited in earlier.modes.extract_if(.., |entry| entry.mode.internal) {
                if let Some(position) = modes.iter().position(|entry| entry.mode.slug == inherited.mode.slug) {
                    let entry = modes.remove(position);
                    found.push(Diagnostic::error(
                        "E109",
                        entry.source.place(&entry.path.key("slug")),
                        format!("`{}/{}` is an internal mode and cannot be overridden", manifest.name, entry.mode.slug),
                        "choose another slug",
                    ));
                }
                modes.push(inherited);
            }
        }
        let entry = AgentEntry { modes, layer, source: Arc::clone(source), overrides, manifest };
        self.agents.insert(entry.manifest.name.clone(), entry);
    }

    fn add_service(
        &mut self,
        manifest: ServiceManifest,
        path: DocumentPath,
        layer: Layer,
        source: &Arc<SourceFile>,
        found: &mut Vec<Diagnostic>,
    ) {
        if layer != Layer::Builtin && manifest.owner.is_some() {
            return found.push(Diagnostic::error(
                "E102",
                source.key_place(&path.key("owner")),
                "only built-in services have an owner",
                "remove the field `owner`",
            ));
        }
        let mut overrides = Vec::new();
        if let Some(earlier) = self.services.get(&manifest.name) {
            if earlier.layer == layer {
                let what = format!("service `{}`", manifest.name);
                return found.push(duplicate_error(&what, layer, name_place(source, &path), earlier.name_place()));
            }
            if let Some(owner) = &earlier.manifest.owner {
                return found.push(Diagnostic::error(
                    "E102",
                    name_place(source, &path),
                    format!("the service `{}` belongs to the {owner} and cannot be overridden", manifest.name),
                    "choose another name",
                ));
            }
            if earlier.layer == Layer::Builtin && path != DocumentPath::root() {
                // Such a server declares no groups, which would break every built-in mode that relies on them.
                return found.push(Diagnostic::warning(
                    "W204",
                    name_place(source, &path),
                    format!("the server `{}` is left out: a built-in service has that name", manifest.name),
                    "rename it in .mcp.json, or override the service with a manifest that declares its groups",
                ));
            }
            let replaces = !matches!(manifest.transport, Transport::Builtin(_)) || manifest.settings.is_some();
            if layer == Layer::Project && self.builtin_groups.contains_key(&manifest.name) && replaces {
                // Built-in modes rely on what these services do and refuse to do.
                return found.push(Diagnostic::error(
                    "E102",
                    name_place(source, &path),
                    format!("a project cannot replace the built-in service `{}` or change its settings", manifest.name),
                    "choose another name; your own settings, outside the project, may replace it",
                ));
            }
            overrides.clone_from(&earlier.overrides);
            overrides.push(earlier.source.file.clone());
        }
        if layer == Layer::Builtin {
            self.builtin_groups.insert(manifest.name.clone(), manifest.groups.clone());
        } else if self.widens_builtin(&manifest, &path, source, found) {
            return;
        }
        let (source, only) = (Arc::clone(source), manifest.available_tools.clone());
        let entry = ServiceEntry { manifest, layer, source, path, overrides, enabled: true, disabled_by: None, only };
        self.services.insert(entry.manifest.name.clone(), entry);
    }

    /// Returns true, with a report, if a manifest adds tools to a built-in group. It may change the service's limits
    /// and narrow its groups. If it could move `shell` into `read`, every mode that reads could run commands.
    fn widens_builtin(
        &self,
        manifest: &ServiceManifest,
        path: &DocumentPath,
        source: &SourceFile,
        found: &mut Vec<Diagnostic>,
    ) -> bool {
        let Transport::Builtin(name) = &manifest.transport else { return false };
        let at = path.key("transport").key("builtin");
        // Services with an owner never get here, because they cannot be overridden.
        let Some(groups) = self.builtin_groups.get(name).filter(|_| &manifest.name == name) else {
            found.push(Diagnostic::error(
                "E117",
                source.place(&at),
                format!("`builtin: {name}` can only stand in a manifest that overrides the service `{name}` itself"),
                "use `stdio` or `http`, or give the manifest the built-in service's name",
            ));
            return true;
        };
        let mut widened = false;
        for (group, tools) in &manifest.groups {
            let Some(allowed) = groups.get(group) else { continue };
            for (index, tool) in tools.iter().enumerate().filter(|(_, tool)| !allowed.contains(tool)) {
                widened = true;
                found.push(Diagnostic::error(
                    "E118",
                    source.place(&path.key("groups").key(group.as_str()).index(index)),
                    format!(
                        "the built-in group `{group}` of `{name}` does not hold `{tool}`, and a manifest cannot add it"
                    ),
                    "declare a group of another name for it, and list that group where it is wanted",
                ));
            }
        }
        widened
    }
}

/// Returns true, with a report, for an internal mode that is not built in.
fn internal_elsewhere(entry: &ModeEntry, found: &mut Vec<Diagnostic>) -> bool {
    if entry.mode.internal {
        found.push(Diagnostic::error(
            "E109",
            entry.source.key_place(&entry.path.key("internal")),
            "only built-in modes can be internal",
            "remove the field `internal`",
        ));
    }
    entry.mode.internal
}

fn name_place(source: &SourceFile, path: &DocumentPath) -> SourceLocation {
    if *path == DocumentPath::root() { source.place(&path.key("name")) } else { source.key_place(path) }
}

fn duplicate_error(what: &str, layer: Layer, at: SourceLocation, first: SourceLocation) -> Diagnostic {
    Diagnostic::error(
        "E101",
        at,
        format!("the {what} is defined twice in one layer ({layer})"),
        "keep one of them, or give one another name",
    )
    .with_related(first, "defined here first")
}
