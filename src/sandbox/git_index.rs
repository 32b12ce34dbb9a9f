//! Finds the submodules of a work tree, which the index of its repository names. `git status` enters each of them and
//! runs what its config names.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use super::protected_git::{GIT_FILE_LABEL, leads_to, open_regular, read_small};

/// Submodules of one work tree that are searched.
const MAX_SUBMODULES: usize = 4096;
const GIT: &str = ".git";
/// Larger indexes are not read.
const MAX_BYTES: u64 = 256 << 20;
const SIGNATURE: [u8; 4] = *b"DIRC";
/// Sizes of the hashes that git uses. The index does not name its own.
const USUAL_HASH: usize = 20;
const LONG_HASH: usize = 32;
/// The key of a config that chooses the hash.
const HASH_KEY: &str = "objectformat";
/// The fields of an entry before its hash, and where its mode is.
const FIELDS: usize = 40;
const MODE: std::ops::Range<usize> = 24..28;
const KIND: u32 = 0o170_000;
const SUBMODULE: u32 = 0o160_000;
const HAS_MORE_FLAGS: u16 = 0x4000;
/// Longer names are no paths of Linux.
const MAX_NAME: u64 = 1 << 16;

/// The submodules of a work tree, also those of its submodules.
#[derive(Debug, Default)]
pub(super) struct Submodules {
    /// Their `.git`, a folder or a file.
    pub(super) gits: Vec<PathBuf>,
    /// The indexes that do not tell their submodules, or too many.
    pub(super) unknown: Vec<PathBuf>,
}

/// Finds the submodules that git enters by itself, at any depth.
pub(super) fn find_submodules(work_tree: &Path) -> Submodules {
    let mut found = Submodules::default();
    let mut pending = vec![work_tree.to_owned()];
    let mut visited = BTreeSet::new();
    while let Some(folder) = pending.pop() {
        let git = folder.join(GIT);
        let repository = if git.is_file() { leads_to(&git, GIT_FILE_LABEL) } else { git.canonicalize().ok() };
        let Some(repository) = repository else { continue };
        let paths = list_submodules(&repository).filter(|paths| visited.len() + paths.len() <= MAX_SUBMODULES);
        let Some(paths) = paths else {
            found.unknown.push(repository.join("index"));
            continue;
        };
        for place in paths.into_iter().map(|path| folder.join(path)) {
            // Git does not follow a link to a submodule.
            let is_real = place.canonicalize().is_ok_and(|real| real == place);
            let git = place.join(GIT);
            if is_real && git.symlink_metadata().is_ok() && visited.insert(place.clone()) {
                found.gits.push(git);
                pending.push(place);
            }
        }
    }
    found
}

/// Returns the paths of the submodules in the index of a git folder, relative to its work tree. `None` if the index does
/// not tell them.
fn list_submodules(repository: &Path) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let shared = fs::read_dir(repository).into_iter().flatten().flatten();
    let shared = shared.filter(|entry| entry.file_name().to_string_lossy().starts_with("sharedindex."));
    for file in shared.map(|entry| entry.path()).chain([repository.join("index")]) {
        let Ok(data) = file.metadata() else { continue };
        if data.len() > MAX_BYTES {
            return None;
        }
        for hash in hash_sizes(repository) {
            let index = open_regular(&file)?;
            let mut names = Vec::new();
            // Git reads no index that is incomplete.
            drop(read_submodules(&mut BufReader::new(index), *hash, &mut names));
            // An entry without a name changes one of a shared index.
            if names.iter().any(Vec::is_empty) {
                return None;
            }
            found.extend(names.into_iter().map(|name| PathBuf::from(OsString::from_vec(name))));
        }
    }
    found.retain(|path| {
        path.components().count() > 0 && path.components().all(|part| matches!(part, Component::Normal(_)))
    });
    Some(found)
}

/// Returns the sizes that the hashes of a repository may have. A value in a config has several forms, so any hash that
/// is chosen there may be the long one.
fn hash_sizes(repository: &Path) -> &'static [usize] {
    let common = read_small(&repository.join("commondir")).unwrap_or_default();
    let config = read_small(&repository.join(common.trim()).join("config"));
    let is_usual = config.is_some_and(|config| !config.to_ascii_lowercase().contains(HASH_KEY));
    if is_usual { &[USUAL_HASH] } else { &[USUAL_HASH, LONG_HASH] }
}

fn read_submodules(index: &mut impl BufRead, hash: usize, found: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let mut header = [0; 12];
    index.read_exact(&mut header)?;
    let version = number(&header[4..8]);
    if header[..4] != SIGNATURE || !(2..=4).contains(&version) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut name = Vec::new();
    let mut entry = vec![0; FIELDS + hash + 2];
    for _ in 0..number(&header[8..12]) {
        index.read_exact(&mut entry)?;
        let flags = u16::from_be_bytes([entry[FIELDS + hash], entry[FIELDS + hash + 1]]);
        let mut length = entry.len();
        if version >= 3 && flags & HAS_MORE_FLAGS != 0 {
            index.read_exact(&mut [0; 2])?;
            length += 2;
        }
        if version == 4 {
            // The name begins as the one before it, without its last bytes.
            let dropped = read_offset(index)?;
            let kept = name.len().checked_sub(dropped).ok_or(io::ErrorKind::InvalidData)?;
            name.truncate(kept);
        } else {
            name.clear();
        }
        let read = index.take(MAX_NAME).read_until(0, &mut name)?;
        if name.pop() != Some(0) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if version < 4 {
            // Zeros follow up to a multiple of eight bytes.
            let used = length + read;
            index.read_exact(&mut [0; 8][..used.next_multiple_of(8) - used])?;
        }
        if number(&entry[MODE]) & KIND == SUBMODULE {
            found.push(name.clone());
        }
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Reads a number of variable length, as git writes it: each further byte counts one more than its bits.
fn read_offset(index: &mut impl BufRead) -> io::Result<usize> {
    let mut byte = [0];
    index.read_exact(&mut byte)?;
    let mut value = usize::from(byte[0] & 0x7f);
    while byte[0] & 0x80 != 0 {
        index.read_exact(&mut byte)?;
        let next = (value + 1).checked_mul(128).ok_or(io::ErrorKind::InvalidData)?;
        value = next + usize::from(byte[0] & 0x7f);
    }
    Ok(value)
}

#[cfg(test)]
#[path = "git_index_tests.rs"]
mod tests;
