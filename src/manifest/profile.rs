//! Selects the active profiles and applies their services: which ones are on, and which services they require. Also
//! applies the services that configs disable.
//!
//! Invariant: a project can leave services out, but cannot turn one on or choose what a service requires. The services
//! of the orchestrator are always on.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::config::{Profile, ProfileService};
use super::layers::{ConfigEntry, DisableSource, SelectedProfile, ServiceEntry};
use super::managed_exclusion::ManagedExclusion;
use super::model::VERSION;
use super::schema::DocumentKind;
use super::yaml::SourceFile;
use super::{Layer, Manifests, Requires, Transport};
use crate::diagnostic::Diagnostic;
use crate::ids::ServiceName;

/// The profile to use when no config names one.
const DEFAULT: &str = "default";

/// The profile that the user chose for this run, instead of the one in the config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileSelection {
    /// A profile of a config.
    Named(String),
    /// The text of a file that holds one profile; `file` is its displayed path.
    File { file: String, text: String },
}

/// The services of a profile that lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceList {
    /// The profile, for messages: its name or its file.
    pub profile: String,
    services: Vec<ServiceName>,
    /// True if the list names a built-in service, so that it decides about all of them.
    covers_builtin: bool,
}

impl ServiceList {
    fn of(profile: &Profile, name: &str, manifests: &Manifests) -> Option<Self> {
        let services: Vec<_> = profile.services()?.map(|service| service.name().clone()).collect();
        let is_builtin = |name: &ServiceName| manifests.services.get(name).is_some_and(is_builtin);
        let covers_builtin = services.iter().any(is_builtin);
        Some(Self { profile: name.to_owned(), services, covers_builtin })
    }

    /// Returns true if the list decides about the service and does not name it.
    pub fn leaves_out(&self, entry: &ServiceEntry) -> bool {
        let decides = match entry.layer {
            _ if entry.manifest.owner.is_some() => false,
            _ if is_builtin(entry) => self.covers_builtin,
            Layer::User => true,
            Layer::Builtin | Layer::Project | Layer::Extra | Layer::Editor => false,
        };
        decides && !self.services.contains(&entry.manifest.name)
    }
}

/// Returns true for a compiled-in service, also if the user overrides its manifest.
fn is_builtin(entry: &ServiceEntry) -> bool {
    matches!(entry.manifest.transport, Transport::Builtin(_)) && entry.layer != Layer::Editor
}

/// Removes this build's version from a profile file. Only a file has one, not a profile in a config. Keeps other values,
/// which are reported.
fn without_version(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut().filter(|object| object.get("version") == Some(&json!(VERSION))) {
        object.remove("version");
    }
    value
}

/// The profiles that apply: the user's and the project's.
pub(super) struct ActiveProfiles {
    pub(super) user: Profile,
    pub(super) project: Profile,
    /// True if the user chose the profile for this run, so that it counts before the project's.
    pub(super) user_first: bool,
    pub(super) lists: Vec<ServiceList>,
    /// All profiles that apply, with their names.
    pub(super) profiles: Vec<(String, Profile)>,
}

impl ActiveProfiles {
    pub(super) fn of(manifests: &Manifests) -> Self {
        let config = |layer| manifests.configs.iter().find(|entry| entry.layer == layer).map(|entry| &entry.config);
        let (user, project) = (config(Layer::User), config(Layer::Project));
        let of_user = |name: &str| user.and_then(|config| config.profiles.get(name));
        let of_project = |name: &str| project.and_then(|config| config.profiles.get(name));
        let users = user.and_then(|config| config.profile.as_deref()).unwrap_or(DEFAULT);
        let projects = project.and_then(|config| config.profile.as_deref());
        let of_its_config =
            of_project(projects.unwrap_or(DEFAULT)).map(|profile| (profile, projects.unwrap_or(DEFAULT)));
        // The user's profile, the project's, whether the user's counts first, and one whose services count as well.
        let (user_profile, project_profile, user_first, also) = match &manifests.profile {
            Some(SelectedProfile::File { profile, source }) => {
                (Some((profile.as_ref(), source.file.as_str())), of_its_config, true, None)
            }
            Some(SelectedProfile::Named(name)) => match (of_user(name), of_project(name)) {
                (Some(profile), _) => (Some((profile, name.as_str())), of_its_config, true, None),
                // The project's own profile extends the user's active one.
                (None, own) => {
                    let own = own.map(|profile| (profile, name.as_str()));
                    (of_user(users).map(|profile| (profile, users)), own, false, None)
                }
            },
            None => {
                // A project may name one of the user's profiles.
                let base = projects.filter(|_| of_its_config.is_none()).unwrap_or(users);
                // Services that the user's profile leaves out stay off, even if the project names another profile.
                let also = of_user(users).filter(|_| base != users).map(|profile| (profile, users));
                (of_user(base).map(|profile| (profile, base)), of_its_config, false, also)
            }
        };
        let active = also.into_iter().chain(user_profile).chain(project_profile);
        let profiles = active.clone().map(|(profile, name)| (name.to_owned(), profile.clone())).collect();
        let lists = active.filter_map(|(profile, name)| ServiceList::of(profile, name, manifests)).collect();
        Self {
            user: user_profile.map(|(profile, _)| profile.clone()).unwrap_or_default(),
            project: project_profile.map(|(profile, _)| profile.clone()).unwrap_or_default(),
            user_first,
            lists,
            profiles,
        }
    }
}

impl Manifests {
    /// Reads the selected profile. Reports a file that is not a valid profile, and then selects none.
    pub(super) fn select_profile(&mut self, selection: Option<&ProfileSelection>, found: &mut Vec<Diagnostic>) {
        self.profile = match selection {
            None => None,
            Some(ProfileSelection::Named(name)) => Some(SelectedProfile::Named(name.clone())),
            Some(ProfileSelection::File { file, text }) => {
                let source = SourceFile::new(file.clone(), text.clone());
                let value = super::yaml::parse(&source).map_err(|diagnostic| found.push(*diagnostic)).ok();
                let value = value.map(without_version);
                let profile = value.and_then(|value| super::read_as(DocumentKind::Profile, value, &source, found));
                profile.map(|profile| SelectedProfile::File { profile: Box::new(profile), source })
            }
        };
    }

    /// Returns the profile of the selected file, and the file. `None` if no file is selected.
    pub fn profile_file(&self) -> Option<(&Profile, &SourceFile)> {
        match &self.profile {
            Some(SelectedProfile::File { profile, source }) => Some((profile, source)),
            Some(SelectedProfile::Named(_)) | None => None,
        }
    }

    /// Returns the names of all profiles in the configs.
    pub fn profile_names(&self) -> impl Iterator<Item = &str> {
        self.configs.iter().flat_map(|entry| entry.config.profiles.keys()).map(String::as_str)
    }

    /// Returns the profile that leaves the service out. `None` if the service is on.
    pub fn leaving_profile(&self, entry: &ServiceEntry) -> Option<String> {
        let lists = ActiveProfiles::of(self).lists;
        lists.into_iter().find(|list| list.leaves_out(entry)).map(|list| list.profile)
    }

    /// Returns the config that disables the service. `None` if none does. The orchestrator's services stay on.
    fn disabling_config(&self, entry: &ServiceEntry) -> Option<&str> {
        let disables = |config: &&ConfigEntry| config.config.disabled_services.contains(&entry.manifest.name);
        let config = self.configs.iter().find(disables).filter(|_| entry.manifest.owner.is_none())?;
        Some(&config.source.file)
    }

    /// Returns the managed setting that does not allow the service. `None` if all do, and for the orchestrator's own.
    pub fn service_refusal(&self, entry: &ServiceEntry) -> Option<ManagedExclusion> {
        let is_own = entry.manifest.owner.is_some() && entry.layer == Layer::Builtin;
        let definition = (entry.layer, entry.source.file.as_str());
        self.managed.service_refusal(entry.manifest.name.as_str(), definition).filter(|_| !is_own)
    }

    /// Marks the services that managed settings do not list, the active profiles leave out or a config disables. Applies
    /// the roles that the user's profile sets.
    pub(super) fn apply_profiles(&mut self) {
        let active = ActiveProfiles::of(self);
        let disabled_by = |entry: &ServiceEntry| {
            let managed = self.service_refusal(entry).map(DisableSource::Managed);
            let config = || self.disabling_config(entry).map(|file| DisableSource::Config(file.to_owned()));
            let leaving = || active.lists.iter().find(|list| list.leaves_out(entry));
            managed.or_else(config).or_else(|| leaving().map(|list| DisableSource::Profile(list.profile.clone())))
        };
        let disabled: Vec<_> = self.services.values().map(disabled_by).collect();
        for (entry, disabled_by) in self.services.values_mut().zip(disabled) {
            entry.enabled = disabled_by.is_none();
            entry.disabled_by = disabled_by;
        }
        for service in active.user.services().into_iter().flatten() {
            let ProfileService::Detailed(detailed) = service else { continue };
            if let Some(entry) = self.services.get_mut(&detailed.name) {
                let mut roles: BTreeMap<_, _> =
                    entry.manifest.requires.roles().into_iter().map(|(role, of)| (role, of.clone())).collect();
                // A check reports roles that the service does not have.
                let known = detailed.requires.iter().filter(|(role, _)| roles.contains_key(*role));
                let known: Vec<_> = known.map(|(role, of)| (role.clone(), of.clone())).collect();
                if !known.is_empty() {
                    roles.extend(known);
                    entry.manifest.requires = Requires::Roles(roles);
                }
            }
        }
    }
}
