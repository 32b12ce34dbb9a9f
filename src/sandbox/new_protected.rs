//! Finds protected paths that a command has created, and changes of files that agents and CI follow.
//!
//! A sandbox cannot cover a path that does not exist, so Skein compares the roots after each command with those at the
//! start of the sandbox. It looks at the roots themselves and at git folders one level below, because a deeper search
//! would cost more than most commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::paths::{PROTECTED, ProtectedPath, find_protected, same_name};
use super::protected_git::{is_harmless_entry, is_harmless_folder, program_parts};

/// Folders of one root that are searched for a git folder.
const MAX_FOLDERS: usize = 256;
const GIT: &str = ".git";
const INSTRUCTIONS: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
const WORKFLOWS: &str = ".github/workflows";

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
            if is_git_folder(&folder) { snapshot.add_git(folder) } else { snapshot.add_root(&folder) }
        }
        snapshot
    }

    fn add_root(&mut self, root: &Path) {
        let mut folders = 0;
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let path = entry.path();
            let Some(name) = name.to_str() else { continue };
            if same_name(GIT, name) {
                self.add_git(path);
            } else if PROTECTED.iter().any(|(listed, _)| same_name(listed, name)) {
                self.paths.insert(path);
            } else if folders < MAX_FOLDERS && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders += 1;
                let git = path.join(GIT);
                if git.symlink_metadata().is_ok() {
                    self.add_git(git);
                }
            }
        }
    }

    fn add_git(&mut self, path: PathBuf) {
        self.paths.extend(program_parts(&path));
        self.paths.insert(path);
    }

    /// Returns the paths that are new since this snapshot and need consent, each with its reason. A new git folder needs
    /// none if git runs nothing because of it, as after `git clone`.
    pub fn find_created(&self, later: &Self) -> Vec<(PathBuf, ProtectedPath)> {
        let mut created: Vec<&PathBuf> = Vec::new();
        for path in later.paths.difference(&self.paths) {
            // What a new folder contains belongs to it.
            if !created.iter().any(|known| path.starts_with(known)) {
                created.push(path);
            }
        }
        created.retain(|path| !later.is_harmless(path));
        created.into_iter().filter_map(|path| Some((path.clone(), describe(path, &later.folders)?))).collect()
    }

    /// Adds a path that needs no consent any more, with all its contents.
    pub fn accept(&mut self, path: &Path) {
        self.paths.extend(program_parts(path));
        self.paths.insert(path.to_owned());
    }

    fn is_harmless(&self, path: &Path) -> bool {
        if is_git_name(path) && path.is_dir() && !path.is_symlink() {
            return is_harmless_folder(path);
        }
        is_harmless_entry(path, &self.folders)
    }
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
        changed.filter_map(|path| describe(path, &later.roots)).collect()
    }
}

fn is_git_name(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| same_name(GIT, name))
}

fn is_git_folder(folder: &Path) -> bool {
    is_git_name(folder) || (folder.join("HEAD").is_file() && folder.join("objects").is_dir())
}

fn describe(path: &Path, folders: &[PathBuf]) -> Option<ProtectedPath> {
    let root = folders.iter().find(|folder| path.starts_with(folder))?;
    let (name, reason) = find_protected(path, Some(root))?;
    let base = if is_git_folder(root) { root.parent().unwrap_or(root) } else { root };
    let shown = path.strip_prefix(base).unwrap_or(path).display().to_string();
    Some(ProtectedPath { shown, name, reason })
}

/// Moves a path into a new folder below `quarantine`. Returns its new place. Follows no links.
pub fn quarantine(path: &Path, quarantine: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(quarantine)?;
    let folder = (1..).map(|number| quarantine.join(format!("{}-{number}", std::process::id())));
    let folder = folder
        .map(|folder| fs::create_dir(&folder).map(|()| folder))
        .find(|created| !created.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists))
        .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
    let target = folder.join(name);
    match fs::rename(path, &target) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy(path, &target)?;
            remove(path)?;
        }
        result => result?,
    }
    Ok(target)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let kind = from.symlink_metadata()?.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    if kind.is_file() {
        return fs::copy(from, to).map(drop);
    }
    if !kind.is_dir() {
        // Sockets and pipes have no content.
        return Ok(());
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
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
        assert_eq!(clone("hook", HARMLESS, "pre-commit"), ["hook/.git"]);
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
            assert_eq!(clone(&folder, &config, "a.sample"), [format!("{folder}/.git")], "{line}");
        }
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
            project.write("forged/.git", "gitdir: /tmp/elsewhere\n");
            project.write(".git/commondir", "/tmp/elsewhere\n");
        });
        assert_eq!(created, [".git/commondir", "forged/.git"]);
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

    #[test]
    fn quarantine_keeps_the_content() {
        let project = Project::new();
        project.write(".vscode/tasks.json", "kept");
        let folder = tempfile::tempdir().unwrap();
        let first = quarantine(&project.root().join(".vscode"), folder.path()).unwrap();
        assert_eq!(fs::read_to_string(first.join("tasks.json")).unwrap(), "kept");
        assert!(!project.root().join(".vscode").exists());
        project.write(".vscode/tasks.json", "again");
        let second = quarantine(&project.root().join(".vscode"), folder.path()).unwrap();
        assert_ne!(first, second);
        let copied = folder.path().join("copy");
        std::os::unix::fs::symlink("/etc", second.join("link")).unwrap();
        copy(&second, &copied).unwrap();
        assert_eq!(fs::read_link(copied.join("link")).unwrap(), Path::new("/etc"));
    }
}
