//! Decides whether a git folder makes git run programs: its hooks, its config, and where its files point.

use std::fs;
use std::path::{Path, PathBuf};

use super::paths::{INNER_GIT, OF_GIT, same_name};

/// Larger configs are not harmless.
const MAX_CONFIG_BYTES: u64 = 256 << 10;
/// Git folders inside a git folder that are searched.
const MAX_INNER: usize = 256;

/// Keys of a git config that name no program and no other config, as `section.key` in lower case. The name between
/// section and key is left out.
const HARMLESS_KEYS: [&str; 41] = [
    "core.repositoryformatversion",
    "core.filemode",
    "core.bare",
    "core.logallrefupdates",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.symlinks",
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "core.sharedrepository",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    // The files of a submodule; hooks and filters are in its config, which is checked.
    "core.worktree",
    "extensions.objectformat",
    "extensions.refstorage",
    "extensions.partialclone",
    "extensions.worktreeconfig",
    "remote.url",
    "remote.pushurl",
    "remote.fetch",
    "remote.push",
    "remote.tagopt",
    "remote.mirror",
    "remote.prune",
    "remote.promisor",
    "remote.partialclonefilter",
    "remote.pushdefault",
    "branch.remote",
    "branch.pushremote",
    "branch.merge",
    "branch.rebase",
    "branch.autosetuprebase",
    "submodule.url",
    "submodule.active",
    "submodule.recurse",
    "user.name",
    "user.email",
    "init.defaultbranch",
    "pull.rebase",
    "push.default",
];

/// Returns the parts of a git folder that make git run programs, also of submodules and worktrees. Empty if `git` is
/// not a folder.
pub(super) fn program_parts(git: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![git.to_owned()];
    let mut visited = 0;
    while let Some(folder) = pending.pop() {
        visited += 1;
        if visited > MAX_INNER {
            break;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if OF_GIT.iter().any(|listed| same_name(listed, name)) {
                found.push(entry.path());
            } else if INNER_GIT.iter().any(|listed| same_name(listed, name)) {
                pending.extend(inner_folders(&entry.path()));
            }
        }
    }
    found
}

/// Returns the git folders in `modules` or `worktrees`. Names of submodules may contain `/`.
fn inner_folders(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop().filter(|_| found.len() < MAX_INNER) {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()) {
            if path.join("HEAD").is_file() { found.push(path) } else { pending.push(path) }
        }
    }
    found
}

/// Returns whether git runs no program because of this new git folder.
pub(super) fn is_harmless_folder(git: &Path) -> bool {
    program_parts(git).iter().all(|part| is_harmless_entry(part, &[]))
}

/// Returns whether git runs no program because of this new part of a git folder, or new `.git` file. A file may point
/// into the git folders of the roots.
pub(super) fn is_harmless_entry(path: &Path, roots: &[PathBuf]) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    if path.is_symlink() {
        return false;
    }
    match name.to_ascii_lowercase().as_str() {
        "hooks" => fs::read_dir(path).is_ok_and(|entries| {
            entries.flatten().all(|entry| entry.path().extension().is_some_and(|extension| extension == "sample"))
        }),
        "config" | "config.worktree" => {
            let is_small = path.metadata().is_ok_and(|data| data.is_file() && data.len() <= MAX_CONFIG_BYTES);
            is_small && fs::read_to_string(path).is_ok_and(|text| is_harmless_config(&text))
        }
        "commondir" => leads_to(path, "").is_some_and(|common| path.starts_with(common)),
        ".git" => leads_to(path, "gitdir:")
            .is_some_and(|folder| roots.iter().any(|root| folder.starts_with(root.join(".git")))),
        _ => false,
    }
}

/// Returns the folder that a file of git names after `label`.
fn leads_to(path: &Path, label: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(path).ok()?;
    let named = text.strip_prefix(label)?.trim();
    path.parent()?.join(named).canonicalize().ok()
}

/// Returns whether a git config has only keys that name no program. A line that is not understood may name one.
fn is_harmless_config(text: &str) -> bool {
    let mut section = String::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        // A value that continues on the next line would hide a key.
        if line.ends_with('\\') {
            return false;
        }
        if let Some(header) = line.strip_prefix('[') {
            let Some((name, rest)) = header.split_once(']') else { return false };
            if !rest.trim().is_empty() {
                return false;
            }
            section = name.split([' ', '"', '.']).next().unwrap_or_default().to_ascii_lowercase();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let key = format!("{section}.{}", key.trim().to_ascii_lowercase());
        // `ext::` names a program, and other helpers may.
        let names_helper = key.ends_with("url") && value.contains("::");
        if names_helper || !HARMLESS_KEYS.contains(&key.as_str()) {
            return false;
        }
    }
    true
}
