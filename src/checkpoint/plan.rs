//! Plans and applies a restore: reverses the steps of a session, and leaves everything else as it is.
//!
//! Invariant: a file that no step changed is never written. A file that is not as the session left it stays, unless the
//! user forces it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::CheckpointStep;
use super::ignore_rules::IgnoreRules;
use super::objects::ObjectStore;
use super::snapshot::{CoverageGap, EntryContent, PresentState, Snapshot, Workspace, read_present};

/// Larger texts are not shown as a difference.
pub const MAX_SHOWN_BYTES: usize = 256 << 10;

/// What a restore would do.
#[derive(Debug, Clone, Default)]
pub struct RestorePlan {
    roots: Vec<PathBuf>,
    file_bytes: u64,
    changes: Vec<PlannedChange>,
    /// The paths that the snapshots cover.
    covered: BTreeSet<String>,
    gaps: Vec<(PathBuf, CoverageGap)>,
    is_partial: bool,
}

#[derive(Debug, Clone)]
struct PlannedChange {
    path: PathBuf,
    now: Option<EntryContent>,
    target: Option<EntryContent>,
    /// The permissions of the target if it is a folder.
    folder_mode: Option<u32>,
    kept: Option<KeepReason>,
}

/// Why a file stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepReason {
    /// It was changed after the session changed it.
    ChangedSince,
    NotCovered,
    Failed(String),
}

impl std::fmt::Display for KeepReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ChangedSince => f.write_str("has changed since and stays as it is"),
            Self::NotCovered => f.write_str("is not covered by the checkpoint and stays as it is"),
            Self::Failed(problem) => write!(f, "stays as it is: {problem}"),
        }
    }
}

/// A file that a restore left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFile {
    pub path: PathBuf,
    pub reason: KeepReason,
}

/// The change of one file, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDifference {
    pub path: PathBuf,
    /// The present text. `None` if there is no file, or if it is no text.
    pub now: Option<String>,
    /// The text after the restore. `None` if there will be no file, or if it is no text.
    pub then: Option<String>,
    /// True if the restore removes the file.
    pub is_removal: bool,
    /// Set if the file stays as it is.
    pub kept: Option<KeepReason>,
}

/// Returns true if a file differs between two snapshots.
pub(super) fn differs(before: &Snapshot, after: &Snapshot) -> bool {
    let compared = Comparison::of(before, after);
    !(compared.changed.is_empty() && compared.unclear.is_empty())
}

/// The paths that differ between two snapshots.
#[derive(Default)]
struct Comparison<'a> {
    changed: BTreeSet<&'a str>,
    /// Covered in only one of them, also because the ignore files differ.
    unclear: BTreeSet<&'a str>,
}

impl<'a> Comparison<'a> {
    fn of(before: &'a Snapshot, after: &'a Snapshot) -> Self {
        let mut compared = Self::default();
        let old_rules = (before.ignore_files != after.ignore_files).then(|| IgnoreRules::of(before));
        let gone = before.files.iter().filter(|(path, _)| !after.covers(path));
        let gone: HashSet<_> = gone.map(|(_, entry)| entry.stamp).collect();
        let paths: BTreeSet<&str> = before.files.keys().chain(after.files.keys()).map(String::as_str).collect();
        for path in paths {
            let (was, is) = (before.files.get(path), after.files.get(path));
            if was.map(|entry| &entry.content) == is.map(|entry| &entry.content) {
                continue;
            }
            // A file that was ignored and is not any more looks new. It may be older than the snapshot, but so is what
            // came along with a folder that was renamed.
            let new = is.filter(|_| was.is_none());
            if new.is_some_and(|entry| entry.stamp.is_older_than(before.at) && !gone.contains(&entry.stamp)) {
                continue;
            }
            let was_ignored = new
                .zip(old_rules.as_ref())
                .is_some_and(|(entry, rules)| rules.ignores(Path::new(path), entry.content == EntryContent::Folder));
            let is_unclear = was_ignored || before.is_unclear(path) || after.is_unclear(path);
            let list = if is_unclear { &mut compared.unclear } else { &mut compared.changed };
            list.insert(path);
        }
        compared
    }
}

impl RestorePlan {
    /// Plans to reverse `steps`, oldest first. `present` is a snapshot of the workspace now.
    pub fn new(steps: &[CheckpointStep], present: &Snapshot, workspace: &Workspace) -> Self {
        // The first and the last step that changed each path.
        let mut spans: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let mut unclear: BTreeSet<&str> = BTreeSet::new();
        for (index, step) in steps.iter().enumerate() {
            let compared = Comparison::of(&step.before, after(steps, index, present));
            compared.changed.iter().chain(&compared.unclear).for_each(|path| {
                spans.entry(*path).or_insert((index, index)).1 = index;
            });
            unclear.extend(compared.unclear);
        }
        let mut changes = Vec::new();
        for (path, (first, last)) in spans {
            let (before, left) = (&steps[first].before, after(steps, last, present));
            let (target, now) = (before.content(path), present.content(path));
            if target == now && !unclear.contains(path) {
                continue;
            }
            let is_unclear = unclear.contains(path) || present.is_unclear(path) || before.is_unclear(path);
            let is_hidden = workspace.hidden.covering(Path::new(path)).is_some();
            let kept = if is_unclear || is_hidden {
                Some(KeepReason::NotCovered)
            } else if left.content(path) != now || steps[last].after.is_none() {
                // What the user did after a step without an end is unknown.
                Some(KeepReason::ChangedSince)
            } else {
                None
            };
            let folder_mode = before.files.get(path).and_then(|entry| entry.folder_mode);
            let (now, target) = (now.cloned(), target.cloned());
            changes.push(PlannedChange { path: path.into(), now, target, folder_mode, kept });
        }
        let snapshots =
            steps.iter().flat_map(|step| [Some(&step.before), step.after.as_ref()]).flatten().chain([present]);
        Self {
            roots: present.roots.clone(),
            file_bytes: workspace.limits.file_bytes,
            changes,
            covered: snapshots.flat_map(|snapshot| snapshot.files.keys().cloned()).collect(),
            gaps: present.gaps().map(|(path, gap)| (path.into(), gap)).collect(),
            is_partial: present.is_partial(),
        }
    }

    /// Returns true if the snapshots have the contents of this file.
    pub fn covers(&self, path: &Path) -> bool {
        path.to_str().is_some_and(|path| self.covered.contains(path))
    }

    /// Returns the files that are not covered now, and why.
    pub fn gaps(&self) -> &[(PathBuf, CoverageGap)] {
        &self.gaps
    }

    /// Returns true if there are too many files to cover them all.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns what would change, without folders.
    pub(super) fn differences(&self, objects: &ObjectStore) -> Vec<FileDifference> {
        let text = |content: &Option<EntryContent>| match content {
            Some(EntryContent::File { hash, .. }) => {
                let bytes = objects.get(hash).ok().filter(|bytes| bytes.len() <= MAX_SHOWN_BYTES)?;
                String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
            }
            Some(EntryContent::Link { target }) => Some(format!("link to {target}\n")),
            Some(EntryContent::Folder) | None => None,
        };
        let is_folder = |content: &Option<EntryContent>| matches!(content, None | Some(EntryContent::Folder));
        let shown = self.changes.iter().filter(|change| !(is_folder(&change.now) && is_folder(&change.target)));
        shown
            .map(|change| FileDifference {
                path: change.path.clone(),
                now: text(&change.now),
                then: text(&change.target),
                is_removal: is_folder(&change.target),
                kept: change.kept.clone(),
            })
            .collect()
    }

    pub(super) fn apply(&self, objects: &ObjectStore, force: bool) -> Vec<KeptFile> {
        let mut kept = Vec::new();
        let mut cleared = Vec::new();
        // What is in a folder comes after the folder, so that this order empties folders before it removes them.
        for change in self.changes.iter().rev() {
            let reason = match &change.kept {
                Some(KeepReason::ChangedSince) if force => None,
                reason => reason.clone(),
            };
            match reason.map_or_else(|| self.clear(change), Err) {
                Ok(()) => cleared.push(change),
                Err(reason) => kept.push(KeptFile { path: change.path.clone(), reason }),
            }
        }
        for change in cleared.into_iter().rev() {
            if let Err(reason) = self.write(change, objects) {
                kept.push(KeptFile { path: change.path.clone(), reason });
            }
        }
        // A folder without the rest says nothing.
        kept.retain(|file| !self.is_folder_change(&file.path));
        kept.sort_by(|a, b| a.path.cmp(&b.path));
        kept
    }

    fn is_folder_change(&self, path: &Path) -> bool {
        let is_folder = |content: &Option<EntryContent>| matches!(content, None | Some(EntryContent::Folder));
        let change = self.changes.iter().find(|change| change.path == path);
        change.is_some_and(|change| is_folder(&change.now) && is_folder(&change.target))
    }

    /// Removes what is in the way of a change. Fails if the file is not as it was when the restore was planned.
    fn clear(&self, change: &PlannedChange) -> Result<(), KeepReason> {
        let expected = change.now.clone().map_or(PresentState::Missing, PresentState::Entry);
        if read_present(&self.roots, &change.path, self.file_bytes) != expected {
            return Err(KeepReason::ChangedSince);
        }
        let is_file = |content: &EntryContent| matches!(content, EntryContent::File { .. });
        let removed = match (&change.now, &change.target) {
            (None, _) => return Ok(()),
            // Replaced atomically later.
            (Some(now), Some(target)) if is_file(now) && is_file(target) => return Ok(()),
            (Some(EntryContent::Folder), _) => match self.open(&change.path).and_then(|path| path.remove_folder()) {
                // Files that are not covered keep their folder.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && change.target.is_none() => Ok(()),
                removed => removed,
            },
            (Some(EntryContent::File { .. } | EntryContent::Link { .. }), _) => {
                self.open(&change.path).and_then(|path| path.remove_file())
            }
        };
        removed.map_err(|error| KeepReason::Failed(error.to_string()))
    }

    /// Writes the earlier content.
    fn write(&self, change: &PlannedChange, objects: &ObjectStore) -> Result<(), KeepReason> {
        let failed = |error: io::Error| KeepReason::Failed(error.to_string());
        match &change.target {
            None => Ok(()),
            // Creates the folders above a file in it.
            Some(EntryContent::Folder) => {
                if let Some(mode) = change.folder_mode {
                    let path = self.open(&change.path).map_err(failed)?;
                    path.create_folders().map_err(failed)?;
                    // The files in it come back afterwards, so it must be writable.
                    path.create_folder(&Permissions::from_mode(mode | 0o700)).map_err(failed)?;
                }
                let inside = self.open(&change.path.join("file")).map_err(failed)?;
                inside.create_folders().map(drop).map_err(failed)
            }
            Some(EntryContent::Link { target }) => {
                let path = self.open(&change.path).map_err(failed)?;
                path.create_folders().map_err(failed)?;
                path.create_link(Path::new(target)).map_err(failed)
            }
            Some(EntryContent::File { hash, mode }) => {
                let bytes = objects.get(hash).map_err(|error| KeepReason::Failed(error.to_string()))?;
                let path = self.open(&change.path).map_err(failed)?;
                let permissions = Permissions::from_mode(*mode);
                if matches!(change.now, Some(EntryContent::File { .. })) {
                    return path.replace(&bytes, &permissions).map_err(failed);
                }
                path.create_folders().map_err(failed)?;
                // Fails if the file has been created meanwhile.
                path.create_with(&bytes, &permissions).map_err(failed)
            }
        }
    }

    fn open(&self, path: &Path) -> io::Result<crate::root_files::RootedPath> {
        crate::root_files::RootedPath::open(&self.roots, path)
    }
}

/// Returns the snapshot after a step. If Skein was killed during the step, the next known state stands for it.
fn after<'a>(steps: &'a [CheckpointStep], index: usize, present: &'a Snapshot) -> &'a Snapshot {
    let next = steps.get(index + 1).map(|step| &step.before);
    steps[index].after.as_ref().or(next).unwrap_or(present)
}
