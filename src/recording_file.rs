//! A file of recorded lines that only the user can read.
//!
//! Invariant: the lines of an earlier recording stay until the first line of the new one. A file that is no recording
//! is never changed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The part of an existing file in which its first line must end. A line can list thousands of tools.
const MAX_FIRST_LINE: u64 = 64 * 1024 * 1024;

/// Why a file cannot be recorded to.
#[derive(Debug, thiserror::Error)]
pub enum RecordingFileError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the file is not empty, and its first line is no line of a recording that this version of Skein reads")]
    Foreign,
}

/// A recording that is being written.
#[derive(Debug)]
pub struct RecordingFile(Mutex<Writer>);

#[derive(Debug)]
struct Writer {
    file: File,
    has_lines: bool,
}

impl RecordingFile {
    /// Opens or creates a file. `is_line` recognizes a line of an earlier recording. Fails if the file has other content.
    pub fn open(path: &Path, is_line: impl Fn(&str) -> bool) -> Result<Self, RecordingFileError> {
        // Reading a device or a pipe could block forever.
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            check_first_line(path, is_line)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // An existing file may have a wider mode.
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        Ok(Self(Mutex::new(Writer { file, has_lines: false })))
    }

    /// Writes one line. The first one replaces an earlier recording.
    pub fn write_line(&self, line: &str) -> io::Result<()> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !writer.has_lines && writer.file.metadata()?.is_file() {
            writer.file.set_len(0)?;
        }
        writer.has_lines = true;
        // Written in one call, so that a killed Skein leaves complete lines.
        writer.file.write_all(format!("{line}\n").as_bytes())
    }
}

/// Fails if the first line that is not blank is no line of a recording.
fn check_first_line(path: &Path, is_line: impl Fn(&str) -> bool) -> Result<(), RecordingFileError> {
    let mut lines = BufReader::new(File::open(path)?.take(MAX_FIRST_LINE)).lines();
    let is_blank = |line: &io::Result<String>| line.as_ref().is_ok_and(|line| line.trim().is_empty());
    match lines.find(|line| !is_blank(line)) {
        None => Ok(()),
        Some(Ok(line)) if is_line(&line) => Ok(()),
        Some(Err(error)) if error.kind() != ErrorKind::InvalidData => Err(error.into()),
        Some(_) => Err(RecordingFileError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<RecordingFile, RecordingFileError> {
        RecordingFile::open(path, |line| line.starts_with('{'))
    }

    #[test]
    fn the_first_line_replaces_an_earlier_recording() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tape.jsonl");
        fs::write(&path, "\n{1}\n{2}\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let recording = open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "\n{1}\n{2}\n");
        recording.write_line("{3}").unwrap();
        recording.write_line("{4}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{3}\n{4}\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_no_recording_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keep.txt");
        for content in [&b"notes\n"[..], b"\xff\xfe\n"] {
            fs::write(&path, content).unwrap();
            assert!(matches!(open(&path), Err(RecordingFileError::Foreign)));
            assert_eq!(fs::read(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_device_takes_lines() {
        open(Path::new("/dev/null")).unwrap().write_line("{1}").unwrap();
    }
}
