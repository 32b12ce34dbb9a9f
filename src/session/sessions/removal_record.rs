//! Records which sessions leave the store, until their files are removed too. A process that is killed in between leaves
//! its record, and a later one removes the files.
//!
//! Invariant: a record is locked while its process works on it. It names its store, because several stores may share the
//! folders of sessions.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ids::random_uuid;
use crate::principal::SessionFiles;
use crate::store::RemovedSession;

/// The end of the name of a record.
const SUFFIX: &str = ".json";

/// A session whose files are still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftSession {
    pub(super) id: String,
    /// The folder that Skein made for it. `None` if it has none, or a parent session has it.
    pub(super) own_folder: Option<PathBuf>,
}

impl From<&RemovedSession> for LeftSession {
    fn from(session: &RemovedSession) -> Self {
        let own = session.files == SessionFiles::Own && !session.is_child;
        Self { id: session.id.clone(), own_folder: own.then(|| session.cwd.clone()) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordContent {
    store: String,
    sessions: Vec<LeftSession>,
}

/// A record that this process has locked.
#[derive(Debug)]
pub(super) struct RemovalRecord {
    path: PathBuf,
    _file: File,
}

impl RemovalRecord {
    /// Records sessions that are about to leave the store. `None` if there are none, or it fails: then their files stay
    /// if the process is killed too early.
    pub(super) fn note(folder: &Path, store: &str, sessions: &[LeftSession]) -> Option<Self> {
        if sessions.is_empty() {
            return None;
        }
        let content = RecordContent { store: store.to_owned(), sessions: sessions.to_vec() };
        let written = Self::write(folder, &content);
        written.inspect_err(|error| tracing::warn!(%error, "a removal of sessions could not be recorded")).ok()
    }

    fn write(folder: &Path, content: &RecordContent) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let name = random_uuid();
        let (new, path) = (folder.join(format!("{name}.new")), folder.join(format!("{name}{SUFFIX}")));
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec(content)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(Self { path, _file: file })
    }

    /// Removes the record, because no files are left.
    pub(super) fn finish(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(record = %self.path.display(), %error, "the record of a removal is left behind");
        }
    }

    /// Returns the records of a store whose processes have ended.
    pub(super) fn find_interrupted(folder: &Path, store: &str) -> io::Result<Vec<(Self, Vec<LeftSession>)>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry?.path();
            // A record without this name is not whole, and nothing was removed yet.
            if !path.to_string_lossy().ends_with(SUFFIX) {
                continue;
            }
            match Self::read(&path) {
                Ok(Some((record, content))) if content.store == store => found.push((record, content.sessions)),
                Ok(_) => {}
                // One that another user made must not block the others.
                Err(error) => tracing::warn!(record = %path.display(), %error, "a record cannot be read"),
            }
        }
        Ok(found)
    }

    /// Reads a record and locks it. `None` if its process works on it, or has finished it meanwhile.
    fn read(path: &Path) -> io::Result<Option<(Self, RecordContent)>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match file.try_lock() {
            Ok(()) if file.metadata()?.nlink() == 0 => return Ok(None),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let content = serde_json::from_str(&text)?;
        Ok(Some((Self { path: path.to_owned(), _file: file }, content)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_when_its_process_has_ended() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("removals");
        let left = [LeftSession { id: "a".to_owned(), own_folder: Some("/scratch/folder-a".into()) }];
        let found = |store: &str| -> Vec<_> {
            let found = RemovalRecord::find_interrupted(&folder, store).unwrap();
            found.into_iter().map(|(_, sessions)| sessions).collect()
        };
        assert_eq!(found("one").len(), 0, "there is no folder yet");
        let record = RemovalRecord::note(&folder, "one", &left).expect("a record");
        assert_eq!(found("one").len(), 0, "its process works on it");
        drop(record);
        assert_eq!(found("two").len(), 0, "another store");
        for (name, content) in [("text.json", &b"\xff"[..]), ("part.json", b"{")] {
            fs::write(folder.join(name), content).unwrap();
        }
        std::os::unix::fs::symlink("circle.json", folder.join("circle.json")).unwrap();
        assert_eq!(found("one"), [left], "what cannot be read does not hide it");
        for name in ["text.json", "part.json", "circle.json"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
        fs::write(folder.join("half.new"), "{\"store\": \"on").unwrap();
        let records = RemovalRecord::find_interrupted(&folder, "one").unwrap();
        records.into_iter().for_each(|(record, _)| record.finish());
        assert_eq!(found("one").len(), 0);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "only the one that is not whole");
    }
}
