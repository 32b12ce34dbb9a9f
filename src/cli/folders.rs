//! Which folders belong to Skein on this machine, from the environment.

use std::env;
use std::path::{Path, PathBuf};

/// Everything the environment says about where things are. Tests point all of it at temporary folders.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    pub(super) cwd: PathBuf,
    /// The user's settings and manifests.
    pub(super) config: PathBuf,
    /// What Skein remembers: trust, memories, sessions.
    pub(super) data: PathBuf,
    /// Logs.
    pub(super) state: PathBuf,
}

impl Folders {
    pub(super) fn from_environment() -> Self {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = variable("HOME").unwrap_or_else(|| PathBuf::from("."));
        // XDG says that relative paths in its variables are to be ignored.
        let xdg = |name: &str, default: &str| {
            variable(name).filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(default)).join("skein")
        };
        let data = variable("SKEIN_DATA_DIR");
        Self {
            cwd: env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
            config: variable("SKEIN_CONFIG_DIR").unwrap_or_else(|| xdg("XDG_CONFIG_HOME", ".config")),
            state: data.clone().map_or_else(|| xdg("XDG_STATE_HOME", ".local/state"), |data| data.join("state")),
            data: data.unwrap_or_else(|| xdg("XDG_DATA_HOME", ".local/share")),
        }
    }

    /// A path as a person wants to read it: relative when it lies below the working directory.
    pub(super) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.cwd).unwrap_or(path).display().to_string()
    }
}
