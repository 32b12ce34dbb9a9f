//! `/proc` on systems other than Linux: it does not exist.

use std::io;
use std::path::PathBuf;

/// Fails: only Linux has `/proc`.
pub fn read_proc(_path: &str) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: only Linux has `/proc`.
pub(super) fn list_proc(_folder: &str) -> io::Result<Vec<PathBuf>> {
    Err(io::ErrorKind::Unsupported.into())
}
