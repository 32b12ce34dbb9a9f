//! The user's repository: snapshots of its files, branches of tasks, and merges into the files.
//!
//! Invariant: changes neither the user's index nor `HEAD`. Only [`Repository::apply`] writes files of the user, and only
//! if they are as they were when the merge was computed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::WorktreeError;
use super::git::{GitCommand, GitError, GitRunner};
use crate::sandbox::HiddenPaths;

/// Maximum number of files that differ from the last commit.
const MAX_FILES: usize = 20_000;
/// Maximum size of these files together.
const MAX_BYTES: u64 = 512 << 20;
/// Git prints the names of objects and paths, each with a NUL after it.
const NUL: u8 = 0;

/// A repository and the folder with its files.
#[derive(Debug, Clone)]
pub struct Repository {
    top: PathBuf,
    git: PathBuf,
    common: PathBuf,
    /// Turn off filters and merge drivers that a config names.
    settings: Vec<(OsString, OsString)>,
}

/// What a merge of a task into the user's files would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MergeOutcome {
    /// Trees of the files before and after the merge.
    Clean { before: String, after: String },
    /// The files that both sides have changed.
    Conflict(Vec<String>),
}

/// A file that a task has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFileChange {
    pub path: PathBuf,
    /// Added and removed lines. `None` for a binary file.
    pub lines: Option<(u64, u64)>,
}

/// `src/main.rs +3 -1`
impl std::fmt::Display for TaskFileChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.display();
        match self.lines {
            Some((added, removed)) => write!(f, "{path} +{added} -{removed}"),
            None => write!(f, "{path} (binary)"),
        }
    }
}

impl Repository {
    /// Finds the repository of a folder. Fails if there is none with files.
    pub(super) async fn locate(runner: &GitRunner, folder: &Path) -> Result<Self, WorktreeError> {
        let question = ["rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir"];
        let output = runner.output(GitCommand::new(folder, question)).await.map_err(|error| match error {
            GitError::Failed { reason, .. } => WorktreeError::NoRepository { folder: folder.to_owned(), reason },
            other => WorktreeError::Git(other),
        })?;
        let none = |reason: &str| WorktreeError::NoRepository { folder: folder.to_owned(), reason: reason.to_owned() };
        let lines: Vec<&[u8]> = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        let [top, git, common] = lines.as_slice() else { return Err(none("its path contains a line break")) };
        let resolve = |path: &[u8]| Path::new(OsStr::from_bytes(path)).canonicalize();
        let (Ok(top), Ok(git), Ok(common)) = (resolve(top), resolve(git), resolve(common)) else {
            return Err(none("a part of it does not exist"));
        };
        let mut repository = Self { top, git, common, settings: Vec::new() };
        repository.settings = repository.settings_without_programs(runner).await?;
        Ok(repository)
    }

    /// Returns the folder with the user's files.
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// Returns settings that turn off every filter and merge driver of the configs. A file that needs a driver then has
    /// a conflict.
    async fn settings_without_programs(&self, runner: &GitRunner) -> Result<Vec<(OsString, OsString)>, GitError> {
        let list = ["config", "--null", "--name-only", "--get-regexp", r"^(filter|merge)\..*\."];
        let output = runner.run(self.command(list)).await?;
        // 1: no such key.
        if !matches!(output.code, Some(0 | 1)) {
            return Err(output.failure("config"));
        }
        let mut sections: BTreeSet<&[u8]> = BTreeSet::new();
        for name in output.stdout.split(|byte| *byte == NUL) {
            sections.extend(name.iter().rposition(|byte| *byte == b'.').map(|end| &name[..end]));
        }
        let mut settings = Vec::new();
        for section in sections {
            let keys: &[(&str, &str)] = if section.starts_with(b"filter.") {
                &[("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")]
            } else {
                &[("driver", "false")]
            };
            for (key, value) in keys {
                let name = [section, b".", key.as_bytes()].concat();
                settings.push((OsString::from_vec(name), OsString::from(value)));
            }
        }
        Ok(settings)
    }

    /// Returns the commit of a branch. `None` if there is no such branch.
    pub(super) async fn branch_commit(&self, runner: &GitRunner, branch: &str) -> Result<Option<String>, GitError> {
        self.find_commit(runner, &format!("refs/heads/{branch}")).await
    }

    async fn find_commit(&self, runner: &GitRunner, name: &str) -> Result<Option<String>, GitError> {
        let name = format!("{name}^{{commit}}");
        let output = runner.run(self.command(["rev-parse", "--verify", "--quiet", &name])).await?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Some(text).filter(|text| output.code == Some(0) && !text.is_empty()))
    }

    /// Returns a commit with the user's files as they are, with changes that are not committed. It is the last commit if
    /// there are none. `index` is a file for the work.
    pub(super) async fn snapshot(
        &self,
        runner: &GitRunner,
        index: &Path,
        hidden: &HiddenPaths,
    ) -> Result<String, WorktreeError> {
        let tree = self.user_tree(runner, index, hidden).await?;
        // There is none before the first commit.
        let Some(head) = self.find_commit(runner, "HEAD").await? else {
            return Ok(self.commit(runner, &tree, None, "Files before a task of Skein\n").await?);
        };
        let committed = runner.id(self.command(["rev-parse", "--verify", &format!("{head}^{{tree}}")])).await?;
        if committed == tree {
            return Ok(head);
        }
        let message = "Files before a task of Skein, with changes that were not committed\n";
        Ok(self.commit(runner, &tree, Some(&head), message).await?)
    }

    /// Returns the tree of the user's files. `index` then describes them.
    async fn user_tree(&self, runner: &GitRunner, index: &Path, hidden: &HiddenPaths) -> Result<String, WorktreeError> {
        copy_index(&self.git.join("index"), index).await.map_err(|error| WorktreeError::folder(index, error))?;
        self.record_tree(runner, &self.top, index, Some(hidden)).await
    }

    /// Adds the files in `folder` to `index`, and returns their tree. Leaves out ignored files and `hidden` ones.
    pub(super) async fn record_tree(
        &self,
        runner: &GitRunner,
        folder: &Path,
        index: &Path,
        hidden: Option<&HiddenPaths>,
    ) -> Result<String, WorktreeError> {
        let list = ["ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"];
        let listed = runner.output(self.command(list).with_files(folder, index)).await?;
        // A name with a slash at its end is a repository inside this one.
        let names = listed.split(|byte| *byte == NUL).filter(|name| !name.is_empty() && !name.ends_with(b"/"));
        let (mut changed, mut bytes) = (BTreeSet::new(), 0);
        for name in names {
            let path = folder.join(OsStr::from_bytes(name));
            if hidden.is_some_and(|hidden| hidden.covering(&path).is_some()) || !changed.insert(name) {
                continue;
            }
            bytes += path.symlink_metadata().map_or(0, |data| if data.is_dir() { 0 } else { data.len() });
            if changed.len() > MAX_FILES || bytes > MAX_BYTES {
                return Err(WorktreeError::TooMuch { folder: folder.to_owned() });
            }
        }
        let input: Vec<u8> = changed.into_iter().flat_map(|name| name.iter().copied().chain([NUL])).collect();
        if !input.is_empty() {
            let add = self.command(["update-index", "-z", "--add", "--remove", "--replace", "--stdin"]);
            runner.output(add.with_files(folder, index).with_input(input)).await?;
        }
        Ok(runner.id(self.command(["write-tree"]).with_files(folder, index)).await?)
    }

    pub(super) async fn commit(
        &self,
        runner: &GitRunner,
        tree: &str,
        parent: Option<&str>,
        message: &str,
    ) -> Result<String, GitError> {
        let parent: Vec<&str> = parent.iter().flat_map(|parent| ["-p", *parent]).collect();
        let args = [&["commit-tree", tree][..], &parent, &["-F", "-"]].concat();
        let message: String = message.chars().filter(|c| *c != '\0').collect();
        runner.id(self.command(args).with_input(message)).await
    }

    /// Sets a branch to a commit. `from` is its commit so far, or `None` to create it. Fails if it is another one.
    pub(super) async fn set_branch(
        &self,
        runner: &GitRunner,
        branch: &str,
        to: &str,
        from: Option<&str>,
    ) -> Result<(), GitError> {
        let name = format!("refs/heads/{branch}");
        // No id: the branch must not exist.
        let change = self.command(["update-ref", "-m", "Skein: task", &name, to, from.unwrap_or_default()]);
        runner.output(change).await.map(drop)
    }

    /// Deletes a branch if it is still at `commit`.
    pub(super) async fn delete_branch(&self, runner: &GitRunner, branch: &str, commit: &str) -> Result<(), GitError> {
        runner.output(self.command(["update-ref", "-d", &format!("refs/heads/{branch}"), commit])).await.map(drop)
    }

    /// Checks a commit out in a new folder. Returns the folder of the worktree inside the repository.
    pub(super) async fn add_worktree(
        &self,
        runner: &GitRunner,
        folder: &Path,
        commit: &str,
    ) -> Result<PathBuf, WorktreeError> {
        let args = [OsStr::new("worktree"), "add".as_ref(), "--detach".as_ref(), folder.as_os_str(), commit.as_ref()];
        runner.output(self.command(args)).await?;
        let link = folder.join(".git");
        let text = tokio::fs::read(&link).await.map_err(|error| WorktreeError::folder(&link, error))?;
        let named = text.strip_prefix(b"gitdir: ").map(|path| path.trim_ascii_end()).unwrap_or_default();
        let entry = folder.join(OsStr::from_bytes(named));
        let entry = entry.canonicalize().map_err(|error| WorktreeError::folder(&entry, error))?;
        if entry.parent() == Some(self.worktree_entries().as_path()) {
            return Ok(entry);
        }
        Err(WorktreeError::folder(&link, io::Error::other("it leads out of the repository")))
    }

    /// Returns the folder in which git keeps the worktrees.
    pub(super) fn worktree_entries(&self) -> PathBuf {
        self.common.join("worktrees")
    }

    /// Returns the files that differ between two commits.
    pub(super) async fn list_changes(
        &self,
        runner: &GitRunner,
        from: &str,
        to: &str,
    ) -> Result<Vec<TaskFileChange>, GitError> {
        let output =
            runner.output(self.command(["diff-tree", "-r", "-z", "--no-renames", "--numstat", from, to])).await?;
        let lines = output.split(|byte| *byte == NUL).filter(|line| !line.is_empty());
        Ok(lines.filter_map(read_numbers).collect())
    }

    /// Merges what `task` has changed since `base` with the user's files, and writes nothing to them. `index` then
    /// describes the user's files.
    pub(super) async fn try_merge(
        &self,
        runner: &GitRunner,
        (base, task): (&str, &str),
        index: &Path,
        hidden: &HiddenPaths,
    ) -> Result<MergeOutcome, WorktreeError> {
        let before = self.user_tree(runner, index, hidden).await?;
        let ours = self.commit(runner, &before, Some(base), "Files before a merge of Skein\n").await?;
        let merge = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", &ours, task];
        let output = runner.run(self.command(merge)).await?;
        let mut fields = output.stdout.split(|byte| *byte == NUL).map(String::from_utf8_lossy);
        let after = fields.next().unwrap_or_default().into_owned();
        match output.code {
            Some(0) => {
                let blocked = self.find_obstacles(runner, &before, &after).await?;
                let outcome = MergeOutcome::Clean { before, after };
                Ok(if blocked.is_empty() { outcome } else { MergeOutcome::Conflict(blocked) })
            }
            Some(1) => {
                let names: BTreeSet<String> =
                    fields.map(|name| name.into_owned()).filter(|name| !name.is_empty()).collect();
                Ok(MergeOutcome::Conflict(names.into_iter().collect()))
            }
            _ => Err(output.failure("merge-tree").into()),
        }
    }

    /// Returns new files of a merge at whose place the user has a file that the snapshot leaves out, such as an ignored
    /// one. Git would overwrite it.
    async fn find_obstacles(&self, runner: &GitRunner, before: &str, after: &str) -> Result<Vec<String>, GitError> {
        let list = ["diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=A", before, after];
        let output = runner.output(self.command(list)).await?;
        let names = output.split(|byte| *byte == NUL).filter(|name| !name.is_empty());
        let replaced: BTreeSet<Vec<u8>> = self.list_removals(runner, before, after).await?;
        let is_taken = |path: &Path| {
            let is_left_out = |path: &Path| !replaced.contains(path.as_os_str().as_bytes());
            let exists = |path: &Path| self.top.join(path).symlink_metadata();
            let folders = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            let mut files_above = folders.filter(|above| exists(above).is_ok_and(|data| !data.is_dir()));
            (exists(path).is_ok() && is_left_out(path)) || files_above.any(is_left_out)
        };
        let taken = names.map(|name| Path::new(OsStr::from_bytes(name))).filter(|path| is_taken(path));
        Ok(taken.map(|path| path.display().to_string()).collect())
    }

    /// Returns the files that a merge removes.
    async fn list_removals(
        &self,
        runner: &GitRunner,
        before: &str,
        after: &str,
    ) -> Result<BTreeSet<Vec<u8>>, GitError> {
        let list = ["diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=D", before, after];
        let output = runner.output(self.command(list)).await?;
        Ok(output.split(|byte| *byte == NUL).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Writes a merge to the user's files. `index` must describe them. Fails and writes nothing if one has changed since.
    pub(super) async fn apply(
        &self,
        runner: &GitRunner,
        index: &Path,
        before: &str,
        after: &str,
    ) -> Result<(), GitError> {
        let update = self.command(["read-tree", "-m", "-u", before, after]);
        runner.output(update.with_files(&self.top, index)).await.map(drop)
    }

    fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> GitCommand {
        GitCommand::new(&self.top, args).with_variable("GIT_DIR", &self.git).with_settings(&self.settings)
    }
}

/// Copies an index with its time, by which git sees files that may have changed unnoticed. Removes the copy if there is
/// no index yet.
pub(super) async fn copy_index(from: &Path, to: &Path) -> io::Result<()> {
    let data = match tokio::fs::metadata(from).await {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match tokio::fs::remove_file(to).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        Err(error) => return Err(error),
    };
    tokio::fs::copy(from, to).await?;
    std::fs::File::options().write(true).open(to)?.set_modified(data.modified()?)
}

/// Reads `ADDED<tab>REMOVED<tab>PATH`. A binary file has `-` instead of numbers.
fn read_numbers(line: &[u8]) -> Option<TaskFileChange> {
    let mut fields = line.splitn(3, |byte| *byte == b'\t');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
    let (added, removed) = (number(), number());
    let path = PathBuf::from(OsStr::from_bytes(fields.next()?));
    Some(TaskFileChange { path, lines: added.zip(removed) })
}
