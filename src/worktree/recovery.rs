//! Saves and removes the worktrees of processes that have ended.
//!
//! Invariant: deletes nothing that a task has made and that is not on its branch.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::repository::Repository;
use super::{
    EARLY_PREFIX, FIRST_INDEX, KEPT, RECORD, SAVED, TaskResult, TaskWorktree, TaskWorktrees, WorktreeError,
    WorktreeRecord, tree_of, try_lock,
};

/// How long a folder may have an early name, in a process that lives.
const MAX_EARLY: Duration = Duration::from_secs(60);

impl TaskWorktrees {
    /// Removes the worktrees of processes that have ended, in the background and once per process. Their changes stay on
    /// their branches.
    pub fn sweep(&self) {
        if self.inner.has_swept.swap(true, Ordering::Relaxed) || !self.inner.folder.is_dir() {
            return;
        }
        self.spawn_sweep();
    }

    pub(super) fn spawn_sweep(&self) {
        let worktrees = self.clone();
        self.inner.background.spawn(async move { worktrees.remove_stale().await });
    }

    async fn remove_stale(&self) {
        let entries = fs::read_dir(&self.inner.folder).into_iter().flatten().flatten();
        let folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        for folder in folders {
            let is_early = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(EARLY_PREFIX));
            let recovered = if is_early { remove_early(&folder) } else { self.recover(&folder).await };
            if let Err(error) = recovered {
                tracing::warn!(folder = %folder.display(), %error, "the worktree of a task is left behind");
            }
        }
    }

    /// Saves the changes of a worktree that no process uses, and removes it. It stays if something cannot be saved.
    async fn recover(&self, folder: &Path) -> Result<(), WorktreeError> {
        let lock = match try_lock(folder) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(()),
            // Another process has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(WorktreeError::folder(folder, error)),
        };
        let path = folder.join(RECORD);
        let record: WorktreeRecord = match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|source| WorktreeError::Record { path: path.clone(), source })?
            }
            // Its process ended before it made the worktree.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return fs::remove_dir_all(folder).map_err(|error| WorktreeError::folder(folder, error));
            }
            Err(error) => return Err(WorktreeError::folder(&path, error)),
        };
        if folder.join(KEPT).exists() {
            // The user has removed the worktree, with what was left in it.
            let is_gone = tree_of(folder, &record).symlink_metadata().is_err();
            let removed = if is_gone { fs::remove_dir_all(folder) } else { Ok(()) };
            return removed.map_err(|error| WorktreeError::folder(folder, error));
        }
        let repository = self.find_repository(&record).await?;
        let (owner, folder) = (self.clone(), folder.to_owned());
        let worktree = TaskWorktree { owner, repository, record, folder, roots: Vec::new(), _lock: lock };
        if worktree.folder.join(SAVED).exists() || worktree.save().await? {
            worktree.remove();
        }
        Ok(())
    }

    /// Returns the repository of a worktree. Fails if it is missing, such as on a disk that is not mounted.
    async fn find_repository(&self, record: &WorktreeRecord) -> Result<Repository, WorktreeError> {
        let WorktreeRecord { top, git, common, must_be_plain, .. } = record;
        let problem = |reason: &str| Err(WorktreeError::folder(top, io::Error::other(reason)));
        if !top.is_dir() {
            return problem(
                "the repository is missing, so the changes of a task are not saved in it; delete the folder of the \
                 worktree if you do not need them",
            );
        }
        let mut repository = Repository::locate(&self.inner.runner, top).await?;
        if (repository.top(), repository.git(), repository.common()) != (top.as_path(), git.as_path(), common.as_path())
        {
            return problem("it is another repository now");
        }
        if *must_be_plain {
            repository.require_plain()?;
        }
        Ok(repository)
    }
}

impl TaskWorktree {
    /// Saves the changes on the branch. Returns false if the worktree must stay.
    async fn save(&self) -> Result<bool, WorktreeError> {
        let WorktreeRecord { branch, base, .. } = &self.record;
        let runner = &self.owner.inner.runner;
        let is_at_base = self.repository.branch_commit(runner, branch).await?.is_some_and(|at| at == *base);
        if !self.folder.join(FIRST_INDEX).exists() {
            // The task has not started.
            if is_at_base {
                self.repository.delete_branch(runner, branch, base).await?;
            }
            return Ok(true);
        }
        if !is_at_base {
            let reason = format!("its changes are not saved, because the user has changed the branch `{branch}`");
            return Err(WorktreeError::folder(&self.tree(), io::Error::other(reason)));
        }
        let TaskResult { left_out, .. } = self.capture("Skein ended before the task did.").await?;
        if !left_out.is_empty() {
            let tree = self.tree();
            tracing::warn!(folder = %tree.display(), ?left_out, "files of a task are only in its worktree");
        }
        Ok(left_out.is_empty())
    }
}

/// Removes a folder that got no name, unless a process may be about to give it one.
fn remove_early(folder: &Path) -> Result<(), WorktreeError> {
    let age = folder.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
    let is_stale = age.is_some_and(|age| age > MAX_EARLY);
    let removed = if is_stale { fs::remove_dir_all(folder) } else { Ok(()) };
    removed.map_err(|error| WorktreeError::folder(folder, error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{WORK, save};
    use super::*;
    use crate::sandbox::HiddenPaths;

    /// A worktree with a file, whose repository is at `top`.
    fn left_behind(folder: &Path, top: &Path) -> PathBuf {
        let record = WorktreeRecord {
            name: "skein-task-1".to_owned(),
            branch: "skein/task-1".to_owned(),
            top: top.to_owned(),
            git: top.join(".git"),
            common: top.join(".git"),
            must_be_plain: false,
            prefix: PathBuf::new(),
            base: "0".repeat(40),
            task: "change it".to_owned(),
        };
        let file = folder.join(WORK).join(&record.name).join("made.txt");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "made").unwrap();
        save(folder, &record).unwrap();
        file
    }

    fn worktrees(folder: &Path) -> TaskWorktrees {
        TaskWorktrees::new(folder.to_owned(), folder.join("home"), HiddenPaths::default(), BTreeMap::new())
    }

    #[tokio::test]
    async fn work_for_a_repository_that_is_missing_stays() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("skein-task-1");
        let file = left_behind(&folder, &data.path().join("not-mounted"));
        let error = worktrees(data.path()).recover(&folder).await.unwrap_err();
        assert!(error.to_string().contains("not-mounted"), "{error}");
        assert!(file.exists(), "the work of the task is deleted");
    }

    #[tokio::test]
    async fn files_that_were_left_out_stay_until_the_user_removes_them() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("skein-task-1");
        let file = left_behind(&folder, &data.path().join("project"));
        fs::write(folder.join(KEPT), "").unwrap();
        let worktrees = worktrees(data.path());
        worktrees.recover(&folder).await.unwrap();
        assert!(file.exists(), "the work of the task is deleted");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        worktrees.recover(&folder).await.unwrap();
        assert!(!folder.exists(), "nothing is left of a worktree that the user has removed");
    }
}
