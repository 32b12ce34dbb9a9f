//! What the words of a text mean together, as numbers of a fixed count: the mean of their vectors, and the extremes of
//! each dimension. The extremes show an unusual word, also in a long text.

use super::words::WordVectors;

/// The length of each part, tuned on public sets of requests (docs/routing.md).
const MEAN: f32 = 1.5;
const EXTREMES: f32 = 1.0;

/// What is usual in the examples, to be removed from each text: the mean of their extremes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Meaning {
    pub(super) centre: Vec<f32>,
}

/// Returns the number of features of meaning: the mean, the highest and the lowest values.
pub(super) fn size() -> usize {
    3 * WordVectors::builtin().dims()
}

/// Returns the number of values in the centre of a [`Meaning`].
pub(super) fn centre_size() -> usize {
    2 * WordVectors::builtin().dims()
}

impl Meaning {
    /// Learns what is usual from the words of texts.
    pub(super) fn learn<'a>(texts: impl ExactSizeIterator<Item = &'a [String]>) -> Self {
        let share = 1.0 / texts.len().max(1) as f32;
        let mut centre = vec![0.0; centre_size()];
        for words in texts {
            let (_, extremes) = pool(words);
            centre.iter_mut().zip(extremes).for_each(|(sum, value)| *sum += share * value);
        }
        Self { centre }
    }

    /// Returns the features of words: both parts, each scaled to its length. All zero if no word is known.
    pub(super) fn vector(&self, words: &[String]) -> Vec<f32> {
        let (mut mean, mut extremes) = pool(words);
        if extremes.iter().any(|value| *value != 0.0) {
            extremes.iter_mut().zip(&self.centre).for_each(|(value, usual)| *value -= usual);
        }
        scale(&mut mean, MEAN);
        scale(&mut extremes, EXTREMES);
        mean.extend(extremes);
        mean
    }
}

/// Returns the mean of the vectors of words, and the highest and the lowest value of each dimension. Rare words have
/// long vectors; for the extremes, all are equally long. Both results are scaled to length one, so that the number of
/// words does not count.
fn pool(words: &[String]) -> (Vec<f32>, Vec<f32>) {
    let table = WordVectors::builtin();
    let mut mean = vec![0.0; table.dims()];
    let mut extremes = vec![0.0; centre_size()];
    let (high, low) = extremes.split_at_mut(table.dims());
    for (place, word) in words.iter().enumerate() {
        let mut vector = table.vector(word);
        mean.iter_mut().zip(&vector).for_each(|(sum, value)| *sum += value);
        scale(&mut vector, 1.0);
        for (at, value) in vector.into_iter().enumerate() {
            high[at] = if place == 0 { value } else { high[at].max(value) };
            low[at] = if place == 0 { value } else { low[at].min(value) };
        }
    }
    scale(&mut mean, 1.0);
    scale(&mut extremes, 1.0);
    (mean, extremes)
}

/// Scales values to a length, if they have one.
fn scale(values: &mut [f32], length: f32) {
    let size = values.iter().map(|value| value * value).sum::<f32>().sqrt();
    if size > 0.0 {
        values.iter_mut().for_each(|value| *value *= length / size);
    }
}

#[cfg(test)]
mod tests {
    use super::super::features::words;
    use super::*;

    fn learned(texts: &[&str]) -> Meaning {
        let texts: Vec<_> = texts.iter().map(|text| words(text)).collect();
        Meaning::learn(texts.iter().map(Vec::as_slice))
    }

    fn likeness(first: &[f32], second: &[f32]) -> f32 {
        let product = |first: &[f32], second: &[f32]| first.iter().zip(second).map(|(a, b)| a * b).sum::<f32>();
        product(first, second) / (product(first, first) * product(second, second)).sqrt()
    }

    #[test]
    fn both_parts_have_their_length() {
        let meaning = learned(&["fix the login page", "water the roses", "bake some bread"]);
        let vector = meaning.vector(&words("repair the sign-in form"));
        assert_eq!((vector.len(), meaning.centre.len()), (size(), centre_size()));
        let (mean, extremes) = vector.split_at(size() - centre_size());
        for (part, length) in [(mean, MEAN), (extremes, EXTREMES)] {
            let size: f32 = part.iter().map(|value| value * value).sum::<f32>().sqrt();
            assert!((size - length).abs() < 1e-4, "{size} instead of {length}");
        }
    }

    #[test]
    fn a_word_said_again_changes_only_the_mean() {
        let meaning = learned(&["pay money to the bank", "read a book in the park"]);
        let [once, twice] = ["bake bread", "bake bread bread"].map(|text| meaning.vector(&words(text)));
        let start = size() - centre_size();
        assert!(likeness(&once[..start], &twice[..start]) < 0.999);
        assert!(likeness(&once[start..], &twice[start..]) > 0.999);
    }

    #[test]
    fn what_has_no_known_word_has_no_meaning() {
        for meaning in [learned(&["water the roses"]), learned(&[""]), learned(&[])] {
            for text in ["", "\u{4f60}\u{597d}"] {
                assert!(meaning.vector(&words(text)).iter().all(|value| *value == 0.0));
            }
            assert!(meaning.vector(&words("anything at all")).iter().all(|value| value.is_finite()));
        }
    }
}
