//! Gives a delegated task its own git worktree, and merges what it has changed into the user's files.
//!
//! A task starts from a snapshot of the user's files, with changes that are not committed. Its result is one commit on a
//! branch. Several Skein processes may use the folder of the worktrees at once: each locks those that it made.
//!
//! Invariant: writes to the user's files only in `TaskWorktree::merge`, only below the folders of the session, and
//! never to the user's index or `HEAD`. A worktree is removed only after all that its task has made is on its branch.

mod git;
mod programs;
mod recovery;
mod repository;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

pub use git::GitError;
use git::GitRunner;
use repository::{MergeOutcome, RecordedTree, copy_index};
pub use repository::{Repository, TaskFileChange};

use crate::ids::{TASK_WORKTREE_PREFIX, random_id};
use crate::sandbox::{HiddenPaths, ProtectedPath, find_protected, find_protected_link};
use crate::task::TaskScope;

/// Begins the names of all branches of tasks.
const BRANCH_PREFIX: &str = "skein/task-";
/// Maximum length of a task's name in the name of its branch.
const MAX_SLUG: usize = 30;
/// Maximum length of the first line of a commit.
const MAX_SUBJECT: usize = 72;
/// How often a merge is computed again because a file has changed meanwhile.
const MAX_ATTEMPTS: usize = 3;

/// Begins the name of a folder that is not locked yet.
const EARLY_PREFIX: char = '.';

const RECORD: &str = "record.json";
const LOCK: &str = "lock";
/// The index of the worktree as it was in the beginning, which the task cannot change.
const FIRST_INDEX: &str = "first-index";
const TASK_INDEX: &str = "task-index";
const MERGE_INDEX: &str = "merge-index";
/// Exists if everything that the task has made is on its branch.
const SAVED: &str = "saved";
/// Exists if the task has made files that cannot be on its branch. The user removes them.
const KEPT: &str = "kept";
/// The task may write here. It contains the worktree.
const WORK: &str = "work";

/// Why a task has no worktree, or its changes are not where they should be.
#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    #[error(
        "`{}` has no git repository that a task can work on ({reason}); create one with `git init` and a commit, or \
         remove `workspace: worktree` for this mode",
        folder.display()
    )]
    NoRepository { folder: PathBuf, reason: String },
    #[error(
        "the git repository `{}` contains your home folder, so a task gets no copy of it; remove `workspace: worktree` \
         for this mode",
        top.display()
    )]
    ContainsHome { top: PathBuf },
    #[error(
        "too many files in `{}` differ from the last commit; commit them, or name them in `.gitignore`",
        folder.display()
    )]
    TooMuch { folder: PathBuf },
    #[error(
        "the config of the git repository has `{key}`, which can make git run a program or read another file; remove \
         it with `git config --unset-all`, or remove `workspace: worktree` for this mode"
    )]
    RefusedKey { key: String },
    #[error("`{}` cannot be used for the worktree of a task: {source}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the record of a worktree, `{}`, cannot be read: {source}", path.display())]
    Record {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Git(#[from] GitError),
}

impl WorktreeError {
    fn folder(path: &Path, source: io::Error) -> Self {
        Self::Folder { path: path.to_owned(), source }
    }
}

/// Creates the worktrees of tasks. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TaskWorktrees {
    inner: Arc<WorktreesInner>,
}

#[derive(Debug)]
struct WorktreesInner {
    folder: PathBuf,
    home: PathBuf,
    hidden: HiddenPaths,
    runner: GitRunner,
    /// Locked while files of the user are written.
    merges: tokio::sync::Mutex<()>,
    has_swept: AtomicBool,
    background: TaskScope,
}

/// What the next start needs to save the changes of a worktree and to remove it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WorktreeRecord {
    name: String,
    branch: String,
    /// The folder of the user's files.
    top: PathBuf,
    /// The folders of the repository, which must be the same later.
    git: PathBuf,
    common: PathBuf,
    must_be_plain: bool,
    /// The working directory of the task below the worktree.
    prefix: PathBuf,
    /// The commit at which the task started.
    base: String,
    /// The task, for the message of the commit.
    task: String,
}

/// The worktree of a task. If it is dropped without [`TaskWorktree::remove`], the next start removes it.
#[derive(Debug)]
pub struct TaskWorktree {
    owner: TaskWorktrees,
    repository: Repository,
    record: WorktreeRecord,
    folder: PathBuf,
    /// The folders of the session. A merge writes nothing outside of them.
    roots: Vec<PathBuf>,
    /// Locked while the task works.
    _lock: File,
}

/// What a task has made.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskResult {
    /// `None` if it has changed nothing; then there is no branch any more.
    pub changes: Option<TaskChanges>,
    /// Files that are only in the worktree: those that a filter converts, and repositories.
    pub left_out: Vec<String>,
}

/// The changes of a task, which are on its branch.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskChanges {
    pub branch: String,
    pub files: Vec<TaskFileChange>,
    /// The first of the files that is a protected path.
    pub protected: Option<ProtectedPath>,
    commit: String,
}

/// What became of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeResult {
    /// The changes fit, or are in the user's files.
    Clean,
    /// The files that have changed on both sides. Nothing was written.
    Conflict(Vec<String>),
    /// The files that are not below a folder of the session. Nothing was written.
    Outside(Vec<String>),
}

impl TaskWorktrees {
    /// `environment` is that of the user and needs `HOME` and `PATH`. Git reads no file of the user that is in `hidden`.
    pub fn new(folder: PathBuf, home: PathBuf, hidden: HiddenPaths, environment: BTreeMap<OsString, OsString>) -> Self {
        let home = home.canonicalize().unwrap_or(home);
        let inner = WorktreesInner {
            folder,
            home,
            hidden,
            runner: GitRunner::new(environment),
            merges: tokio::sync::Mutex::default(),
            has_swept: AtomicBool::new(false),
            background: TaskScope::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Finds the repository of a folder. Fails if it has none, or one that contains the home folder.
    pub async fn locate(&self, folder: &Path) -> Result<Repository, WorktreeError> {
        let repository = Repository::locate(&self.inner.runner, folder).await?;
        if self.inner.home.starts_with(repository.top()) {
            return Err(WorktreeError::ContainsHome { top: repository.top().to_owned() });
        }
        Ok(repository)
    }

    /// Creates a worktree with the files of the repository as they are now. `cwd` is a folder of the repository. A merge
    /// writes only below `roots`. `name` and `task` describe the task.
    pub async fn create(
        &self,
        repository: Repository,
        (cwd, roots): (&Path, &[PathBuf]),
        name: &str,
        task: &str,
    ) -> Result<TaskWorktree, WorktreeError> {
        // A task that was dropped leaves its worktree behind.
        self.spawn_sweep();
        let resolved = cwd.canonicalize().map_err(|error| WorktreeError::folder(cwd, error))?;
        let prefix = resolved.strip_prefix(repository.top()).map_err(|_| WorktreeError::NoRepository {
            folder: cwd.to_owned(),
            reason: format!("its repository is for the files in `{}`", repository.top().display()),
        })?;
        let id = random_id(TASK_WORKTREE_PREFIX);
        let suffix = id.get(id.len().saturating_sub(8)..).unwrap_or_default();
        let folder = self.inner.folder.join(&id);
        let lock = self.make_folder(&folder, &id).map_err(|error| WorktreeError::folder(&folder, error))?;
        let started = self.start(&repository, &folder, (id.clone(), prefix.to_owned()), (name, suffix, task)).await;
        match started {
            Ok(record) => {
                let roots = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
                Ok(TaskWorktree { owner: self.clone(), repository, record, folder, roots, _lock: lock })
            }
            Err(error) => {
                remove_folders(&repository, &folder, &id);
                Err(error)
            }
        }
    }

    /// Makes the folder of a worktree. It is locked before it gets its name, so that no process takes it for a stale one.
    fn make_folder(&self, folder: &Path, id: &str) -> io::Result<File> {
        let early = self.inner.folder.join(format!("{EARLY_PREFIX}{id}"));
        DirBuilder::new().recursive(true).mode(0o700).create(early.join(WORK))?;
        let lock = try_lock(&early)?.ok_or(io::ErrorKind::ResourceBusy)?;
        fs::rename(early, folder)?;
        Ok(lock)
    }

    async fn start(
        &self,
        repository: &Repository,
        folder: &Path,
        (id, prefix): (String, PathBuf),
        (name, suffix, task): (&str, &str, &str),
    ) -> Result<WorktreeRecord, WorktreeError> {
        let WorktreesInner { runner, hidden, .. } = &*self.inner;
        let base = repository.snapshot(runner, &folder.join(MERGE_INDEX), hidden).await?;
        let branch = format!("{BRANCH_PREFIX}{}-{suffix}", slug_of(name));
        let record = WorktreeRecord {
            name: id,
            branch,
            top: repository.top().to_owned(),
            git: repository.git().to_owned(),
            common: repository.common().to_owned(),
            must_be_plain: repository.must_be_plain(),
            prefix,
            base,
            task: task.to_owned(),
        };
        save(folder, &record)?;
        repository.set_branch(runner, &record.branch, &record.base, None).await?;
        let tree = tree_of(folder, &record);
        let added = async {
            let entry = repository.add_worktree(runner, &tree, &record.base).await?;
            let index = folder.join(FIRST_INDEX);
            copy_index(&entry.join("index"), &index).await.map_err(|error| WorktreeError::folder(&index, error))?;
            let cwd = tree.join(&record.prefix);
            fs::create_dir_all(&cwd).map_err(|error| WorktreeError::folder(&cwd, error))
        };
        if let Err(error) = added.await {
            if let Err(error) = repository.delete_branch(runner, &record.branch, &record.base).await {
                tracing::warn!(branch = record.branch, %error, "the branch of a task is left behind");
            }
            return Err(error);
        }
        Ok(record)
    }
}

impl TaskWorktree {
    /// Returns the working directory of the task.
    pub fn cwd(&self) -> PathBuf {
        self.tree().join(&self.record.prefix)
    }

    /// Returns the folder for temporary files of the task. It contains the worktree.
    pub fn scratch(&self) -> PathBuf {
        self.folder.join(WORK)
    }

    /// Returns the folder of the user's files.
    pub fn top(&self) -> &Path {
        self.repository.top()
    }

    pub fn branch(&self) -> &str {
        &self.record.branch
    }

    /// Returns the folder of the worktree.
    pub fn tree(&self) -> PathBuf {
        tree_of(&self.folder, &self.record)
    }

    /// Commits what the task has changed to its branch, with `summary` in the message.
    pub async fn capture(&self, summary: &str) -> Result<TaskResult, WorktreeError> {
        let (runner, tree) = (&self.owner.inner.runner, self.tree());
        let is_folder = tree.symlink_metadata().is_ok_and(|data| data.is_dir());
        if !is_folder {
            return Err(WorktreeError::folder(&tree, io::Error::other("it is no folder any more")));
        }
        let index = self.folder.join(TASK_INDEX);
        let copied = copy_index(&self.folder.join(FIRST_INDEX), &index).await;
        copied.map_err(|error| WorktreeError::folder(&index, error))?;
        let RecordedTree { tree: result, left_out } = self.repository.record_tree(runner, &tree, &index, None).await?;
        let mark = self.folder.join(if left_out.is_empty() { SAVED } else { KEPT });
        let save_mark = || fs::write(&mark, "").map_err(|error| WorktreeError::folder(&mark, error));
        let WorktreeRecord { branch, base, task, .. } = &self.record;
        let commit = self.repository.commit(runner, &result, Some(base), &message_of(task, summary)).await?;
        let files = self.repository.list_changes(runner, base, &commit).await?;
        if files.is_empty() {
            self.repository.delete_branch(runner, branch, base).await?;
            save_mark()?;
            return Ok(TaskResult { changes: None, left_out });
        }
        self.repository.set_branch(runner, branch, &commit, Some(base)).await?;
        save_mark()?;
        let top = self.repository.top();
        let protected = files.iter().find_map(|file| {
            let path = top.join(&file.path);
            let (name, reason) = find_protected(&path, Some(top)).or_else(|| find_protected_link(&path, top))?;
            Some(ProtectedPath { shown: file.path.display().to_string(), name, reason: reason.into() })
        });
        let changes = TaskChanges { branch: branch.clone(), files, protected, commit };
        Ok(TaskResult { changes: Some(changes), left_out })
    }

    /// Returns whether the changes fit the user's files, and writes nothing to them.
    pub async fn check_merge(&self, changes: &TaskChanges) -> Result<MergeResult, WorktreeError> {
        let _held = self.owner.inner.merges.lock().await;
        Ok(self.try_merge(changes).await?.err().unwrap_or(MergeResult::Clean))
    }

    /// Writes the changes to the user's files, all or none. They are not committed, and nothing is staged.
    pub async fn merge(&self, changes: &TaskChanges) -> Result<MergeResult, WorktreeError> {
        let (inner, index) = (&self.owner.inner, self.folder.join(MERGE_INDEX));
        let _held = inner.merges.lock().await;
        let mut attempt = 1;
        loop {
            let (before, after) = match self.try_merge(changes).await? {
                Ok(trees) => trees,
                Err(refused) => return Ok(refused),
            };
            match self.repository.apply(&inner.runner, &index, &before, &after).await {
                Ok(()) => return Ok(MergeResult::Clean),
                // A file has changed since it was read.
                Err(WorktreeError::Git(GitError::Failed { .. })) if attempt < MAX_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the trees of the user's files before and after a merge, or why it cannot be made.
    async fn try_merge(&self, changes: &TaskChanges) -> Result<Result<(String, String), MergeResult>, WorktreeError> {
        let (inner, index) = (&self.owner.inner, self.folder.join(MERGE_INDEX));
        let commits = (self.record.base.as_str(), changes.commit.as_str());
        let merged = self.repository.try_merge(&inner.runner, commits, &index, &inner.hidden).await?;
        Ok(match merged {
            MergeOutcome::Conflict(files) => Err(MergeResult::Conflict(files)),
            MergeOutcome::Clean { before, after, files } => {
                let changed = changes.files.iter().map(|file| &file.path).chain(&files);
                let outside: BTreeSet<&PathBuf> = changed.filter(|file| !self.is_inside(file)).collect();
                if outside.is_empty() {
                    Ok((before, after))
                } else {
                    Err(MergeResult::Outside(outside.iter().map(|file| file.display().to_string()).collect()))
                }
            }
        })
    }

    /// Returns whether a file of the repository is below a folder of the session.
    fn is_inside(&self, file: &Path) -> bool {
        let path = self.repository.top().join(file);
        self.roots.iter().any(|root| path.starts_with(root) && path != *root)
    }

    /// Removes the worktree. Its branch stays.
    pub fn remove(self) {
        remove_folders(&self.repository, &self.folder, &self.record.name);
    }
}

fn tree_of(folder: &Path, record: &WorktreeRecord) -> PathBuf {
    folder.join(WORK).join(&record.name)
}

/// Removes the files of a worktree, and what git knows of it. Follows no links.
fn remove_folders(repository: &Repository, folder: &Path, name: &str) {
    let entries = repository.worktree_entries();
    for path in [entries.join(name), folder.to_owned()] {
        if let Err(error) = fs::remove_dir_all(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %path.display(), %error, "a part of a worktree is left behind");
        }
    }
    // Like git, which keeps the folder only while there are worktrees.
    drop(fs::remove_dir(entries));
}

/// Locks a worktree until the file is dropped. `None` if another process or task uses it.
fn try_lock(folder: &Path) -> io::Result<Option<File>> {
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(folder.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

fn save(folder: &Path, record: &WorktreeRecord) -> Result<(), WorktreeError> {
    let path = folder.join(RECORD);
    let bytes = serde_json::to_vec(record).map_err(|source| WorktreeError::Record { path: path.clone(), source })?;
    fs::write(&path, bytes).map_err(|error| WorktreeError::folder(&path, error))
}

/// Returns the part of a task's name that can be in the name of a branch.
fn slug_of(name: &str) -> String {
    let words = name.to_lowercase();
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut slug = words.collect::<Vec<_>>().join("-");
    slug.truncate(MAX_SLUG);
    slug.trim_end_matches('-').to_owned()
}

/// Returns the message of a task's commit: the first line of the task, and the summary.
fn message_of(task: &str, summary: &str) -> String {
    let subject: String = task.trim().lines().next().unwrap_or_default().chars().take(MAX_SUBJECT).collect();
    let subject = if subject.trim().is_empty() { "Task of Skein" } else { subject.trim() };
    let text = format!("{subject}\n\n{}", summary.trim());
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_has_a_name_that_git_accepts() {
        for (name, slug) in [("1", "1"), ("Fix the API!", "fix-the-api"), ("..", ""), ("a/b@{c", "a-b-c")] {
            assert_eq!(slug_of(name), slug, "{name}");
        }
        assert_eq!(slug_of(&"x".repeat(80)), "x".repeat(MAX_SLUG));
    }

    #[test]
    fn a_commit_says_what_the_task_was_and_what_came_of_it() {
        assert_eq!(message_of("Fix it\nat once", " Done. "), "Fix it\n\nDone.\n");
        assert_eq!(message_of("  ", ""), "Task of Skein\n");
    }
}
