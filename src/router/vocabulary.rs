//! Weighs the features seen in the examples by how few examples and how few modes have them. A text becomes three parts
//! of fixed length: meaning, words, letters.

use std::collections::{BTreeMap, BTreeSet};

use super::features::{self, Counts, FeatureHash};
use super::meaning::{self, Meaning};

/// The length of each part, tuned on public sets of requests (docs/routing.md). `meaning` has its own.
const WORDS: f32 = 1.0;
const LETTERS: f32 = 1.3;

/// The hash and the weight of each feature, sorted by hash.
pub(super) type FeatureWeights = Vec<(FeatureHash, f32)>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Vocabulary {
    pub(super) meaning: Meaning,
    pub(super) words: FeatureWeights,
    pub(super) letters: FeatureWeights,
}

impl Vocabulary {
    /// Learns the weights from texts and the mode of each.
    pub(super) fn learn(texts: &[(Counts, usize)], modes: usize) -> Self {
        Self {
            meaning: Meaning::learn(texts.iter().map(|(counts, _)| counts.plain.as_slice())),
            words: weigh_features(texts, modes, |counts| &counts.words),
            letters: weigh_features(texts, modes, |counts| &counts.letters),
        }
    }

    /// Returns the number of features, including those of meaning, which come first.
    pub(super) fn size(&self) -> usize {
        meaning::size() + self.words.len() + self.letters.len()
    }

    /// Converts a text to (feature, value) pairs, sorted by feature.
    pub(super) fn vector(&self, counts: &Counts) -> Vec<(u32, f32)> {
        let meaning = self.meaning.vector(&counts.plain).into_iter().zip(0..);
        let mut vector: Vec<_> = meaning.map(|(value, feature)| (feature, value)).collect();
        let base = meaning::size();
        part(&self.words, &counts.words, base, WORDS, &mut vector);
        part(&self.letters, &counts.letters, base + self.words.len(), LETTERS, &mut vector);
        vector
    }

    /// Returns the features of a single word.
    pub(super) fn word_features(&self, word: &str) -> Vec<u32> {
        let counts = features::count(word);
        let base = meaning::size();
        let find = |known: &FeatureWeights, feature: &FeatureHash, base: usize| {
            index(known, *feature).map(|at| number(base + at))
        };
        let words = counts.words.keys().filter_map(|feature| find(&self.words, feature, base));
        let letters = counts.letters.keys().filter_map(|feature| find(&self.letters, feature, base + self.words.len()));
        words.chain(letters).collect()
    }
}

fn number(feature: usize) -> u32 {
    u32::try_from(feature).unwrap_or(u32::MAX)
}

fn index(known: &FeatureWeights, feature: FeatureHash) -> Option<usize> {
    known.binary_search_by_key(&feature, |(hash, _)| *hash).ok()
}

fn part(
    known: &FeatureWeights,
    counts: &BTreeMap<FeatureHash, f32>,
    base: usize,
    length: f32,
    vector: &mut Vec<(u32, f32)>,
) {
    let start = vector.len();
    for (feature, count) in counts {
        if let Some(at) = index(known, *feature) {
            vector.push((number(base + at), (1.0 + count.ln()) * known[at].1));
        }
    }
    let size = vector[start..].iter().map(|(_, value)| value * value).sum::<f32>().sqrt();
    if size > 0.0 {
        vector[start..].iter_mut().for_each(|(_, value)| *value *= length / size);
    }
}

fn weigh_features(
    texts: &[(Counts, usize)],
    modes: usize,
    family: impl Fn(&Counts) -> &BTreeMap<FeatureHash, f32>,
) -> FeatureWeights {
    let mut seen: BTreeMap<FeatureHash, (f32, BTreeSet<usize>)> = BTreeMap::new();
    for (counts, mode) in texts {
        for feature in family(counts).keys() {
            let (texts, modes) = seen.entry(*feature).or_default();
            *texts += 1.0;
            modes.insert(*mode);
        }
    }
    let rarity = |all: usize, having: f32| ((1.0 + float(all)) / (1.0 + having)).ln() + 1.0;
    let weigh =
        |(having, of): (f32, BTreeSet<usize>)| (rarity(texts.len(), having) * rarity(modes, float(of.len()))).sqrt();
    seen.into_iter().map(|(feature, counted)| (feature, weigh(counted))).collect()
}

fn float(count: usize) -> f32 {
    u16::try_from(count).map_or(f32::from(u16::MAX), f32::from)
}
