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
use super::git::{GitCommand, GitError, GitRunner, NUL, names_of_changes};
use super::programs::settings_without_programs;
use crate::sandbox::HiddenPaths;

/// Maximum number of files that differ from the last commit.
const MAX_FILES: usize = 20_000;
/// Maximum size of these files together.
const MAX_BYTES: u64 = 512 << 20;
/// The mode of a submodule in an index.
const SUBMODULE: &[u8] = b"160000 ";

/// A repository and the folder with its files.
#[derive(Debug, Clone)]
pub struct Repository {
    top: PathBuf,
    git: PathBuf,
    common: PathBuf,
    /// The git folder must contain nothing that leads out of it.
    must_be_plain: bool,
}

/// The files of a folder as git records them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedTree {
    pub(super) tree: String,
    /// Files of a task that are not in the tree: those that a filter converts, and repositories.
    pub(super) left_out: Vec<String>,
}

/// What a merge of a task into the user's files would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MergeOutcome {
    /// Trees of the files before and after the merge.
    Clean {
        before: String,
        after: String,
        /// The files that the merge changes.
        files: Vec<PathBuf>,
    },
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
        Ok(Self { top, git, common, must_be_plain: false })
    }

    /// Returns the folder with the user's files.
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// Returns the git folder. That of a linked worktree is a part of [`Repository::common`].
    pub fn git(&self) -> &Path {
        &self.git
    }

    /// Returns the folder of the objects, the branches and the config.
    pub fn common(&self) -> &Path {
        &self.common
    }

    /// Requires, now and before each command, that nothing in the git folder leads out of it. Fails if a part does.
    pub fn require_plain(&mut self) -> Result<(), WorktreeError> {
        self.must_be_plain = true;
        self.check_plain()
    }

    pub(super) fn must_be_plain(&self) -> bool {
        self.must_be_plain
    }

    fn check_plain(&self) -> Result<(), WorktreeError> {
        let leads_out = |path: PathBuf| {
            let reason = "it leads out of the git folder, which a token with folders does not allow";
            Err(WorktreeError::folder(&path, io::Error::other(reason)))
        };
        let alternates = self.common.join("objects/info/alternates");
        if alternates.symlink_metadata().is_ok() {
            return leads_out(alternates);
        }
        let folders = ["", "objects", "refs", "refs/heads", "refs/heads/skein", "worktrees"];
        for folder in folders.map(|name| self.common.join(name)).into_iter().chain([self.git.clone()]) {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let link = entries.map(|entry| entry.path()).find(|path| path.is_symlink());
            if let Some(link) = link {
                return leads_out(link);
            }
        }
        Ok(())
    }

    /// Fails if the repository is not in the same folders any more.
    fn check_place(&self) -> Result<(), WorktreeError> {
        for folder in [&self.git, &self.common] {
            if folder.canonicalize().ok().as_ref() != Some(folder) {
                return Err(WorktreeError::folder(folder, io::Error::other("it leads to another folder now")));
            }
        }
        if self.must_be_plain { self.check_plain() } else { Ok(()) }
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
        Ok(self.record_tree(runner, &self.top, index, Some(hidden)).await?.tree)
    }

    /// Adds the files in `folder` to `index`, and returns their tree. Leaves out ignored files, files with a filter and
    /// `hidden` ones. Without `hidden` these are the files of a task.
    pub(super) async fn record_tree(
        &self,
        runner: &GitRunner,
        folder: &Path,
        index: &Path,
        hidden: Option<&HiddenPaths>,
    ) -> Result<RecordedTree, WorktreeError> {
        let place = (folder, index);
        let changes = ["--modified", "--deleted", "--others", "--exclude-standard"];
        let output = self.list_files(runner, place, &changes).await?;
        let too_much = |_| WorktreeError::TooMuch { folder: folder.to_owned() };
        let listed = names_of_changes(&output, "ls-files").map_err(too_much)?;
        let filtered = self.find_filtered(runner, place, &listed).await?;
        let (mut changed, mut left_out, mut bytes) = (BTreeSet::new(), BTreeSet::new(), 0);
        for name in listed {
            let path = folder.join(OsStr::from_bytes(name));
            // A name with a slash at its end is a repository inside this one.
            let has_git = || !path.is_symlink() && path.join(".git").symlink_metadata().is_ok();
            let is_repository = name.ends_with(b"/") || (hidden.is_none() && has_git());
            if is_repository || filtered.contains(name) {
                left_out.insert(name.to_vec());
                continue;
            }
            if hidden.is_some_and(|hidden| hidden.covering(&path).is_some()) || !changed.insert(name) {
                continue;
            }
            bytes += path.symlink_metadata().map_or(0, |data| if data.is_dir() { 0 } else { data.len() });
            if changed.len() > MAX_FILES || bytes > MAX_BYTES {
                return Err(WorktreeError::TooMuch { folder: folder.to_owned() });
            }
        }
        if hidden.is_none() {
            left_out.extend(self.list_submodules(runner, place).await?);
        }
        let input: Vec<u8> = changed.into_iter().flat_map(|name| name.iter().copied().chain([NUL])).collect();
        if !input.is_empty() {
            let add = ["update-index", "-z", "--add", "--remove", "--replace", "--stdin"];
            let add = self.safe_command(runner, &add).await?;
            runner.output(add.with_files(folder, index).with_input(input)).await?;
        }
        let tree = runner.id(self.safe_command(runner, &["write-tree"]).await?.with_files(folder, index)).await?;
        let left_out = left_out.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        Ok(RecordedTree { tree, left_out })
    }

    /// Returns what `git ls-files` prints for these options.
    async fn list_files(
        &self,
        runner: &GitRunner,
        (folder, index): (&Path, &Path),
        options: &[&str],
    ) -> Result<Vec<u8>, WorktreeError> {
        let list = self.safe_command(runner, &[&["ls-files", "-z"][..], options].concat()).await?;
        Ok(runner.output(list.with_files(folder, index)).await?)
    }

    /// Returns the submodules that are not empty. A list of changes does not have them.
    async fn list_submodules(&self, runner: &GitRunner, place: (&Path, &Path)) -> Result<Vec<Vec<u8>>, WorktreeError> {
        let mut submodules = Vec::new();
        // MODE<space>ID<space>STAGE<tab>PATH
        let output = self.list_files(runner, place, &["--stage"]).await?;
        for line in output.split(|byte| *byte == NUL) {
            let start = line.iter().position(|byte| *byte == b'\t').map_or(line.len(), |end| end + 1);
            let folder = place.0.join(OsStr::from_bytes(&line[start..]));
            let has_files = || std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
            if line.starts_with(SUBMODULE) && has_files() {
                submodules.push(line[start..].to_vec());
            }
        }
        Ok(submodules)
    }

    /// Returns those of the names that an attribute gives a filter. What a filter would store may be secret.
    async fn find_filtered(
        &self,
        runner: &GitRunner,
        (folder, index): (&Path, &Path),
        names: &[impl AsRef<[u8]>],
    ) -> Result<BTreeSet<Vec<u8>>, GitError> {
        if names.is_empty() {
            return Ok(BTreeSet::new());
        }
        let input: Vec<u8> = names.iter().flat_map(|name| name.as_ref().iter().copied().chain([NUL])).collect();
        let check = self.command(["check-attr", "-z", "--stdin", "filter"]);
        let output = runner.output(check.with_files(folder, index).with_input(input)).await?;
        let fields: Vec<&[u8]> = output.split(|byte| *byte == NUL).collect();
        // PATH, `filter`, VALUE
        let found = fields.chunks_exact(3).filter(|field| field[2] != b"unspecified" && field[2] != b"unset");
        Ok(found.map(|field| field[0].to_vec()).collect())
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
    ) -> Result<(), WorktreeError> {
        let name = format!("refs/heads/{branch}");
        // No id: the branch must not exist.
        let change = ["update-ref", "-m", "Skein: task", &name, to, from.unwrap_or_default()];
        runner.output(self.safe_command(runner, &change).await?).await?;
        Ok(())
    }

    /// Deletes a branch if it is still at `commit`.
    pub(super) async fn delete_branch(
        &self,
        runner: &GitRunner,
        branch: &str,
        commit: &str,
    ) -> Result<(), WorktreeError> {
        let name = format!("refs/heads/{branch}");
        let delete = ["update-ref", "-d", &name, commit];
        runner.output(self.safe_command(runner, &delete).await?).await?;
        Ok(())
    }

    /// Checks a commit out in a new folder. Returns the folder of the worktree inside the repository.
    pub(super) async fn add_worktree(
        &self,
        runner: &GitRunner,
        folder: &Path,
        commit: &str,
    ) -> Result<PathBuf, WorktreeError> {
        let add = ["worktree", "add", "--no-checkout", "--detach"].map(OsStr::new);
        let add = [&add[..], &[folder.as_os_str(), OsStr::new(commit)]].concat();
        runner.output(self.safe_command(runner, &add).await?).await?;
        let link = folder.join(".git");
        let text = tokio::fs::read(&link).await.map_err(|error| WorktreeError::folder(&link, error))?;
        let named = text.strip_prefix(b"gitdir: ").map(|path| path.trim_ascii_end()).unwrap_or_default();
        let entry = folder.join(OsStr::from_bytes(named));
        let entry = entry.canonicalize().map_err(|error| WorktreeError::folder(&entry, error))?;
        if entry.parent() != Some(self.worktree_entries().as_path()) {
            return Err(WorktreeError::folder(&link, io::Error::other("it leads out of the repository")));
        }
        // The settings of a worktree can differ from those of the repository.
        let place = Self { top: folder.to_owned(), git: entry, ..self.clone() };
        let check_out = place.safe_command(runner, &["reset", "--quiet", "--hard"]).await?;
        runner.output(check_out.with_variable("GIT_WORK_TREE", folder)).await?;
        Ok(place.git)
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
        let compare =
            ["diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--numstat", from, to];
        let output = runner.output(self.command(compare)).await?;
        Ok(names_of_changes(&output, "diff-tree")?.into_iter().filter_map(read_numbers).collect())
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
        let output = runner.run(self.safe_command(runner, &merge).await?).await?;
        let fields = names_of_changes(&output.stdout, "merge-tree")?;
        let mut fields = fields.into_iter().map(String::from_utf8_lossy);
        let after = fields.next().unwrap_or_default().into_owned();
        match output.code {
            Some(0) => {
                let mut blocked = self.find_obstacles(runner, &before, &after).await?;
                // Not the names that the task has changed: a merge also follows what the user has renamed.
                let names = self.list_names(runner, "ACDMRT", &before, &after).await?;
                let names: Vec<Vec<u8>> = names.into_iter().collect();
                let filtered = self.find_filtered(runner, (&self.top, index), &names).await?;
                blocked.extend(filtered.iter().map(|name| String::from_utf8_lossy(name).into_owned()));
                if !blocked.is_empty() {
                    return Ok(MergeOutcome::Conflict(blocked));
                }
                let files = names.into_iter().map(|name| PathBuf::from(OsString::from_vec(name))).collect();
                Ok(MergeOutcome::Clean { before, after, files })
            }
            Some(1) => {
                let names: BTreeSet<String> = fields.map(|name| name.into_owned()).collect();
                Ok(MergeOutcome::Conflict(names.into_iter().collect()))
            }
            _ => Err(output.failure("merge-tree").into()),
        }
    }

    /// Returns new files of a merge at whose place the user has a file that the snapshot leaves out, such as an ignored
    /// one. Git would overwrite it.
    async fn find_obstacles(&self, runner: &GitRunner, before: &str, after: &str) -> Result<Vec<String>, GitError> {
        let names = self.list_names(runner, "A", before, after).await?;
        let replaced = self.list_names(runner, "D", before, after).await?;
        let is_taken = |path: &Path| {
            let is_left_out = |path: &Path| !replaced.contains(path.as_os_str().as_bytes());
            let exists = |path: &Path| self.top.join(path).symlink_metadata();
            let folders = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            let mut files_above = folders.filter(|above| exists(above).is_ok_and(|data| !data.is_dir()));
            (exists(path).is_ok() && is_left_out(path)) || files_above.any(is_left_out)
        };
        let taken = names.iter().map(|name| Path::new(OsStr::from_bytes(name))).filter(|path| is_taken(path));
        Ok(taken.map(|path| path.display().to_string()).collect())
    }

    /// Returns the files that a merge changes in one of these ways, such as `A` for those that it adds.
    async fn list_names(
        &self,
        runner: &GitRunner,
        ways: &str,
        before: &str,
        after: &str,
    ) -> Result<BTreeSet<Vec<u8>>, GitError> {
        let filter = format!("--diff-filter={ways}");
        let list = ["diff-tree", "-r", "-z", "--no-renames", "--name-only", &filter, before, after];
        let output = runner.output(self.command(list)).await?;
        Ok(names_of_changes(&output, "diff-tree")?.into_iter().map(<[u8]>::to_vec).collect())
    }

    /// Writes a merge to the user's files. `index` must describe them. Fails and writes nothing if one has changed since.
    pub(super) async fn apply(
        &self,
        runner: &GitRunner,
        index: &Path,
        before: &str,
        after: &str,
    ) -> Result<(), WorktreeError> {
        let update = self.safe_command(runner, &["read-tree", "-m", "-u", before, after]).await?;
        runner.output(update.with_files(&self.top, index)).await?;
        Ok(())
    }

    /// Returns a command that runs no program that a config names: they are listed again each time, because a config can
    /// change during a task. Fails if the repository is not safe to use.
    async fn safe_command(&self, runner: &GitRunner, args: &[impl AsRef<OsStr>]) -> Result<GitCommand, WorktreeError> {
        self.check_place()?;
        let configs = [self.common.join("config"), self.git.join("config.worktree")];
        let settings = settings_without_programs(runner, |list| self.command(list), configs).await?;
        Ok(self.command(args).with_settings(&settings))
    }

    /// Returns a command that is for reading only. Others need [`Repository::safe_command`].
    fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> GitCommand {
        let command = GitCommand::new(&self.top, args).with_variable("GIT_DIR", &self.git);
        command.with_variable("GIT_COMMON_DIR", &self.common)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worktree::git::tests::fake_git;

    #[tokio::test]
    async fn a_list_of_too_many_changed_files_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_owned();
        let repository = Repository { top: place.clone(), git: place.clone(), common: place, must_be_plain: false };
        for (count, is_listed) in [(100_000, true), (100_001, false)] {
            let script = format!("yes '1\t1\tname' | head -n {count} | tr '\\n' '\\0'");
            let runner = fake_git(folder.path(), &script);
            let listed = repository.list_changes(&runner, "from", "to").await;
            match listed {
                Ok(files) => assert!(is_listed && files.len() == count, "{}", files.len()),
                Err(error) => assert!(!is_listed && matches!(error, GitError::TooMuch { .. }), "{error}"),
            }
        }
    }
}
