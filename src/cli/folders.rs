//! Which folders belong to Skein on this machine, from the environment.

use std::env;
use std::path::{Path, PathBuf};

use crate::services::UserFolders;

/// Everything the environment says about where things are. Tests point all of it at temporary folders.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    pub(super) cwd: PathBuf,
    /// The user's own folder.
    pub(super) home: PathBuf,
    /// Where every program has a folder for its settings.
    pub(super) config_home: PathBuf,
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
        let xdg_home = |name: &str, default: &str| {
            variable(name).filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(default))
        };
        let xdg = |name: &str, default: &str| xdg_home(name, default).join("skein");
        let data = variable("SKEIN_DATA_DIR");
        Self {
            cwd: env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
            config: variable("SKEIN_CONFIG_DIR").unwrap_or_else(|| xdg("XDG_CONFIG_HOME", ".config")),
            state: data.clone().map_or_else(|| xdg("XDG_STATE_HOME", ".local/state"), |data| data.join("state")),
            data: data.unwrap_or_else(|| xdg("XDG_DATA_HOME", ".local/share")),
            config_home: xdg_home("XDG_CONFIG_HOME", ".config"),
            home,
        }
    }

    /// What built-in services look into.
    pub(super) fn user(&self) -> UserFolders {
        UserFolders { home: self.home.clone(), config_home: self.config_home.clone(), config: self.config.clone() }
    }

    /// A path as a person wants to read it: relative when it lies below the working directory.
    pub(super) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.cwd).unwrap_or(path).display().to_string()
    }
}
