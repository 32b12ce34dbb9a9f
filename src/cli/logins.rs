//! Stores the user's logins at HTTP services next to the keys of models: in the desktop keyring, or else in a file that
//! only its owner can read.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;

use super::folders::Folders;
use super::keys::{KeyLocation, Keys};
use super::private_files::make_folder;
use crate::ids::ServiceName;
use crate::services::login::{LoginLock, LoginStore, LoginStoreError, StoredLogin};

/// The name of the lock on the file with all logins. Names of services have no capital letters.
const ALL: &str = "ALL";

/// The places that store logins.
pub(super) struct Logins {
    keys: Keys,
    /// Folder with one lock file per service.
    locks: PathBuf,
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logins").field("locks", &self.locks).finish_non_exhaustive()
    }
}

impl Logins {
    pub(super) fn of(folders: &Folders) -> Self {
        Self { keys: Keys::of(folders), locks: folders.state.join("logins") }
    }

    /// Returns the login of a service and its place. `None` if there is none. A login may be in two places if the
    /// keyring was locked when it was renewed; the newer one counts.
    pub(super) fn find(&self, service: &ServiceName) -> anyhow::Result<Option<(KeyLocation, StoredLogin)>> {
        let mut newest: Option<(KeyLocation, StoredLogin)> = None;
        for (location, text) in self.keys.copies(&entry_name(service))? {
            // The error of serde would quote the login.
            let Ok(login) = serde_json::from_str::<StoredLogin>(&text) else {
                anyhow::bail!("the login of `{service}` has an unknown form: run `skein services logout {service}`");
            };
            if newest.as_ref().is_none_or(|(_, other)| other.issued_at < login.issued_at) {
                newest = Some((location, login));
            }
        }
        Ok(newest)
    }

    /// Stores a login. Returns its place.
    pub(super) fn keep(&self, service: &ServiceName, login: &StoredLogin) -> anyhow::Result<KeyLocation> {
        let text = serde_json::to_string(login)?;
        let lock = self.lock_file(ALL)?;
        let kept = self.keys.keep(&entry_name(service), &text);
        drop(lock);
        kept
    }

    /// Removes a login. Returns the places where it was.
    pub(super) fn forget(&self, service: &ServiceName) -> anyhow::Result<Vec<KeyLocation>> {
        let lock = self.lock_file(ALL)?;
        let forgotten = self.keys.forget(&entry_name(service));
        drop(lock);
        forgotten
    }

    pub(super) fn file(&self) -> PathBuf {
        self.keys.file()
    }

    /// Waits until no other process has this lock. It ends when the file is dropped.
    fn lock_file(&self, name: &str) -> anyhow::Result<fs::File> {
        let file = self.locks.join(format!("{name}.lock"));
        make_folder(&self.locks).with_context(|| self.locks.display().to_string())?;
        let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&file);
        let opened = opened.with_context(|| file.display().to_string())?;
        opened.lock().with_context(|| file.display().to_string())?;
        Ok(opened)
    }
}

/// Returns the name of a login among the keys. It is not the name of a variable, so it cannot be the name of a key.
fn entry_name(service: &ServiceName) -> String {
    format!("login of service {service}")
}

impl LoginStore for Logins {
    fn load(&self, service: &ServiceName) -> Result<Option<StoredLogin>, LoginStoreError> {
        self.find(service).map(|found| found.map(|(_, login)| login)).map_err(|error| store_error(&error))
    }

    fn save(&self, service: &ServiceName, login: &StoredLogin) -> Result<(), LoginStoreError> {
        self.keep(service, login).map(drop).map_err(|error| store_error(&error))
    }

    fn lock(&self, service: &ServiceName) -> Result<LoginLock, LoginStoreError> {
        let file = self.lock_file(service.as_str()).map_err(|error| store_error(&error))?;
        Ok(Box::new(file))
    }
}

fn store_error(error: &anyhow::Error) -> LoginStoreError {
    LoginStoreError { problem: format!("{error:#}") }
}
