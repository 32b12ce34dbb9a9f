//! Finds hooks, configs and other parts of git folders that git does not use yet: their folder is no git folder.
//!
//! A command in a sandbox can leave them there: they need no consent. A later command may make their folder a git
//! folder, and the user's consent to that command must not cover them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::git_text::{GIT_FILE_LABEL, leads_to};
use super::new_protected::{is_git_name, is_head};
use super::paths::{INNER_GIT, OF_GIT, RESUMED_BY_GIT, is_below};
use super::protected_git::{InnerFolders, inner_folders, is_git_folder, list_named};

const GIT: &str = ".git";

/// The parts near some folders that git would use if a command made the folder around them a git folder.
#[derive(Debug)]
pub(super) struct InactiveParts {
    folders: Vec<PathBuf>,
    paths: Vec<PathBuf>,
}

impl InactiveParts {
    /// Finds the parts in these folders, in those one level below, and in their git folders.
    pub(super) fn find(folders: &[PathBuf]) -> Self {
        let folders: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        let mut parts = Self { folders: folders.clone(), paths: Vec::new() };
        for root in folders {
            parts.add(&root);
            for folder in subfolders(&root) {
                parts.add(&folder);
                list_named(&folder, &[GIT]).iter().for_each(|git| parts.add(git));
            }
        }
        parts
    }

    /// Adds the parts of a folder that is no git folder, or those in `modules` and `worktrees` of a git folder.
    fn add(&mut self, folder: &Path) {
        let names = [&OF_GIT[..], &RESUMED_BY_GIT[..], &INNER_GIT[..]].concat();
        let mut pending = vec![folder.to_owned()];
        let mut searched = 0;
        while let Some(folder) = pending.pop() {
            if !is_git_folder(&folder) {
                self.paths.extend(list_named(&folder, &names));
                continue;
            }
            for inner in list_named(&folder, &INNER_GIT) {
                match inner_folders(&inner, &mut searched).filter(|_| !inner.is_symlink()) {
                    Some(InnerFolders { git, other }) => pending.extend(git.into_iter().chain(other)),
                    None => self.paths.push(inner),
                }
            }
        }
    }

    /// Returns whether git, because of this new path, may use something that was there before.
    pub(super) fn may_be_used_by(&self, created: &Path) -> bool {
        if is_git_name(created) && (created.is_symlink() || !created.is_dir()) {
            // The git folder that it names can be where `find` did not look.
            return leads_to(created, GIT_FILE_LABEL).is_none_or(|git| is_below(&git, &self.folders));
        }
        let place = if is_head(created) { created.parent().unwrap_or(created) } else { created };
        self.is_far(created) || self.active().any(|part| part.starts_with(place) || place.starts_with(part))
    }

    /// Returns the parts that git uses now.
    fn active(&self) -> impl Iterator<Item = &PathBuf> {
        self.paths.iter().filter(|part| part.parent().is_some_and(is_git_folder))
    }

    /// Returns whether a path is in a git folder where `find` did not look, such as that of a submodule.
    fn is_far(&self, path: &Path) -> bool {
        let is_near = |folder: &PathBuf| {
            let below = path.strip_prefix(folder).ok();
            below.is_some_and(|below| below.iter().position(is_git).is_none_or(|depth| depth < 2))
        };
        !self.folders.iter().any(is_near)
    }
}

fn is_git(name: &OsStr) -> bool {
    is_git_name(Path::new(name))
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
