//! Makes protected paths read-only, and every folder above them a mount point, which cannot be renamed.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use super::{BaseAccess, PlannedMount, git_config, path_mount};
use crate::sandbox::git_index::find_submodules;
use crate::sandbox::git_resume::find_resumed;
use crate::sandbox::paths::{INNER_GIT, OF_GIT, PROTECTED, same_name};
use crate::sandbox::plan::MountSource;
use crate::sandbox::protected_git::is_git_folder;

/// Folders deeper than this below a root are not searched for protected paths.
const MAX_DEPTH: usize = 4;
/// Folders of one root that are searched.
const MAX_FOLDERS: usize = 4096;
/// Folders with packages or build results, which contain many settings of other projects.
const SKIPPED: [&str; 6] = ["node_modules", "target", "vendor", ".venv", "venv", "__pycache__"];
/// Large folders of a git folder, without settings.
const DATA_OF_GIT: [&str; 3] = ["objects", "refs", "logs"];
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
    let found: Vec<PathBuf> = folders.iter().flat_map(|root| find(root)).collect();
    let targets: Vec<PathBuf> = found.iter().filter_map(|path| link_target(path, folders)).collect();
    for path in found.into_iter().chain(targets) {
        let is_inside = |folder: &&Path| folders.iter().any(|root| folder.starts_with(root) && *folder != root);
        for above in path.ancestors().skip(1).take_while(is_inside) {
            mounts.entry(above.to_owned()).or_insert(BaseAccess::Writable);
        }
        mounts.insert(path, BaseAccess::ReadOnly);
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

/// Returns where a protected path that is a link leads, if that is writable otherwise. `None` if it leads to a whole
/// root.
fn link_target(path: &Path, folders: &[PathBuf]) -> Option<PathBuf> {
    let target = path.is_symlink().then(|| path.canonicalize().ok()).flatten()?;
    let is_inside = folders.iter().any(|root| target.starts_with(root));
    (is_inside && !folders.iter().any(|root| root.starts_with(&target))).then_some(target)
}

fn find(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Near folders come first, because the number of folders is limited.
    let mut pending = VecDeque::from([(root.to_owned(), 0)]);
    let mut visited = 0;
    while let Some((folder, depth)) = pending.pop_front() {
        visited += 1;
        if visited > MAX_FOLDERS {
            break;
        }
        let is_git = is_git_folder(&folder);
        if is_git {
            parts_of_git(&folder, &mut found);
        }
        for path in super::list(&folder) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let is_folder = path.is_dir() && !path.is_symlink();
            if same_name(GIT, name) {
                for git in find_submodules(&folder).into_iter().chain([path]) {
                    if git.is_dir() && !git.is_symlink() {
                        parts_of_git(&git, &mut found);
                    } else {
                        found.push(git);
                    }
                }
            } else if PROTECTED.iter().any(|(listed, _)| same_name(listed, name)) {
                found.push(path);
            } else if is_folder
                && depth < MAX_DEPTH
                && !SKIPPED.contains(&name)
                && !(is_git && DATA_OF_GIT.contains(&name))
            {
                pending.push_back((path, depth + 1));
            }
        }
    }
    found
}

/// Adds the parts of a git folder that name programs, also of submodules and worktrees.
fn parts_of_git(folder: &Path, found: &mut Vec<PathBuf>) {
    found.extend(find_resumed(folder));
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

    #[test]
    fn a_protected_link_protects_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in [".git/objects", "tools/hooks", "conf", "bare.git/objects", "bare.git/hooks"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in [".git/HEAD", "bare.git/HEAD", "bare.git/config"] {
            std::fs::write(root.join(path), "").unwrap();
        }
        for (link, target) in
            [(".git/hooks", "../tools/hooks"), (".claude", "conf"), (".vscode", "/usr/share"), (".zed", ".")]
        {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let mounts = mounts(std::slice::from_ref(&root));
        let read_only = mounts.iter().filter(|mount| {
            let path = mount.target.as_path();
            **mount == path_mount(path, BaseAccess::ReadOnly) && !path.is_symlink()
        });
        let shown: Vec<String> =
            read_only.map(|mount| mount.target.as_path().strip_prefix(&root).unwrap().display().to_string()).collect();
        assert_eq!(shown, ["bare.git/config", "bare.git/hooks", "conf", "tools/hooks"]);
    }
}
