//! The desktop keyring, with a cache. Systems other than Linux have none.
//!
//! Invariant: a caller waits at most [`PATIENCE`], and the keyring is never asked to show a window. A locked keyring
//! stays locked.

#[cfg(not(target_os = "linux"))]
#[path = "keyring/no_secret_service.rs"]
mod secret_service;
#[cfg(target_os = "linux")]
mod secret_service;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A working keyring answers in milliseconds, even if it has to be started first.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reasons why the keyring cannot be used.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "the keyring is absent on other systems"))]
pub(in crate::cli) enum KeyringError {
    /// There is no desktop, no bus or no service, or the system is not Linux.
    Absent,
    Locked,
    /// The keyring does not answer in time.
    Silent,
    Failed(String),
}

/// Formats the error to follow "the keyring".
impl std::fmt::Display for KeyringError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyringError::Absent => f.write_str("does not exist"),
            KeyringError::Locked => f.write_str("is locked"),
            KeyringError::Silent => write!(f, "did not answer within {} seconds", PATIENCE.as_secs()),
            KeyringError::Failed(problem) => write!(f, "failed: {problem}"),
        }
    }
}

/// Cached keys and the last error of the keyring.
#[derive(Default)]
pub(super) struct Keyring {
    /// Keys that were found and need not be asked for again.
    found: Mutex<BTreeMap<String, String>>,
    trouble: Mutex<Option<KeyringError>>,
}

impl Keyring {
    /// Returns the key `name`. `None` if the keyring does not have it or fails.
    pub(super) fn read(&self, name: &str) -> Option<String> {
        if let Some(key) = self.lock_cache().get(name) {
            return Some(key.clone());
        }
        // Wait only once for a keyring that does not answer.
        if self.trouble() == Some(KeyringError::Silent) {
            return None;
        }
        let read = self.note_result(secret_service::read(name));
        let key = read.ok().flatten()?;
        self.lock_cache().insert(name.to_owned(), key.clone());
        Some(key)
    }

    /// Like [`Keyring::read`], but never answers from the cache.
    pub(super) fn read_again(&self, name: &str) -> Option<String> {
        self.lock_cache().remove(name);
        self.read(name)
    }

    pub(super) fn keep(&self, name: &str, key: &str) -> Result<(), KeyringError> {
        self.note_result(secret_service::keep(name, key))?;
        self.lock_cache().insert(name.to_owned(), key.to_owned());
        Ok(())
    }

    /// Removes the key. Returns whether it existed.
    pub(super) fn forget(&self, name: &str) -> Result<bool, KeyringError> {
        self.lock_cache().remove(name);
        self.note_result(secret_service::forget(name))
    }

    /// Returns the error of the last request, if it failed.
    pub(super) fn trouble(&self) -> Option<KeyringError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_result<T>(&self, result: Result<T, KeyringError>) -> Result<T, KeyringError> {
        let trouble = result.as_ref().err().cloned();
        if let Some(trouble) = trouble.as_ref().filter(|trouble| **trouble != KeyringError::Absent) {
            tracing::warn!("the keyring {trouble}");
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        result
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
