//! The keyring on systems other than Linux: Skein uses none there, so keys come from the environment or the key file.

use super::KeyringError;

pub(super) fn read(_name: &str) -> Result<Option<String>, KeyringError> {
    Err(KeyringError::Absent)
}

pub(super) fn keep(_name: &str, _key: &str) -> Result<(), KeyringError> {
    Err(KeyringError::Absent)
}

pub(super) fn forget(_name: &str) -> Result<bool, KeyringError> {
    Err(KeyringError::Absent)
}
