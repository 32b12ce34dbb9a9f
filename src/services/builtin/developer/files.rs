//! What a session knows about files: which contents it has seen, and what its edits replaced.
//!
//! Invariant: nothing here touches the disk. The lock is held over an edit, so that two edits of one session
//! do not overtake each other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

/// Contents that were replaced are kept up to this many bytes; the oldest go first.
const MAX_JOURNAL: usize = 64 << 20;

/// Lies in the session.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: Mutex<FileRecords>,
}

#[derive(Debug, Default)]
pub(super) struct FileRecords {
    /// By place: what the session last read there or wrote.
    seen: HashMap<PathBuf, Stamp>,
    /// In the order of the edits.
    journal: Vec<Edit>,
    journal_bytes: usize,
}

/// Stands for a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp([u8; 32]);

impl Stamp {
    pub(super) fn of(contents: &[u8]) -> Self {
        Self(Sha256::digest(contents).into())
    }
}

/// One change of one file.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) place: PathBuf,
    pub(super) before: PriorContents,
    pub(super) after: Stamp,
    /// The session had seen what was there, so it has seen it again after an undo.
    pub(super) had_seen: bool,
}

#[derive(Debug)]
pub(super) enum PriorContents {
    Contents {
        bytes: Vec<u8>,
    },
    /// The file was made by the edit, and these folders for it, the innermost last.
    Nothing {
        folders: Vec<PathBuf>,
    },
}

/// What the session knows about a file it is about to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFreshness {
    Never,
    Changed,
    Current,
}

impl Files {
    pub(super) fn lock(&self) -> MutexGuard<'_, FileRecords> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileRecords {
    pub(super) fn saw(&mut self, place: &Path, stamp: Stamp) {
        self.seen.insert(place.to_owned(), stamp);
    }

    pub(super) fn sight(&self, place: &Path, now: Stamp) -> FileFreshness {
        match self.seen.get(place) {
            None => FileFreshness::Never,
            Some(stamp) if *stamp == now => FileFreshness::Current,
            Some(_) => FileFreshness::Changed,
        }
    }

    pub(super) fn record(&mut self, edit: Edit) {
        self.journal_bytes += edit.weight();
        self.journal.push(edit);
        while self.journal_bytes > MAX_JOURNAL {
            self.journal_bytes -= self.journal.remove(0).weight();
        }
    }

    /// The last edit of a file, if it can still be undone.
    pub(super) fn last_edit(&self, place: &Path) -> Option<&Edit> {
        self.journal.iter().rev().find(|edit| edit.place == place)
    }

    /// Its last edit has been undone.
    pub(super) fn forget_last_edit(&mut self, place: &Path) {
        let Some(at) = self.journal.iter().rposition(|edit| edit.place == place) else { return };
        let edit = self.journal.remove(at);
        self.journal_bytes -= edit.weight();
        match edit.before {
            PriorContents::Contents { bytes } if edit.had_seen => self.saw(place, Stamp::of(&bytes)),
            PriorContents::Contents { .. } | PriorContents::Nothing { .. } => {
                self.seen.remove(place);
            }
        }
    }

    /// How many edits of a file can still be undone.
    pub(super) fn edits(&self, place: &Path) -> usize {
        self.journal.iter().filter(|edit| edit.place == place).count()
    }
}

impl Edit {
    fn weight(&self) -> usize {
        match &self.before {
            PriorContents::Contents { bytes } => bytes.len(),
            PriorContents::Nothing { .. } => 0,
        }
    }
}
