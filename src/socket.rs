//! Creates and opens Unix sockets that only the user can access: folder mode 0700, socket mode 0600.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tokio::net::UnixListener;

/// Listens at `path`, and creates its folder if it is missing.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let folder = path.parent().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it has no folder"))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // The folder may already exist with other permissions.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    // Rename it into place when it is ready: clients remove a socket that refuses connections as stale.
    let unready = path.with_extension("new");
    drop(fs::remove_file(&unready));
    let listener = UnixListener::bind(&unready)?;
    fs::set_permissions(&unready, fs::Permissions::from_mode(0o600))?;
    fs::rename(&unready, path)?;
    Ok(listener)
}

/// Connects to the listener at `path`. Removes the socket if its listener is gone.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).inspect_err(|error| {
        // A refused connection means that the process has ended.
        if error.kind() == ErrorKind::ConnectionRefused {
            drop(fs::remove_file(path));
        }
    })
}
