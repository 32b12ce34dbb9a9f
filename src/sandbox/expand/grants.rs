//! The files that Landlock grants, with and without mounts.

use std::path::{Path, PathBuf};

use super::caches::CacheMounts;
use super::write_paths::WritableFolders;
use super::{PlannedMount, SandboxContext, list, system, write_paths};
use crate::sandbox::os_text::OsText;
use crate::sandbox::plan::{BaseAccess, FileGrants, MountSource};
use crate::sandbox::profile::{FileAccess, SandboxProfile};

/// Kernel interfaces that every program writes: its own process and devices.
const ALWAYS_WRITABLE: [&str; 2] = ["/proc", "/dev"];
/// Devices that a program may write although `/dev` shows all of the host's.
const DEVICES: [&str; 8] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"];
/// Depth to which folders are split around hidden paths.
const MAX_DEPTH: usize = 12;

/// Repeats what the mounts allow: everything is readable, and what is mounted writable can be written.
pub(super) fn beside_mounts(mounts: &[PlannedMount]) -> FileGrants {
    let is_writable = |mount: &&PlannedMount| match &mount.source {
        MountSource::Path { access, .. } => *access == BaseAccess::Writable,
        MountSource::Memory { .. } | MountSource::Overlay { .. } => true,
        MountSource::Link(_) | MountSource::Cover { .. } | MountSource::Text(_) => false,
    };
    let writable = mounts.iter().filter(is_writable).map(|mount| mount.target.clone());
    FileGrants {
        list: Vec::new(),
        read: vec![OsText::from("/")],
        write: writable.chain(ALWAYS_WRITABLE.map(OsText::from)).collect(),
    }
}

/// Returns the grants for a machine without mounts. Names of hidden files stay visible; their contents do not.
pub(super) fn alone(
    profile: &SandboxProfile,
    context: &SandboxContext,
    hidden: &[PathBuf],
    writable: &WritableFolders,
    caches: &CacheMounts,
) -> FileGrants {
    let open = profile.read.iter().filter(|entry| entry.ask.is_empty());
    let opened: Vec<PathBuf> = open.filter_map(|entry| write_paths::resolve(&entry.path, context)).collect();
    // Devices of the host give access to every file; the usual ones are granted one by one.
    let is_open = |path: &PathBuf| opened.contains(path) || writable.state.contains(path);
    let hidden = hidden.iter().filter(|path| !is_open(path)).cloned();
    let hidden: Vec<PathBuf> = hidden.chain(["/dev".into()]).collect();
    let mut read = Vec::new();
    let mut write: Vec<PathBuf> = DEVICES.map(PathBuf::from).to_vec();
    let is_empty = super::begins_empty(profile, context);
    if is_empty {
        let folders = system::folders(context);
        for folder in folders.iter().map(|mount| mount.target.as_path()) {
            split(folder, &hidden, 0, &mut read);
        }
        let visible = context.visible.iter().flatten().filter(|_| profile.files != FileAccess::None);
        read.extend(context.readable.iter().chain(visible).cloned().chain(["/proc".into()]));
    } else {
        split(Path::new("/"), &hidden, 0, &mut read);
    }
    if profile.files == FileAccess::Full {
        split(Path::new("/"), &hidden, 0, &mut write);
    }
    read.extend(opened);
    for folder in &writable.folders {
        let above = |path: &PathBuf| writable.state.contains(folder) && folder.starts_with(path);
        let hidden: Vec<PathBuf> = hidden.iter().filter(|path| !above(path)).cloned().collect();
        split(folder, &hidden, 0, &mut write);
    }
    write.extend(context.scratch.iter().cloned());
    write.extend(caches.plain.iter().cloned());
    let list = if is_empty { Vec::new() } else { vec![OsText::from("/")] };
    let texts = |paths: Vec<PathBuf>| paths.into_iter().map(OsText::from).collect();
    FileGrants { list, read: texts(read), write: texts(write) }
}

/// Adds a folder, or its contents except hidden ones. A granted folder includes everything below it.
fn split(folder: &Path, hidden: &[PathBuf], depth: usize, granted: &mut Vec<PathBuf>) {
    if hidden.iter().any(|path| folder.starts_with(path)) {
        return;
    }
    if !hidden.iter().any(|path| path.starts_with(folder)) {
        granted.push(folder.to_owned());
    } else if depth < MAX_DEPTH {
        // A link grants nothing: the rule would apply to its target.
        list(folder).iter().filter(|path| !path.is_symlink()).for_each(|path| split(path, hidden, depth + 1, granted));
    }
}
