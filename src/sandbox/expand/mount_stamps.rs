//! Finds out whether mounts still cover what they covered. The kernel removes a mount from a file that another program
//! replaces or deletes outside, as editors and git do when they save, and the new file is open to the sandbox.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::{BaseAccess, PlannedMount};
use crate::sandbox::plan::MountSource;

/// The files and folders that mounts hide or protect, as they were at the start of a sandbox.
#[derive(Debug, Clone, Default)]
pub(in crate::sandbox) struct MountStamps(Vec<(PathBuf, FileIdentity)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl MountStamps {
    /// Takes the stamps before anything is mounted.
    pub(super) fn take(mounts: &[PlannedMount]) -> Self {
        let limits = mounts.iter().filter(|mount| match &mount.source {
            MountSource::Path { access, .. } => *access == BaseAccess::ReadOnly,
            MountSource::Cover { .. } | MountSource::Text(_) => true,
            MountSource::Link(_) | MountSource::Memory { .. } | MountSource::Overlay { .. } => false,
        });
        let paths = limits.map(|mount| mount.target.as_path().to_owned());
        Self(paths.filter_map(|path| identity(&path).map(|identity| (path, identity))).collect())
    }

    /// Returns whether every path is still the one that the mounts cover.
    pub(in crate::sandbox) fn are_current(&self) -> bool {
        self.0.iter().all(|(path, known)| identity(path) == Some(*known))
    }
}

/// Returns `None` for sockets, which come and go, and for paths that do not exist.
fn identity(path: &Path) -> Option<FileIdentity> {
    let data = fs::symlink_metadata(path).ok().filter(|data| !data.file_type().is_socket())?;
    Some(FileIdentity { device: data.dev(), inode: data.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_loses_its_mount() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".envrc");
        let other = folder.path().join("other");
        fs::write(&path, "one").unwrap();
        let mount = super::super::read_only(&path);
        let stamps = MountStamps::take(std::slice::from_ref(&mount));
        fs::write(&path, "two").unwrap();
        assert!(stamps.are_current(), "the mount covers the file, whatever is in it");
        fs::write(&other, "three").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(!stamps.are_current());
        fs::remove_file(&path).unwrap();
        assert!(!stamps.are_current());
    }
}
