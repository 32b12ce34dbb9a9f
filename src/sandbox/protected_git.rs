//! Decides whether a git folder makes git run programs: its hooks, its config, and where its files point.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::git_resume::find_resumed;
use super::git_text::{GIT_FILE_LABEL, displayable_key, leads_to, parse_config, read_small};
use super::paths::{INNER_GIT, OF_GIT, is_below, same_name};

/// Folders in `modules` and `worktrees` that are searched. If there are more, `modules` itself is not harmless.
const MAX_INNER: usize = 4096;
const GIT: &str = ".git";
/// The file of a worktree that names the git folder with its config and hooks.
pub(super) const COMMON: &str = "commondir";
/// Git takes a folder for a git folder only if it has this.
pub(super) const HEAD: &str = "HEAD";

/// Sections of a git config whose keys only choose hints and colors.
const HARMLESS_SECTIONS: [&str; 2] = ["advice", "color"];

/// Keys of a git config, by section, that name no program, no other config and no place to write. In lower case; the
/// name between section and key is left out. `core.worktree` passes only if it names the work tree of its git folder.
const HARMLESS_KEYS: [(&str, &str); 28] = [
    (
        "core",
        "abbrev autocrlf bare bigfilethreshold checkstat commentchar commitgraph compression eol filemode \
         ignorecase ignorestat logallrefupdates loosecompression multipackindex precomposeunicode \
         preloadindex quotepath repositoryformatversion safecrlf sharedrepository sparsecheckout \
         sparsecheckoutcone splitindex symlinks trustctime untrackedcache warnambiguousrefs whitespace \
         worktree",
    ),
    ("extensions", "objectformat partialclone preciousobjects refstorage relativeworktrees worktreeconfig"),
    (
        "remote",
        "fetch followremotehead gh-resolved mirror partialclonefilter promisor prune prunetags push \
         pushdefault pushurl skipdefaultupdate skipfetchall tagopt url",
    ),
    (
        "branch",
        "autosetupmerge autosetuprebase description gh-merge-base github-pr-owner-number merge pushremote \
         rebase remote sort vscode-merge-base",
    ),
    (
        "submodule",
        "active alternateerrorstrategy alternatelocation branch fetchjobs fetchrecursesubmodules ignore \
         recurse shallow url",
    ),
    ("user", "email name useconfigonly"),
    ("init", "defaultbranch"),
    ("pull", "ff rebase"),
    ("push", "autosetupremote default followtags gpgsign negotiate recursesubmodules useforceifincludes"),
    ("fetch", "all fsckobjects output parallel prune prunetags recursesubmodules showforcedupdates writecommitgraph"),
    ("commit", "cleanup gpgsign status verbose"),
    ("tag", "gpgsign sort"),
    ("merge", "autostash branchdesc conflictstyle directoryrenames ff log renamelimit renames stat"),
    ("rebase", "autosquash autostash forkpoint missingcommitscheck rebasemerges stat updaterefs"),
    ("rerere", "autoupdate enabled"),
    (
        "gc",
        "aggressivedepth aggressivewindow auto autodetach autopacklimit bigpackthreshold cruftpacks logexpiry \
         packrefs pruneexpire reflogexpire reflogexpireunreachable worktreepruneexpire writecommitgraph",
    ),
    ("maintenance", "auto strategy"),
    ("index", "recordendofindexentries recordoffsettable skiphash sparse threads version"),
    (
        "status",
        "aheadbehind branch displaycommentprefix relativepaths renamelimit renames short showstash \
         showuntrackedfiles submodulesummary",
    ),
    ("log", "abbrevcommit date decorate diffmerges follow showroot"),
    (
        "diff",
        "algorithm autorefreshindex colormoved colormovedws context ignoresubmodules indentheuristic \
         interhunkcontext mnemonicprefix noprefix relative renamelimit renames submodule wserrorhighlight",
    ),
    ("blame", "ignorerevsfile"),
    ("checkout", "defaultremote guess workers"),
    ("worktree", "guessremote userelativepaths"),
    ("feature", "experimental manyfiles"),
    ("protocol", "version"),
    ("http", "postbuffer"),
    ("lfs", "access repositoryformatversion"),
];
/// The key that names the work tree.
pub(super) const WORK_TREE: &str = "core.worktree";

/// Returns whether git takes this folder for a git folder. `HEAD` may be a link that leads nowhere.
pub(super) fn is_git_folder(folder: &Path) -> bool {
    folder.join(HEAD).symlink_metadata().is_ok()
        && (folder.join("objects").is_dir() || folder.join(COMMON).symlink_metadata().is_ok())
}

/// Returns the parts of a git folder that make git run programs, also of submodules and worktrees. Empty if `git` is
/// not a folder.
pub(super) fn program_parts(git: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![git.to_owned()];
    let mut searched = 0;
    while let Some(folder) = pending.pop() {
        found.extend(list_named(&folder, &OF_GIT));
        found.extend(find_resumed(&folder));
        for inner in list_named(&folder, &INNER_GIT) {
            // Git follows a link, but the search does not.
            match inner_folders(&inner, &mut searched).filter(|_| !inner.is_symlink()) {
                Some(inner) => pending.extend(inner.git),
                None => found.push(inner),
            }
        }
    }
    found
}

/// Returns the entries of a folder that have one of these names.
pub(super) fn list_named(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_listed = |name: &str| names.iter().any(|listed| same_name(listed, name));
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_listed)).map(|entry| entry.path()).collect()
}

/// The folders in `modules` or `worktrees` of a git folder.
#[derive(Debug, Default)]
pub(super) struct InnerFolders {
    pub(super) git: Vec<PathBuf>,
    /// The folders that are no git folders, and those in them. Names of submodules may contain `/`.
    pub(super) other: Vec<PathBuf>,
}

/// Returns the folders in `modules` or `worktrees`, except those in a git folder. `None` if there are too many.
pub(super) fn inner_folders(folder: &Path, searched: &mut usize) -> Option<InnerFolders> {
    let mut found = InnerFolders::default();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()) {
            *searched += 1;
            if *searched > MAX_INNER {
                return None;
            }
            if is_git_folder(&path) {
                found.git.push(path);
            } else {
                found.other.push(path.clone());
                pending.push(path);
            }
        }
    }
    Some(found)
}

/// What the judgement of a new path depends on.
pub(super) struct GitCheck<'a> {
    /// The folders that commands may write, and git folders among them.
    pub(super) roots: &'a [PathBuf],
    /// Paths that were there before, or that the user accepted.
    pub(super) known: &'a BTreeSet<PathBuf>,
}

/// A path because of which git runs programs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitProblem {
    pub(super) path: PathBuf,
    /// The key of a config that is not harmless.
    pub(super) key: Option<String>,
}

impl GitProblem {
    pub(super) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), key: None }
    }
}

impl GitCheck<'_> {
    /// Returns the new parts of a git folder because of which git runs programs.
    pub(super) fn find_in_folder(&self, git: &Path) -> Vec<GitProblem> {
        self.find_in_parts(&program_parts(git))
    }

    fn find_in_parts(&self, parts: &[PathBuf]) -> Vec<GitProblem> {
        parts.iter().filter(|part| !self.known.contains(*part)).flat_map(|part| self.find_in_entry(part)).collect()
    }

    /// Returns this new part of a git folder, or new `.git` file, if git runs programs because of it. A file may lead to
    /// a submodule or worktree of the roots, whose parts are returned instead.
    pub(super) fn find_in_entry(&self, path: &Path) -> Vec<GitProblem> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        if path.is_symlink() {
            return vec![GitProblem::of(path)];
        }
        let replaced = match name.as_str() {
            "hooks" => has_only_samples(path).then(Vec::new),
            "config" | "config.worktree" => match check_config(path) {
                Ok(()) => Some(Vec::new()),
                Err(key) => Some(vec![GitProblem { path: path.to_owned(), key }]),
            },
            COMMON => common_folder(path).map(|common| self.find_in_parts(&list_named(&common, &OF_GIT))),
            GIT => leads_to(path, GIT_FILE_LABEL)
                .filter(|folder| self.is_inner_folder(folder, path))
                .map(|folder| self.find_in_folder(&folder))
                .filter(|problems| problems.iter().all(|problem| is_below(&problem.path, self.roots))),
            _ => None,
        };
        replaced.unwrap_or_else(|| vec![GitProblem::of(path)])
    }

    /// Returns whether a sandbox protects the parts of this git folder, which a `.git` file names: it is in `modules`
    /// or `worktrees` of a root, or of a work tree around the file.
    fn is_inner_folder(&self, folder: &Path, file: &Path) -> bool {
        let around = file.ancestors().skip(2).filter(|above| is_below(above, self.roots));
        let work_trees = self.roots.iter().map(PathBuf::as_path).chain(around);
        let mut gits = self.roots.iter().cloned().chain(work_trees.filter_map(|folder| self.git_of(folder)));
        gits.any(|git| {
            is_git_folder(&git)
                && INNER_GIT.iter().any(|inner| folder.parent().is_some_and(|above| above.starts_with(git.join(inner))))
        })
    }

    /// Returns the git folder of a work tree. Follows a `.git` file that was there before.
    fn git_of(&self, work_tree: &Path) -> Option<PathBuf> {
        let git = work_tree.join(GIT);
        if git.is_file() && self.known.contains(&git) { leads_to(&git, GIT_FILE_LABEL) } else { Some(git) }
    }
}

/// Returns whether no hook in this folder is active.
fn has_only_samples(hooks: &Path) -> bool {
    let is_sample = |path: PathBuf| path.extension().is_some_and(|extension| extension == "sample");
    fs::read_dir(hooks).is_ok_and(|entries| entries.flatten().all(|entry| is_sample(entry.path())))
}

/// Returns the git folder that this `commondir` shares, if it is the one around `worktrees`. Any other would bring its
/// own config and hooks.
fn common_folder(path: &Path) -> Option<PathBuf> {
    let worktrees = path.ancestors().nth(2)?;
    let git = worktrees.parent()?.canonicalize().ok()?;
    let is_worktree = worktrees.file_name().is_some_and(|name| name == "worktrees");
    (is_worktree && is_git_folder(&git) && leads_to(path, "")? == git).then_some(git)
}

/// Fails if a git config may name a program, with its key if that is known.
fn check_config(path: &Path) -> Result<(), Option<String>> {
    let text = read_small(path).ok_or(None)?;
    for (key, value) in parse_config(&text)? {
        let (section, name) = key.split_once('.').unwrap_or_default();
        let is_listed = HARMLESS_SECTIONS.contains(&section)
            || HARMLESS_KEYS
                .iter()
                .any(|(listed, names)| *listed == section && names.split(' ').any(|listed| listed == name));
        // `ext::` names a program, and other helpers may. The name of a remote can also be an address.
        let is_harmless = is_listed && !value.contains("::") && (key != WORK_TREE || is_own_work_tree(path, value));
        if !is_harmless {
            return Err(displayable_key(key));
        }
    }
    Ok(())
}

/// Returns whether the `core.worktree` of a config is the folder whose `.git` is or names the folder of the config.
/// Elsewhere, git would overwrite files outside of the project.
fn is_own_work_tree(config: &Path, value: &str) -> bool {
    // Git ends a value at a comment, and some versions change tabs.
    if value.contains(['#', ';', '\t']) {
        return false;
    }
    let find = || {
        let git = config.parent()?.canonicalize().ok()?;
        let entry = git.join(value).canonicalize().ok()?.join(GIT);
        let owner = if entry.is_dir() { entry.canonicalize().ok() } else { leads_to(&entry, GIT_FILE_LABEL) };
        Some(owner? == git)
    };
    find().unwrap_or(false)
}

#[cfg(test)]
#[path = "protected_git_tests.rs"]
mod tests;
