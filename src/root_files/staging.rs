//! Writes a complete temporary file in a folder, then gives it its final name atomically.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Temporary names to try before giving up.
const MAX_TRIES: usize = 16;

/// A temporary file. Dropping it before it has its final name removes it.
#[derive(Debug)]
pub(super) struct StagedFile<'a> {
    folder: BorrowedFd<'a>,
    name: String,
    is_named: bool,
}

/// Writes `bytes` to a new file in `folder`. Without `permissions` the file gets the default ones.
pub(super) fn write<'a>(
    folder: BorrowedFd<'a>,
    bytes: &[u8],
    permissions: Option<&Permissions>,
) -> io::Result<StagedFile<'a>> {
    // Private until it has its final permissions.
    let mode = if permissions.is_some() { 0o600 } else { 0o666 };
    let (mut file, staged) = open(folder, Mode::from_raw_mode(mode))?;
    file.write_all(bytes)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions.clone())?;
    }
    file.sync_all()?;
    Ok(staged)
}

fn open(folder: BorrowedFd<'_>, mode: Mode) -> io::Result<(File, StagedFile<'_>)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..MAX_TRIES {
        let name = format!(".skein-{:016x}", RandomState::new().hash_one(std::process::id()));
        match openat(folder, &name, flags, mode) {
            Err(Errno::EXIST) => {}
            opened => {
                let file = File::from(opened?);
                return Ok((file, StagedFile { folder, name, is_named: false }));
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no name is free for a temporary file"))
}

impl StagedFile<'_> {
    /// Gives the file its final name, replacing an existing file.
    pub(super) fn replace(mut self, name: &OsStr) -> io::Result<()> {
        renameat(self.folder, &self.name, self.folder, name)?;
        self.is_named = true;
        Ok(())
    }

    /// Gives the file its final name. Fails if the name is taken, even if another process took it meanwhile.
    pub(super) fn create(self, name: &OsStr) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{RenameFlags, renameat_with};
            match renameat_with(self.folder, &self.name, self.folder, name, RenameFlags::NOREPLACE) {
                // Not every file system supports it.
                Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => {}
                renamed => {
                    renamed?;
                    let mut staged = self;
                    staged.is_named = true;
                    return Ok(());
                }
            }
        }
        linkat(self.folder, &self.name, self.folder, name, AtFlags::empty())?;
        Ok(())
    }
}

impl Drop for StagedFile<'_> {
    fn drop(&mut self) {
        if !self.is_named
            && let Err(error) = unlinkat(self.folder, &self.name, AtFlags::empty())
        {
            tracing::warn!(file = self.name, %error, "a temporary file is left behind");
        }
    }
}
