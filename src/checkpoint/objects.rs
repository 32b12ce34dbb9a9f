//! Stores contents of files under their hash. Equal contents are stored once.

use std::collections::HashSet;
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use super::CheckpointError;

/// The length of a hash in hexadecimal digits.
const HASH_DIGITS: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct ObjectStore {
    folder: PathBuf,
}

impl ObjectStore {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Stores the bytes unless the store has them. Returns their hash.
    pub(super) fn put(&self, bytes: &[u8]) -> Result<String, CheckpointError> {
        let hash = hash_of(bytes);
        let path = self.path(&hash);
        // A file of another length was damaged, and is replaced.
        let is_whole = path.metadata().is_ok_and(|metadata| metadata.len() == bytes.len() as u64);
        if !is_whole {
            write_whole(&path, bytes).map_err(|error| CheckpointError::store(&path, error))?;
        }
        Ok(hash)
    }

    pub(super) fn has(&self, hash: &str) -> bool {
        self.path(hash).exists()
    }

    /// Returns the bytes with this hash. Fails if they are missing or damaged.
    pub(super) fn get(&self, hash: &str) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path(hash);
        let bytes = fs::read(&path).map_err(|error| CheckpointError::store(&path, error))?;
        if hash_of(&bytes) == hash { Ok(bytes) } else { Err(CheckpointError::Damaged { path }) }
    }

    /// Removes everything except the hashes in `used`.
    pub(super) fn retain(&self, used: &HashSet<String>) -> Result<(), CheckpointError> {
        for prefix in super::names_in(&self.folder)? {
            let folder = self.folder.join(&prefix);
            for rest in super::names_in(&folder)? {
                if !used.contains(&format!("{prefix}{rest}")) {
                    let path = folder.join(rest);
                    fs::remove_file(&path).map_err(|error| CheckpointError::store(&path, error))?;
                }
            }
        }
        Ok(())
    }

    fn path(&self, hash: &str) -> PathBuf {
        // A step is a file that could have been edited; a hash must not lead out of the store.
        let is_hash = hash.len() == HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hash = if is_hash { hash } else { "invalid" };
        let (prefix, rest) = hash.split_at(2);
        self.folder.join(prefix).join(rest)
    }
}

/// Returns the hash of a file's contents.
pub(super) fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file that only the user can read, completely or not at all. Creates its folder.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let unique = format!(".{}-{}.new", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let temporary = folder.join(unique);
    let mut options = fs::OpenOptions::new();
    let written = options.create(true).truncate(true).write(true).mode(0o600).open(&temporary);
    let written = written.and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}
