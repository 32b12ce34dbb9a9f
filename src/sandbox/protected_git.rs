//! Decides whether a git folder makes git run programs: its hooks, its config, and where its files point.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::paths::{INNER_GIT, OF_GIT, same_name};

/// Larger configs are not harmless.
const MAX_CONFIG_BYTES: u64 = 256 << 10;
/// Folders in `modules` and `worktrees` that are searched. If there are more, `modules` itself is not harmless.
const MAX_INNER: usize = 4096;
const GIT: &str = ".git";
/// Git takes a folder for a git folder only if it has this.
pub(super) const HEAD: &str = "HEAD";

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

/// Returns whether git takes this folder for a git folder. `HEAD` may be a link that leads nowhere.
pub(super) fn is_git_folder(folder: &Path) -> bool {
    folder.join(HEAD).symlink_metadata().is_ok()
        && (folder.join("objects").is_dir() || folder.join("commondir").symlink_metadata().is_ok())
}

/// Returns the parts of a git folder that make git run programs, also of submodules and worktrees. Empty if `git` is
/// not a folder.
pub(super) fn program_parts(git: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![git.to_owned()];
    let mut searched = 0;
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if OF_GIT.iter().any(|listed| same_name(listed, name)) {
                found.push(entry.path());
            } else if INNER_GIT.iter().any(|listed| same_name(listed, name)) {
                match inner_folders(&entry.path(), &mut searched) {
                    Some(inner) => pending.extend(inner),
                    None => found.push(entry.path()),
                }
            }
        }
    }
    found
}

/// Returns the git folders in `modules` or `worktrees`; `None` if there are too many. Names of submodules may contain
/// `/`.
fn inner_folders(folder: &Path, searched: &mut usize) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()) {
            *searched += 1;
            if *searched > MAX_INNER {
                return None;
            }
            if is_git_folder(&path) { found.push(path) } else { pending.push(path) }
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

impl GitCheck<'_> {
    /// Returns whether git runs no program because of this git folder.
    pub(super) fn is_harmless_folder(&self, git: &Path) -> bool {
        program_parts(git).iter().all(|part| self.known.contains(part) || self.is_harmless_entry(part))
    }

    /// Returns whether git runs no program because of this new part of a git folder, or new `.git` file. Such a file may
    /// point to a submodule or worktree of the roots, whose parts are checked too.
    pub(super) fn is_harmless_entry(&self, path: &Path) -> bool {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        if path.is_symlink() {
            return false;
        }
        match name.to_ascii_lowercase().as_str() {
            "hooks" => fs::read_dir(path).is_ok_and(|entries| {
                entries.flatten().all(|entry| entry.path().extension().is_some_and(|extension| extension == "sample"))
            }),
            "config" | "config.worktree" => read_small(path).is_some_and(|text| is_harmless_config(&text)),
            "commondir" => leads_to(path, "").is_some_and(|common| path.starts_with(common)),
            ".git" => leads_to(path, "gitdir:")
                .is_some_and(|folder| self.is_inner_folder(&folder, path) && self.is_harmless_folder(&folder)),
            _ => false,
        }
    }

    /// Returns whether a sandbox protects the parts of this git folder, which a `.git` file names: it is in `modules` or
    /// `worktrees` of a root, or of a work tree around the file.
    fn is_inner_folder(&self, folder: &Path, file: &Path) -> bool {
        let around = file.ancestors().skip(2).filter(|above| self.roots.iter().any(|root| above.starts_with(root)));
        let gits = self.roots.iter().flat_map(|root| [root.join(GIT), root.clone()]);
        let gits = gits.chain(around.map(|above| above.join(GIT)));
        gits.filter(|git| is_git_folder(git)).any(|git| {
            INNER_GIT.iter().any(|inner| folder.parent().is_some_and(|above| above.starts_with(git.join(inner))))
        })
    }
}

/// Opens a regular file. Opening a pipe, which a command may have put there, would wait for its other end.
pub(super) fn open_regular(path: &Path) -> Option<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Reads a regular file. `None` if it is too large for a config.
pub(super) fn read_small(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(path)?.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MAX_CONFIG_BYTES).then_some(text)
}

/// Returns the folder that a file of git names after `label`.
pub(super) fn leads_to(path: &Path, label: &str) -> Option<PathBuf> {
    let text = read_small(path)?;
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
