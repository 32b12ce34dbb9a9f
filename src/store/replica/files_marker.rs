//! Identifies the folder with the files of sessions by a marker file, so that replicas notice if they use different ones.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// The marker file. It contains the id of its folder.
const MARKER_FILE: &str = ".skein-files";
/// Longest marker that is read, in bytes.
const MAX_MARKER: usize = 128;

/// Why the marker of a folder does not fit.
#[derive(Debug, thiserror::Error)]
pub(super) enum MarkerError {
    #[error("its file .skein-files cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    #[error("its file .skein-files contains no id")]
    NoId,
    #[error("it is another folder than at the start")]
    OtherFolder,
}

/// The folder with the files of sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesMarker {
    pub(super) folder: PathBuf,
    pub(super) id: String,
    /// Whether the folder was named as one that all replicas share.
    pub(super) is_shared: bool,
}

impl FilesMarker {
    /// Reads the marker of a folder that all replicas mount. Writes one if there is none. Fails if the folder does not
    /// exist or cannot be written.
    pub fn of_shared_folder(folder: &Path) -> Result<Self, StoreError> {
        Self::of_folder(folder, true)
    }

    /// Reads the marker of a folder of this machine, as [`Self::of_shared_folder`] does.
    pub fn of_own_folder(folder: &Path) -> Result<Self, StoreError> {
        Self::of_folder(folder, false)
    }

    fn of_folder(folder: &Path, is_shared: bool) -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| unusable(folder, error.to_string());
        if !folder.is_dir() {
            return Err(unusable(folder, "it does not exist".to_owned()));
        }
        if !folder.join(MARKER_FILE).exists() {
            // Two replicas may do this at once: the first file stays.
            let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
            let id = format!("{}{}", crate::ids::random_id("files"), crate::ids::random_id(""));
            file.write_all(id.as_bytes()).map_err(failed)?;
            file.as_file().sync_all().map_err(failed)?;
            match file.persist_noclobber(folder.join(MARKER_FILE)) {
                Err(error) if error.error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(failed(error.error));
                }
                Ok(_) | Err(_) => {}
            }
        }
        let id = read_marker(folder).map_err(|error| unusable(folder, error.to_string()))?;
        Ok(Self { folder: folder.to_owned(), id, is_shared })
    }

    /// Fails if the folder is gone, or is another one.
    pub(super) fn check(&self) -> Result<(), MarkerError> {
        match read_marker(&self.folder)? {
            id if id == self.id => Ok(()),
            _ => Err(MarkerError::OtherFolder),
        }
    }
}

fn unusable(folder: &Path, problem: String) -> StoreError {
    StoreError::SharedFolder { folder: folder.display().to_string(), problem }
}

fn read_marker(folder: &Path) -> Result<String, MarkerError> {
    let text = std::fs::read_to_string(folder.join(MARKER_FILE)).map_err(MarkerError::Unreadable)?;
    let id = text.trim();
    let is_id = !id.is_empty() && id.len() <= MAX_MARKER && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if is_id { Ok(id.to_owned()) } else { Err(MarkerError::NoId) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_its_id() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = FilesMarker::of_shared_folder(one.path()).unwrap();
        assert_eq!(FilesMarker::of_shared_folder(one.path()).unwrap(), first);
        assert_ne!(FilesMarker::of_shared_folder(other.path()).unwrap().id, first.id);
        first.check().unwrap();
        std::fs::remove_file(one.path().join(MARKER_FILE)).unwrap();
        assert!(first.check().is_err(), "as when the volume is gone");
        FilesMarker::of_shared_folder(one.path()).unwrap();
        assert!(matches!(first.check(), Err(MarkerError::OtherFolder)));
    }

    #[test]
    fn a_folder_that_cannot_be_shared_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = FilesMarker::of_shared_folder(&missing).unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("does not exist"), "{error}");
        std::fs::write(folder.path().join(MARKER_FILE), "no id!").unwrap();
        assert!(FilesMarker::of_own_folder(folder.path()).is_err());
    }
}
