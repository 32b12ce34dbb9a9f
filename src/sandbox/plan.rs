//! The work of a sandbox process, computed by Skein before it starts: mounts, rules and limits with resolved paths.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::os_text::OsText;

/// Everything that a sandbox process sets up. Paths are absolute and contain no links.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SandboxPlan {
    pub(super) isolation: Isolation,
    pub(super) base: FileBase,
    /// In this order. The sources are opened before the first mount changes anything.
    pub(super) mounts: Vec<PlannedMount>,
    /// Devices of the host in addition to the usual ones.
    pub(super) devices: Vec<OsText>,
    pub(super) landlock: Option<LandlockRules>,
    pub(super) sockets: SocketRules,
    /// The process listens for the proxy on a loopback port.
    pub(super) proxy: bool,
    /// Further addresses on which the process listens.
    pub(super) relays: Vec<SocketAddr>,
    /// The process listens on the sockets of git.
    pub(super) git: bool,
    pub(super) limits: ResourceLimits,
    pub(super) session: TerminalSession,
    pub(super) lifetime: SandboxLifetime,
}

impl SandboxPlan {
    /// Returns what the process prepares first.
    pub(super) fn early(&self, proc: ProcMount) -> EarlyPlan {
        EarlyPlan { proc, base: self.base, devices: self.devices.clone(), sockets: self.sockets }
    }
}

/// What a sandbox process can prepare before it knows the whole plan. Equal to the parts of the plan.
#[derive(Debug, Clone)]
pub(super) struct EarlyPlan {
    pub(super) proc: ProcMount,
    pub(super) base: FileBase,
    pub(super) devices: Vec<OsText>,
    pub(super) sockets: SocketRules,
}

/// How long a sandbox process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SandboxLifetime {
    /// Until Skein closes the socket. Other processes can enter.
    Session,
    /// Until its only command has ended. No other process enters.
    Command,
}

/// The namespaces of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Isolation {
    /// All namespaces.
    Namespaces { proc: ProcMount },
    /// No namespace, because the machine has none: Landlock and seccomp only.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProcMount {
    /// Shows only the processes of the sandbox.
    New,
    /// The machine refuses a new one.
    Host,
}

/// What the process sees before any mount of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FileBase {
    /// The files of the host.
    Host(BaseAccess),
    /// Nothing.
    Empty,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BaseAccess {
    ReadOnly,
    Writable,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlannedMount {
    pub(super) target: OsText,
    pub(super) source: MountSource,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MountSource {
    /// A path of the host. `Empty` bases create the target.
    Path { path: OsText, access: BaseAccess },
    /// A link, for an `Empty` base.
    Link(OsText),
    /// An empty folder or file, like the target. A folder has the names in `keep` as targets of later mounts.
    Cover { keep: Vec<KeptName> },
    /// An empty folder that the process may write and that ends with it.
    Memory { mode: u32 },
    /// A file with this text.
    Text(String),
    /// The files of `lower`, changes go to `upper`. `work` belongs to the kernel.
    Overlay { lower: OsText, upper: OsText, work: OsText },
}

/// A path below a covered folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptName {
    pub(super) name: OsText,
    pub(super) is_folder: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LandlockRules {
    /// The newest version to use.
    pub(super) version: u8,
    /// `None`: Landlock does not limit files.
    pub(super) files: Option<FileGrants>,
    /// `None`: Landlock does not limit TCP. Otherwise a process connects only to these ports.
    pub(super) connect_ports: Option<Vec<u16>>,
}

/// What Landlock grants. Folders stand for everything below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileGrants {
    /// The names in these folders.
    pub(super) list: Vec<OsText>,
    pub(super) read: Vec<OsText>,
    pub(super) write: Vec<OsText>,
}

/// Socket families that seccomp lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SocketRules {
    pub(super) unix: bool,
    pub(super) internet: InternetSockets,
    pub(super) netlink_route: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum InternetSockets {
    All,
    TcpOnly,
    None,
}

/// Limits in bytes and numbers. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResourceLimits {
    pub(super) processes: Option<u32>,
    pub(super) data: Option<u64>,
    pub(super) file_size: Option<u64>,
}

/// Whether a sandbox shares the terminal that Skein runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalSession {
    /// The processes cannot open the terminal that Skein runs in.
    New,
    /// The processes share Skein's terminal.
    Shared,
}
