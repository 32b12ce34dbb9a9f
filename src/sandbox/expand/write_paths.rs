//! Resolves the paths of a profile: `~`, relative paths, globs, ignored paths, and the git folders of the roots.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use globset::GlobBuilder;
use ignore::WalkBuilder;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::{ExpandError, SandboxContext};
use crate::ids::TASK_WORKTREE_PREFIX;
use crate::sandbox::git_text::read_small;
use crate::sandbox::paths::{find_protected, is_below};
use crate::sandbox::profile::{FileAccess, SandboxProfile, WritePath};

/// Matches of one glob.
pub(super) const MAX_MATCHES: usize = 256;
/// Folders that are searched for ignored paths.
const MAX_FOLDERS: usize = 10_000;

/// The folders and files that a sandbox may write.
#[derive(Debug, Default)]
pub(super) struct WritableFolders {
    /// Resolved; none is below another.
    pub(super) folders: Vec<PathBuf>,
    /// Those that open a hidden path, because the profile names them: the state of a program.
    pub(super) state: Vec<PathBuf>,
}

impl WritableFolders {
    pub(super) fn find(
        profile: &SandboxProfile,
        context: &SandboxContext,
        roots: &[PathBuf],
        notices: &mut Vec<String>,
    ) -> Result<Self, ExpandError> {
        let mut found = BTreeSet::new();
        if profile.files == FileAccess::Workspace {
            if roots.is_empty() && context.scratch.is_none() {
                return Err(ExpandError::NoRoot);
            }
            for root in roots {
                found.insert(root.clone());
                let is_shown = |folder: &PathBuf| context.hidden.covering(folder).is_none();
                found.extend(git_folder(root, &context.home).filter(is_shown));
            }
        }
        let mut named = BTreeSet::new();
        for entry in &profile.write {
            match entry {
                WritePath::GitIgnored => {
                    for root in roots {
                        found.extend(ignored_paths(root)?);
                    }
                }
                WritePath::Path(text) => named.extend(writable_path(text, context, roots, notices)?),
            }
        }
        found.extend(named.iter().cloned());
        if let Some(visible) = &context.visible {
            // Links inside the roots and git folders above them may lead out.
            found.retain(|path| is_below(path, visible));
        }
        let home = context.home.canonicalize().unwrap_or_else(|_| context.home.clone());
        found.retain(|path| {
            let allowed = !home.starts_with(path);
            if !allowed {
                let shown = path.display();
                notices.push(format!("`{shown}` contains your home folder, so the sandbox makes it read-only"));
            }
            allowed
        });
        let all: Vec<PathBuf> = found.iter().cloned().collect();
        let is_below_other = |path: &PathBuf| all.iter().any(|other| other != path && path.starts_with(other));
        let folders: Vec<PathBuf> = all.iter().filter(|path| !is_below_other(path)).cloned().collect();
        let is_named = |path: &&PathBuf| named.contains(*path) && is_state(path, context, roots);
        let state = folders.iter().filter(is_named).cloned().collect();
        Ok(Self { folders, state })
    }
}

/// Expands one entry of `write`. Missing paths are left out, unless the entry ends with `/`.
fn writable_path(
    text: &str,
    context: &SandboxContext,
    roots: &[PathBuf],
    notices: &mut Vec<String>,
) -> Result<Vec<PathBuf>, ExpandError> {
    let paths = if is_glob(text) {
        let matches = matches(text, context)?;
        if matches.len() > MAX_MATCHES {
            return Err(ExpandError::TooManyMatches { pattern: text.to_owned(), max: MAX_MATCHES });
        }
        matches
    } else {
        let path = absolute(text, context);
        if text.ends_with('/') && !path.exists() && !(starts_inside(text, context) && would_lead_out(&path, roots)) {
            fs::create_dir_all(&path)
                .map_err(|source| ExpandError::Create { path: path.display().to_string(), source })?;
        }
        path.canonicalize().into_iter().collect()
    };
    let mut allowed = Vec::new();
    for path in paths {
        let root = roots.iter().find(|root| path.starts_with(root));
        if starts_inside(text, context) && root.is_none() {
            notices.push(format!("`{text}` in `write` leads out of the project and stays read-only"));
        } else if let Some((name, _)) = find_protected(&path, root.map(PathBuf::as_path))
            .filter(|_| !is_root(&path, roots) && !is_state(&path, context, roots))
        {
            notices.push(format!("`{text}` in `write` contains `{name}`, which is protected and stays read-only"));
        } else {
            allowed.push(path);
        }
    }
    Ok(allowed)
}

/// Returns true if the folder to create is outside the roots, or a link above it leads out.
fn would_lead_out(path: &Path, roots: &[PathBuf]) -> bool {
    let existing = path.ancestors().find_map(|above| above.canonicalize().ok());
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    goes_up || existing.is_none_or(|above| !roots.iter().any(|root| above.starts_with(root)))
}

/// Returns true for a hidden path outside the roots. It holds the state of a program, and only a manifest or config of
/// the user can name it.
fn is_state(path: &Path, context: &SandboxContext, roots: &[PathBuf]) -> bool {
    !roots.iter().any(|root| path.starts_with(root)) && context.hidden.covering(path).is_some()
}

fn is_root(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| root == path)
}

/// Returns true if a path of a profile begins inside a root. Commands can replace such a path by a link.
fn starts_inside(text: &str, context: &SandboxContext) -> bool {
    let is_relative = !text.starts_with('/') && !text.starts_with('~');
    let path = absolute(text, context);
    let begins =
        |root: &PathBuf| path.starts_with(root) || root.canonicalize().is_ok_and(|root| path.starts_with(root));
    is_relative || context.roots.iter().any(begins)
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Resolves `~` and relative paths, without links.
fn absolute(text: &str, context: &SandboxContext) -> PathBuf {
    let text = text.trim_end_matches('/');
    match text.strip_prefix('~') {
        Some("") => context.home.clone(),
        Some(rest) if rest.starts_with('/') => context.home.join(rest.trim_start_matches('/')),
        _ => context.roots.first().map_or_else(|| PathBuf::from(text), |root| root.join(text)),
    }
}

/// Resolves a path that a profile opens. `None` if it does not exist, or if it [leads out](leads_out).
pub(super) fn resolve(text: &str, context: &SandboxContext) -> Option<PathBuf> {
    absolute(text, context).canonicalize().ok().filter(|_| !leads_out(text, context))
}

/// Returns true for a path that begins inside a root and leads out. Links of a project open nothing.
pub(super) fn leads_out(text: &str, context: &SandboxContext) -> bool {
    let is_inside =
        |path: &Path| context.roots.iter().any(|root| root.canonicalize().is_ok_and(|it| path.starts_with(it)));
    starts_inside(text, context) && absolute(text, context).canonicalize().is_ok_and(|path| !is_inside(&path))
}

/// Resolves a path or glob of a profile.
pub(super) fn resolve_glob(text: &str, context: &SandboxContext) -> Vec<PathBuf> {
    if is_glob(text) {
        matches(text, context).unwrap_or_default()
    } else {
        absolute(text, context).canonicalize().into_iter().collect()
    }
}

/// Returns the paths that match a glob, at most one more than allowed.
fn matches(pattern: &str, context: &SandboxContext) -> Result<Vec<PathBuf>, ExpandError> {
    let full = absolute(pattern, context);
    let glob = GlobBuilder::new(&full.to_string_lossy()).literal_separator(true).build();
    let matcher = glob.map_err(|source| ExpandError::Glob { pattern: pattern.to_owned(), source })?.compile_matcher();
    let has_glob = |part: &Component<'_>| part.as_os_str().to_str().is_some_and(is_glob);
    let base: PathBuf = full.components().take_while(|part| !has_glob(part)).collect();
    let depth = full.components().skip_while(|part| !has_glob(part)).count();
    let is_recursive = pattern.contains("**");
    let mut walk = WalkBuilder::new(&base);
    walk.standard_filters(false).follow_links(false).max_depth((!is_recursive).then_some(depth));
    let found = walk.build().flatten().filter(|entry| matcher.is_match(entry.path()));
    let mut paths: Vec<PathBuf> =
        found.filter_map(|entry| entry.path().canonicalize().ok()).take(MAX_MATCHES + 1).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Returns the paths below a root that git ignores. Creates the folders that `.gitignore` names literally.
fn ignored_paths(root: &Path) -> Result<Vec<PathBuf>, ExpandError> {
    let mut found = literal_folders(root)?;
    let mut pending = vec![(root.to_owned(), vec![rules(root)])];
    let mut visited = 0;
    while let Some((folder, rules_above)) = pending.pop() {
        visited += 1;
        if visited > MAX_FOLDERS || found.len() > MAX_MATCHES {
            break;
        }
        for path in super::list(&folder) {
            let is_folder = path.is_dir() && !path.is_symlink();
            if path.file_name().is_some_and(|name| name == ".git") || find_protected(&path, Some(root)).is_some() {
                continue;
            }
            // The innermost file decides.
            let decision = rules_above.iter().rev().map(|rules| rules.matched(&path, is_folder)).find(|m| !m.is_none());
            if decision.is_some_and(|decision| decision.is_ignore()) {
                found.extend(Some(path).filter(|path| !path.is_symlink()));
            } else if is_folder {
                let mut inner = rules_above.clone();
                inner.push(rules(&path));
                pending.push((path, inner));
            }
        }
    }
    found.truncate(MAX_MATCHES);
    Ok(found)
}

fn rules(folder: &Path) -> Gitignore {
    let mut builder = GitignoreBuilder::new(folder);
    // A file that cannot be read ignores nothing. Opening a pipe would wait for its other end.
    for file in [".gitignore", ".git/info/exclude"].map(|name| folder.join(name)).iter().filter(|file| file.is_file()) {
        drop(builder.add(file));
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

fn literal_folders(root: &Path) -> Result<Vec<PathBuf>, ExpandError> {
    let text = read_small(&root.join(".gitignore")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines().map(str::trim) {
        let Some(name) = line.strip_suffix('/').map(|name| name.trim_start_matches('/')) else { continue };
        let is_plain = !name.is_empty() && !is_glob(name) && !name.starts_with(['!', '#']) && !name.contains('\\');
        let path = root.join(name);
        let stays_inside = path.components().all(|part| part != Component::ParentDir);
        if !is_plain || !stays_inside || find_protected(&path, Some(root)).is_some() {
            continue;
        }
        // A link may lead out of the root.
        let leads_out = |path: &Path| path.ancestors().take_while(|part| *part != root).any(Path::is_symlink);
        if leads_out(&path) || path.is_file() {
            continue;
        }
        fs::create_dir_all(&path).map_err(|source| ExpandError::Create { path: path.display().to_string(), source })?;
        folders.push(path);
    }
    Ok(folders)
}

/// Returns the git folder that belongs to a root, if it is outside: of a worktree, a submodule, or a folder above. Of the
/// worktree of a task, only the part that belongs to it.
fn git_folder(root: &Path, home: &Path) -> Option<PathBuf> {
    let top = root.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok())?;
    if home.starts_with(top) {
        return None;
    }
    let entry = top.join(".git");
    if entry.is_symlink() {
        // It could lead to any folder, and the maker of the project made the link.
        return None;
    }
    if entry.is_dir() {
        return entry.canonicalize().ok().filter(|folder| !folder.starts_with(root));
    }
    let text = read_small(&entry)?;
    let named = text.strip_prefix("gitdir:")?.trim();
    let folder = top.join(named).canonicalize().ok()?;
    if let Some(common) = read_small(&folder.join("commondir")) {
        // A worktree: the folder must name this root, else a forged file could open any repository.
        let back = read_small(&folder.join("gitdir"))?;
        let back = folder.join(back.trim()).canonicalize().ok()?;
        let common = folder.join(common.trim()).canonicalize().ok()?;
        let is_worktree = back == entry && folder.starts_with(&common) && common.join("HEAD").is_file();
        let is_task =
            folder.file_name().is_some_and(|name| name.as_bytes().starts_with(TASK_WORKTREE_PREFIX.as_bytes()));
        return Some(if is_task { folder } else { common }).filter(|_| is_worktree);
    }
    let is_module = folder.components().any(|part| part.as_os_str() == "modules") && folder.join("HEAD").is_file();
    let super_project = folder.ancestors().find(|part| part.file_name().is_some_and(|name| name == ".git"))?;
    let contains_root = super_project.parent().is_some_and(|project| top.starts_with(project));
    Some(folder.clone()).filter(|_| is_module && contains_root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_place_of_a_file_of_git_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in [".gitignore", ".git"] {
            let pipe = root.join(name);
            crate::test_fifo::make_fifo(&pipe);
        }
        assert_eq!(ignored_paths(&root).unwrap(), [""; 0].map(PathBuf::from));
        assert_eq!(git_folder(&root, Path::new("/nowhere")), None);
    }
}
