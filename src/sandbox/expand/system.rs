//! The parts of the system: folders that `files: none` shows, and paths that only root could read.

use std::path::{Path, PathBuf};

use super::{PlannedMount, SandboxContext, list, read_only};
use crate::sandbox::paths::HiddenPaths;
use crate::sandbox::plan::MountSource;

/// Folders that every program needs. Names that begin with `lib` are added.
const FOLDERS: [&str; 5] = ["/usr", "/bin", "/sbin", "/etc", "/opt"];
const NIX_STORE: &str = "/nix/store";
/// Interfaces of the kernel that show other processes or the machine.
const KERNEL_FOLDERS: [&str; 6] = [
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/kernel/security",
    "/sys/fs/bpf",
    "/sys/fs/pstore",
    "/sys/firmware",
];

/// Returns the system folders, and links to them, as mounts of an empty root.
pub(super) fn folders(context: &SandboxContext) -> Vec<PlannedMount> {
    let libraries = list(Path::new("/")).into_iter().filter(|path| super::starts_with_name(path, "lib"));
    let folders = FOLDERS.iter().map(PathBuf::from).chain(libraries);
    let mut mounts: Vec<PlannedMount> = folders.filter_map(|path| mount_or_link(&path)).collect();
    mounts.extend(Path::new(NIX_STORE).exists().then(|| read_only(Path::new(NIX_STORE))));
    let is_inside = |path: &Path| FOLDERS.iter().any(|folder| path.starts_with(folder));
    let program = context.program.canonicalize().ok().filter(|path| !is_inside(path));
    mounts.extend(program.map(|path| read_only(&path)));
    mounts
}

fn mount_or_link(path: &Path) -> Option<PlannedMount> {
    if let Ok(link) = path.read_link() {
        return Some(PlannedMount { target: path.into(), source: MountSource::Link(link.into()) });
    }
    path.exists().then(|| read_only(path))
}

/// Returns paths that a sandbox of root must not show: other homes' secrets and the kernel's interfaces.
pub(super) fn hidden_from_root(home: &Path) -> Vec<PathBuf> {
    let homes = list(Path::new("/home")).into_iter().chain([PathBuf::from("/root")]).filter(|path| path != home);
    let of_homes = homes.flat_map(|home| HiddenPaths::existing_in(&home));
    let of_kernel = KERNEL_FOLDERS.iter().map(PathBuf::from).filter(|path| path.is_dir());
    of_homes.chain(of_kernel).collect()
}
