//! Remembers the protected paths that a session found or accepted, so that each later one needs consent.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::new_protected::ProtectedSnapshot;
use super::paths::{ProtectedPath, find_protected};

/// The protected paths near the folders that some sandboxes of a session may write.
#[derive(Debug)]
pub struct ProtectedWatch {
    folders: Vec<PathBuf>,
    /// The protected paths at the start of the first sandbox, and those that the user accepted later.
    known: Mutex<ProtectedSnapshot>,
    /// Paths without consent are moved here.
    pub quarantine: PathBuf,
    /// Held during a check: two at the same time must not ask about the same path.
    pub check: tokio::sync::Mutex<()>,
}

impl ProtectedWatch {
    /// Returns the protected paths that are there now.
    pub(super) fn snapshot(&self) -> ProtectedSnapshot {
        ProtectedSnapshot::take(&self.folders)
    }

    /// Returns the new protected paths that need consent.
    pub fn find_created(&self) -> Vec<(PathBuf, ProtectedPath)> {
        let now = self.snapshot();
        let mut known = self.lock();
        known.forget_missing(&now);
        known.find_created(&now)
    }

    /// Forgets the known paths that are missing in this snapshot. A command that creates one again needs consent.
    pub(super) fn forget_missing(&self, now: &ProtectedSnapshot) {
        self.lock().forget_missing(now);
    }

    fn lock(&self) -> MutexGuard<'_, ProtectedSnapshot> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watches of one session. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ProtectedWatches(Arc<Mutex<Vec<Arc<ProtectedWatch>>>>);

impl ProtectedWatches {
    /// Returns the watch of these folders. Sandboxes with the same folders share one.
    pub(super) fn of(&self, folders: &[PathBuf], quarantine: &Path) -> Arc<ProtectedWatch> {
        let mut all = self.lock();
        if let Some(known) = all.iter().find(|watch| watch.folders == folders) {
            return Arc::clone(known);
        }
        let watch = Arc::new(ProtectedWatch {
            folders: folders.to_vec(),
            known: Mutex::new(ProtectedSnapshot::take(folders)),
            quarantine: quarantine.to_owned(),
            check: tokio::sync::Mutex::default(),
        });
        all.push(Arc::clone(&watch));
        watch
    }

    /// Returns all watches of the session.
    pub fn all(&self) -> Vec<Arc<ProtectedWatch>> {
        self.lock().clone()
    }

    /// Adds a path that the user consented to, with all its contents.
    pub fn accept(&self, path: &Path) {
        for watch in self.lock().iter() {
            watch.lock().accept(path);
        }
    }

    /// Adds a file that a file tool created with consent. A new folder around it is added if it contains nothing else.
    pub fn accept_file(&self, file: &Path) {
        if find_protected(file, None).is_none() {
            return;
        }
        for watch in self.all() {
            let created = watch.find_created().into_iter().map(|(path, _)| path);
            for path in created.filter(|path| file.starts_with(path) && contains_only(path, file)) {
                self.accept(&path);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ProtectedWatch>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether `path` is the file, or a folder that contains no other file.
fn contains_only(path: &Path, file: &Path) -> bool {
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() && !path.is_symlink() {
            let Ok(entries) = fs::read_dir(&path) else { return false };
            pending.extend(entries.flatten().map(|entry| entry.path()));
        } else if path != file {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_file_with_consent_does_not_cover_its_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        let watch = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        let created = || watch.find_created().into_iter().map(|(_, path)| path.shown).collect::<Vec<_>>();
        write(&root.join(".vscode/settings.json"));
        watches.accept_file(&root.join(".vscode/settings.json"));
        assert_eq!(created(), [""; 0]);
        write(&root.join(".zed/tasks.json"));
        write(&root.join(".zed/settings.json"));
        watches.accept_file(&root.join(".zed/settings.json"));
        assert_eq!(created(), [".zed"], "a command created `tasks.json`");
        watches.accept(&root.join(".zed"));
        assert_eq!(created(), [""; 0]);
        fs::remove_dir_all(root.join(".zed")).unwrap();
        assert_eq!(created(), [""; 0]);
        write(&root.join(".zed/tasks.json"));
        assert_eq!(created(), [".zed"], "what is removed and comes back is new");
    }

    #[test]
    fn sandboxes_with_the_same_folders_share_a_watch() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watches = ProtectedWatches::default();
        let first = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        write(&root.join(".envrc"));
        let second = watches.of(std::slice::from_ref(&root), Path::new("/nowhere"));
        assert_eq!(second.find_created().len(), 1, "a later sandbox does not accept what an earlier one created");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(watches.of(&[root.join("other")], Path::new("/nowhere")).find_created(), []);
        assert_eq!(watches.all().len(), 2);
    }
}
