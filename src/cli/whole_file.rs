//! Writes files completely or not at all.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Creates a file. Fails if it exists, so that a file created meanwhile is not overwritten. The umask narrows `mode`.
pub(super) fn create(file: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(file)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()
}

/// Replaces a file atomically: writes a temporary file in the same folder, syncs and renames it. Follows a link and
/// replaces its target.
pub(super) fn replace(file: &Path, text: &str, permissions: fs::Permissions) -> std::io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut new = tempfile::Builder::new().prefix(".skein").tempfile_in(folder)?;
    new.as_file().set_permissions(permissions)?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist(&file)?;
    Ok(())
}
