//! Whole files from and to the disk. A file is replaced in one step or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::paths;
use super::text::MAX_TEXT;
use crate::services::builtin::answer::{Refusal, size};

#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) bytes: Vec<u8>,
    pub(super) permissions: Permissions,
}

/// All of a file, if it is not too large to be worked with as a whole.
pub(super) fn load(place: &Path, shown: &str) -> Result<Loaded, Refusal> {
    let loaded = read(place).map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => Refusal::new(format!("`{shown}` is a folder; use `list_dir`")),
        _ => Refusal::io("read", shown, &error),
    })?;
    if loaded.bytes.len() as u64 > MAX_TEXT {
        return Err(too_large(shown));
    }
    Ok(loaded)
}

pub(super) fn too_large(shown: &str) -> Refusal {
    Refusal::new(format!(
        "`{shown}` is larger than {}; use `search`, or `shell` with `sed -n` or `head` for a part of it",
        size(MAX_TEXT)
    ))
}

/// True also if it cannot be looked at.
pub(super) fn is_there(place: &Path) -> bool {
    !matches!(place.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Somebody meant a read-only file to stay as it is, although a rename or an editor would replace it.
pub(super) fn check_writable(permissions: &Permissions) -> io::Result<()> {
    if permissions.readonly() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is read-only"));
    }
    Ok(())
}

fn read(place: &Path) -> io::Result<Loaded> {
    let file = paths::open(place)?;
    let permissions = file.metadata()?.permissions();
    let mut bytes = Vec::new();
    // One more than is allowed, so that a file that grows meanwhile is noticed too.
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
    Ok(Loaded { bytes, permissions })
}

/// Puts `bytes` in the place of a file that exists.
pub(super) fn replace(place: &Path, bytes: &[u8], permissions: &Permissions) -> io::Result<()> {
    check_writable(permissions)?;
    let file = stage(place, bytes, permissions.clone())?;
    // Not only at creation, where the umask takes bits away.
    file.as_file().set_permissions(permissions.clone())?;
    file.persist(place).map_err(|error| error.error)?;
    Ok(())
}

/// Makes the folders above a new file; gives back those that it made, the innermost last.
pub(super) fn create_folders(place: &Path) -> io::Result<Vec<PathBuf>> {
    let folders = missing_folders(place);
    let made = folders.iter().try_for_each(|folder| match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    });
    match made.and_then(|()| folder_of(place)) {
        Ok(_) => Ok(folders),
        Err(error) => {
            remove_folders(&folders);
            Err(error)
        }
    }
}

/// Makes a file in a folder that exists.
pub(super) fn create(place: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = stage(place, bytes, Permissions::from_mode(0o666))?;
    // Somebody else's file that came in between is not overwritten.
    file.persist_noclobber(place).map_err(|error| error.error)?;
    Ok(())
}

/// Only folders that are empty again are removed.
pub(super) fn remove_folders(folders: &[PathBuf]) {
    for folder in folders.iter().rev() {
        if fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// A complete temporary file beside `place`.
fn stage(place: &Path, bytes: &[u8], permissions: Permissions) -> io::Result<tempfile::NamedTempFile> {
    let mut file =
        tempfile::Builder::new().prefix(".skein-").permissions(permissions).tempfile_in(folder_of(place)?)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// A link may have been put into the path after it was checked.
fn folder_of(place: &Path) -> io::Result<&Path> {
    let folder = place.parent().ok_or_else(|| io::Error::other("it is the root of the file system"))?;
    if folder.canonicalize()? != folder {
        return Err(io::Error::other("its folder has been moved or linked meanwhile"));
    }
    Ok(folder)
}

fn missing_folders(place: &Path) -> Vec<PathBuf> {
    let missing = |folder: &&Path| folder.symlink_metadata().is_err();
    let mut folders: Vec<PathBuf> = place.ancestors().skip(1).take_while(missing).map(Path::to_owned).collect();
    folders.reverse();
    folders
}
