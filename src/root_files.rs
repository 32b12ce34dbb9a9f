//! Resolves and opens files below a folder without following links.
//!
//! Invariant: no operation of a `RootedPath` follows a link or leaves the root, even if folders on the way are
//! replaced between resolution and use.

mod resolve;
mod staging;

pub use resolve::{ResolveError, ResolvedPath, normalize, resolve, resolve_checked};

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, symlinkat, unlinkat};
use rustix::io::Errno;

/// Folders on the way only need search permission, not read permission.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Non-blocking, because opening a FIFO would otherwise wait for a writer.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The kernel returns `EAGAIN` if a folder on the way is renamed meanwhile.
#[cfg(target_os = "linux")]
const MAX_TRIES: usize = 64;

/// A path below a root, with an open descriptor of the root.
#[derive(Debug)]
pub struct RootedPath {
    root: OwnedFd,
    /// Relative to `root`, without `..`.
    rest: PathBuf,
}

impl RootedPath {
    /// Opens the first of `roots` that contains `path`. All paths must be resolved. Fails if no root contains it.
    pub fn open(roots: &[PathBuf], path: &Path) -> io::Result<Self> {
        let root = roots.iter().find(|root| path.starts_with(root));
        let root = root.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, "it is outside of the roots"))?;
        // A root may not exist yet, such as an unused scratch folder.
        for base in root.ancestors() {
            let opened = match open_below(CWD, base, FOLDER, Mode::empty(), PathBounds::None) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let rest = path.strip_prefix(base).map_err(io::Error::other)?.to_owned();
            return Ok(Self { root: opened, rest });
        }
        Err(io::Error::from(io::ErrorKind::NotFound))
    }

    /// Opens the regular file for reading. Fails for folders and special files.
    pub fn read(&self) -> io::Result<File> {
        let rest = if self.rest.as_os_str().is_empty() { Path::new(".") } else { &self.rest };
        let file = File::from(open_below(self.root.as_fd(), rest, READ, Mode::empty(), PathBounds::Beneath)?);
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
        }
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(file)
    }

    /// Replaces an existing file atomically.
    pub fn replace(&self, bytes: &[u8], permissions: &Permissions) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        staging::write(folder.as_fd(), bytes, Some(permissions))?.replace(&name)
    }

    /// Creates a file in an existing folder. Fails if the name is taken.
    pub fn create(&self, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        staging::write(folder.as_fd(), bytes, None)?.create(&name)
    }

    /// Creates a file with these permissions in an existing folder. Fails if the name is taken.
    pub fn create_with(&self, bytes: &[u8], permissions: &Permissions) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        staging::write(folder.as_fd(), bytes, Some(permissions))?.create(&name)
    }

    /// Creates a folder with these permissions in an existing folder. Fails if the name is taken.
    pub fn create_folder(&self, permissions: &Permissions) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        // Private until it has its final permissions.
        mkdirat(&folder, &name, Mode::from_raw_mode(0o700))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        File::from(openat(&folder, &name, flags, Mode::empty())?).set_permissions(permissions.clone())
    }

    /// Creates a link to `target` in an existing folder. Fails if the name is taken.
    pub fn create_link(&self, target: &Path) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        Ok(symlinkat(target, &folder, &name)?)
    }

    /// Creates the folders above the file. Returns how many of the innermost ones are new.
    pub fn create_folders(&self) -> io::Result<usize> {
        let (parent, _) = self.split()?;
        let mut folder = open_below(self.root.as_fd(), Path::new("."), FOLDER, Mode::empty(), PathBounds::Beneath)?;
        let mut created = 0;
        for part in names(parent)? {
            folder = match openat(&folder, part, FOLDER, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                        Ok(()) => created += 1,
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    openat(&folder, part, FOLDER, Mode::empty())?
                }
                opened => opened?,
            };
        }
        Ok(created)
    }

    pub fn remove_file(&self) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        Ok(unlinkat(&folder, &name, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self) -> io::Result<()> {
        let (folder, name) = self.folder()?;
        Ok(unlinkat(&folder, &name, AtFlags::REMOVEDIR)?)
    }

    /// Opens the folder of the file. Returns it with the file name.
    pub fn folder(&self) -> io::Result<(OwnedFd, OsString)> {
        let (parent, name) = self.split()?;
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let folder = open_below(self.root.as_fd(), parent, FOLDER, Mode::empty(), PathBounds::Beneath)?;
        Ok((folder, name.to_owned()))
    }

    fn split(&self) -> io::Result<(&Path, &OsStr)> {
        let parts = self.rest.parent().zip(self.rest.file_name());
        parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is a root and not a file in it"))
    }
}

/// Whether a path may lead anywhere or must stay below the folder that it is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathBounds {
    None,
    Beneath,
}

/// Opens a path without following any link in it.
fn open_below(
    folder: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    bounds: PathBounds,
) -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let resolve = if bounds == PathBounds::Beneath { links | ResolveFlags::BENEATH } else { links };
        for _ in 0..MAX_TRIES {
            match openat2(folder, path, flags, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Old kernels and some sandboxes do not support the call.
                Err(Errno::NOSYS | Errno::PERM) => break,
                opened => return Ok(opened?),
            }
        }
    }
    open_by_parts(folder, path, flags, mode, bounds)
}

/// Does the same without `openat2`: opens one name at a time and rejects links.
fn open_by_parts(
    folder: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    bounds: PathBounds,
) -> io::Result<OwnedFd> {
    let (start, rest) = match path.strip_prefix("/") {
        Ok(rest) if bounds == PathBounds::None => (openat(folder, "/", FOLDER, Mode::empty())?, rest),
        Ok(_) => return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the path is absolute")),
        Err(_) => (openat(folder, ".", FOLDER, Mode::empty())?, path),
    };
    let mut parts = names(rest)?;
    let last = parts.pop();
    let mut at = start;
    for part in parts {
        at = openat(&at, part, FOLDER, Mode::empty())?;
    }
    Ok(openat(&at, last.unwrap_or(OsStr::new(".")), flags | OFlags::NOFOLLOW, mode)?)
}

/// Returns the names in a relative path. Fails for `..`, which could leave the root.
fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the path leaves its folder"));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
#[path = "root_files/root_files_tests.rs"]
mod tests;
