//! Tracks the files of a session: the contents it has seen, and the contents its edits replaced.
//!
//! Invariant: this module does not access the disk. An edit holds the lock, so two edits of one session cannot
//! interleave.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

/// Maximum bytes of replaced contents; the oldest are dropped first.
const MAX_JOURNAL: usize = 64 << 20;

/// The file records of a session; stored in its state.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: Mutex<FileRecords>,
}

#[derive(Debug, Default)]
pub(super) struct FileRecords {
    /// Stamp of the contents that the session last read or wrote, by path.
    seen: HashMap<PathBuf, Stamp>,
    /// Oldest first.
    journal: Vec<Edit>,
    journal_bytes: usize,
}

/// Hash of a file's contents.
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
    /// Whether the session had seen the prior contents; if so, it has seen them again after an undo.
    pub(super) had_seen: bool,
}

#[derive(Debug)]
pub(super) enum PriorContents {
    Contents {
        bytes: Vec<u8>,
    },
    /// The edit created the file and these folders, the innermost last.
    Nothing {
        folders: Vec<PathBuf>,
    },
}

/// The state of a file compared with what the session last saw of it.
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

    /// Returns the last edit of a file; `None` if no edit can be undone.
    pub(super) fn last_edit(&self, place: &Path) -> Option<&Edit> {
        self.journal.iter().rev().find(|edit| edit.place == place)
    }

    /// Removes the last edit of a file after it was undone.
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

    /// Returns how many edits of a file can be undone.
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
