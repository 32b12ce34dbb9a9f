//! The sandbox settings as manifests and configs write them: every field is optional, and some have short forms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forms::{AskedRead, PortForm, PortWord, ReadForm};
use super::size::ByteSize;
use super::{
    CacheAccess, Enforcement, FileAccess, GitAccess, NetworkAccess, OtherHosts, PortAccess, ReadPath, SandboxDevice,
    SandboxLimits, SandboxProfile, WritePath,
};
use super::{ProfileOwner, tighten};

/// What the kernel lets the processes write, read and reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSettings {
    /// What the processes may write: nothing (`none`, which also reads only system folders, and `read-only`), the
    /// session's roots, or everything but protected and hidden paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FileAccess>,
    /// More paths to write: paths and globs, relative to the session's root, and `git-ignored`. With a final `/`, Skein
    /// creates the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Vec<WritePath>>,
    /// Paths to read although `none` or the list of hidden paths excludes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Vec<ReadPath>>,
    /// Paths to hide in addition to the list of hidden paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hide: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSettings>,
    /// Whether changes to the caches of build tools stay in the project, reach your caches, or are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caches: Option<CacheAccess>,
    /// Whether git may use your credentials, after a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<GitAccess>,
    /// Which ports of servers inside your own programs can reach: `ask`, `off` or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortAccess>,
    /// Unix sockets outside the sandbox that stay reachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<SandboxDevice>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitSettings>,
    /// What happens if this machine cannot enforce the profile: the process does not start, or it starts with what the
    /// machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<StatedEnforcement>,
}

/// `off`, `ask` or `on`; a list of allowed hosts; or a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum NetworkSettings {
    Word(OtherHosts),
    /// Short for `{allow: LIST, otherwise: off}`.
    List(Vec<String>),
    Hosts(HostSettings),
}

/// Hosts as `HOST[:PORT]`, `*.HOST[:PORT]`, `IP:PORT` or `registries`. Without a port: 80 and 443.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// Beats `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<String>>,
    /// What happens with other hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<OtherHosts>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub processes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size: Option<ByteSize>,
}

/// An enforcement that a file may state. Only the command line can switch the sandbox off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StatedEnforcement {
    Required,
    Preferred,
}

impl From<StatedEnforcement> for Enforcement {
    fn from(stated: StatedEnforcement) -> Self {
        match stated {
            StatedEnforcement::Required => Enforcement::Required,
            StatedEnforcement::Preferred => Enforcement::Preferred,
        }
    }
}

impl JsonSchema for WritePath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WritePath".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

impl JsonSchema for ReadPath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ReadPath".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        ReadForm::json_schema(generator)
    }
}

impl JsonSchema for PortAccess {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PortAccess".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        PortForm::json_schema(generator)
    }
}

const GIT_IGNORED: &str = "git-ignored";

impl From<String> for WritePath {
    fn from(text: String) -> Self {
        if text == GIT_IGNORED { WritePath::GitIgnored } else { WritePath::Path(text) }
    }
}

impl From<WritePath> for String {
    fn from(entry: WritePath) -> Self {
        entry.as_str().to_owned()
    }
}

impl WritePath {
    /// Returns the entry as a manifest writes it.
    pub fn as_str(&self) -> &str {
        match self {
            WritePath::GitIgnored => GIT_IGNORED,
            WritePath::Path(path) => path,
        }
    }
}

impl From<ReadForm> for ReadPath {
    fn from(form: ReadForm) -> Self {
        match form {
            ReadForm::Path(path) => ReadPath { path, ask: Vec::new() },
            ReadForm::Asked(AskedRead { path, ask }) => ReadPath { path, ask },
        }
    }
}

impl From<ReadPath> for ReadForm {
    fn from(ReadPath { path, ask }: ReadPath) -> Self {
        if ask.is_empty() { ReadForm::Path(path) } else { ReadForm::Asked(AskedRead { path, ask }) }
    }
}

impl From<PortForm> for PortAccess {
    fn from(form: PortForm) -> Self {
        match form {
            PortForm::Word(PortWord::Ask) => PortAccess::Ask,
            PortForm::Word(PortWord::Off) => PortAccess::Off,
            PortForm::List(ports) => PortAccess::List(ports),
        }
    }
}

impl From<PortAccess> for PortForm {
    fn from(access: PortAccess) -> Self {
        match access {
            PortAccess::Ask => PortForm::Word(PortWord::Ask),
            PortAccess::Off => PortForm::Word(PortWord::Off),
            PortAccess::List(ports) => PortForm::List(ports),
        }
    }
}

impl NetworkSettings {
    /// Returns the stated parts. A word is a whole statement, so its lists are empty.
    pub fn parts(&self) -> HostSettings {
        match self {
            NetworkSettings::Word(otherwise) => {
                HostSettings { allow: Some(Vec::new()), deny: Some(Vec::new()), otherwise: Some(*otherwise) }
            }
            NetworkSettings::List(allow) => {
                HostSettings { allow: Some(allow.clone()), deny: None, otherwise: Some(OtherHosts::Off) }
            }
            NetworkSettings::Hosts(hosts) => hosts.clone(),
        }
    }
}

impl SandboxSettings {
    /// Returns true if no field is stated.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Replaces the fields of `base` that are stated here.
    pub fn apply_to(&self, base: &SandboxProfile) -> SandboxProfile {
        let mut profile = base.clone();
        replace(&mut profile.files, &self.files);
        replace(&mut profile.write, &self.write);
        replace(&mut profile.read, &self.read);
        replace(&mut profile.hide, &self.hide);
        if let Some(network) = &self.network {
            let HostSettings { allow, deny, otherwise } = network.parts();
            profile.network = NetworkAccess {
                allow: allow.unwrap_or_default(),
                deny: deny.unwrap_or_default(),
                otherwise: otherwise.unwrap_or(OtherHosts::Off),
            };
        }
        replace(&mut profile.sockets, &self.sockets);
        replace(&mut profile.devices, &self.devices);
        self.replace_single(&mut profile);
        profile
    }

    /// Adds the lists to those of `base`, and replaces the single values that are stated here.
    pub fn extend(&self, base: &SandboxProfile) -> SandboxProfile {
        let mut profile = base.clone();
        replace(&mut profile.files, &self.files);
        add(&mut profile.write, &self.write);
        add(&mut profile.read, &self.read);
        add(&mut profile.hide, &self.hide);
        match &self.network {
            // A word is a single value. `off` must not leave the hosts of the manifest open.
            Some(NetworkSettings::Word(otherwise)) => {
                profile.network = NetworkAccess { allow: Vec::new(), deny: Vec::new(), otherwise: *otherwise };
            }
            Some(network) => {
                let HostSettings { allow, deny, otherwise } = network.parts();
                add(&mut profile.network.allow, &allow);
                add(&mut profile.network.deny, &deny);
                replace(&mut profile.network.otherwise, &otherwise);
            }
            None => {}
        }
        add(&mut profile.sockets, &self.sockets);
        add(&mut profile.devices, &self.devices);
        self.replace_single(&mut profile);
        profile
    }

    /// Narrows `base` by the fields that are stated here. Omitted fields change nothing.
    pub fn tighten(&self, base: &SandboxProfile) -> SandboxProfile {
        let mut profile = base.clone();
        let files = self.files.unwrap_or(base.files);
        if let Some(write) = &self.write {
            profile.write = tighten::intersect_write((base.files, &base.write), (files, write));
        }
        profile.files = base.files.min(files);
        if let Some(read) = &self.read {
            profile.read = tighten::intersect_read(&base.read, read);
        }
        add(&mut profile.hide, &self.hide);
        if let Some(network) = &self.network {
            let HostSettings { allow, deny, otherwise } = network.parts();
            if let Some(allow) = allow {
                profile.network.allow = super::hosts::intersect(&base.network.allow, &allow);
            }
            add(&mut profile.network.deny, &deny);
            profile.network.otherwise = base.network.otherwise.min(otherwise.unwrap_or(base.network.otherwise));
        }
        profile.caches = base.caches.min(self.caches.unwrap_or(base.caches));
        profile.git = base.git.min(self.git.unwrap_or(base.git));
        if let Some(ports) = &self.ports {
            profile.ports = tighten::intersect_ports(&base.ports, ports);
        }
        if let Some(sockets) = &self.sockets {
            profile.sockets = tighten::intersect_sockets(&base.sockets, sockets);
        }
        if let Some(devices) = &self.devices {
            profile.devices.retain(|device| devices.contains(device));
        }
        if let Some(limits) = &self.limits {
            profile.limits = tighten::smaller_limits(&base.limits, &limits.over(SandboxLimits::no_limits()));
        }
        profile.enforce = base.enforce.min(self.enforce.map_or(base.enforce, Enforcement::from));
        profile
    }

    /// Returns the settings that apply to every process: how strictly, and what is hidden from all.
    pub fn for_programs(&self) -> Self {
        let hide = self.hide.as_ref().map(|hide| {
            // A relative path would tie a shared process to one session.
            hide.iter().filter(|path| !super::is_relative(path)).cloned().collect::<Vec<_>>()
        });
        Self { enforce: self.enforce, hide: hide.filter(|hide| !hide.is_empty()), ..Self::default() }
    }

    /// Returns true if a program with these settings depends on the session.
    pub fn is_per_root(&self) -> bool {
        self.apply_to(&SandboxProfile::narrowest(ProfileOwner::Program)).is_per_root()
    }

    /// Replaces the fields that are no lists, except `files` and `network`.
    fn replace_single(&self, profile: &mut SandboxProfile) {
        replace(&mut profile.caches, &self.caches);
        replace(&mut profile.git, &self.git);
        replace(&mut profile.ports, &self.ports);
        if let Some(limits) = &self.limits {
            profile.limits = limits.over(profile.limits);
        }
        if let Some(enforce) = self.enforce {
            profile.enforce = enforce.into();
        }
    }
}

impl LimitSettings {
    fn over(&self, base: SandboxLimits) -> SandboxLimits {
        SandboxLimits {
            processes: self.processes.or(base.processes),
            memory: self.memory.map(|size| size.0).or(base.memory),
            file_size: self.file_size.map(|size| size.0).or(base.file_size),
        }
    }
}

impl SandboxLimits {
    fn no_limits() -> Self {
        Self { processes: None, memory: None, file_size: None }
    }
}

fn replace<T: Clone>(field: &mut T, stated: &Option<T>) {
    if let Some(stated) = stated {
        *field = stated.clone();
    }
}

/// Appends the stated entries that the list does not have yet.
fn add<T: Clone + PartialEq>(list: &mut Vec<T>, stated: &Option<Vec<T>>) {
    for entry in stated.iter().flatten() {
        if !list.contains(entry) {
            list.push(entry.clone());
        }
    }
}
