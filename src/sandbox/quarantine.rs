//! Moves paths out of a project without following links.
//!
//! Invariant: a process that still runs and replaces folders by links cannot make Skein move or change
//! a file elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::root_files::RootedPath;

/// Opens an entry to change its mode. Needs no right to read it.
#[cfg(target_os = "linux")]
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const ENTRY: OFlags = READ;
/// Non-blocking, because opening a pipe would otherwise wait for a writer.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Moves a resolved path into a new folder below `quarantine`. Returns its new place. Fails if a folder above the path
/// has become a link.
pub fn quarantine(path: &Path, quarantine: &Path) -> io::Result<PathBuf> {
    let (parent, name) = RootedPath::open(&[PathBuf::from("/")], path)?.folder()?;
    fs::create_dir_all(quarantine)?;
    let folder = (1..).map(|number| quarantine.join(format!("{}-{number}", std::process::id())));
    let folder = folder
        .map(|folder| fs::create_dir(&folder).map(|()| folder))
        .find(|created| !created.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists))
        .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
    let target = folder.join(&name);
    if let Err(error) = rename(parent.as_fd(), &name, &target) {
        let copied = if error == Errno::XDEV { copy(parent.as_fd(), &name, &target) } else { Err(error.into()) };
        if let Err(error) = copied {
            // A part of the content is of no use, and it may be large.
            if let Err(error) = fs::remove_dir_all(&folder) {
                tracing::warn!(folder = %folder.display(), %error, "a partial copy is left behind");
            }
            return Err(error);
        }
        remove(parent.as_fd(), &name)?;
    }
    Ok(target)
}

fn rename(folder: BorrowedFd<'_>, name: &OsStr, target: &Path) -> Result<(), Errno> {
    match renameat(folder, name, CWD, target) {
        // Without write permission, a folder cannot be moved, and nothing can be moved out of it.
        Err(Errno::ACCESS) => {
            permit_owner(folder)?;
            permit_owner(openat(folder, name, ENTRY, Mode::empty())?.as_fd())?;
            renameat(folder, name, CWD, target)
        }
        renamed => renamed,
    }
}

/// Gives the owner all rights to a folder, and the right to read a file.
fn permit_owner(entry: BorrowedFd<'_>) -> Result<(), Errno> {
    let mode = fstat(entry)?.st_mode;
    let needed = match FileType::from_raw_mode(mode) {
        FileType::Directory => Mode::RWXU,
        FileType::RegularFile => Mode::RUSR,
        _ => return Ok(()),
    };
    let mode = Mode::from_raw_mode(mode);
    if mode.contains(needed) { Ok(()) } else { set_mode(entry, mode | needed) }
}

/// The descriptor may be without rights, which `fchmod` refuses.
#[cfg(target_os = "linux")]
fn set_mode(entry: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    use std::os::fd::AsRawFd as _;
    rustix::fs::chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), mode)
}

#[cfg(not(target_os = "linux"))]
fn set_mode(entry: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    rustix::fs::fchmod(entry, mode)
}

fn copy(folder: BorrowedFd<'_>, name: &OsStr, to: &Path) -> io::Result<()> {
    match FileType::from_raw_mode(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode) {
        FileType::Symlink => {
            let target = readlinkat(folder, name, Vec::new())?;
            std::os::unix::fs::symlink(OsStr::from_bytes(target.as_bytes()), to)
        }
        FileType::RegularFile => {
            let mut from = File::from(open(folder, name)?);
            let mut copied = File::create_new(to)?;
            io::copy(&mut from, &mut copied)?;
            copied.set_permissions(from.metadata()?.permissions())
        }
        FileType::Directory => {
            fs::create_dir(to)?;
            let from = open(folder, name)?;
            list(&from)?.iter().try_for_each(|name| copy(from.as_fd(), name, &to.join(name)))
        }
        // Sockets and pipes have no content.
        _ => Ok(()),
    }
}

fn remove(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        // Not every system names the folder as the reason.
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed?),
    }
    let opened = open(folder, name)?;
    list(&opened)?.iter().try_for_each(|name| remove(opened.as_fd(), name))?;
    Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}

/// Opens a file or folder for reading, also if its mode does not allow that.
fn open(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    permit_owner(openat(folder, name, ENTRY, Mode::empty())?.as_fd())?;
    Ok(openat(folder, name, READ, Mode::empty())?)
}

fn list(folder: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    struct Folders {
        _folder: tempfile::TempDir,
        project: PathBuf,
        outside: PathBuf,
        quarantine: PathBuf,
    }

    impl Folders {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let base = folder.path().canonicalize().unwrap();
            let [project, outside, quarantine] = ["project", "outside", "quarantine"].map(|name| base.join(name));
            fs::create_dir(&project).unwrap();
            fs::create_dir(&outside).unwrap();
            Self { _folder: folder, project, outside, quarantine }
        }

        fn settings(&self, text: &str) -> PathBuf {
            let folder = self.project.join(".vscode");
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("tasks.json"), text).unwrap();
            symlink("/etc", folder.join("link")).unwrap();
            folder
        }
    }

    #[test]
    fn quarantine_keeps_the_content() {
        let folders = Folders::new();
        let first = quarantine(&folders.settings("kept"), &folders.quarantine).unwrap();
        assert_eq!(fs::read_to_string(first.join("tasks.json")).unwrap(), "kept");
        assert!(!folders.project.join(".vscode").exists());
        let locked = folders.settings("again");
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
        let second = quarantine(&locked, &folders.quarantine).unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_link(second.join("link")).unwrap(), Path::new("/etc"));
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folders = Folders::new();
        fs::write(folders.outside.join("config"), "mine").unwrap();
        symlink(&folders.outside, folders.project.join("sub")).unwrap();
        assert!(quarantine(&folders.project.join("sub/config"), &folders.quarantine).is_err());
        assert_eq!(fs::read_to_string(folders.outside.join("config")).unwrap(), "mine");
        assert!(!folders.quarantine.exists());
    }

    #[test]
    fn a_copy_to_another_device_follows_no_link() {
        let folders = Folders::new();
        let settings = folders.settings("kept");
        fs::create_dir(settings.join("inner")).unwrap();
        for (path, mode) in [("tasks.json", 0o200), ("inner", 0o000)] {
            fs::set_permissions(settings.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        let project = File::open(&folders.project).unwrap();
        let target = folders.outside.join("copy");
        copy(project.as_fd(), OsStr::new(".vscode"), &target).unwrap();
        assert_eq!(fs::read_to_string(target.join("tasks.json")).unwrap(), "kept");
        assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("/etc"));
        assert!(target.join("inner").is_dir());
        remove(project.as_fd(), OsStr::new(".vscode")).unwrap();
        assert!(!settings.exists() && Path::new("/etc").exists());
    }

    #[test]
    fn a_failure_leaves_nothing_in_quarantine() {
        let folders = Folders::new();
        assert!(quarantine(&folders.project.join("missing"), &folders.quarantine).is_err());
        assert_eq!(fs::read_dir(&folders.quarantine).unwrap().count(), 0);
    }
}
