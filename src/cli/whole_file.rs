//! Files that are written whole or not at all.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Somebody else's file that came in between is not overwritten. The mode is narrowed by the user's umask.
pub(super) fn create(file: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(file)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()
}

/// Written beside, to the disk, and renamed: nobody ever reads half a file. A link stays one: what it leads to is
/// exchanged.
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
