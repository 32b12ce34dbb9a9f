//! The kernel layers of this machine, found by using them.

use serde::{Deserialize, Serialize};

/// A kernel feature that limits a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    UserNamespace,
    MountNamespace,
    PidNamespace,
    IpcNamespace,
    NetworkNamespace,
    /// A `/proc` that shows only the processes of the sandbox.
    NewProc,
    /// Private copies of caches.
    Overlay,
    Landlock,
    Seccomp,
    /// Limits of a control group.
    Cgroup,
    /// Limits of a process.
    Limits,
}

impl Layer {
    pub fn name(self) -> &'static str {
        match self {
            Layer::UserNamespace => "user namespace",
            Layer::MountNamespace => "mount namespace",
            Layer::PidNamespace => "PID namespace",
            Layer::IpcNamespace => "IPC namespace",
            Layer::NetworkNamespace => "network namespace",
            Layer::NewProc => "new /proc",
            Layer::Overlay => "overlay",
            Layer::Landlock => "Landlock",
            Layer::Seccomp => "seccomp",
            Layer::Cgroup => "control group",
            Layer::Limits => "resource limits",
        }
    }
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this machine has a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerState {
    Available,
    /// With the reason.
    Missing(String),
}

impl LayerState {
    pub fn is_available(&self) -> bool {
        *self == LayerState::Available
    }

    /// Returns why the layer is missing. `None` if it is available.
    pub fn reason(&self) -> Option<&str> {
        match self {
            LayerState::Available => None,
            LayerState::Missing(reason) => Some(reason),
        }
    }
}

/// All layers of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// User, mount, PID, IPC and network namespaces with a working loopback device.
    pub namespaces: LayerState,
    pub new_proc: LayerState,
    pub overlay: LayerState,
    /// Zero if there is none.
    pub landlock_version: u8,
    pub landlock: LayerState,
    pub seccomp: LayerState,
    pub cgroup: LayerState,
    /// Whether Skein runs as root.
    pub is_root: bool,
}

impl Layers {
    /// Returns a machine with every layer.
    pub fn complete() -> Self {
        Self {
            namespaces: LayerState::Available,
            new_proc: LayerState::Available,
            overlay: LayerState::Available,
            landlock_version: 7,
            landlock: LayerState::Available,
            seccomp: LayerState::Available,
            cgroup: LayerState::Available,
            is_root: false,
        }
    }

    /// Returns a machine without any layer, such as another operating system.
    pub fn none(reason: &str) -> Self {
        let missing = || LayerState::Missing(reason.to_owned());
        Self {
            namespaces: missing(),
            new_proc: missing(),
            overlay: missing(),
            landlock_version: 0,
            landlock: missing(),
            seccomp: missing(),
            cgroup: missing(),
            is_root: false,
        }
    }

    /// Returns these layers without those that the restriction excludes.
    pub fn restricted(mut self, restriction: &LayerRestriction) -> Self {
        const REASON: &str = "excluded for a test";
        if restriction.no_namespaces {
            for state in [&mut self.namespaces, &mut self.new_proc, &mut self.overlay] {
                *state = LayerState::Missing(REASON.to_owned());
            }
        }
        if restriction.no_new_proc {
            self.new_proc = LayerState::Missing(REASON.to_owned());
        }
        if restriction.no_overlay {
            self.overlay = LayerState::Missing(REASON.to_owned());
        }
        if let Some(version) = restriction.landlock_version {
            self.landlock_version = self.landlock_version.min(version);
            if version == 0 {
                self.landlock = LayerState::Missing(REASON.to_owned());
            }
        }
        self
    }
}

/// Layers that are not used although the machine has them. For tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerRestriction {
    pub no_namespaces: bool,
    pub no_new_proc: bool,
    pub no_overlay: bool,
    /// The newest version of Landlock to use; zero for none.
    pub landlock_version: Option<u8>,
}

impl LayerRestriction {
    /// Parses a list such as `no-namespaces,landlock=3`. `None` if it has an unknown word.
    pub fn parse(text: &str) -> Option<Self> {
        let mut restriction = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None if word == "no-namespaces" => restriction.no_namespaces = true,
                None if word == "no-new-proc" => restriction.no_new_proc = true,
                None if word == "no-overlay" => restriction.no_overlay = true,
                Some(("landlock", version)) => {
                    restriction.landlock_version = Some(version.parse().ok()?);
                }
                _ => return None,
            }
        }
        Some(restriction)
    }
}
