//! Reads `/proc`, where Linux describes its processes.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Reads a file of `/proc`, such as `self/cgroup`. Fails on systems other than Linux.
pub fn read_proc(path: &str) -> io::Result<Vec<u8>> {
    fs::read(Path::new("/proc").join(path))
}

/// Returns the paths in a folder of `/proc`. Fails on systems other than Linux.
pub(super) fn list_proc(folder: &str) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(Path::new("/proc").join(folder))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
