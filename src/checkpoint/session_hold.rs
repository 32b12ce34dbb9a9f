//! Keeps turns and restores of one session apart, also in different processes.
//!
//! Invariant: while a turn runs, no process restores the session, and the other way round.

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
    /// Holds a session for a turn that other turns may accompany. Waits while another process restores the session.
    pub fn share_turn(&self, session: &str) -> Result<SessionHold, CheckpointError> {
        let (file, path) = self.open_lock(session)?;
        file.lock_shared().map_err(|error| CheckpointError::store(&path, error))?;
        Ok(SessionHold { _file: file })
    }

    /// Holds a session for a turn or a restore. Fails if another one of the session runs, in any process.
    pub fn hold_alone(&self, session: &str) -> Result<SessionHold, CheckpointError> {
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
    fn one_turn_or_restore_runs_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(folder.path().join("checkpoints"));
        let turn = store.hold_alone("a").unwrap();
        assert!(matches!(store.hold_alone("a"), Err(CheckpointError::Running)), "a turn runs");
        assert!(store.hold_alone("b").is_ok(), "another session");
        drop(turn);
        drop(store.hold_alone("a").unwrap());
        store.remove_lock("a").unwrap();
        store.remove_lock("a").unwrap();
        assert!(!folder.path().join("checkpoints").exists(), "a turn alone makes no checkpoints");
    }

    #[test]
    fn a_shared_turn_waits_for_a_restore_and_keeps_it_out() {
        let folder = tempfile::tempdir().unwrap();
        let store = CheckpointStore::new(folder.path().join("checkpoints"));
        let turns = [store.share_turn("a").unwrap(), store.share_turn("a").unwrap()];
        assert!(matches!(store.hold_alone("a"), Err(CheckpointError::Running)), "two turns run");
        drop(turns);
        let restore = store.hold_alone("a").unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let waiting = store.clone();
        let turn = std::thread::spawn(move || {
            let held = waiting.share_turn("a").unwrap();
            tx.send(()).unwrap();
            drop(held);
        });
        assert!(rx.recv_timeout(std::time::Duration::from_millis(200)).is_err(), "the turn waits");
        drop(restore);
        turn.join().unwrap();
        assert!(rx.recv().is_ok());
    }
}
