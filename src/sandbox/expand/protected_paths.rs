//! Makes protected paths read-only, and every folder above them a mount point, which cannot be renamed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{BaseAccess, PlannedMount, git_config, path_mount};
use crate::sandbox::paths::{INNER_GIT, OF_GIT, PROTECTED, same_name};
use crate::sandbox::plan::MountSource;

/// Folders deeper than this below a root are not searched for protected paths.
const MAX_DEPTH: usize = 4;
/// Folders of one root that are searched.
const MAX_FOLDERS: usize = 4096;
/// Folders with packages or build results, which contain many settings of other projects.
const SKIPPED: [&str; 6] = ["node_modules", "target", "vendor", ".venv", "venv", "__pycache__"];
const GIT: &str = ".git";

/// Returns the protected paths below these folders that exist, sorted. Compare two results to find new ones.
pub fn protected_paths(roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = roots.iter().flat_map(|root| find(root)).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Returns mounts for all protected paths below these folders that exist.
pub(super) fn mounts(folders: &[PathBuf]) -> Vec<PlannedMount> {
    let mut mounts: BTreeMap<PathBuf, BaseAccess> = BTreeMap::new();
    for root in folders {
        for path in find(root) {
            for above in path.ancestors().skip(1).take_while(|above| *above != root) {
                mounts.entry(above.to_owned()).or_insert(BaseAccess::Writable);
            }
            mounts.insert(path, BaseAccess::ReadOnly);
        }
    }
    // Folders come before their contents.
    mounts.into_iter().map(|(path, access)| protection(&path, access, folders)).collect()
}

/// Returns the mount of a protected path or of a folder above one. A git config may be shown as a copy.
fn protection(path: &Path, access: BaseAccess, folders: &[PathBuf]) -> PlannedMount {
    let copy = match access {
        BaseAccess::ReadOnly => git_config::config_inside(path, folders),
        BaseAccess::Writable => None,
    };
    match copy {
        Some(text) => PlannedMount { target: path.into(), source: MountSource::Text(text) },
        None => path_mount(path, access),
    }
}

fn find(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if is_git_folder(root) {
        parts_of_git(root, &mut found);
        return found;
    }
    let mut pending = vec![(root.to_owned(), 0)];
    let mut visited = 0;
    while let Some((folder, depth)) = pending.pop() {
        visited += 1;
        if visited > MAX_FOLDERS {
            break;
        }
        for path in super::list(&folder) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let is_folder = path.is_dir() && !path.is_symlink();
            if same_name(GIT, name) {
                if is_folder {
                    parts_of_git(&path, &mut found);
                } else {
                    found.push(path);
                }
            } else if PROTECTED.iter().any(|(listed, _)| same_name(listed, name)) {
                found.push(path);
            } else if is_folder && depth < MAX_DEPTH && !SKIPPED.contains(&name) {
                pending.push((path, depth + 1));
            }
        }
    }
    found
}

fn is_git_folder(folder: &Path) -> bool {
    folder.join("HEAD").is_file() && (folder.join("objects").is_dir() || folder.join("commondir").is_file())
}

/// Adds the parts of a git folder that name programs, also of submodules and worktrees.
fn parts_of_git(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in super::list(folder) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if OF_GIT.iter().any(|listed| same_name(listed, name)) {
            found.push(path);
        } else if INNER_GIT.iter().any(|listed| same_name(listed, name)) {
            inner_git_folders(&path, found);
        }
    }
}

/// Names of submodules may contain `/`.
fn inner_git_folders(folder: &Path, found: &mut Vec<PathBuf>) {
    for inner in super::list(folder).into_iter().filter(|path| path.is_dir() && !path.is_symlink()) {
        if is_git_folder(&inner) {
            parts_of_git(&inner, found);
        } else {
            inner_git_folders(&inner, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_above_protected_paths_are_mount_points() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in [".git/objects", ".git/hooks", "vendored/lib/.git/objects", "node_modules/x/.vscode", "src/.vscode"]
        {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in [".git/HEAD", ".git/config", "vendored/lib/.git/HEAD", "vendored/lib/.git/config"] {
            std::fs::write(root.join(path), "").unwrap();
        }
        let mounts = mounts(std::slice::from_ref(&root));
        let shown: Vec<String> = mounts
            .iter()
            .map(|mount| {
                let path = mount.target.as_path().strip_prefix(&root).unwrap().display().to_string();
                let is_writable = *mount == path_mount(mount.target.as_path(), BaseAccess::Writable);
                if is_writable { format!("{path} (writable)") } else { path }
            })
            .collect();
        assert_eq!(
            shown,
            [
                ".git (writable)",
                ".git/config",
                ".git/hooks",
                "src (writable)",
                "src/.vscode",
                "vendored (writable)",
                "vendored/lib (writable)",
                "vendored/lib/.git (writable)",
                "vendored/lib/.git/config",
            ]
        );
        assert_eq!(protected_paths(&[root]).len(), 4);
    }
}
