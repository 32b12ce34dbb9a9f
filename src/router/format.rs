//! What the files of trained routers have in common: the version of the method, the hash of the training data, and the
//! reading of numbers.

use sha2::{Digest as _, Sha256};

use super::features::FeatureHash;
use super::vocabulary::FeatureWeights;
use super::{Candidate, VAGUE, sorted};

/// Must be increased with every change of the method, the word vectors or this format, so that old files are ignored.
pub(super) const METHOD: u32 = 7;
/// The bytes of a hash.
pub(super) const HASH: usize = 32;

/// Returns the hash of all training data.
pub(super) fn key(candidates: &[Candidate]) -> [u8; HASH] {
    let mut hasher = Sha256::new();
    hasher.update(METHOD.to_le_bytes());
    let mut text = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    text(VAGUE);
    for candidate in sorted(candidates) {
        text(&candidate.mode.to_string());
        text(candidate.name.as_deref().unwrap_or_default());
        text(&candidate.description);
        text(candidate.when_to_use.as_deref().unwrap_or_default());
        for list in [&candidate.examples, &candidate.capabilities] {
            text(&list.len().to_string());
            list.iter().for_each(|item| text(item));
        }
    }
    hasher.finalize().into()
}

/// Reads numbers from the start of bytes. Everything is `None` if too few are left.
pub(super) struct ModelReader<'a>(pub(super) &'a [u8]);

impl<'a> ModelReader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn count(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.take(8)?.try_into().ok()?)).ok()
    }

    pub(super) fn float(&mut self) -> Option<f64> {
        Some(f64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn floats(&mut self, count: usize) -> Option<Vec<f32>> {
        Some(self.take(count.checked_mul(4)?)?.chunks_exact(4).filter_map(small).collect())
    }

    pub(super) fn feature_weights(&mut self, count: usize) -> Option<FeatureWeights> {
        let entry =
            |bytes: &[u8]| Some((FeatureHash::from_le_bytes(bytes.get(..4)?.try_into().ok()?), small(&bytes[4..])?));
        self.take(count.checked_mul(8)?)?.chunks_exact(8).map(entry).collect()
    }
}

fn small(bytes: &[u8]) -> Option<f32> {
    Some(f32::from_le_bytes(bytes.try_into().ok()?))
}
