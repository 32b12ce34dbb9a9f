//! The router of the built-in manifests, trained in advance and compiled in, so that their first route does not wait for
//! training. A test trains it again and compares; `UPDATE_EXPECT=1 cargo test --lib training_again` writes the file.
//!
//! Invariant: it is used only for exactly the candidates that it was trained on.

use super::calibrate::Curve;
use super::features::FeatureHash;
use super::format::{HASH, METHOD, ModelReader};
use super::meaning::{self, Meaning};
use super::train::Weights;
use super::vocabulary::{FeatureWeights, Vocabulary};
use super::{Candidate, Router, mode_ids};

static BUILTIN: &[u8] = include_bytes!("builtin.bin");

const MAGIC: &[u8; 4] = b"SKSP";
/// Feature weights are stored in steps of this size.
const STEP: f32 = 1.0 / 4096.0;
/// The number of steps of the largest weight of a row on each side of zero.
#[cfg(test)]
const STEPS: f32 = 127.0;

/// Returns the trained router for these candidates. `None` if they are not the built-in ones.
pub(super) fn router(key: &[u8; HASH], candidates: &[Candidate]) -> Option<Router> {
    decode(BUILTIN, key, candidates)
}

/// Converts a router to a compact file: the weights of a feature are 8-bit steps with one scale, the upper half of a
/// float. Two in three are zero, so a row has a bit for each mode, and the steps of those that are not.
#[cfg(test)]
fn encode(router: &Router, key: &[u8; HASH]) -> Vec<u8> {
    let mut bytes = Vec::from(*MAGIC);
    bytes.extend(METHOD.to_le_bytes());
    bytes.extend(key);
    let Vocabulary { meaning, words, letters } = &*router.vocabulary;
    for count in [router.modes.len(), words.len(), letters.len()] {
        bytes.extend((count as u64).to_le_bytes());
    }
    bytes.extend(router.curve.0.iter().flat_map(|value| value.to_le_bytes()));
    bytes.extend(meaning.centre.iter().chain(&meaning.axes).flat_map(|value| value.to_le_bytes()));
    for (hash, weight) in words.iter().chain(letters) {
        bytes.extend(hash.to_le_bytes());
        bytes.extend(((weight / STEP).round() as u16).to_le_bytes());
    }
    for row in router.weights.rows.chunks_exact(router.weights.modes) {
        let scale = row.iter().fold(0.0_f32, |most, weight| most.max(weight.abs())) / STEPS;
        // Rounded up, so that no step is above the largest.
        let upper = scale.to_bits().div_ceil(1 << 16) as u16;
        bytes.extend(upper.to_le_bytes());
        let scale = scale_of(upper);
        let steps = |weight: &f32| if scale > 0.0 { (weight / scale).round() as i8 } else { 0 };
        let steps = row.iter().map(|weight| steps(weight).cast_unsigned()).collect::<Vec<_>>();
        let bit = |(place, step): (usize, &u8)| u8::from(*step != 0) << place;
        bytes.extend(steps.chunks(8).map(|eight| eight.iter().enumerate().map(bit).sum::<u8>()));
        bytes.extend(steps.iter().filter(|step| **step != 0));
    }
    bytes
}

fn decode(bytes: &[u8], key: &[u8; HASH], candidates: &[Candidate]) -> Option<Router> {
    let mut reader = ModelReader(bytes);
    if reader.take(4)? != MAGIC || reader.take(4)? != METHOD.to_le_bytes() || reader.take(HASH)? != key {
        return None;
    }
    let modes = mode_ids(candidates);
    let [count, words, letters] = [reader.count()?, reader.count()?, reader.count()?];
    let curve = Curve([reader.float()?, reader.float()?, reader.float()?]);
    let meaning =
        Meaning { centre: reader.floats(meaning::centre_size())?, axes: reader.floats(meaning::axes_size())? };
    let vocabulary =
        Vocabulary { meaning, words: features(&mut reader, words)?, letters: features(&mut reader, letters)? };
    if count != modes.len() {
        return None;
    }
    let columns = count.checked_add(1)?;
    let mut rows = Vec::with_capacity(vocabulary.size().checked_mul(columns)?);
    for _ in 0..vocabulary.size() {
        let scale = scale_of(u16::from_le_bytes(reader.take(2)?.try_into().ok()?));
        let is_stored = reader.take(columns.div_ceil(8))?;
        let count = is_stored.iter().map(|eight| eight.count_ones() as usize).sum::<usize>();
        let mut stored = reader.take(count)?.iter();
        for column in 0..columns {
            let step = if is_stored[column / 8] & (1 << (column % 8)) != 0 { *stored.next()? } else { 0 };
            rows.push(scale * f32::from(step.cast_signed()));
        }
    }
    reader.0.is_empty().then(|| Router::new(modes, vocabulary, Weights { modes: columns, rows }, curve))
}

fn scale_of(upper: u16) -> f32 {
    f32::from_bits(u32::from(upper) << 16)
}

/// Reads features: a hash and a 16-bit weight each.
fn features(reader: &mut ModelReader<'_>, count: usize) -> Option<FeatureWeights> {
    let entry = |bytes: &[u8]| {
        let (hash, weight) = bytes.split_at_checked(4)?;
        let steps = u16::from_le_bytes(weight.try_into().ok()?);
        Some((FeatureHash::from_le_bytes(hash.try_into().ok()?), STEP * f32::from(steps)))
    };
    reader.take(count.checked_mul(6)?)?.chunks_exact(6).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::format::key;
    use super::super::{candidates, tests::two_modes};
    use super::*;
    use crate::manifest::{Layer, Root, load};

    fn built_in() -> Vec<Candidate> {
        candidates(&load(&[(Layer::Builtin, Root::Builtin)]).0)
    }

    /// The logarithms of other systems may differ in their last bit.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn training_again_gives_the_compiled_router() {
        let candidates = built_in();
        let trained = encode(&Router::learn(&candidates), &key(&candidates));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/router/builtin.bin");
            std::fs::write(file, trained).unwrap();
            return;
        }
        assert!(
            trained == BUILTIN,
            "the manifests or the method changed: UPDATE_EXPECT=1 cargo test --lib training_again"
        );
    }

    #[test]
    fn the_built_in_manifests_are_routed_without_training() {
        let folder = tempfile::tempdir().unwrap();
        let candidates = built_in();
        let router = Router::load_or_learn(folder.path(), &candidates);
        assert_eq!(router.rank("fix the login API")[0].mode.to_string(), "coding/backend");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was learned");
    }

    #[test]
    fn one_more_example_is_learned() {
        let mut candidates = built_in();
        candidates[0].examples.push("one more".to_owned());
        assert_eq!(router(&key(&candidates), &candidates), None);
    }

    #[test]
    fn the_compact_form_ranks_like_the_trained_one() {
        let candidates = two_modes();
        let trained = Router::learn(&candidates);
        let key = key(&candidates);
        let compact = decode(&encode(&trained, &key), &key, &candidates).unwrap();
        for prompt in ["bake some rolls", "trim the hedge", "chop wood on the lawn"] {
            let (first, second) = (trained.rank(prompt), compact.rank(prompt));
            for (first, second) in first.iter().zip(&second) {
                assert_eq!(first.mode, second.mode, "{prompt}");
                assert!((first.confidence - second.confidence).abs() < 0.01, "{prompt}: {first:?}, {second:?}");
            }
        }
    }

    #[test]
    fn a_weight_of_zero_takes_one_bit() {
        let mut router = Router::learn(&two_modes());
        let key = key(&two_modes());
        Arc::make_mut(&mut router.weights).rows.fill(1.0);
        let full = encode(&router, &key);
        Arc::make_mut(&mut router.weights).rows.fill(0.0);
        let empty = encode(&router, &key);
        assert_eq!(full.len() - empty.len(), router.weights.rows.len());
        let decoded = decode(&empty, &key, &two_modes()).unwrap();
        assert_eq!(decoded.weights.rows, router.weights.rows);
    }

    #[test]
    fn half_a_file_is_no_router() {
        let (candidates, whole) = (two_modes(), encode(&Router::learn(&two_modes()), &key(&two_modes())));
        for length in [0, 3, 40, 60, whole.len() / 2, whole.len() - 1] {
            assert_eq!(decode(&whole[..length], &key(&candidates), &candidates), None);
        }
    }
}
