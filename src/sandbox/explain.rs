//! Explains which layer enforces each line of a profile on this machine, or why none does.

use std::fmt::Write as _;

use serde::Serialize;

use super::layers::{Layer, LayerState, Layers};
use super::profile::{
    CacheAccess, FileAccess, GitAccess, OtherHosts, PortAccess, SandboxDevice, SandboxProfile, WritePath,
};

/// Older versions of Landlock let a process shorten any file that the user can write.
const MIN_LANDLOCK_FOR_FILES: u8 = 3;

/// One line of a profile and its enforcement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedLine {
    /// The field as in a manifest.
    pub field: &'static str,
    pub value: String,
    pub enforcement: LineEnforcement,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineEnforcement {
    By(Vec<Layer>),
    /// The missing layer and the reason.
    Missing {
        layer: Layer,
        reason: String,
    },
    /// The line limits nothing in the kernel. With a remark.
    Nothing(String),
}

impl ExplainedLine {
    /// Returns whether the profile cannot be `required` because of this line.
    pub fn is_unenforced(&self) -> bool {
        matches!(self.enforcement, LineEnforcement::Missing { .. })
    }
}

impl std::fmt::Display for ExplainedLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let field = format!("{}:", self.field);
        write!(f, "{field:<12} {:<34} ", self.value)?;
        match &self.enforcement {
            LineEnforcement::By(layers) => {
                let names: Vec<_> = layers.iter().map(|layer| layer.name()).collect();
                f.write_str(&names.join(", "))
            }
            LineEnforcement::Missing { layer, reason } => write!(f, "not enforced: no {layer}: {reason}"),
            LineEnforcement::Nothing(remark) => f.write_str(remark),
        }
    }
}

/// Whether protected paths exist in the session's roots. Landlock alone cannot make them read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtectedState {
    Exist,
    Absent,
}

/// Explains every line of a profile.
pub fn explain(profile: &SandboxProfile, layers: &Layers, protected: ProtectedState) -> Vec<ExplainedLine> {
    let explainer = Explainer { profile, layers, protected };
    let limits = &profile.limits;
    let mut lines = vec![
        explainer.line("files", files_name(profile.files).to_owned(), explainer.files()),
        explainer.line("hidden", hidden_value(profile), explainer.hidden()),
    ];
    if profile.files >= FileAccess::Workspace {
        lines.push(explainer.line("protected", "read-only".to_owned(), explainer.protected_paths()));
    }
    if !profile.write.is_empty() {
        lines.push(explainer.line("write", write_value(&profile.write), explainer.files()));
    }
    if !profile.read.is_empty() {
        let paths: Vec<_> = profile.read.iter().map(|entry| entry.path.clone()).collect();
        lines.push(explainer.line("read", paths.join(", "), explainer.hidden()));
    }
    lines.push(explainer.line("network", network_value(profile), explainer.network()));
    let sockets = if profile.sockets.is_empty() { "none of the host".to_owned() } else { profile.sockets.join(", ") };
    lines.push(explainer.line("sockets", sockets, explainer.sockets()));
    lines.push(explainer.line("caches", caches_name(profile.caches).to_owned(), explainer.caches()));
    lines.push(explainer.line("processes", "end with the sandbox".to_owned(), explainer.processes()));
    lines.push(explainer.line("calls", "no namespaces, mounts, bpf, …".to_owned(), explainer.calls()));
    lines.push(explainer.line("devices", devices_value(&profile.devices), explainer.devices()));
    if let Some(processes) = limits.processes {
        lines.push(explainer.line("limits", format!("{processes} processes"), explainer.process_limit()));
    }
    if let Some(memory) = limits.memory {
        let layer = if layers.cgroup.is_available() { Layer::Cgroup } else { Layer::Limits };
        lines.push(explainer.line("limits", format!("{memory} bytes of memory"), by(&[layer])));
    }
    if let Some(size) = limits.file_size {
        lines.push(explainer.line("limits", format!("files of {size} bytes"), by(&[Layer::Limits])));
    }
    let git = match profile.git {
        GitAccess::Off => ("off", "no credentials of git"),
        GitAccess::Ask => ("ask", "each use of a credential asks"),
    };
    lines.push(explainer.line("git", git.0.to_owned(), LineEnforcement::Nothing(git.1.to_owned())));
    let ports = match &profile.ports {
        PortAccess::Off => "off".to_owned(),
        PortAccess::Ask => "ask".to_owned(),
        PortAccess::List(ports) => ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
    };
    lines.push(explainer.line("ports", ports, LineEnforcement::Nothing("forwarded by Skein".to_owned())));
    lines
}

struct Explainer<'a> {
    profile: &'a SandboxProfile,
    layers: &'a Layers,
    protected: ProtectedState,
}

impl Explainer<'_> {
    #[expect(clippy::unused_self, reason = "lines are made in one place")]
    fn line(&self, field: &'static str, value: String, enforcement: LineEnforcement) -> ExplainedLine {
        ExplainedLine { field, value, enforcement }
    }

    fn has_namespaces(&self) -> bool {
        self.layers.namespaces.is_available()
    }

    fn landlock_version(&self) -> u8 {
        if self.layers.landlock.is_available() { self.layers.landlock_version } else { 0 }
    }

    fn no_namespaces(&self) -> LineEnforcement {
        missing(Layer::UserNamespace, &self.layers.namespaces)
    }

    /// Returns the mount namespace, or the reason why it is missing together with Landlock.
    fn files(&self) -> LineEnforcement {
        if self.has_namespaces() {
            return match self.landlock_version() {
                0 | 1 => by(&[Layer::MountNamespace]),
                _ if self.profile.files == FileAccess::Full => by(&[Layer::MountNamespace]),
                _ => by(&[Layer::MountNamespace, Layer::Landlock]),
            };
        }
        match self.landlock_version() {
            0 => self.no_namespaces(),
            version if version < MIN_LANDLOCK_FOR_FILES => LineEnforcement::Missing {
                layer: Layer::UserNamespace,
                reason: format!("Landlock {version} does not stop truncation; version 3 does"),
            },
            _ => by(&[Layer::Landlock]),
        }
    }

    fn hidden(&self) -> LineEnforcement {
        if self.has_namespaces() {
            return by(&[Layer::MountNamespace]);
        }
        if self.landlock_version() > 0 { by(&[Layer::Landlock]) } else { self.no_namespaces() }
    }

    fn protected_paths(&self) -> LineEnforcement {
        if self.has_namespaces() {
            return by(&[Layer::MountNamespace]);
        }
        match self.protected {
            ProtectedState::Exist => self.no_namespaces(),
            ProtectedState::Absent => LineEnforcement::Nothing("no protected path exists".to_owned()),
        }
    }

    fn network(&self) -> LineEnforcement {
        if self.has_namespaces() {
            return by(&[Layer::NetworkNamespace]);
        }
        let network = &self.profile.network;
        let is_off = network.otherwise == OtherHosts::Off && network.allow.is_empty();
        match &self.layers.seccomp {
            LayerState::Available if is_off => by(&[Layer::Seccomp]),
            LayerState::Missing(_) if is_off => missing(Layer::Seccomp, &self.layers.seccomp),
            LayerState::Available | LayerState::Missing(_) => missing(Layer::NetworkNamespace, &self.layers.namespaces),
        }
    }

    fn sockets(&self) -> LineEnforcement {
        if self.has_namespaces() {
            return by(&[Layer::MountNamespace, Layer::NetworkNamespace]);
        }
        self.calls()
    }

    fn caches(&self) -> LineEnforcement {
        match self.profile.caches {
            CacheAccess::Shared => LineEnforcement::Nothing("the sandbox changes your caches".to_owned()),
            CacheAccess::Off => self.files(),
            CacheAccess::Private if self.layers.overlay.is_available() && self.has_namespaces() => {
                by(&[Layer::Overlay])
            }
            // Variables name other folders, and the caches are read-only.
            CacheAccess::Private => self.files(),
        }
    }

    fn processes(&self) -> LineEnforcement {
        if self.has_namespaces() {
            return match (self.layers.new_proc.is_available(), self.landlock_version()) {
                (true, _) => by(&[Layer::PidNamespace, Layer::IpcNamespace]),
                (false, 0) => missing(Layer::NewProc, &self.layers.new_proc),
                (false, _) => by(&[Layer::PidNamespace, Layer::IpcNamespace, Layer::Landlock]),
            };
        }
        match self.landlock_version() {
            0 => self.no_namespaces(),
            _ => LineEnforcement::Nothing("Landlock hides their memory; Skein ends those that it finds".to_owned()),
        }
    }

    fn calls(&self) -> LineEnforcement {
        match &self.layers.seccomp {
            LayerState::Available => by(&[Layer::Seccomp]),
            LayerState::Missing(_) => missing(Layer::Seccomp, &self.layers.seccomp),
        }
    }

    fn devices(&self) -> LineEnforcement {
        if self.has_namespaces() { by(&[Layer::MountNamespace]) } else { self.hidden() }
    }

    fn process_limit(&self) -> LineEnforcement {
        match (self.has_namespaces(), self.layers.is_root) {
            (true, false) => by(&[Layer::Limits]),
            (true, true) => LineEnforcement::Nothing("the kernel does not limit root".to_owned()),
            (false, _) => LineEnforcement::Nothing("not counted without a user namespace".to_owned()),
        }
    }
}

fn by(layers: &[Layer]) -> LineEnforcement {
    LineEnforcement::By(layers.to_vec())
}

fn missing(layer: Layer, state: &LayerState) -> LineEnforcement {
    LineEnforcement::Missing { layer, reason: state.reason().unwrap_or("unknown").to_owned() }
}

/// Returns the next step for a machine without a layer.
pub fn layer_help(layer: Layer) -> &'static str {
    match layer {
        Layer::UserNamespace
        | Layer::MountNamespace
        | Layer::PidNamespace
        | Layer::IpcNamespace
        | Layer::NetworkNamespace => {
            "allow user namespaces: on Ubuntu, add an AppArmor profile for skein with `userns,`; in Docker, use \
             `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; else set the sysctl \
             user.max_user_namespaces"
        }
        Layer::NewProc => "in Docker, start the container with `--security-opt systempaths=unconfined`",
        Layer::Overlay => "use Linux 5.11 or newer and a local file system for Skein's state folder",
        Layer::Landlock => "use Linux 5.13 or newer with `landlock` in the boot parameter `lsm=`",
        Layer::Seccomp => "use a kernel with seccomp filters on x86_64, aarch64 or riscv64",
        Layer::Cgroup => "run Skein in a control group that its user owns, such as a systemd user service",
        Layer::Limits => "raise the resource limits that Skein runs under",
    }
}

/// Formats lines as a table.
pub fn explain_text(lines: &[ExplainedLine]) -> String {
    lines.iter().fold(String::new(), |mut text, line| {
        // Writing to a string cannot fail.
        _ = writeln!(text, "{line}");
        text
    })
}

fn files_name(files: FileAccess) -> &'static str {
    match files {
        FileAccess::None => "none",
        FileAccess::ReadOnly => "read-only",
        FileAccess::Workspace => "workspace",
        FileAccess::Full => "full",
    }
}

fn caches_name(caches: CacheAccess) -> &'static str {
    match caches {
        CacheAccess::Off => "off",
        CacheAccess::Private => "private",
        CacheAccess::Shared => "shared",
    }
}

fn hidden_value(profile: &SandboxProfile) -> String {
    match profile.hide.as_slice() {
        [] => "credentials, Skein's folders".to_owned(),
        hide => format!("credentials, Skein's folders, {}", hide.join(", ")),
    }
}

fn write_value(write: &[WritePath]) -> String {
    let names = write.iter().map(|entry| match entry {
        WritePath::GitIgnored => "git-ignored",
        WritePath::Path(path) => path.as_str(),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn network_value(profile: &SandboxProfile) -> String {
    let network = &profile.network;
    let otherwise = match network.otherwise {
        OtherHosts::Off => "off",
        OtherHosts::Ask => "ask",
        OtherHosts::On => "on",
    };
    let deny = if network.deny.is_empty() { String::new() } else { format!("; not {}", network.deny.join(", ")) };
    match network.allow.as_slice() {
        [] => format!("{otherwise}{deny}"),
        allow => format!("{}; else {otherwise}{deny}", allow.join(", ")),
    }
}

fn devices_value(devices: &[SandboxDevice]) -> String {
    let mut names = vec!["null, tty, …"];
    names.extend(devices.iter().map(|device| match device {
        SandboxDevice::Gpu => "gpu",
        SandboxDevice::Kvm => "kvm",
        SandboxDevice::Fuse => "fuse",
    }));
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{Enforcement, LayerRestriction, NetworkAccess, SandboxLimits};

    fn profile(files: FileAccess, hosts: &[&str]) -> SandboxProfile {
        SandboxProfile {
            files,
            write: Vec::new(),
            read: Vec::new(),
            hide: Vec::new(),
            network: NetworkAccess {
                allow: hosts.iter().map(|host| (*host).to_owned()).collect(),
                deny: Vec::new(),
                otherwise: OtherHosts::Off,
            },
            caches: CacheAccess::Private,
            git: GitAccess::Off,
            ports: PortAccess::Off,
            sockets: Vec::new(),
            devices: Vec::new(),
            limits: SandboxLimits { processes: Some(4096), memory: None, file_size: None },
            enforce: Enforcement::Required,
        }
    }

    /// Returns the fields that a machine cannot enforce.
    fn unenforced(profile: &SandboxProfile, machine: &str, protected: ProtectedState) -> Vec<&'static str> {
        let layers = Layers::complete().restricted(&LayerRestriction::parse(machine).unwrap());
        let lines = explain(profile, &layers, protected);
        lines.iter().filter(|line| line.is_unenforced()).map(|line| line.field).collect()
    }

    #[test]
    fn a_complete_machine_enforces_every_line() {
        for files in [FileAccess::None, FileAccess::ReadOnly, FileAccess::Workspace, FileAccess::Full] {
            for machine in ["", "landlock=0", "landlock=1", "no-overlay", "no-new-proc"] {
                let profile = profile(files, &["example.com"]);
                assert!(unenforced(&profile, machine, ProtectedState::Exist).is_empty(), "{files:?} {machine}");
            }
        }
    }

    #[test]
    fn landlock_alone_enforces_reading() {
        let machine = "no-namespaces";
        for files in [FileAccess::None, FileAccess::ReadOnly] {
            assert!(unenforced(&profile(files, &[]), machine, ProtectedState::Exist).is_empty());
        }
        let workspace = profile(FileAccess::Workspace, &[]);
        assert!(unenforced(&workspace, machine, ProtectedState::Absent).is_empty());
        assert_eq!(unenforced(&workspace, machine, ProtectedState::Exist), ["protected"]);
        let listed = profile(FileAccess::ReadOnly, &["example.com"]);
        assert_eq!(unenforced(&listed, machine, ProtectedState::Absent), ["network"]);
    }

    #[test]
    fn a_machine_without_layers_enforces_nothing() {
        let lines = explain(&profile(FileAccess::ReadOnly, &[]), &Layers::none("not Linux"), ProtectedState::Absent);
        let missing: Vec<_> = lines.iter().filter(|line| line.is_unenforced()).map(|line| line.field).collect();
        assert_eq!(missing, ["files", "hidden", "network", "sockets", "caches", "processes", "calls", "devices"]);
        assert!(lines[0].to_string().ends_with("not enforced: no user namespace: not Linux"), "{}", lines[0]);
    }

    #[test]
    fn an_old_landlock_does_not_stop_truncation() {
        let read_only = profile(FileAccess::ReadOnly, &[]);
        let fields = unenforced(&read_only, "no-namespaces,landlock=1", ProtectedState::Absent);
        assert_eq!(fields, ["files", "caches"]);
    }
}
