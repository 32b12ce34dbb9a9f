//! The log file: readable only by the user, and rotated so that it stays near its size limit.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Size at which the log is rotated before the next line.
const MAX_LOG: u64 = 10 * 1024 * 1024;
/// Number of rotated logs to keep; `skein.log.1` is the newest.
const MAX_OLD: u32 = 2;

/// The current log. Several processes append to the same file.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    max: u64,
}

impl LogFile {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join("skein.log");
        Ok(Self { file: append_to(&path)?, path, max: MAX_LOG })
    }

    /// Rotates the log if it is full. A process that still has the old file open finds it full at its next line and
    /// reopens.
    fn rotate_if_full(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() < self.max {
            return Ok(());
        }
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(self.aside(".lock"))?;
        // The lock is released when this function returns or the process ends.
        lock.lock()?;
        let ours = self.file.metadata()?;
        // Another process may have rotated it already.
        if fs::metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            for age in (1..MAX_OLD).rev() {
                let younger = self.aside(&format!(".{age}"));
                match fs::rename(&younger, self.aside(&format!(".{}", age + 1))) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            fs::rename(&self.path, self.aside(".1"))?;
        }
        self.file = append_to(&self.path)?;
        Ok(())
    }

    fn aside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // An earlier version created it readable by others.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rotate_if_full()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(folder: &Path) -> Vec<(String, u64)> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        let mut sizes: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .filter(|(name, _)| !name.ends_with(".lock"))
            .collect();
        sizes.sort();
        sizes
    }

    #[test]
    fn the_log_rotates_while_it_grows() {
        let folder = tempfile::tempdir().unwrap();
        // Two processes with the same log.
        let mut writers = [(); 2].map(|()| LogFile { max: 1000, ..LogFile::open(folder.path()).unwrap() });
        for line in 0..200 {
            writers[line % 2].write_all(format!("{line:099}\n").as_bytes()).unwrap();
        }
        let names = ["skein.log", "skein.log.1", "skein.log.2"];
        assert_eq!(sizes(folder.path()), names.map(|name| (name.to_owned(), 1000)));
        let last = fs::read_to_string(folder.path().join("skein.log")).unwrap();
        assert!(last.starts_with(&format!("{:099}\n", 190)) && last.ends_with(&format!("{:099}\n", 199)), "{last}");
    }

    #[test]
    fn a_log_that_others_could_read_is_closed_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skein.log");
        fs::write(&path, "old\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        drop(LogFile::open(folder.path()).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
