//! Unix sockets of the host. The kernel lets a process connect to a path although its file system is read-only, so
//! every socket is covered with an empty file.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use super::{PlannedMount, SandboxContext, private_folders, write_paths};
use crate::process::read_proc;
use crate::sandbox::plan::MountSource;
use crate::sandbox::profile::SandboxProfile;

/// Returns covers for the sockets that exist, except those that the profile opens.
pub(super) fn covers(profile: &SandboxProfile, context: &SandboxContext) -> Vec<PlannedMount> {
    let opened = opened(profile, context);
    let private: Vec<PlannedMount> = private_folders(context);
    let in_private = |path: &PathBuf| private.iter().any(|mount| path.starts_with(mount.target.as_path()));
    let in_roots = |path: &PathBuf| context.roots.iter().any(|root| path.starts_with(root));
    let table = read_proc("net/unix").unwrap_or_default();
    let sockets = socket_paths(&String::from_utf8_lossy(&table)).into_iter().filter(|path| !opened.contains(path));
    sockets
        .filter(|path| !in_private(path) || in_roots(path))
        .map(|path| PlannedMount { target: path.into(), source: MountSource::Cover { keep: Vec::new() } })
        .collect()
}

/// Returns the sockets that the profile or Skein opens and that exist.
pub(super) fn opened(profile: &SandboxProfile, context: &SandboxContext) -> Vec<PathBuf> {
    let of_profile = profile.sockets.iter().filter_map(|text| write_paths::resolve(text, context));
    let of_skein = context.sockets.iter().filter_map(|path| path.canonicalize().ok());
    of_profile.chain(of_skein).filter(|path| is_socket(path)).collect()
}

fn is_socket(path: &std::path::Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.file_type().is_socket())
}

/// Returns the sockets in the kernel's table that have a path.
fn socket_paths(table: &str) -> BTreeSet<PathBuf> {
    // Num RefCount Protocol Flags Type St Inode Path
    let paths = table.lines().skip(1).filter_map(|line| {
        let (_, path) = line.split_once('/')?;
        Some(PathBuf::from(format!("/{path}")))
    });
    paths.filter_map(|path| path.canonicalize().ok()).filter(|path| is_socket(path)).collect()
}
