//! Sockets that only the user can open: their folder is for the user alone, and so is each of them.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tokio::net::UnixListener;

/// Listens at `path`; its folder is made if it is not there.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let folder = path.parent().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it has no folder"))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // It may have been there before, and open to others.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    // It gets its name when it is ready: one that refuses would be taken for the leavings of a killed skein.
    let unready = path.with_extension("new");
    drop(fs::remove_file(&unready));
    let listener = UnixListener::bind(&unready)?;
    fs::set_permissions(&unready, fs::Permissions::from_mode(0o600))?;
    fs::rename(&unready, path)?;
    Ok(listener)
}

/// Connects to whoever listens at `path`. A socket that nobody answers on any more is removed.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).inspect_err(|error| {
        // Refused: its process is gone.
        if error.kind() == ErrorKind::ConnectionRefused {
            drop(fs::remove_file(path));
        }
    })
}
