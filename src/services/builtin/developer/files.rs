//! Tracks the files of a session: the contents it has seen, and the contents its edits replaced. Both are stored with
//! the session.
//!
//! Invariant: this module does not access the files. An edit holds the lock, so two edits of one session cannot
//! interleave.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::tool::StateEntries;

/// Maximum bytes of replaced contents; the oldest are dropped first.
const MAX_JOURNAL: usize = 64 << 20;
/// The beginnings of the keys under which sightings and edits are stored.
const SEEN: &str = "seen/";
const EDIT: &str = "edit/";

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
    journal: Vec<JournalEntry>,
    journal_bytes: usize,
    stored: StateEntries,
}

/// An edit and its number in the session.
#[derive(Debug)]
struct JournalEntry {
    number: u64,
    edit: Edit,
}

/// Hash of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Returns the records in `entries`, which earlier openings of the session stored.
    pub(super) fn load(stored: StateEntries, entries: &BTreeMap<String, Vec<u8>>) -> Self {
        Self { known: Mutex::new(FileRecords::load(stored, entries)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FileRecords> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileRecords {
    fn load(stored: StateEntries, entries: &BTreeMap<String, Vec<u8>>) -> Self {
        let mut records = Self { stored, ..Self::default() };
        for (key, value) in entries {
            if let Some(path) = key.strip_prefix(SEEN) {
                // A file whose sighting is lost must be read again, which is safe.
                if let Ok(stamp) = value.as_slice().try_into() {
                    records.seen.insert(path.into(), Stamp(stamp));
                }
            } else if let Some(number) = key.strip_prefix(EDIT) {
                match (number.parse(), Edit::from_bytes(value)) {
                    (Ok(number), Some(edit)) => {
                        records.journal_bytes += edit.weight();
                        records.journal.push(JournalEntry { number, edit });
                    }
                    _ => tracing::warn!(key, "a stored edit cannot be read, and cannot be undone"),
                }
            }
        }
        records
    }

    pub(super) fn saw(&mut self, place: &Path, stamp: Stamp) {
        if self.seen.insert(place.to_owned(), stamp) != Some(stamp)
            && let Some(key) = sighting_key(place)
        {
            self.stored.put(&key, stamp.0.to_vec());
        }
    }

    fn forget(&mut self, place: &Path) {
        self.seen.remove(place);
        if let Some(key) = sighting_key(place) {
            self.stored.remove(&key);
        }
    }

    pub(super) fn sight(&self, place: &Path, now: Stamp) -> FileFreshness {
        match self.seen.get(place) {
            None => FileFreshness::Never,
            Some(stamp) if *stamp == now => FileFreshness::Current,
            Some(_) => FileFreshness::Changed,
        }
    }

    pub(super) fn record(&mut self, edit: Edit) {
        let number = self.journal.last().map_or(1, |last| last.number + 1);
        if let Some(bytes) = edit.to_bytes() {
            self.stored.put(&edit_key(number), bytes);
        }
        self.journal_bytes += edit.weight();
        self.journal.push(JournalEntry { number, edit });
        while self.journal_bytes > MAX_JOURNAL {
            self.remove(0);
        }
    }

    /// Returns the last edit of a file; `None` if no edit can be undone.
    pub(super) fn last_edit(&self, place: &Path) -> Option<&Edit> {
        self.journal.iter().rev().map(|entry| &entry.edit).find(|edit| edit.place == place)
    }

    /// Removes the last edit of a file after it was undone.
    pub(super) fn forget_last_edit(&mut self, place: &Path) {
        let Some(at) = self.journal.iter().rposition(|entry| entry.edit.place == place) else { return };
        let edit = self.remove(at);
        match edit.before {
            PriorContents::Contents { bytes } if edit.had_seen => self.saw(place, Stamp::of(&bytes)),
            PriorContents::Contents { .. } | PriorContents::Nothing { .. } => self.forget(place),
        }
    }

    fn remove(&mut self, at: usize) -> Edit {
        let JournalEntry { number, edit } = self.journal.remove(at);
        self.journal_bytes -= edit.weight();
        self.stored.remove(&edit_key(number));
        edit
    }

    /// Returns how many edits of a file can be undone.
    pub(super) fn edits(&self, place: &Path) -> usize {
        self.journal.iter().filter(|entry| entry.edit.place == place).count()
    }
}

/// Returns the key of a sighting. `None` for a path that is not UTF-8; such a file must be read again.
fn sighting_key(place: &Path) -> Option<String> {
    place.to_str().map(|path| format!("{SEEN}{path}"))
}

/// Keys sort in the order of the edits.
fn edit_key(number: u64) -> String {
    format!("{EDIT}{number:012}")
}

/// The stored form of an edit: this as one line of JSON, then the prior contents.
#[derive(Serialize, Deserialize)]
struct EditHeader {
    place: PathBuf,
    after: Stamp,
    had_seen: bool,
    /// The folders that the edit created with the file; `None` if the file existed.
    created: Option<Vec<PathBuf>>,
}

impl Edit {
    fn weight(&self) -> usize {
        match &self.before {
            PriorContents::Contents { bytes } => bytes.len(),
            PriorContents::Nothing { .. } => 0,
        }
    }

    /// Returns the stored form. `None` if a path is not UTF-8.
    fn to_bytes(&self) -> Option<Vec<u8>> {
        let (created, contents) = match &self.before {
            PriorContents::Contents { bytes } => (None, bytes.as_slice()),
            PriorContents::Nothing { folders } => (Some(folders.clone()), [].as_slice()),
        };
        let header = EditHeader { place: self.place.clone(), after: self.after, had_seen: self.had_seen, created };
        let mut bytes = serde_json::to_vec(&header).ok()?;
        bytes.push(b'\n');
        bytes.extend_from_slice(contents);
        Some(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let EditHeader { place, after, had_seen, created } = serde_json::from_slice(&bytes[..end]).ok()?;
        let before = match created {
            Some(folders) => PriorContents::Nothing { folders },
            None => PriorContents::Contents { bytes: bytes[end + 1..].to_vec() },
        };
        Some(Self { place, before, after, had_seen })
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
