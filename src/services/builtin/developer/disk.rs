//! Whole files from and to the disk. A file is replaced in one step or not at all.

use std::fs::Permissions;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::tool::SessionContext;

use super::paths;
use super::text::MAX_TEXT;
use crate::services::builtin::answer::{ToolRefusal, size};

#[derive(Debug)]
pub(super) struct DiskFile {
    pub(super) bytes: Vec<u8>,
    pub(super) permissions: Permissions,
}

/// All of a file, if it is not too large to be worked with as a whole.
pub(super) fn load(session: &SessionContext, place: &Path, shown: &str) -> Result<DiskFile, ToolRefusal> {
    let loaded = read(session, place).map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => ToolRefusal::new(format!("`{shown}` is a folder; use `list_dir`")),
        _ => ToolRefusal::io("read", shown, &error),
    })?;
    if loaded.bytes.len() as u64 > MAX_TEXT {
        return Err(too_large(shown));
    }
    Ok(loaded)
}

pub(super) fn too_large(shown: &str) -> ToolRefusal {
    ToolRefusal::new(format!(
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

fn read(session: &SessionContext, place: &Path) -> io::Result<DiskFile> {
    let file = paths::anchor(session, place)?.read()?;
    let permissions = file.metadata()?.permissions();
    let mut bytes = Vec::new();
    // One more than is allowed, so that a file that grows meanwhile is noticed too.
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
    Ok(DiskFile { bytes, permissions })
}

/// Puts `bytes` in the place of a file that exists.
pub(super) fn replace(
    session: &SessionContext,
    place: &Path,
    bytes: &[u8],
    permissions: &Permissions,
) -> io::Result<()> {
    check_writable(permissions)?;
    paths::anchor(session, place)?.replace(bytes, permissions)
}

/// Makes the folders above a new file; gives back those that it made, the innermost last.
pub(super) fn create_folders(session: &SessionContext, place: &Path) -> io::Result<Vec<PathBuf>> {
    let created = paths::anchor(session, place)?.create_folders()?;
    let mut folders: Vec<_> = place.ancestors().skip(1).take(created).map(Path::to_owned).collect();
    folders.reverse();
    Ok(folders)
}

/// Makes a file in a folder that exists.
pub(super) fn create(session: &SessionContext, place: &Path, bytes: &[u8]) -> io::Result<()> {
    // Somebody else's file that came in between is not overwritten.
    paths::anchor(session, place)?.create(bytes)
}

pub(super) fn remove(session: &SessionContext, place: &Path) -> io::Result<()> {
    paths::anchor(session, place)?.remove_file()
}

/// Only folders that are empty again are removed.
pub(super) fn remove_folders(session: &SessionContext, folders: &[PathBuf]) {
    for folder in folders.iter().rev() {
        if paths::anchor(session, folder).and_then(|folder| folder.remove_folder()).is_err() {
            return;
        }
    }
}
