//! Reads and writes whole files on disk. Replacing a file is atomic.

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

/// Reads a whole file. Fails if it is larger than [`MAX_TEXT`].
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

/// Returns whether the file exists. Also true if its metadata cannot be read.
pub(super) fn is_there(place: &Path) -> bool {
    !matches!(place.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Fails for a read-only file. A rename or an editor could replace it although its owner protected it.
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
    // Reads one byte more than allowed, to notice a file that grows in the meantime.
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
    Ok(DiskFile { bytes, permissions })
}

/// Replaces the contents of an existing file.
pub(super) fn replace(
    session: &SessionContext,
    place: &Path,
    bytes: &[u8],
    permissions: &Permissions,
) -> io::Result<()> {
    check_writable(permissions)?;
    paths::anchor(session, place)?.replace(bytes, permissions)
}

/// Creates the missing parent folders of a new file. Returns them, the innermost last.
pub(super) fn create_folders(session: &SessionContext, place: &Path) -> io::Result<Vec<PathBuf>> {
    let created = paths::anchor(session, place)?.create_folders()?;
    let mut folders: Vec<_> = place.ancestors().skip(1).take(created).map(Path::to_owned).collect();
    folders.reverse();
    Ok(folders)
}

/// Creates a file in an existing folder.
pub(super) fn create(session: &SessionContext, place: &Path, bytes: &[u8]) -> io::Result<()> {
    // Fails if another program has created the file in the meantime.
    paths::anchor(session, place)?.create(bytes)
}

pub(super) fn remove(session: &SessionContext, place: &Path) -> io::Result<()> {
    paths::anchor(session, place)?.remove_file()
}

/// Removes the folders that are empty, the innermost first.
pub(super) fn remove_folders(session: &SessionContext, folders: &[PathBuf]) {
    for folder in folders.iter().rev() {
        if paths::anchor(session, folder).and_then(|folder| folder.remove_folder()).is_err() {
            return;
        }
    }
}
