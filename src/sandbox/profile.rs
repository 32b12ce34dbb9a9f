//! The effective sandbox profile of a process: what the kernel lets it write, read and reach.
//!
//! The parts: `settings` has the form that manifests and configs write, `sources` combines them in order of precedence,
//! `tighten` intersects two profiles, and `words` describes one.

mod forms;
mod hosts;
mod named_paths;
mod settings;
mod size;
mod sources;
mod tighten;
mod words;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use hosts::{HostEntry, HostEntryError};
pub use named_paths::{is_below_root, is_relative, overlaps_hidden};
pub use settings::{HostSettings, LimitSettings, NetworkSettings, SandboxSettings, StatedEnforcement};
pub use size::ByteSize;
pub use sources::{CommandPower, ProfileSources};

/// The limits of one sandbox. Paths and hosts are written as in a manifest: `~`, globs and relative paths expand when
/// the sandbox process starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxProfile {
    pub files: FileAccess,
    /// Writable in addition to what `files` grants.
    pub write: Vec<WritePath>,
    /// Readable although `files: none` or the hidden list excludes them.
    pub read: Vec<ReadPath>,
    /// Hidden in addition to the hidden list.
    pub hide: Vec<String>,
    pub network: NetworkAccess,
    pub caches: CacheAccess,
    pub git: GitAccess,
    pub ports: PortAccess,
    /// Unix sockets of the host that stay reachable.
    pub sockets: Vec<String>,
    pub devices: Vec<SandboxDevice>,
    pub limits: SandboxLimits,
    pub enforce: Enforcement,
}

/// What a process may write; ordered from narrow to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileAccess {
    /// Writes nothing and reads only system folders and the program.
    None,
    /// Writes nothing; reads all but hidden paths.
    ReadOnly,
    /// Writes the roots of the session.
    Workspace,
    /// Writes all but protected and hidden paths.
    Full,
}

/// An entry of `write`: `git-ignored`, or a path or glob.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum WritePath {
    /// The paths that git ignores in the session's root.
    GitIgnored,
    /// A path or glob. With a final `/`, Skein creates the folder.
    Path(String),
}

/// An entry of `read`: a path or glob, or a mapping with the programs to ask about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "forms::ReadForm", into = "forms::ReadForm")]
pub struct ReadPath {
    pub path: String,
    /// The programs for which the path opens after a permission request. Empty: it is always open.
    pub ask: Vec<String>,
}

/// Which hosts a process reaches. Each entry is `HOST[:PORT]`, `*.HOST[:PORT]`, `IP:PORT` or `registries`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkAccess {
    pub allow: Vec<String>,
    /// Beats `allow`.
    pub deny: Vec<String>,
    /// Applies to hosts in neither list.
    pub otherwise: OtherHosts,
}

/// What happens with a host in neither list; ordered from narrow to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OtherHosts {
    Off,
    Ask,
    On,
}

/// How a process uses the caches of the user's build tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheAccess {
    /// Caches are read-only.
    Off,
    /// Changes go to a copy that belongs to the project.
    Private,
    /// Changes go to the user's caches.
    Shared,
}

/// Whether git may use the user's credentials, after a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GitAccess {
    Off,
    Ask,
}

/// Which listening ports are forwarded to the host's loopback address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "forms::PortForm", into = "forms::PortForm")]
pub enum PortAccess {
    Off,
    /// Any port after a permission request.
    Ask,
    /// Exactly these ports, without a request.
    List(Vec<u16>),
}

/// A device group that `/dev` contains in addition to the usual ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxDevice {
    Gpu,
    Kvm,
    Fuse,
}

/// Resource limits. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    pub processes: Option<u32>,
    /// In bytes.
    pub memory: Option<u64>,
    /// In bytes.
    pub file_size: Option<u64>,
}

/// What happens if the machine cannot enforce a line of the profile; ordered from narrow to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// The process does not start.
    Required,
    /// The process starts with every layer that the machine has, and the user gets a notice.
    Preferred,
    /// The process starts without a sandbox and is labelled `unsandboxed`.
    Off,
}

/// The number of processes without another limit.
const MAX_PROCESSES: u32 = 4096;

/// What a profile is for. It decides what omitted fields mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileOwner {
    Mode,
    /// A stdio service or an external agent.
    Program,
}

impl SandboxProfile {
    /// Returns the profile in which every field has the meaning of an omitted one.
    pub fn narrowest(owner: ProfileOwner) -> Self {
        Self {
            files: FileAccess::None,
            write: Vec::new(),
            read: Vec::new(),
            hide: Vec::new(),
            network: NetworkAccess { allow: Vec::new(), deny: Vec::new(), otherwise: OtherHosts::Off },
            caches: CacheAccess::Private,
            git: if owner == ProfileOwner::Mode { GitAccess::Ask } else { GitAccess::Off },
            ports: if owner == ProfileOwner::Mode { PortAccess::Ask } else { PortAccess::Off },
            sockets: Vec::new(),
            devices: Vec::new(),
            limits: SandboxLimits { processes: Some(MAX_PROCESSES), memory: None, file_size: None },
            enforce: Enforcement::Preferred,
        }
    }

    /// Returns true if processes with this profile run in a sandbox. False if the user turned it off.
    pub fn is_applied(&self) -> bool {
        self.enforce != Enforcement::Off
    }

    /// Returns the profile of a command that changes nothing. It sees system folders and the session's roots, writes
    /// only temporary files, and reaches no host, credential or socket.
    pub fn for_reading(&self) -> Self {
        Self {
            hide: self.hide.clone(),
            caches: CacheAccess::Off,
            limits: self.limits,
            enforce: self.enforce,
            ..Self::narrowest(ProfileOwner::Program)
        }
    }

    /// Returns the profile of a program that states none, where an administrator requires a sandbox.
    pub fn of_unstated_program() -> Self {
        Self {
            files: FileAccess::Workspace,
            network: NetworkAccess { allow: Vec::new(), deny: Vec::new(), otherwise: OtherHosts::On },
            enforce: Enforcement::Required,
            ..Self::narrowest(ProfileOwner::Program)
        }
    }

    /// Returns the profile of a program that states none, in a remote session.
    pub fn of_remote_program() -> Self {
        Self { files: FileAccess::Workspace, ..Self::of_shared_program() }
    }

    /// Returns the profile of a program that states none, and that remote sessions of several principals share. It has
    /// no folder of a session.
    pub fn of_shared_program() -> Self {
        let network = NetworkAccess { allow: Vec::new(), deny: Vec::new(), otherwise: OtherHosts::On };
        Self { network, ..Self::narrowest(ProfileOwner::Program) }.for_remote()
    }

    /// Returns the profile for a remote session. The kernel must enforce it. It opens nothing of the user of this
    /// machine: neither paths nor sockets, caches, credentials or ports. Only paths relative to the session's folder
    /// stay writable.
    pub fn for_remote(&self) -> Self {
        let is_in_session = |entry: &&WritePath| match entry {
            WritePath::GitIgnored => true,
            WritePath::Path(path) => is_relative(path),
        };
        Self {
            files: self.files.min(FileAccess::Workspace),
            write: self.write.iter().filter(is_in_session).cloned().collect(),
            read: Vec::new(),
            caches: CacheAccess::Off,
            git: GitAccess::Off,
            ports: PortAccess::Off,
            sockets: Vec::new(),
            enforce: Enforcement::Required,
            ..self.clone()
        }
    }

    /// Returns true if the profile depends on the session: it writes the workspace, names a path relative to the root,
    /// or asks about hosts. Such a process cannot be shared between sessions.
    pub fn is_per_root(&self) -> bool {
        self.files == FileAccess::Workspace
            || self.network.otherwise == OtherHosts::Ask
            || self.write.iter().any(|entry| match entry {
                WritePath::GitIgnored => true,
                WritePath::Path(path) => is_relative(path),
            })
            || self.read.iter().any(|entry| is_relative(&entry.path))
            || self.hide.iter().any(|path| is_relative(path))
    }
}
