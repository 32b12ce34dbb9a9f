//! The effective sandbox profile of a process: what the kernel lets it write, read and reach.

use serde::{Deserialize, Serialize};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

/// An entry of `write`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritePath {
    /// The paths that git ignores in the session's root.
    GitIgnored,
    /// A path or glob. With a final `/`, Skein creates the folder.
    Path(String),
}

/// An entry of `read`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OtherHosts {
    Off,
    Ask,
    On,
}

/// How a process uses the caches of the user's build tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GitAccess {
    Off,
    Ask,
}

/// Which listening ports are forwarded to the host's loopback address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortAccess {
    Off,
    /// Any port after a permission request.
    Ask,
    /// Exactly these ports, without a request.
    List(Vec<u16>),
}

/// A device group that `/dev` contains in addition to the usual ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
