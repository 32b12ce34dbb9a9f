//! Finds the submodules of a work tree, which the index of its repository names. `git status` enters each of them and
//! runs what its config names.
//!
//! Reads an index as `read-cache.c` of git does. Where both could differ, the index counts as not understood, and every
//! `.git` below the work tree as that of a submodule.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use super::git_text::{GIT_FILE_LABEL, leads_to, open_regular, parse_config, read_small};

const GIT: &str = ".git";
/// Larger indexes are not read.
const MAX_BYTES: u64 = 256 << 20;
/// Folders below a work tree that are searched if its index is not understood.
const MAX_WALKED: usize = 1 << 18;
const SIGNATURE: [u8; 4] = *b"DIRC";
const HEADER: usize = 12;
/// Sizes of the hashes that git uses. The index does not name its own.
const USUAL_HASH: usize = 20;
const LONG_HASH: usize = 32;
/// The key of a config that chooses the hash.
const HASH_KEY: &str = "extensions.objectformat";
/// The fields of an entry before its hash, and where its mode is.
const FIELDS: usize = 40;
const MODE: std::ops::Range<usize> = 24..28;
const KIND: u32 = 0o170_000;
const SUBMODULE: u32 = 0o160_000;
const FOLDER: u32 = 0o040_000;
const HAS_MORE_FLAGS: u16 = 0x4000;
/// The length of a name, or this if it is longer.
const NAME_LENGTH: u16 = 0x0fff;
/// The name and size of an extension, which follows the entries.
const EXTENSION_HEADER: usize = 8;
/// The extension at the end of an index that says where its extensions begin.
const END_OF_ENTRIES: [u8; 4] = *b"EOIE";
/// The extension that says where blocks of entries begin, for threads.
const BLOCKS: [u8; 4] = *b"IEOT";

/// Finds the `.git` of the submodules that git enters by itself, at any depth.
pub(super) fn find_submodules(work_tree: &Path) -> Vec<PathBuf> {
    let mut gits = Vec::new();
    let mut pending = vec![work_tree.to_owned()];
    let mut visited = BTreeSet::new();
    while let Some(folder) = pending.pop() {
        let git = folder.join(GIT);
        let repository = if git.is_file() { leads_to(&git, GIT_FILE_LABEL) } else { git.canonicalize().ok() };
        let Some(repository) = repository else { continue };
        let IndexListing { paths, is_complete } = list_submodules(&repository);
        let places = paths.into_iter().map(|path| folder.join(path));
        let other = if is_complete { Vec::new() } else { walk(&folder) };
        for place in places.chain(other) {
            let git = place.join(GIT);
            // Git does not follow a link to a submodule.
            let is_real = || place.canonicalize().is_ok_and(|real| real == place);
            if git.symlink_metadata().is_ok() && is_real() && visited.insert(place.clone()) {
                gits.push(git);
                pending.push(place);
            }
        }
    }
    gits
}

/// Returns the folders below a work tree that have a `.git`. Near ones come first, because the number is limited.
fn walk(work_tree: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = VecDeque::from([work_tree.to_owned()]);
    let mut walked = 0;
    while let Some(folder) = pending.pop_front() {
        walked += 1;
        if walked > MAX_WALKED {
            break;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name() == GIT {
                found.push(folder.clone());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push_back(entry.path());
            }
        }
    }
    found.retain(|folder| folder != work_tree);
    found
}

/// The submodules in the index of a git folder.
#[derive(Debug, PartialEq, Eq)]
struct IndexListing {
    /// Relative to the work tree.
    paths: Vec<PathBuf>,
    /// False if there may be others.
    is_complete: bool,
}

fn list_submodules(repository: &Path) -> IndexListing {
    let mut names = Vec::new();
    let is_complete = read_submodules(repository, &mut names).is_some();
    let paths = names.into_iter().map(|name| PathBuf::from(OsString::from_vec(name)));
    let is_plain = |path: &PathBuf| {
        path.components().count() > 0 && path.components().all(|part| matches!(part, Component::Normal(_)))
    };
    IndexListing { paths: paths.filter(is_plain).collect(), is_complete }
}

/// Adds the names of submodules. `None` if there may be others.
fn read_submodules(repository: &Path, names: &mut Vec<Vec<u8>>) -> Option<()> {
    let index = repository.join("index");
    if is_missing(&index) {
        return Some(());
    }
    let hash = hash_size(repository)?;
    let mut is_complete = true;
    let mut has_nameless = false;
    read_entries(&read_index(&index)?, hash, |mode, name| match mode & KIND {
        SUBMODULE if name.is_empty() => has_nameless = true,
        SUBMODULE => names.push(name.to_owned()),
        // A sparse index has whole folders, which git reads from its objects.
        FOLDER => is_complete = false,
        _ => {}
    })?;
    for shared in list_shared_indexes(repository) {
        read_entries(&read_index(&shared)?, hash, |mode, name| {
            // An entry without a name replaces one of the shared index, and has its name.
            if mode & KIND == SUBMODULE || has_nameless {
                names.push(name.to_owned());
            }
            is_complete &= mode & KIND != FOLDER;
        })?;
    }
    is_complete.then_some(())
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn list_shared_indexes(repository: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository).into_iter().flatten().flatten();
    let is_shared = |name: OsString| name.to_string_lossy().starts_with("sharedindex.");
    entries.filter(|entry| is_shared(entry.file_name())).map(|entry| entry.path()).collect()
}

/// Reads an index. `None` if it is too large or no file.
fn read_index(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_BYTES).then_some(bytes)
}

/// Returns the size of the hashes of a repository. `None` if its config is not understood.
fn hash_size(repository: &Path) -> Option<usize> {
    let shared = repository.join("commondir");
    let common = if is_missing(&shared) { repository.to_owned() } else { leads_to(&shared, "")? };
    let config = common.join("config");
    if is_missing(&config) {
        return Some(USUAL_HASH);
    }
    let text = read_small(&config)?;
    if !text.to_ascii_lowercase().contains("objectformat") {
        return Some(USUAL_HASH);
    }
    let mut size = USUAL_HASH;
    for (_, value) in parse_config(&text).ok()?.into_iter().filter(|(key, _)| key == HASH_KEY) {
        size = match value {
            "sha1" => USUAL_HASH,
            "sha256" => LONG_HASH,
            _ => return None,
        };
    }
    Some(size)
}

/// Visits the mode and the name of each entry. `None` if git may read the index in another way, or not at all.
fn read_entries(index: &[u8], hash: usize, mut visit: impl FnMut(u32, &[u8])) -> Option<()> {
    let version = number(index.get(4..8)?);
    if index.get(..4)? != SIGNATURE || !(2..=4).contains(&version) {
        return None;
    }
    let mut at = HEADER;
    let mut name = Vec::new();
    let mut starts = Vec::new();
    for _ in 0..number(index.get(8..HEADER)?) {
        let entry = index.get(at..)?;
        let mut begin = FIELDS + hash + 2;
        let flags = entry.get(FIELDS + hash..begin)?;
        let flags = u16::from_be_bytes([flags[0], flags[1]]);
        if flags & HAS_MORE_FLAGS != 0 {
            begin += 2;
        }
        let mut kept = 0;
        if version == 4 {
            // The name begins as the one before it, without its last bytes.
            let (dropped, length) = read_offset(entry.get(begin..)?)?;
            begin += length;
            kept = name.len().checked_sub(dropped)?;
        }
        let rest = entry.get(begin..)?;
        let rest = &rest[..memchr::memchr(0, rest)?];
        name.truncate(kept);
        name.extend_from_slice(rest);
        // Git takes the length from the flags, unless it is too large for them.
        if usize::from(flags & NAME_LENGTH) != name.len().min(usize::from(NAME_LENGTH)) {
            return None;
        }
        visit(number(entry.get(MODE)?), &name);
        starts.push(EntryStart { at, is_whole: kept == 0 });
        let end = begin + rest.len();
        // Before version 4, one to eight zeros follow, up to a multiple of eight bytes.
        at += if version == 4 { end + 1 } else { (end + 8) & !7 };
    }
    check_extensions(index, hash, at, &starts)
}

/// Where an entry begins.
struct EntryStart {
    at: usize,
    /// True if its name does not depend on the one before it.
    is_whole: bool,
}

/// Checks what follows the entries. With several threads, git begins to read at places that extensions name: they must
/// be those of the entries and extensions that one thread reads.
fn check_extensions(index: &[u8], hash: usize, entries_end: usize, starts: &[EntryStart]) -> Option<()> {
    let end = index.len().checked_sub(hash).filter(|end| entries_end <= *end)?;
    let last = end.checked_sub(EXTENSION_HEADER + 4 + hash).map_or(&[][..], |last| &index[last..end]);
    if last.starts_with(&END_OF_ENTRIES) && number(&last[EXTENSION_HEADER..][..4]) as usize != entries_end {
        return None;
    }
    let mut at = entries_end;
    while at + EXTENSION_HEADER <= end {
        let content = at + EXTENSION_HEADER;
        let next = content + number(&index[at + 4..content]) as usize;
        let content = index.get(content..next)?;
        if index[at..].starts_with(&BLOCKS) {
            check_blocks(content.get(4..)?, starts)?;
        }
        at = next;
    }
    Some(())
}

fn check_blocks(blocks: &[u8], starts: &[EntryStart]) -> Option<()> {
    let mut first = 0;
    for block in blocks.chunks(8) {
        let start = starts.get(first)?;
        if number(block.get(..4)?) as usize != start.at || !start.is_whole {
            return None;
        }
        first += number(block.get(4..8)?) as usize;
    }
    (first == starts.len()).then_some(())
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Reads a number of variable length, as git writes it: each further byte counts one more than its bits. Returns also
/// how many bytes it has.
fn read_offset(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (at, byte) in bytes.iter().enumerate() {
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
        value = value.checked_add(1)?;
    }
    None
}

#[cfg(test)]
#[path = "git_index_tests.rs"]
mod tests;
