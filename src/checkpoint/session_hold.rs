//! Keeps a turn and a restore of one session apart, also in different processes.
//!
//! Invariant: while a turn runs, no process restores the session. While a restore runs, turns wait.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use super::{CheckpointError, CheckpointStore};

/// A session that a turn or a restore uses until this is dropped.
#[derive(Debug)]
pub struct SessionHold {
    _file: File,
}

impl CheckpointStore {
    /// Holds a session for a turn. Waits while another process restores the session.
    pub fn hold_turn(&self, session: &str) -> Result<SessionHold, CheckpointError> {
        let (file, path) = self.open_lock(session)?;
        file.lock_shared().map_err(|error| CheckpointError::store(&path, error))?;
        Ok(SessionHold { _file: file })
    }

    /// Holds a session for a turn. `None` if another process restores the session.
    pub fn try_hold_turn(&self, session: &str) -> Result<Option<SessionHold>, CheckpointError> {
        let (file, path) = self.open_lock(session)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(SessionHold { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(CheckpointError::store(&path, error)),
        }
    }

    /// Holds a session for a restore. Fails if a turn or another restore of the session runs, in any process.
    pub fn hold_restore(&self, session: &str) -> Result<SessionHold, CheckpointError> {
        let (file, path) = self.open_lock(session)?;
        match file.try_lock() {
            Ok(()) => Ok(SessionHold { _file: file }),
            Err(TryLockError::WouldBlock) => Err(CheckpointError::Running),
            Err(TryLockError::Error(error)) => Err(CheckpointError::store(&path, error)),
        }
    }

    /// Removes the lock of a session that is deleted.
    pub(super) fn remove_lock(&self, session: &str) -> Result<(), CheckpointError> {
        let path = self.lock_path(session);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CheckpointError::store(&path, error)),
            _ => Ok(()),
        }
    }

    /// Returns the path of a session's lock. It is next to the checkpoints, because a turn that changes nothing has none.
    fn lock_path(&self, session: &str) -> PathBuf {
        self.folder.with_file_name("session-locks").join(session)
    }

    fn open_lock(&self, session: &str) -> Result<(File, PathBuf), CheckpointError> {
        let path = self.lock_path(session);
        let failed = |error| CheckpointError::store(&path, error);
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let opened = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().unwrap_or(&path);
                DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
                options.open(&path)
            }
            opened => opened,
        };
        let file = opened.map_err(failed)?;
        Ok((file, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each hold opens the file anew, as another process does.
    #[test]
    fn a_restore_waits_for_no_turn_and_a_turn_for_each_restore() {
        let folder = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(folder.path().join("checkpoints"));
        let turns = [store.hold_turn("a").unwrap(), store.hold_turn("a").unwrap()];
        assert!(matches!(store.hold_restore("a"), Err(CheckpointError::Running)), "a turn runs");
        assert!(store.hold_restore("b").is_ok(), "another session");
        drop(turns);
        let restore = store.hold_restore("a").unwrap();
        assert!(store.try_hold_turn("a").unwrap().is_none(), "a restore runs");
        assert!(store.try_hold_turn("b").unwrap().is_some(), "another session");
        assert!(matches!(store.hold_restore("a"), Err(CheckpointError::Running)), "another restore");
        let (tx, rx) = std::sync::mpsc::channel();
        let waiting = store.clone();
        let turn = std::thread::spawn(move || {
            let held = waiting.hold_turn("a").unwrap();
            tx.send(()).unwrap();
            drop(held);
        });
        assert!(rx.recv_timeout(std::time::Duration::from_millis(200)).is_err(), "the turn waits");
        drop(restore);
        turn.join().unwrap();
        assert!(rx.recv().is_ok());
        store.remove_lock("a").unwrap();
        store.remove_lock("a").unwrap();
        assert!(!folder.path().join("checkpoints").exists(), "a turn alone makes no checkpoints");
    }
}
