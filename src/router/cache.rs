//! Caches trained routers in files named after the hash of their training data. A file that is not intact is ignored,
//! and the router is trained again.
//!
//! Invariant: a damaged file is never used.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::calibrate::Curve;
use super::format::{HASH, METHOD, ModelReader, key};
use super::meaning::{self, Meaning};
use super::train::Weights;
use super::vocabulary::Vocabulary;
use super::{Candidate, Router, builtin, mode_ids};

const MAGIC: &[u8; 4] = b"SKRT";
/// The number of newest models kept. Each project may define different agents.
const KEPT: usize = 8;

impl Router {
    /// Returns the router for these candidates. For the built-in ones, it is compiled in. For others, loads it from
    /// `folder`, or trains and saves it there. If saving fails, the router still works.
    pub fn load_or_learn(folder: &Path, candidates: &[Candidate]) -> Self {
        let key = key(candidates);
        if let Some(builtin) = builtin::router(&key, candidates) {
            return builtin;
        }
        let file = folder.join(format!("{}.bin", hex(&key)));
        let known = std::fs::read(&file).ok().and_then(|bytes| decode(&bytes, candidates));
        known.unwrap_or_else(|| {
            let learned = Self::learn(candidates);
            if let Err(error) = keep(folder, &file, &encode(&learned)) {
                tracing::warn!(file = %file.display(), %error, "what the router learned was not kept");
            }
            learned
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Saves a file through a temporary one and a rename, so that no process reads half a file.
fn keep(folder: &Path, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::Builder::new().prefix(".router").tempfile_in(folder)?;
    new.write_all(bytes)?;
    new.persist(file)?;
    prune(folder)
}

fn prune(folder: &Path) -> std::io::Result<()> {
    let mut models: Vec<(std::time::SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Another process may be pruning as well.
        let Ok(written) = std::fs::metadata(&path).and_then(|metadata| metadata.modified()) else { continue };
        if path.extension().is_some_and(|extension| extension == "bin") {
            models.push((written, path));
        }
    }
    models.sort();
    let old = models.len().saturating_sub(KEPT);
    for (_, path) in &models[..old] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn encode(router: &Router) -> Vec<u8> {
    let mut bytes = Vec::from(*MAGIC);
    bytes.extend(METHOD.to_le_bytes());
    let Vocabulary { meaning, words, letters } = &*router.vocabulary;
    for count in [router.modes.len(), words.len(), letters.len()] {
        bytes.extend((count as u64).to_le_bytes());
    }
    bytes.extend(router.curve.0.iter().flat_map(|value| value.to_le_bytes()));
    bytes.extend(meaning.centre.iter().chain(&meaning.axes).flat_map(|value| value.to_le_bytes()));
    for known in [words, letters] {
        for (hash, weight) in known {
            bytes.extend(hash.to_le_bytes());
            bytes.extend(weight.to_le_bytes());
        }
    }
    bytes.extend(router.weights.rows.iter().flat_map(|weight| weight.to_le_bytes()));
    let hash = Sha256::digest(&bytes);
    bytes.extend(hash);
    bytes
}

fn decode(bytes: &[u8], candidates: &[Candidate]) -> Option<Router> {
    let (content, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH)?)?;
    if Sha256::digest(content).as_slice() != hash {
        return None;
    }
    let mut reader = ModelReader(content);
    if reader.take(4)? != MAGIC || reader.take(4)? != METHOD.to_le_bytes() {
        return None;
    }
    let modes = mode_ids(candidates);
    let [count, words, letters] = [reader.count()?, reader.count()?, reader.count()?];
    let curve = Curve([reader.float()?, reader.float()?, reader.float()?]);
    let meaning =
        Meaning { centre: reader.floats(meaning::centre_size())?, axes: reader.floats(meaning::axes_size())? };
    let (words, letters) = (reader.feature_weights(words)?, reader.feature_weights(letters)?);
    let vocabulary = Vocabulary { meaning, words, letters };
    if count != modes.len() {
        return None;
    }
    let columns = count.checked_add(1)?;
    let rows = reader.floats(vocabulary.size().checked_mul(columns)?)?;
    reader.0.is_empty().then(|| Router::new(modes, vocabulary, Weights { modes: columns, rows }, curve))
}

#[cfg(test)]
mod tests {
    use super::super::tests::two_modes;
    use super::*;

    fn files(folder: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn what_is_read_back_is_what_was_learned() {
        let folder = tempfile::tempdir().unwrap();
        let learned = Router::load_or_learn(folder.path(), &two_modes());
        assert_eq!(files(folder.path()).len(), 1);
        assert_eq!(decode(&encode(&learned), &two_modes()).as_ref(), Some(&learned));
        assert_eq!(Router::load_or_learn(folder.path(), &two_modes()), learned);
    }

    #[test]
    fn a_damaged_file_is_learned_again_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let learned = Router::load_or_learn(folder.path(), &two_modes());
        let file = files(folder.path()).remove(0);
        let whole = std::fs::read(&file).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        for damaged in [&flipped[..], &whole[..whole.len() - 1], &whole[..HASH], b""] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(Router::load_or_learn(folder.path(), &two_modes()), learned);
            assert!(std::fs::read(&file).unwrap() == whole, "the file is whole again");
        }
    }

    #[test]
    fn a_word_more_is_another_file_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        for extra in 0..KEPT + 2 {
            let mut candidates = two_modes();
            candidates[0].examples.push(format!("number {extra}"));
            Router::load_or_learn(folder.path(), &candidates);
        }
        assert_eq!(files(folder.path()).len(), KEPT);
    }

    #[test]
    fn a_folder_that_cannot_be_made_does_not_stop_the_router() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!Router::load_or_learn(&file, &two_modes()).rank("fix the login").is_empty());
    }
}
