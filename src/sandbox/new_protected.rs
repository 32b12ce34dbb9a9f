//! Finds protected paths that a command has created, and changes of files that agents and CI follow.
//!
//! A sandbox cannot cover a path that does not exist, so Skein compares the roots after each command with those at the
//! start of the sandbox. It looks at the roots themselves, at git folders one level below and at all submodules, which
//! git enters by itself. A deeper search would cost more than most commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::git_index::find_submodules;
use super::git_resume::OPTIONS_OF_AM;
use super::paths::{
    MAKES_GIT_FOLDER, OF_GIT, PROTECTED, ProtectedPath, RUNS_PROGRAMS_OF_GIT, find_protected, is_below, same_name,
};
use super::protected_git::{COMMON, GitCheck, GitProblem, HEAD, WORK_TREE, is_git_folder, program_parts};

const GIT: &str = ".git";
const INSTRUCTIONS: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
const WORKFLOWS: &str = ".github/workflows";
const WRITES_ELSEWHERE: &str = "git writes the files of the repository to the folder that it names";
const WRITES_NAMED_FILE: &str = "`git am` writes a file that it names";

/// The protected paths near some folders at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedSnapshot {
    folders: Vec<PathBuf>,
    paths: BTreeSet<PathBuf>,
}

impl ProtectedSnapshot {
    /// Lists the protected paths near these folders. A folder may be a git folder itself.
    pub fn take(folders: &[PathBuf]) -> Self {
        let folders: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        let mut snapshot = Self { folders: folders.clone(), ..Self::default() };
        for folder in folders {
            snapshot.add_root(&folder);
        }
        snapshot
    }

    fn add_root(&mut self, root: &Path) {
        self.add_bare(root);
        let mut has_git = false;
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if same_name(GIT, &name) {
                has_git = true;
                self.add_work_tree(root, path);
            } else if PROTECTED.iter().any(|(listed, _)| same_name(listed, &name)) {
                self.paths.insert(path);
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add_bare(&path);
                let git = path.join(GIT);
                if git.symlink_metadata().is_ok() {
                    self.add_work_tree(&path, git);
                }
            }
        }
        if !has_git {
            self.add_submodules_around(root);
        }
    }

    /// Adds a folder that is a git folder itself. Without its `HEAD`, git would take it for any other folder.
    fn add_bare(&mut self, folder: &Path) {
        if is_git_folder(folder) {
            self.paths.insert(folder.join(HEAD));
            self.paths.extend(program_parts(folder));
        }
    }

    /// Adds the git folder of a work tree, and those of its submodules at any depth.
    fn add_work_tree(&mut self, folder: &Path, git: PathBuf) {
        self.add_git(git);
        find_submodules(folder).into_iter().for_each(|git| self.add_git(git));
    }

    /// Adds the submodules in the watched folders that belong to a work tree around `folder`.
    fn add_submodules_around(&mut self, folder: &Path) {
        let has_git = |above: &&Path| above.join(GIT).symlink_metadata().is_ok();
        let Some(work_tree) = folder.ancestors().skip(1).find(has_git) else { return };
        let found = find_submodules(work_tree);
        let watched: Vec<PathBuf> = found.into_iter().filter(|git| is_below(git, &self.folders)).collect();
        watched.into_iter().for_each(|git| self.add_git(git));
    }

    fn add_git(&mut self, path: PathBuf) {
        self.paths.extend(program_parts(&path));
        self.paths.insert(path);
    }

    /// Returns the paths that are new since this snapshot and need consent, each with its reason. A new git folder
    /// needs none if git runs nothing because of it, as after `git clone`. Otherwise its parts need it.
    pub fn find_created(&self, later: &Self) -> Vec<(PathBuf, ProtectedPath)> {
        let mut created: Vec<&PathBuf> = Vec::new();
        for path in later.paths.difference(&self.paths) {
            // What a new folder contains belongs to it.
            let is_part = |known: &&PathBuf| path.starts_with(known) || (is_head(known) && is_part_of_git(path, known));
            if !created.iter().any(is_part) {
                created.push(path);
            }
        }
        let context = GitCheck { roots: &later.folders, known: &self.paths };
        let mut problems: Vec<GitProblem> =
            created.into_iter().flat_map(|path| find_problems(path, &context)).collect();
        problems.sort_by(|one, other| one.path.cmp(&other.path));
        // Several `.git` files may lead to the same folder.
        problems.dedup_by(|later, earlier| later.path.starts_with(&earlier.path));
        let with_reason = |GitProblem { path, key }| {
            let protected = describe(&path, &later.folders, key.as_deref());
            (path, protected)
        };
        problems.into_iter().map(with_reason).collect()
    }

    /// Adds a path that needs no consent any more, with all its contents.
    pub fn accept(&mut self, path: &Path) {
        self.paths.extend(program_parts(if is_head(path) { path.parent().unwrap_or(path) } else { path }));
        self.paths.insert(path.to_owned());
    }

    /// Removes the paths that a later snapshot does not have.
    pub(super) fn forget_missing(&mut self, later: &Self) {
        self.paths.retain(|path| later.paths.contains(path));
    }
}

/// Returns what needs consent because of a new path: its parts, or the path itself.
fn find_problems(path: &Path, context: &GitCheck<'_>) -> Vec<GitProblem> {
    if let Some(git) = path.parent().filter(|_| is_head(path)) {
        // The parts may be files of the user, which the new `HEAD` gave another meaning.
        let is_harmless = context.find_in_folder(git).is_empty();
        return if is_harmless { Vec::new() } else { vec![GitProblem::of(path)] };
    }
    if !is_git_name(path) || !path.is_dir() || path.is_symlink() {
        return context.find_in_entry(path);
    }
    let problems = context.find_in_folder(path);
    // Without `commondir`, the folder would be another repository.
    let is_elsewhere = problems.iter().any(|problem| is_common(&problem.path) && problem.path.parent() == Some(path));
    if is_elsewhere { vec![GitProblem::of(path)] } else { problems }
}

/// Versions of the files that agents and CI follow. The shell may write them, because people ask for it, but its result
/// reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstructionStamps {
    roots: Vec<PathBuf>,
    stamps: BTreeMap<PathBuf, FileStamp>,
}

/// Distinguishes two versions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl InstructionStamps {
    /// Reads the versions of `AGENTS.md`, `CLAUDE.md` and the workflows in these roots.
    pub fn take(roots: &[PathBuf]) -> Self {
        let roots: Vec<PathBuf> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
        let mut stamps = BTreeMap::new();
        for root in &roots {
            let workflows = fs::read_dir(root.join(WORKFLOWS)).into_iter().flatten().flatten();
            let named = INSTRUCTIONS.iter().map(|name| root.join(name));
            for path in named.chain(workflows.map(|entry| entry.path())) {
                let Ok(data) = path.symlink_metadata() else { continue };
                let modified = (data.mtime(), data.mtime_nsec());
                stamps.insert(path, FileStamp { inode: data.ino(), size: data.size(), modified });
            }
        }
        Self { roots, stamps }
    }

    /// Returns the files that were created, changed or removed since then.
    pub fn changes_until(&self, later: &Self) -> Vec<ProtectedPath> {
        let all: BTreeSet<&PathBuf> = self.stamps.keys().chain(later.stamps.keys()).collect();
        let changed = all.into_iter().filter(|path| self.stamps.get(*path) != later.stamps.get(*path));
        changed.map(|path| describe(path, &later.roots, None)).collect()
    }
}

pub(super) fn is_git_name(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| same_name(GIT, name))
}

pub(super) fn is_head(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == HEAD)
}

fn is_common(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| same_name(COMMON, name))
}

/// Returns whether the path is a part of the git folder that has this `HEAD`.
fn is_part_of_git(path: &Path, head: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.parent() == head.parent() && OF_GIT.iter().any(|listed| same_name(listed, name))
}

fn describe(path: &Path, folders: &[PathBuf], key: Option<&str>) -> ProtectedPath {
    let root = folders.iter().find(|folder| path.starts_with(folder));
    // The name of a git folder can be any.
    let reason = if is_head(path) { MAKES_GIT_FOLDER } else { RUNS_PROGRAMS_OF_GIT };
    let (name, reason) = find_protected(path, root.map(PathBuf::as_path)).unwrap_or((GIT, reason));
    let reason = match key {
        Some(WORK_TREE) => format!("{WRITES_ELSEWHERE} (`{WORK_TREE}`)").into(),
        Some(key) => format!("{reason} (`{key}`)").into(),
        None if path.file_name().is_some_and(|name| name == OPTIONS_OF_AM) => WRITES_NAMED_FILE.into(),
        None => reason.into(),
    };
    let base = root.map(|root| if is_git_folder(root) { root.parent().unwrap_or(root) } else { root });
    let shown = base.and_then(|base| path.strip_prefix(base).ok()).unwrap_or(path).display().to_string();
    ProtectedPath { shown, name, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Project(tempfile::TempDir);

    impl Project {
        fn new() -> Self {
            let project = Self(tempfile::tempdir().unwrap());
            project.write(".git/HEAD", "ref: refs/heads/main\n");
            project.write(".git/config", "[core]\n\tbare = false\n");
            project.write("AGENTS.md", "one");
            fs::create_dir_all(project.root().join(".git/objects")).unwrap();
            project
        }

        fn root(&self) -> PathBuf {
            self.0.path().canonicalize().unwrap()
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Returns what a change creates that needs consent, and what it changes that is reported.
        fn after(&self, change: impl FnOnce(&Self)) -> (Vec<String>, Vec<String>) {
            let roots = [self.root()];
            let (before, stamps) = (ProtectedSnapshot::take(&roots), InstructionStamps::take(&roots));
            change(self);
            let created = before.find_created(&ProtectedSnapshot::take(&roots));
            let changed = stamps.changes_until(&InstructionStamps::take(&roots));
            let created = created.into_iter().map(|(_, path)| path.shown).collect();
            (created, changed.into_iter().map(|path| path.shown).collect())
        }
    }

    const HARMLESS: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n[remote \"origin\"]\n\turl = \
                            https://example.com/a.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \
                            \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n";

    fn clone_into(project: &Project, folder: &str, config: &str, hook: &str) {
        project.write(&format!("{folder}/.git/HEAD"), "ref: refs/heads/main\n");
        fs::create_dir_all(project.root().join(folder).join(".git/objects")).unwrap();
        project.write(&format!("{folder}/.git/config"), config);
        project.write(&format!("{folder}/.git/hooks/{hook}"), "#!/bin/sh\n");
    }

    #[test]
    fn new_settings_need_consent() {
        let project = Project::new();
        let (created, changed) = project.after(|project| {
            project.write(".vscode/tasks.json", "{}");
            project.write(".envrc", "");
            project.write("src/main.rs", "");
            project.write(".git/hooks/pre-commit", "");
        });
        assert_eq!(created, [".envrc", ".git/hooks", ".vscode"]);
        assert_eq!(changed, [""; 0]);
        assert_eq!(project.after(|_| {}).0, [""; 0], "what exists is not new");
    }

    #[test]
    fn a_new_git_folder_passes_if_it_runs_nothing() {
        let project = Project::new();
        let clone = |folder: &str, config: &str, hook: &str| {
            project.after(|project| clone_into(project, folder, config, hook)).0
        };
        assert_eq!(clone("harmless", HARMLESS, "pre-commit.sample"), [""; 0]);
        assert_eq!(clone("hook", HARMLESS, "pre-commit"), ["hook/.git/hooks"]);
        for (at, line) in [
            "[core]\n\tfsmonitor = ./run\n",
            "[core]\n\tsshCommand = ./run\n",
            "[core]\n\thooksPath = x\n",
            "[include]\n\tpath = x\n",
            "[remote \"a\"]\n\turl = ext::./run\n",
            "[filter \"a\"]\n\tclean = ./run\n",
            "[alias]\n\tst = !./run\n",
            "[submodule \"a\"]\n\tupdate = !./run\n",
            "[core]\n\tbare = \"a\\\n\tfsmonitor = x\n",
            "not a config",
        ]
        .iter()
        .enumerate()
        {
            let folder = format!("bad{at}");
            let config = format!("{HARMLESS}{line}");
            assert_eq!(clone(&folder, &config, "a.sample"), [format!("{folder}/.git/config")], "{line}");
        }
    }

    #[test]
    fn a_rebase_needs_consent_if_it_runs_programs() {
        let project = Project::new();
        let todo = ".git/rebase-merge/git-rebase-todo";
        assert_eq!(project.after(|project| project.write(todo, "pick 1234567 x\n")).0, [""; 0]);
        let with_program = |project: &Project| project.write(todo, "pick 1234567 x\nexec ./run\n");
        assert_eq!(project.after(with_program).0, [todo], "also in a rebase that was there before");
        assert_eq!(project.after(with_program).0, [""; 0]);
        project.write(".git/worktrees/w/HEAD", "ref: refs/heads/w\n");
        project.write(".git/worktrees/w/commondir", "../..\n");
        let options = ".git/worktrees/w/rebase-apply/apply-opt";
        let roots = [project.root()];
        let before = ProtectedSnapshot::take(&roots);
        project.write(options, " '--build-fake-ancestor=/x'\n");
        let created = before.find_created(&ProtectedSnapshot::take(&roots));
        let reasons: Vec<_> = created.iter().map(|(_, path)| (path.shown.as_str(), path.reason.as_ref())).collect();
        assert_eq!(reasons, [(options, WRITES_NAMED_FILE)]);
    }

    #[test]
    fn worktrees_and_submodules_of_the_project_pass() {
        let project = Project::new();
        let (created, _) = project.after(|project| {
            project.write(".git/worktrees/w/commondir", "../..\n");
            project.write(".git/worktrees/w/HEAD", "ref: refs/heads/w\n");
            let folder = project.root().join(".git/worktrees/w").display().to_string();
            project.write("w/.git", &format!("gitdir: {folder}\n"));
            project.write(".git/modules/sub/HEAD", "ref: refs/heads/main\n");
            project.write(".git/modules/sub/objects/x", "");
            project.write(".git/modules/sub/config", "[core]\n\tworktree = ../../../sub\n");
            project.write("sub/.git", "gitdir: ../.git/modules/sub\n");
        });
        assert_eq!(created, [""; 0]);
        let (created, _) = project.after(|project| {
            clone_into(project, "clone", HARMLESS, "a.sample");
            project.write("clone/.git/modules/inner/HEAD", "ref: refs/heads/main\n");
            project.write("clone/.git/modules/inner/objects/x", "");
            project.write("clone/.git/modules/inner/config", "[core]\n\tworktree = ../../../inner\n");
            project.write("clone/inner/.git", "gitdir: ../.git/modules/inner\n");
            let git = GitCheck { roots: &[project.root()], known: &BTreeSet::new() };
            let found = git.find_in_entry(&project.root().join("clone/inner/.git"));
            assert_eq!(found, [], "as after a recursive clone");
        });
        assert_eq!(created, [""; 0]);
        let (created, _) = project.after(|project| {
            project.write("forged/.git", "gitdir: /tmp/elsewhere\n");
            project.write(".git/commondir", "/tmp/elsewhere\n");
        });
        assert_eq!(created, [".git/commondir", "forged/.git"]);
    }

    #[test]
    fn a_git_file_must_lead_to_a_protected_folder() {
        let project = Project::new();
        let (created, _) = project.after(|project| {
            project.write(".git/x/HEAD", "ref: refs/heads/main\n");
            project.write(".git/x/objects/x", "");
            project.write(".git/x/config", HARMLESS);
            project.write("other/.git", "gitdir: ../.git/x\n");
            project.write(".git/modules/evil/HEAD", "ref: refs/heads/main\n");
            project.write(".git/modules/evil/objects/x", "");
            project.write(".git/modules/evil/config", "[core]\n\tfsmonitor = ./run\n");
            project.write("sub/.git", "gitdir: ../.git/modules/evil\n");
        });
        assert_eq!(created, [".git/modules/evil/config", "other/.git"]);
    }

    #[test]
    fn a_config_is_reported_with_its_key() {
        let project = Project::new();
        let roots = [project.root()];
        let mut before = ProtectedSnapshot::take(&roots);
        clone_into(&project, "a", &format!("{HARMLESS}[core]\n\tfsmonitor = ./run\n"), "pre-commit");
        clone_into(&project, "b", "[core]\n\tworktree = /tmp\n", "a.sample");
        let reasons = |before: &ProtectedSnapshot| {
            let created = before.find_created(&ProtectedSnapshot::take(&roots));
            created.into_iter().map(|(_, path)| path.to_string()).collect::<Vec<_>>()
        };
        let hooks = "`a/.git/hooks` is a protected path: git runs programs that it names";
        let [first, second, third] = &reasons(&before)[..] else { panic!("{:?}", reasons(&before)) };
        let config = "`a/.git/config` is a protected path: git runs programs that it names (`core.fsmonitor`)";
        assert_eq!([first, second], [config, hooks]);
        assert!(third.ends_with("the folder that it names (`core.worktree`)"), "{third}");
        before.accept(&project.root().join("a/.git/config"));
        assert_eq!(reasons(&before), [hooks, third]);
    }

    #[test]
    fn a_worktree_of_a_bare_repository_passes() {
        let project = Project(tempfile::tempdir().unwrap());
        project.write(".bare/HEAD", "ref: refs/heads/main\n");
        project.write(".bare/objects/x", "");
        project.write(".bare/config", "[core]\n\tfsmonitor = ./mine\n");
        project.write(".git", "gitdir: ./.bare\n");
        let (created, _) = project.after(|project| {
            project.write(".bare/worktrees/w/HEAD", "ref: refs/heads/w\n");
            project.write(".bare/worktrees/w/commondir", "../..\n");
            let folder = project.root().join(".bare/worktrees/w").display().to_string();
            project.write("w/.git", &format!("gitdir: {folder}\n"));
        });
        assert_eq!(created, [""; 0]);
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_git_folder() {
        use std::os::unix::ffi::OsStrExt as _;
        let project = Project::new();
        let (created, _) = project.after(|project| {
            clone_into(project, "clone", HARMLESS, "pre-commit");
            let name = std::ffi::OsStr::from_bytes(b"clone\xff");
            fs::rename(project.root().join("clone"), project.root().join(name)).unwrap();
        });
        assert_eq!(created, ["clone\u{fffd}/.git/hooks"]);
    }

    #[test]
    fn decoys_do_not_hide_a_git_folder() {
        let project = Project::new();
        let (created, _) = project.after(|project| {
            for number in 0..600 {
                fs::create_dir(project.root().join(format!("folder{number}"))).unwrap();
            }
            clone_into(project, "folder599", HARMLESS, "pre-commit");
            clone_into(project, "folder0", HARMLESS, "pre-commit");
        });
        assert_eq!(created, ["folder0/.git/hooks", "folder599/.git/hooks"]);
        let (created, _) = project.after(|project| {
            for number in 0..5_000 {
                fs::create_dir_all(project.root().join(format!(".git/modules/{number}"))).unwrap();
            }
        });
        assert_eq!(created, [".git/modules"], "too many to search");
    }

    #[test]
    fn a_folder_that_becomes_a_git_folder_needs_consent() {
        let root = tempfile::tempdir().unwrap();
        let project = Project(root);
        project.write("config/routes.rb", "");
        let make = |project: &Project, folder: &str, config: &str| {
            fs::create_dir_all(project.root().join(folder).join("objects")).unwrap();
            std::os::unix::fs::symlink("refs/heads/main", project.root().join(folder).join("HEAD")).unwrap();
            project.write(&format!("{folder}/config.worktree"), config);
        };
        let (created, _) = project.after(|project| make(project, "harmless", HARMLESS));
        assert_eq!(created, [""; 0], "as after `git clone --bare`");
        let (created, _) = project.after(|project| {
            make(project, "evil", "[core]\n\tfsmonitor = ./run\n");
            make(project, "", "[core]\n\tfsmonitor = ./run\n");
            project.write(".vscode/tasks.json", "{}");
        });
        let name = project.root().file_name().unwrap().display().to_string();
        let expected = [".vscode", "HEAD", "evil/HEAD"].map(|path| format!("{name}/{path}"));
        assert_eq!(created, expected, "the folder `config` stays");
    }

    #[test]
    fn a_pipe_in_a_git_folder_does_not_stop_the_check() {
        let project = Project::new();
        let (created, _) = project.after(|project| {
            clone_into(project, "clone", HARMLESS, "a.sample");
            fs::create_dir(project.root().join("file")).unwrap();
            for path in ["clone/.git/commondir", "clone/.git/index", "file/.git"] {
                let path = project.root().join(path);
                crate::test_fifo::make_fifo(&path);
            }
        });
        assert_eq!(created, ["clone/.git", "file/.git"]);
    }

    #[test]
    fn a_bare_repository_keeps_its_config() {
        let folder = tempfile::tempdir().unwrap();
        let project = Project(folder);
        project.write(".bare/HEAD", "ref: refs/heads/main\n");
        project.write(".bare/objects/x", "");
        let roots = [project.root().join(".bare")];
        let before = ProtectedSnapshot::take(&roots);
        project.write(".bare/commondir", "../evil\n");
        fs::create_dir(project.root().join("evil")).unwrap();
        let created = before.find_created(&ProtectedSnapshot::take(&roots));
        assert_eq!(created.iter().map(|(_, path)| path.shown.as_str()).collect::<Vec<_>>(), [".bare/commondir"]);
    }

    #[test]
    fn changes_of_instructions_are_reported() {
        let project = Project::new();
        let (created, changed) = project.after(|project| {
            project.write("AGENTS.md", "two, longer");
            project.write(".github/workflows/ci.yml", "");
        });
        assert_eq!((created, changed), (Vec::new(), vec![".github/workflows/ci.yml".into(), "AGENTS.md".into()]));
        let (_, changed) = project.after(|project| fs::remove_file(project.root().join("AGENTS.md")).unwrap());
        assert_eq!(changed, ["AGENTS.md"]);
    }
}
