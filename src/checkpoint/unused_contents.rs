//! Removes the copies of files that no checkpoint needs any more.
//!
//! To find them, Skein reads all checkpoints, and other turns wait meanwhile. So it looks for them only after at least
//! as many checkpoints were dropped as there are.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::{CheckpointError, CheckpointStore};

/// The smallest number of dropped checkpoints after which unused copies are removed.
pub(super) const MAX_DROPPED: u64 = 20;

impl CheckpointStore {
    /// Counts checkpoints that were dropped, and removes unused copies if there were many. The caller does not hold the
    /// store. A failure concerns only the space on disk, so it goes to the log.
    pub(super) fn count_dropped(&self, count: usize) {
        if let Err(error) = self.note_dropped(count) {
            tracing::warn!(%error, "copies of files that no checkpoint needs stay on disk");
        }
    }

    fn note_dropped(&self, count: usize) -> Result<(), CheckpointError> {
        if count == 0 {
            return Ok(());
        }
        let path = self.drop_count_path();
        let failed = |error| CheckpointError::store(&path, error);
        // The length of the file is the number.
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        file.write_all(&vec![b'.'; count]).map_err(failed)?;
        let dropped = file.metadata().map_err(failed)?.len();
        if dropped < MAX_DROPPED || dropped < self.step_count()? {
            return Ok(());
        }
        match self.try_hold_alone()? {
            Some(_held) => self.remove_unused(),
            // Another process uses the store. The next dropped checkpoint tries again.
            None => Ok(()),
        }
    }

    fn step_count(&self) -> Result<u64, CheckpointError> {
        let sessions = self.sessions()?;
        sessions.iter().try_fold(0, |sum, session| Ok(sum + self.numbers(session)?.len() as u64))
    }

    /// Removes the copies that no step needs. The caller holds the store alone. Fails, and removes nothing, if a step
    /// cannot be read.
    pub(super) fn remove_unused(&self) -> Result<(), CheckpointError> {
        let mut used = HashSet::new();
        for session in self.sessions()? {
            for step in self.steps(&session)? {
                used.extend(step.before.hashes().map(str::to_owned));
                used.extend(step.after.iter().flat_map(|after| after.hashes()).map(str::to_owned));
            }
        }
        self.objects.retain(&used)?;
        let path = self.drop_count_path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CheckpointError::store(&path, error)),
            _ => Ok(()),
        }
    }

    /// Locks the store alone until the file is dropped. `None` if it is in use.
    fn try_hold_alone(&self) -> Result<Option<File>, CheckpointError> {
        let file = self.open_store_lock()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(CheckpointError::store(&self.folder, error)),
        }
    }

    fn drop_count_path(&self) -> PathBuf {
        self.folder.join("dropped")
    }
}
