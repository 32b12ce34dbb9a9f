//! Reads the top-of-mind text and file, which the user wants included in every turn.
//!
//! Invariant: never fails or blocks a turn. Reports a read problem once, until it changes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::principal::Principal;

/// Limit in bytes for text and file together.
pub const MAX: usize = 64 * 1024;
/// The file in the folder of a principal.
const PRINCIPAL_FILE: &str = "top-of-mind.md";

/// The sources of the top-of-mind text. The file is read again for each turn.
#[derive(Debug, Default)]
pub struct TopOfMind {
    text: Option<String>,
    file: Option<PathBuf>,
    /// A missing file is no problem.
    is_optional: bool,
    /// The problem that was reported last.
    told: Mutex<Option<String>>,
}

/// The top of mind of each principal. That of `local` comes from the environment, that of another principal from a
/// file in its folder.
#[derive(Debug)]
pub(super) struct PrincipalTopOfMind {
    data: PathBuf,
    local: TopOfMind,
    others: Mutex<HashMap<Principal, Arc<TopOfMind>>>,
}

impl PrincipalTopOfMind {
    pub(super) fn new(data: PathBuf, local: TopOfMind) -> Self {
        Self { data, local, others: Mutex::default() }
    }

    pub(super) fn read(&self, principal: &Principal) -> TopOfMindText {
        if principal.is_local() {
            return self.local.read();
        }
        let top = {
            let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            let file = || Arc::new(TopOfMind::optional(principal.folder(&self.data).join(PRINCIPAL_FILE)));
            Arc::clone(others.entry(principal.clone()).or_insert_with(file))
        };
        top.read()
    }
}

/// The current top-of-mind text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopOfMindText {
    /// `None` if both sources are empty.
    pub text: Option<String>,
    /// A problem that the user has not been notified of yet.
    pub problem: Option<String>,
}

impl TopOfMind {
    /// `file` must be absolute: there is no folder here to resolve it against.
    pub fn new(text: Option<String>, file: Option<PathBuf>) -> Self {
        Self { text, file, is_optional: false, told: Mutex::default() }
    }

    /// Returns the top of mind of a file that need not exist.
    fn optional(file: PathBuf) -> Self {
        Self { is_optional: true, ..Self::new(None, Some(file)) }
    }

    pub fn read(&self) -> TopOfMindText {
        let (from_file, problem) = match self.file.as_deref().map(contents) {
            Some(Ok(text)) => (Some(text), None),
            Some(Err(error)) if self.is_optional && error.is_missing() => (None, None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        let texts = [self.text.as_deref(), from_file.as_deref()];
        let texts: Vec<_> = texts.into_iter().flatten().map(str::trim).filter(|text| !text.is_empty()).collect();
        TopOfMindText {
            text: (!texts.is_empty()).then(|| truncate_text(&texts.join("\n\n"))),
            problem: self.news(problem),
        }
    }

    /// Returns the problem if it differs from the last one.
    fn news(&self, problem: Option<String>) -> Option<String> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told == problem {
            return None;
        }
        told.clone_from(&problem);
        problem
    }
}

/// A top-of-mind file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the top of mind file {} cannot be used: {source}; correct the file, or SKEIN_TOM_FILE", .file.display())]
struct TopOfMindError {
    file: PathBuf,
    source: TextFileError,
}

impl TopOfMindError {
    fn is_missing(&self) -> bool {
        matches!(&self.source, TextFileError::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

#[derive(Debug, thiserror::Error)]
enum TextFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not UTF-8 text")]
    NotUtf8,
    #[error("it is not text")]
    NotText,
}

/// Reads the beginning of the file. Fails if it is not UTF-8 text.
fn contents(file: &Path) -> Result<String, TopOfMindError> {
    read_text(file).map_err(|source| TopOfMindError { file: file.to_owned(), source })
}

fn read_text(file: &Path) -> Result<String, TextFileError> {
    let mut bytes = Vec::new();
    // Read more than the limit, so that `truncate_text` notices that there is more.
    open(file)?.take(MAX as u64 + 4).read_to_end(&mut bytes)?;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        // The read limit cut the last character.
        Err(error) if error.error_len().is_none() && bytes.len() > MAX => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Err(TextFileError::NotUtf8),
    };
    if text.contains('\0') { Err(TextFileError::NotText) } else { Ok(text.to_owned()) }
}

/// Opens a regular file. Rejects pipes and devices, which may be endless or block on open. Checks again after opening,
/// in case the file was replaced.
fn open(file: &Path) -> io::Result<File> {
    let regular = |metadata: fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is not a regular file")),
    };
    regular(fs::metadata(file)?)?;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(file)?;
    regular(opened.metadata()?)?;
    Ok(opened)
}

fn truncate_text(text: &str) -> String {
    if text.len() <= MAX {
        return text.to_owned();
    }
    let note = format!("\n[… cut: top of mind has at most {MAX} bytes]");
    let room = MAX - note.len();
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}{note}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(file: &Path) -> TopOfMind {
        TopOfMind::new(None, Some(file.to_owned()))
    }

    #[test]
    fn text_and_file_are_read_together_and_the_file_anew_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mind.md");
        fs::write(&file, "first\n").unwrap();
        let top = TopOfMind::new(Some(" always \n".to_owned()), Some(file.clone()));
        assert_eq!(top.read(), TopOfMindText { text: Some("always\n\nfirst".to_owned()), problem: None });
        fs::write(&file, "second").unwrap();
        assert_eq!(top.read().text.unwrap(), "always\n\nsecond");
        fs::write(&file, " \n").unwrap();
        assert_eq!(top.read().text.unwrap(), "always");
        assert_eq!(TopOfMind::default().read(), TopOfMindText::default());
    }

    #[test]
    fn unreadable_file_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mind.md");
        let top = TopOfMind::new(Some("always".to_owned()), Some(file.clone()));
        let missing = top.read();
        assert_eq!(missing.text.unwrap(), "always", "what can be read is used");
        let problem = missing.problem.unwrap();
        assert!(problem.contains("mind.md") && problem.contains("SKEIN_TOM_FILE"), "{problem}");
        assert_eq!(top.read().problem, None);
        fs::write(&file, b"\xff\xfe").unwrap();
        assert!(top.read().problem.unwrap().contains("not UTF-8"));
        fs::write(&file, b"a\0b").unwrap();
        assert!(top.read().problem.unwrap().contains("not text"));
        fs::write(&file, "well").unwrap();
        assert_eq!(top.read().problem, None);
        fs::remove_file(&file).unwrap();
        assert!(top.read().problem.is_some(), "it is news again");
    }

    #[test]
    fn what_is_not_a_regular_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        crate::test_fifo::make_fifo(&pipe);
        for file in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            let read = from(file).read();
            assert!(read.problem.unwrap().contains("not a regular file"), "{}", file.display());
            assert_eq!(read.text, None);
        }
        assert!(open(&pipe).is_err());
    }

    #[test]
    fn more_than_the_cap_is_cut_between_characters() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mind.md");
        for odd in 0..4 {
            fs::write(&file, format!("{}{}", "x".repeat(odd), "🪿".repeat(MAX))).unwrap();
            let text = from(&file).read().text.unwrap();
            assert!(text.len() <= MAX && text.len() > MAX - 80 && text.ends_with("bytes]"), "{}", text.len());
        }
        let both = TopOfMind::new(Some("x".repeat(MAX - 10)), Some(file)).read().text.unwrap();
        assert!(both.len() <= MAX && both.ends_with("bytes]"));
    }

    #[test]
    fn each_principal_has_its_own_text() {
        let data = tempfile::tempdir().unwrap();
        let [ann, bob] = ["ann", "bob"].map(|name| Principal::new(name).unwrap());
        let top = PrincipalTopOfMind::new(data.path().to_owned(), TopOfMind::new(Some("mine".to_owned()), None));
        assert_eq!(top.read(&ann), TopOfMindText::default(), "a missing file is no problem");
        fs::create_dir_all(ann.folder(data.path())).unwrap();
        fs::write(ann.folder(data.path()).join(PRINCIPAL_FILE), "of ann").unwrap();
        assert_eq!(top.read(&ann).text.as_deref(), Some("of ann"));
        assert_eq!(top.read(&bob), TopOfMindText::default());
        assert_eq!(top.read(&Principal::local()).text.as_deref(), Some("mine"));
    }
}
