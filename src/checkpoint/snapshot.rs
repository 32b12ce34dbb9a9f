//! Takes snapshots of a workspace: lists its files, and copies their contents to the store.
//!
//! Skips `.git`, hidden paths, and files that `.gitignore` or `.git/info/exclude` names. What a limit leaves out is
//! listed as a gap.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ignore::WalkBuilder;
use serde::{Deserialize, Serialize};

use super::CheckpointError;
use super::objects::{ObjectStore, hash_of};
use crate::clock;
use crate::root_files::RootedPath;
use crate::sandbox::HiddenPaths;

/// A file whose time of change is this close to a snapshot is read again, because a later change may have the same
/// time. In milliseconds.
const SETTLE_TIME: u64 = 1_000;
/// The kernel's times of files may lag behind the clock by this much. In milliseconds.
const CLOCK_LAG: u64 = 20;

/// The ignore files of a folder. The rules of the first have precedence.
pub(super) const IGNORE_FILES: [&str; 2] = [".gitignore", ".git/info/exclude"];

/// The folders that a snapshot covers.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub roots: Vec<PathBuf>,
    /// Paths that are neither read nor written.
    pub hidden: HiddenPaths,
    pub limits: SnapshotLimits,
}

/// What a snapshot covers at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimits {
    pub file_bytes: u64,
    pub total_bytes: u64,
    /// Files, links and folders.
    pub entries: usize,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self { file_bytes: 5 << 20, total_bytes: 512 << 20, entries: 20_000 }
    }
}

/// The files of a workspace at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Milliseconds since 1970.
    pub at: u64,
    /// The covered folders, resolved.
    pub roots: Vec<PathBuf>,
    /// Keyed by the whole path.
    pub(super) files: BTreeMap<String, FileEntry>,
    /// Files and folders that are there and not covered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) gaps: BTreeMap<String, CoverageGap>,
    /// The texts of the ignore files that apply, also of those that are not covered. Keyed by the whole path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ignore_files: BTreeMap<String, String>,
    /// True if there were too many entries: a path that the snapshot does not list may exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_partial: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) content: EntryContent,
    pub(super) stamp: EntryStamp,
    /// The permissions of a folder. Older checkpoints do not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) folder_mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EntryContent {
    File { hash: String, mode: u32 },
    Link { target: String },
    Folder,
}

/// Changes whenever the file changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct EntryStamp {
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl EntryStamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns the time of the last change of the file or its name, in milliseconds since 1970.
    fn change_time(&self) -> u64 {
        let (seconds, nanoseconds) = self.changed;
        u64::try_from(seconds.saturating_mul(1_000).saturating_add(nanoseconds / 1_000_000)).unwrap_or(0)
    }

    /// Returns true if the file was there, unchanged, at this time.
    pub(super) fn is_older_than(&self, at: u64) -> bool {
        self.change_time() + CLOCK_LAG < at
    }
}

/// Why a file is not covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoverageGap {
    TooLarge,
    TotalSize,
    Unreadable,
    NotUtf8,
    Special,
}

impl std::fmt::Display for CoverageGap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "too large",
            Self::TotalSize => "over the total size",
            Self::Unreadable => "cannot be read",
            Self::NotUtf8 => "its name is not UTF-8",
            Self::Special => "not a regular file",
        })
    }
}

impl Snapshot {
    /// Returns the files that are not covered, and why.
    pub fn gaps(&self) -> impl Iterator<Item = (&str, CoverageGap)> {
        self.gaps.iter().map(|(path, gap)| (path.as_str(), *gap))
    }

    /// Returns true if there were too many entries to list them all.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns true if the snapshot has the contents of this file.
    pub(super) fn covers(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Returns the hashes of all contents.
    pub(super) fn hashes(&self) -> impl Iterator<Item = &str> {
        self.files.values().filter_map(|entry| match &entry.content {
            EntryContent::File { hash, .. } => Some(hash.as_str()),
            EntryContent::Link { .. } | EntryContent::Folder => None,
        })
    }

    pub(super) fn content(&self, path: &str) -> Option<&EntryContent> {
        self.files.get(path).map(|entry| &entry.content)
    }

    /// Returns true if the snapshot does not know whether the path exists, or what it contains.
    pub(super) fn is_unclear(&self, path: &str) -> bool {
        let is_gap = |path: &Path| path.to_str().is_some_and(|path| self.gaps.contains_key(path));
        !self.covers(path) && (self.is_partial || Path::new(path).ancestors().any(is_gap))
    }

    /// Returns true if the path leads through a link.
    fn is_behind_link(&self, path: &Path) -> bool {
        let is_link = |path: &Path| {
            let content = path.to_str().and_then(|path| self.content(path));
            matches!(content, Some(EntryContent::Link { .. }))
        };
        path.ancestors().skip(1).any(is_link)
    }
}

/// Takes a snapshot. A root that contains the store, such as the home folder, is not covered. A file that `previous`
/// covers stays covered, even if it is ignored since.
pub(super) fn take(
    workspace: &Workspace,
    store: &Path,
    objects: &ObjectStore,
    previous: Option<&Snapshot>,
) -> Result<Snapshot, CheckpointError> {
    let roots = select_roots(&workspace.roots, store);
    let snapshot = Snapshot { at: clock::now(), roots: roots.clone(), ..Snapshot::default() };
    let mut builder = SnapshotBuilder { workspace, objects, previous, snapshot, total: 0 };
    for root in &roots {
        builder.add_root(root)?;
    }
    builder.add_known()?;
    builder.add_ignore_files();
    Ok(builder.snapshot)
}

/// Returns the resolved roots that can be covered, without those below others.
fn select_roots(roots: &[PathBuf], store: &Path) -> Vec<PathBuf> {
    let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let mut resolved: Vec<PathBuf> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    resolved.retain(|root| root.is_dir() && !store.starts_with(root));
    // A folder comes before the folders in it.
    resolved.sort();
    let mut covered: Vec<PathBuf> = Vec::new();
    for root in resolved {
        if !covered.iter().any(|above| root.starts_with(above)) {
            covered.push(root);
        }
    }
    covered
}

struct SnapshotBuilder<'a> {
    workspace: &'a Workspace,
    objects: &'a ObjectStore,
    previous: Option<&'a Snapshot>,
    snapshot: Snapshot,
    /// Bytes of the files so far.
    total: u64,
}

impl SnapshotBuilder<'_> {
    fn add_root(&mut self, root: &Path) -> Result<(), CheckpointError> {
        let hidden = self.workspace.hidden.clone();
        // Inside a repository git's rules apply, up to its root. Elsewhere only files in the workspace count.
        let in_repository = root.ancestors().any(|folder| folder.join(".git").exists());
        let mut walk = WalkBuilder::new(root);
        walk.hidden(false)
            .ignore(false)
            .git_global(false)
            .require_git(in_repository)
            .parents(in_repository)
            .follow_links(false)
            .sort_by_file_name(Ord::cmp)
            .filter_entry(move |entry| entry.file_name() != ".git" && hidden.covering(entry.path()).is_none());
        for entry in walk.build() {
            if self.snapshot.files.len() + self.snapshot.gaps.len() >= self.workspace.limits.entries {
                self.snapshot.is_partial = true;
                return Ok(());
            }
            match entry {
                Ok(entry) if entry.depth() == 0 => {}
                Ok(entry) => self.add(entry.path())?,
                Err(error) => {
                    if let Some(path) = error_path(&error) {
                        self.leave_out(path, CoverageGap::Unreadable);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds what the previous snapshot covers and the walk did not find, such as a file that is ignored since.
    fn add_known(&mut self) -> Result<(), CheckpointError> {
        let Some(previous) = self.previous else { return Ok(()) };
        for name in previous.files.keys() {
            let path = Path::new(name);
            let is_inside = self.snapshot.roots.iter().any(|root| path.starts_with(root));
            let is_listed = self.snapshot.covers(name) || self.snapshot.gaps.contains_key(name);
            if is_inside
                && !is_listed
                && !self.snapshot.is_behind_link(path)
                && self.workspace.hidden.covering(path).is_none()
            {
                self.add(path)?;
            }
        }
        Ok(())
    }

    /// Adds the ignore files of the covered folders, and of those above a root up to that of its repository. Together
    /// they may be as large as one file.
    fn add_ignore_files(&mut self) {
        let is_folder = |entry: &FileEntry| entry.content == EntryContent::Folder;
        let files = self.snapshot.files.iter();
        let mut folders: Vec<PathBuf> =
            files.filter(|(_, entry)| is_folder(entry)).map(|(path, _)| path.into()).collect();
        for root in &self.snapshot.roots {
            let top = root.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(root);
            folders.extend(root.ancestors().take_while(|folder| folder.starts_with(top)).map(Path::to_owned));
        }
        let mut room = self.workspace.limits.file_bytes;
        let paths = folders.iter().flat_map(|folder| IGNORE_FILES.map(|name| folder.join(name)));
        // Most folders have none, and this is the cheapest way to know.
        for path in paths.filter(|path| path.symlink_metadata().is_ok()) {
            let Some(name) = path.to_str().filter(|_| self.workspace.hidden.covering(&path).is_none()) else {
                continue;
            };
            if let Ok(Some(bytes)) = read_file(&[PathBuf::from("/")], &path, room) {
                room -= bytes.len() as u64;
                self.snapshot.ignore_files.insert(name.to_owned(), String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }

    fn add(&mut self, path: &Path) -> Result<(), CheckpointError> {
        // A file may disappear meanwhile.
        let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
        let Some(name) = path.to_str() else {
            self.leave_out(path, CoverageGap::NotUtf8);
            return Ok(());
        };
        let content = if metadata.is_dir() {
            Ok(EntryContent::Folder)
        } else if metadata.is_symlink() {
            read_target(path)
        } else if metadata.is_file() {
            self.file_content(path, name, &metadata)?
        } else {
            Err(CoverageGap::Special)
        };
        match content {
            Ok(content) => {
                let folder_mode = metadata.is_dir().then_some(metadata.mode() & 0o777);
                let entry = FileEntry { content, stamp: EntryStamp::of(&metadata), folder_mode };
                self.snapshot.files.insert(name.to_owned(), entry);
            }
            Err(gap) => self.leave_out(path, gap),
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &Path, gap: CoverageGap) {
        self.snapshot.gaps.insert(path.to_string_lossy().into_owned(), gap);
    }

    /// Stores a file unless it is unchanged. The inner `Err` is the reason why it is not covered.
    fn file_content(
        &mut self,
        path: &Path,
        name: &str,
        metadata: &Metadata,
    ) -> Result<Result<EntryContent, CoverageGap>, CheckpointError> {
        let limits = self.workspace.limits;
        if metadata.len() > limits.file_bytes {
            return Ok(Err(CoverageGap::TooLarge));
        }
        if self.total + metadata.len() > limits.total_bytes {
            return Ok(Err(CoverageGap::TotalSize));
        }
        self.total += metadata.len();
        if let Some(content) = self.reuse_content(name, &EntryStamp::of(metadata)) {
            return Ok(Ok(content.clone()));
        }
        match read_file(&self.snapshot.roots, path, limits.file_bytes) {
            Ok(Some(bytes)) => {
                let hash = self.objects.put(&bytes)?;
                Ok(Ok(EntryContent::File { hash, mode: metadata.mode() & 0o777 }))
            }
            Ok(None) => Ok(Err(CoverageGap::TooLarge)),
            Err(_) => Ok(Err(CoverageGap::Unreadable)),
        }
    }

    /// Returns the content of a file that has not changed since the previous snapshot.
    fn reuse_content(&self, name: &str, stamp: &EntryStamp) -> Option<&EntryContent> {
        let previous = self.previous?;
        let entry = previous.files.get(name).filter(|entry| entry.stamp == *stamp)?;
        let is_settled = stamp.change_time() + SETTLE_TIME < previous.at;
        match &entry.content {
            EntryContent::File { hash, .. } if is_settled && self.objects.has(hash) => Some(&entry.content),
            EntryContent::File { .. } | EntryContent::Link { .. } | EntryContent::Folder => None,
        }
    }
}

/// What is at a path now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PresentState {
    Missing,
    Entry(EntryContent),
    /// It cannot be compared with a snapshot.
    Unclear,
}

/// Reads what is at a path now, and stores nothing. Behind a link there is nothing.
pub(super) fn read_present(roots: &[PathBuf], path: &Path, file_bytes: u64) -> PresentState {
    let is_inside = |path: &&Path| roots.iter().any(|root| path.starts_with(root));
    if path.ancestors().skip(1).take_while(is_inside).any(Path::is_symlink) {
        return PresentState::Missing;
    }
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return PresentState::Missing,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return PresentState::Missing,
        Err(_) => return PresentState::Unclear,
        Ok(metadata) => metadata,
    };
    if metadata.is_dir() {
        return PresentState::Entry(EntryContent::Folder);
    }
    if metadata.is_symlink() {
        return read_target(path).map_or(PresentState::Unclear, PresentState::Entry);
    }
    match read_file(roots, path, file_bytes) {
        Ok(Some(bytes)) => {
            PresentState::Entry(EntryContent::File { hash: hash_of(&bytes), mode: metadata.mode() & 0o777 })
        }
        Ok(None) | Err(_) => PresentState::Unclear,
    }
}

fn read_target(path: &Path) -> Result<EntryContent, CoverageGap> {
    let target = path.read_link().map_err(|_| CoverageGap::Unreadable)?;
    let target = target.into_os_string().into_string().map_err(|_| CoverageGap::NotUtf8)?;
    Ok(EntryContent::Link { target })
}

/// Reads a file without following links. `None` if it has more than `limit` bytes.
fn read_file(roots: &[PathBuf], path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = RootedPath::open(roots, path)?.read()?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

/// Returns the file or folder that a walk could not read.
fn error_path(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => error_path(err),
        _ => None,
    }
}
