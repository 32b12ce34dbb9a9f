//! Determines Skein's folders on this machine from the environment.
//!
//! Invariant: every folder is absolute, so that a folder of a project is never used as one of the user's.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

use super::output::{CommandError, display_line};
use crate::principal::Principal;
use crate::sandbox::HiddenPaths;
use crate::services::UserFolders;
use crate::store::{StoreKey, StorePlace};

/// The variable with the key that encrypts stored texts.
const KEY: &str = "SKEIN_STORE_KEY";

/// All locations that the environment defines. Tests point them at temporary folders.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    pub(super) cwd: PathBuf,
    /// The user's home folder.
    pub(super) home: PathBuf,
    /// The folder in which every program has its settings.
    pub(super) config_home: PathBuf,
    /// The user's settings and manifests.
    pub(super) config: PathBuf,
    /// Skein's stored data: trust, memories, sessions.
    pub(super) data: PathBuf,
    /// The place of sessions, memories, corrections and tokens.
    pub(super) store: StorePlace,
    /// The folder of all replicas for the files of sessions. `None`: those are in `data` and `state`.
    pub(super) shared: Option<PathBuf>,
    /// Logs, sockets and scratch files.
    pub(super) state: PathBuf,
    /// The owner of the data that a command uses.
    pub(super) principal: Principal,
}

/// Reasons why the user's folders cannot be determined.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("{name} is `{value}`, which is not an absolute path")]
    Relative { name: &'static str, value: String },
    #[error("HOME is not set, and the user database has no home folder for user {uid}")]
    NoHome { uid: Uid },
    #[error("HOME is not set, and the user database cannot be read: {source}")]
    UserDatabase { source: nix::Error },
    #[error("the working folder no longer exists")]
    NoWorkingFolder,
    #[error("the working folder cannot be determined: {source}")]
    WorkingFolder { source: std::io::Error },
    #[error("the name of the working folder `{name}` is not UTF-8, and sessions cannot be stored for it")]
    WorkingFolderName { name: String },
    #[error("the key in SKEIN_STORE_KEY is not 64 hexadecimal digits")]
    StoreKey,
}

impl FolderError {
    pub(super) fn failure(&self) -> CommandError {
        let help = match self {
            FolderError::Relative { name, .. } => format!("set {name} to a full path, or unset it"),
            FolderError::NoHome { .. } | FolderError::UserDatabase { .. } => "set HOME to your home folder".to_owned(),
            FolderError::NoWorkingFolder | FolderError::WorkingFolder { .. } => "cd into another folder".to_owned(),
            FolderError::WorkingFolderName { .. } => "rename it, or cd into another folder".to_owned(),
            FolderError::StoreKey => format!("make a key with `openssl rand -hex 32`, or unset {KEY}"),
        };
        CommandError::usage(display_line(&self.to_string()), help)
    }
}

impl Folders {
    pub(super) fn from_environment() -> Result<Self, FolderError> {
        let cwd = env::current_dir().map_err(|source| match source.kind() {
            ErrorKind::NotFound => FolderError::NoWorkingFolder,
            _ => FolderError::WorkingFolder { source },
        })?;
        Self::resolve(cwd, |name| env::var_os(name), home_in_user_database)
    }

    /// Returns the folder that stays empty: sessions without a folder of this machine have no files of a project.
    pub(super) fn empty_folder(&self) -> PathBuf {
        self.state.join("empty")
    }

    fn resolve(
        cwd: PathBuf,
        variable: impl Fn(&str) -> Option<OsString>,
        user_home: impl FnOnce() -> Result<PathBuf, FolderError>,
    ) -> Result<Self, FolderError> {
        if cwd.to_str().is_none() {
            return Err(FolderError::WorkingFolderName { name: cwd.display().to_string() });
        }
        // An empty variable of a folder counts as unset.
        let folder = |name: &'static str| match variable(name).filter(|value| !value.is_empty()).map(PathBuf::from) {
            Some(path) if path.is_absolute() => Ok(Some(path)),
            Some(path) => Err(FolderError::Relative { name, value: path.display().to_string() }),
            None => Ok(None),
        };
        let home = match folder("HOME")? {
            Some(home) => home,
            None => user_home()?,
        };
        let xdg_home = |name: &'static str, default: &str| Ok(folder(name)?.unwrap_or_else(|| home.join(default)));
        let config_home = xdg_home("XDG_CONFIG_HOME", ".config")?;
        let data_home = xdg_home("XDG_DATA_HOME", ".local/share")?;
        let state_home = xdg_home("XDG_STATE_HOME", ".local/state")?;
        let data = folder("SKEIN_DATA_DIR")?;
        // An empty key is an error: a program that failed to print one must not turn encryption off.
        let key = match variable(KEY) {
            Some(value) => {
                let key = value.to_str().and_then(|text| text.parse::<StoreKey>().ok());
                Some(key.ok_or(FolderError::StoreKey)?)
            }
            None => None,
        };
        let state = data.as_ref().map_or_else(|| state_home.join("skein"), |data| data.join("state"));
        let data = data.unwrap_or_else(|| data_home.join("skein"));
        Ok(Self {
            cwd,
            config: folder("SKEIN_CONFIG_DIR")?.unwrap_or_else(|| config_home.join("skein")),
            state,
            store: StorePlace::files(&data).with_key(key),
            shared: None,
            data,
            config_home,
            home,
            principal: Principal::local(),
        })
    }

    /// Returns the same folders for a principal in a folder.
    pub(super) fn of_principal(&self, principal: &Principal, cwd: &Path) -> Self {
        Self { cwd: cwd.to_owned(), principal: principal.clone(), ..self.clone() }
    }

    /// Returns the folder of the files that belong to the principal, among them what it trusts.
    pub(super) fn own_data(&self) -> PathBuf {
        self.principal.folder(&self.data)
    }

    /// Returns the folder with the config that has rules of the principal. "Always" answers of `local` are added to it.
    pub(super) fn rule_config(&self) -> PathBuf {
        if self.principal.is_local() { self.config.clone() } else { self.own_data().join("config") }
    }

    /// Returns the environment from which child processes receive parts. Its `HOME` is the home folder that Skein uses.
    pub(super) fn environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let variables = env::vars_os().filter(|(name, _)| name != OsStr::new("HOME"));
        variables.chain([("HOME".into(), self.home.clone().into_os_string())])
    }

    /// Returns the folders that built-in services read.
    pub(super) fn user(&self) -> UserFolders {
        UserFolders { home: self.home.clone(), config_home: self.config_home.clone(), config: self.config.clone() }
    }

    /// Returns the paths that file tools neither read nor write: credentials in the home folder, and Skein's own files.
    pub(super) fn paths_to_hide(&self) -> HiddenPaths {
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = cache.unwrap_or_else(|| self.home.join(".cache")).join("skein");
        let own = [self.config.clone(), self.data.clone(), self.state.clone(), cache];
        HiddenPaths::new(&self.home, own.into_iter().chain(self.shared.clone()))
    }

    /// Returns the folder for private copies of caches. It is not below a cache: the kernel mounts no copy inside its
    /// source.
    pub(super) fn sandbox_caches(&self) -> PathBuf {
        self.state.join("sandbox-caches")
    }

    /// Returns the folder for protected paths that a command created without consent.
    pub(super) fn quarantine(&self) -> PathBuf {
        self.state.join("quarantine")
    }

    /// Formats a path for the user: relative if it is below the working directory.
    pub(super) fn display_path(&self, path: &Path) -> String {
        path.strip_prefix(&self.cwd).unwrap_or(path).display().to_string()
    }
}

/// Reads the home folder from the user database, because some editors start programs without `HOME`.
fn home_in_user_database() -> Result<PathBuf, FolderError> {
    let uid = Uid::current();
    let user = User::from_uid(uid).map_err(|source| FolderError::UserDatabase { source })?;
    user.map(|user| user.dir).filter(|home| home.is_absolute()).ok_or(FolderError::NoHome { uid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn resolve(variables: &[(&str, &str)]) -> Result<Folders, FolderError> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        Folders::resolve(PathBuf::from("/project"), variable, || Ok(PathBuf::from("/home/from-database")))
    }

    #[test]
    fn without_home_the_user_database_is_asked() {
        for variables in [&[][..], &[("HOME", "")], &[("HOME", ""), ("XDG_CONFIG_HOME", ""), ("SKEIN_DATA_DIR", "")]] {
            let folders = resolve(variables).unwrap();
            assert_eq!(folders.home, Path::new("/home/from-database"));
            assert_eq!(folders.config, Path::new("/home/from-database/.config/skein"));
            assert_eq!(folders.data, Path::new("/home/from-database/.local/share/skein"));
            assert_eq!(folders.state, Path::new("/home/from-database/.local/state/skein"));
        }
    }

    #[test]
    fn a_home_that_is_not_known_is_an_error() {
        let no_home = || Err(FolderError::NoHome { uid: Uid::from_raw(12) });
        let error = Folders::resolve(PathBuf::from("/project"), |_| None, no_home).unwrap_err();
        assert!(error.to_string().contains("user 12"), "{error}");
    }

    #[test]
    fn a_wrong_store_key_is_refused_without_a_quote() {
        let error = resolve(&[("HOME", "/home/ann"), ("SKEIN_STORE_KEY", "hush")]).unwrap_err().to_string();
        assert!(error.contains("SKEIN_STORE_KEY") && !error.contains("hush"), "{error}");
        let error = resolve(&[("HOME", "/home/ann"), ("SKEIN_STORE_KEY", "")]).unwrap_err();
        assert!(matches!(error, FolderError::StoreKey), "{error}");
        let key = "a1".repeat(32);
        let folders = resolve(&[("HOME", "/home/ann"), ("SKEIN_STORE_KEY", key.as_str())]).unwrap();
        assert!(folders.store.key().is_some() && !format!("{folders:?}").contains("a1a1"));
    }

    #[test]
    fn a_working_folder_that_is_not_utf8_is_refused() {
        let cwd = PathBuf::from(OsStr::from_bytes(b"/caf\xe9"));
        let home = |_: &str| Some(OsString::from("/home/ann"));
        let error = Folders::resolve(cwd, home, || Ok(PathBuf::from("/home/ann"))).unwrap_err().to_string();
        assert!(error.contains("`/caf\u{fffd}` is not UTF-8"), "{error}");
    }

    #[test]
    fn a_relative_folder_is_refused_by_name() {
        let names =
            ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "SKEIN_CONFIG_DIR", "SKEIN_DATA_DIR"];
        for name in names {
            let error = resolve(&[(name, "here")]).unwrap_err().to_string();
            assert_eq!(error, format!("{name} is `here`, which is not an absolute path"));
        }
    }
}
