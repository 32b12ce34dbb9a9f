//! Stores keys of models that are not in the environment: in the desktop keyring, or else in a file that only its owner
//! can read.
//!
//! Invariant: a key goes only to its provider, never to a log, a store or a child process.

mod keyring;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};

use super::environment::variable;
use super::folders::Folders;
use super::private_files::make_folder;
use super::whole_file::replace;
use keyring::Keyring;
pub(super) use keyring::KeyringError;

/// The name of the lock on all keys and logins. Names of services have no capital letters.
const ALL: &str = "ALL";

/// The places that store keys. A missing key is looked up again each time, so that a new key is found at once.
#[derive(Clone)]
pub(super) struct Keys {
    file: PathBuf,
    /// Folder with the lock on all keys, and one lock per service with a login.
    locks: PathBuf,
    keyring: Arc<Keyring>,
}

/// The place where a key is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum KeyLocation {
    Environment,
    Keyring,
    File,
    Nowhere,
}

impl KeyLocation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            KeyLocation::Environment => "environment",
            KeyLocation::Keyring => "keyring",
            KeyLocation::File => "file",
            KeyLocation::Nowhere => "missing",
        }
    }
}

impl Keys {
    pub(super) fn of(folders: &Folders) -> Self {
        let locks = folders.state.join("logins");
        Self { file: folders.config.join("keys.json"), locks, keyring: Arc::default() }
    }

    pub(super) fn file(&self) -> PathBuf {
        self.file.clone()
    }

    /// Returns the key `name` and its location. The keyring is not asked if the environment has the key.
    pub(super) fn find(&self, name: &str) -> (KeyLocation, Option<String>) {
        if let Some(key) = variable(name) {
            return (KeyLocation::Environment, Some(key));
        }
        if let Some(key) = self.keyring.read(name) {
            return (KeyLocation::Keyring, Some(key));
        }
        match self.read_file().ok().and_then(|mut kept| kept.remove(name)) {
            Some(key) => (KeyLocation::File, Some(key)),
            None => (KeyLocation::Nowhere, None),
        }
    }

    /// Returns every stored copy of a secret as it is now, because other processes may change it. The environment is not
    /// asked. Fails if the key file cannot be used.
    pub(super) fn copies(&self, name: &str) -> anyhow::Result<Vec<(KeyLocation, String)>> {
        let in_keyring = self.keyring.read_again(name).map(|secret| (KeyLocation::Keyring, secret));
        let in_file = self.read_file()?.remove(name).map(|secret| (KeyLocation::File, secret));
        Ok(in_keyring.into_iter().chain(in_file).collect())
    }

    /// Returns the last error of the keyring. `None` if there is no keyring or no error.
    pub(super) fn trouble(&self) -> Option<KeyringError> {
        self.keyring.trouble().filter(|trouble| *trouble != KeyringError::Absent)
    }

    /// Fails if the key file exists and cannot be used.
    pub(super) fn readable(&self) -> anyhow::Result<()> {
        self.read_file().map(drop)
    }

    fn read_file(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let metadata = match fs::metadata(&self.file) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(self.unusable(error)),
        };
        if !metadata.is_file() {
            // Reading a pipe could block forever.
            return Err(self.unusable("it is no regular file; move it away"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            // Other users who can read the file may also have changed where its keys are sent.
            tracing::warn!(file = %self.file.display(), "others can read the keys; they are not used");
            return Err(self.unusable(format!("others can read it: chmod 600 {}", self.file.display())));
        }
        let text = fs::read_to_string(&self.file).map_err(|error| self.unusable(error))?;
        // The error of serde would quote the file.
        serde_json::from_str(&text).map_err(|_| self.unusable("it is not a mapping of names to keys"))
    }

    fn unusable(&self, problem: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("{} cannot be used: {problem}", self.file.display())
    }

    /// Waits until no other process has this lock. It ends when the file is dropped.
    pub(super) fn lock_file(&self, name: &str) -> anyhow::Result<fs::File> {
        let file = self.locks.join(format!("{name}.lock"));
        make_folder(&self.locks).with_context(|| self.locks.display().to_string())?;
        let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&file);
        let opened = opened.with_context(|| file.display().to_string())?;
        opened.lock().with_context(|| file.display().to_string())?;
        Ok(opened)
    }

    /// Stores a key under the name of its variable: in the keyring or, if that fails, in the file.
    pub(super) fn keep(&self, name: &str, key: &str) -> anyhow::Result<KeyLocation> {
        // The file has all keys, so another process must not write it meanwhile.
        let _lock = self.lock_file(ALL)?;
        match self.keyring.keep(name, key) {
            Ok(()) => {
                // Remove the plain-text copy: one place is enough.
                self.drop_from_file(name)?;
                Ok(KeyLocation::Keyring)
            }
            Err(_) => {
                let mut kept = self.read_file()?;
                kept.insert(name.to_owned(), key.to_owned());
                self.write(&kept)?;
                Ok(KeyLocation::File)
            }
        }
    }

    /// Removes a key from the file and the keyring. Returns where it was.
    pub(super) fn forget(&self, name: &str) -> anyhow::Result<Vec<KeyLocation>> {
        let _lock = self.lock_file(ALL)?;
        let mut places = Vec::new();
        if self.drop_from_file(name)? {
            places.push(KeyLocation::File);
        }
        match self.keyring.forget(name) {
            Ok(true) => places.push(KeyLocation::Keyring),
            Ok(false) | Err(KeyringError::Absent) => {}
            Err(trouble) => bail!("the keyring {trouble}, and may still have it"),
        }
        Ok(places)
    }

    fn drop_from_file(&self, name: &str) -> anyhow::Result<bool> {
        let mut kept = self.read_file()?;
        let was_there = kept.remove(name).is_some();
        if was_there {
            self.write(&kept)?;
        }
        Ok(was_there)
    }

    fn write(&self, kept: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(kept)?;
        replace(&self.file, &text, fs::Permissions::from_mode(0o600)).map_err(|error| self.unusable(error))
    }
}
