//! Writes files completely or not at all.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Creates a file. Fails if it exists, so that a file created meanwhile is not overwritten. The umask narrows `mode`.
pub(super) fn create(file: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let private = fs::Permissions::from_mode(mode);
    let mut new = tempfile::Builder::new().prefix(".skein").permissions(private).tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist_noclobber(file)?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_replaces_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below/file");
        create(&file, "one", 0o600).unwrap();
        assert_eq!(create(&file, "two", 0o600).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }
}
