//! Stores the rules that principals keep with "always in this project", in the file of their tokens or in a PostgreSQL
//! database that servers share. Those of `local` are in the user's config.

mod consent_rows;
mod file_consents;
mod shared_consents;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{StoreAddress, StoreError};
use crate::principal::Principal;
use consent_rows::ConsentRows;
use file_consents::FileConsents;
use shared_consents::SharedConsents;

/// A rule as JSON, which only its writer understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredConsent {
    pub id: i64,
    pub rule: String,
}

/// The consents of one principal. Clones share one connection.
#[derive(Debug, Clone)]
pub struct ConsentStore {
    /// The file or the address.
    name: String,
    rows: Arc<Mutex<Box<dyn ConsentRows>>>,
    principal: Principal,
}

impl ConsentStore {
    /// Opens the consents of `local` in a file, which it creates if it does not exist.
    pub(super) fn open_file(file: &Path) -> Result<Self, StoreError> {
        Ok(Self::new(file.display().to_string(), Box::new(FileConsents::open(file)?)))
    }

    /// Opens the consents of `local` in a database. It may wait for the network.
    pub(super) fn connect(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        Ok(Self::new(address.to_string(), Box::new(SharedConsents::open(address)?)))
    }

    fn new(name: String, rows: Box<dyn ConsentRows>) -> Self {
        Self { name, rows: Arc::new(Mutex::new(rows)), principal: Principal::local() }
    }

    /// Returns the consents of another principal in the same store.
    #[must_use]
    pub fn of(&self, principal: Principal) -> Self {
        Self { principal, ..self.clone() }
    }

    /// Stores a rule, unless it is there already.
    pub fn keep(&self, rule: &str) -> Result<(), StoreError> {
        let name = self.principal.name();
        self.work(|rows| rows.keep(name, rule))
    }

    /// Returns the rules, newest first.
    pub fn list(&self) -> Result<Vec<StoredConsent>, StoreError> {
        let name = self.principal.name();
        self.work(|rows| rows.list(name))
    }

    /// Removes a rule. Returns false if there is no such rule.
    pub fn remove(&self, id: i64) -> Result<bool, StoreError> {
        let name = self.principal.name();
        self.work(|rows| rows.remove(name, id))
    }

    /// Runs `work` on a separate thread, because the caller may run async tasks.
    fn work<T: Send>(
        &self,
        work: impl FnOnce(&mut dyn ConsentRows) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: &mut dyn ConsentRows = &mut **rows;
        let done = std::thread::scope(|scope| scope.spawn(move || work(rows)).join());
        let broken = || StoreError::Unusable { file: self.name.clone(), problem: "a request broke off".to_owned() };
        done.unwrap_or_else(|_| Err(broken()))
    }
}
