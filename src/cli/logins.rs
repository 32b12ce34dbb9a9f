//! Stores the user's logins at HTTP services next to the keys of models: in the desktop keyring, or else in a file that
//! only its owner can read.

use std::path::PathBuf;

use super::folders::Folders;
use super::keys::{KeyLocation, Keys};
use crate::ids::ServiceName;
use crate::services::login::{LoginLock, LoginStore, LoginStoreError, StoredLogin};

/// The places that store logins.
pub(super) struct Logins {
    keys: Keys,
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logins").field("file", &self.keys.file()).finish_non_exhaustive()
    }
}

impl Logins {
    pub(super) fn of(folders: &Folders) -> Self {
        Self { keys: Keys::of(folders) }
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
        self.keys.keep(&entry_name(service), &serde_json::to_string(login)?)
    }

    /// Removes a login. Returns the places where it was.
    pub(super) fn forget(&self, service: &ServiceName) -> anyhow::Result<Vec<KeyLocation>> {
        self.keys.forget(&entry_name(service))
    }

    pub(super) fn file(&self) -> PathBuf {
        self.keys.file()
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
        let file = self.keys.lock_file(service.as_str()).map_err(|error| store_error(&error))?;
        Ok(Box::new(file))
    }
}

fn store_error(error: &anyhow::Error) -> LoginStoreError {
    LoginStoreError { problem: format!("{error:#}") }
}
