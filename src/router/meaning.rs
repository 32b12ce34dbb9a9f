//! What the words of a text mean together, as numbers of a fixed count: the mean of their vectors, products of the
//! mean's main components, and the extremes of each dimension. Products show which meanings come together, so that a
//! linear model can tell more modes apart. The extremes show an unusual word, also in a long text.

use super::words::WordVectors;

/// The length of each part, tuned on public sets of requests (docs/routing.md).
const MEAN: f32 = 1.0;
const PRODUCTS: f32 = 1.1;
const EXTREMES: f32 = 1.0;

/// The number of main components.
const COMPONENTS: usize = 32;
/// Rounds of the search for main components. The subspace is then close enough; its exact axes do not matter.
const ROUNDS: usize = 30;

/// What is usual in the examples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Meaning {
    /// The mean of their extremes, to be removed from each text.
    pub(super) centre: Vec<f32>,
    /// The directions in which their means differ most from zero: orthogonal vectors of length one, or zero if there
    /// are fewer directions.
    pub(super) axes: Vec<f32>,
}

/// Returns the number of features of meaning: the mean, the products, the highest and the lowest values.
pub(super) fn size() -> usize {
    3 * WordVectors::builtin().dims() + COMPONENTS * (COMPONENTS + 1) / 2
}

/// Returns the number of values in the centre of a [`Meaning`].
pub(super) fn centre_size() -> usize {
    2 * WordVectors::builtin().dims()
}

/// Returns the number of values in the axes of a [`Meaning`].
pub(super) fn axes_size() -> usize {
    COMPONENTS * WordVectors::builtin().dims()
}

impl Meaning {
    /// Learns what is usual from the words of texts.
    pub(super) fn learn<'a>(texts: impl ExactSizeIterator<Item = &'a [String]>) -> Self {
        let share = 1.0 / texts.len().max(1) as f32;
        let mut centre = vec![0.0; centre_size()];
        let mut means = Vec::with_capacity(texts.len());
        for words in texts {
            let (mean, extremes) = pool(words);
            centre.iter_mut().zip(extremes).for_each(|(sum, value)| *sum += share * value);
            means.push(mean);
        }
        Self { centre, axes: main_axes(&means) }
    }

    /// Returns the features of words: all parts, each scaled to its length. All zero if no word is known.
    pub(super) fn vector(&self, words: &[String]) -> Vec<f32> {
        let (mut mean, mut extremes) = pool(words);
        if extremes.iter().any(|value| *value != 0.0) {
            extremes.iter_mut().zip(&self.centre).for_each(|(value, usual)| *value -= usual);
        }
        let mut components: Vec<f32> = self.axes.chunks(mean.len()).map(|axis| product(axis, &mean)).collect();
        scale(&mut components, 1.0);
        scale(&mut mean, MEAN);
        scale(&mut extremes, EXTREMES);
        mean.extend(products(&components));
        mean.extend(extremes);
        mean
    }
}

/// Returns the products of all pairs. The scalar product of two results is the square of that of their values, so
/// products of different values count twice.
fn products(values: &[f32]) -> impl Iterator<Item = f32> {
    let row = |(place, first): (usize, &f32)| {
        let first = PRODUCTS * first;
        let others = values[place + 1..].iter().map(move |second| std::f32::consts::SQRT_2 * first * second);
        std::iter::once(first * values[place]).chain(others).collect::<Vec<_>>()
    };
    values.iter().enumerate().flat_map(row)
}

/// Finds the directions in which vectors are longest together, by orthogonal iteration.
fn main_axes(vectors: &[Vec<f32>]) -> Vec<f32> {
    let dims = WordVectors::builtin().dims();
    let mut moments = vec![0.0; dims * dims];
    for vector in vectors {
        for (row, first) in moments.chunks_mut(dims).zip(vector) {
            row.iter_mut().zip(vector).for_each(|(sum, second)| *sum += first * second);
        }
    }
    // Any start will do in which all dimensions have a part.
    let mut axes = vec![vec![0.0; dims]; COMPONENTS];
    for (place, row) in moments.chunks(dims).enumerate() {
        axes[place % COMPONENTS].iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    for _ in 0..ROUNDS {
        for place in 0..axes.len() {
            let mut axis: Vec<f32> = moments.chunks(dims).map(|row| product(row, &axes[place])).collect();
            scale(&mut axis, 1.0);
            // Twice, because rounding leaves a part of what is almost removed.
            for other in axes[..place].iter().chain(&axes[..place]) {
                let common = product(&axis, other);
                axis.iter_mut().zip(other).for_each(|(value, other)| *value -= common * other);
            }
            let rest = product(&axis, &axis);
            // What is left of a direction that depends on the others is only rounding.
            scale(&mut axis, if rest > 1e-6 { 1.0 } else { 0.0 });
            axes[place] = axis;
        }
    }
    axes.concat()
}

fn product(first: &[f32], second: &[f32]) -> f32 {
    first.iter().zip(second).map(|(a, b)| a * b).sum()
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
    let size = product(values, values).sqrt();
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
        product(first, second) / (product(first, first) * product(second, second)).sqrt()
    }

    #[test]
    fn all_parts_have_their_length() {
        let meaning = learned(&["fix the login page", "water the roses", "bake some bread"]);
        let vector = meaning.vector(&words("repair the sign-in form"));
        assert_eq!((vector.len(), meaning.centre.len(), meaning.axes.len()), (size(), centre_size(), axes_size()));
        let (mean, rest) = vector.split_at(WordVectors::builtin().dims());
        let (products, extremes) = rest.split_at(rest.len() - centre_size());
        for (part, length) in [(mean, MEAN), (products, PRODUCTS), (extremes, EXTREMES)] {
            let size = product(part, part).sqrt();
            assert!((size - length).abs() < 1e-4, "{size} instead of {length}");
        }
    }

    #[test]
    fn a_word_said_again_does_not_change_the_extremes() {
        let meaning = learned(&["pay money to the bank", "read a book in the park"]);
        let [once, twice] = ["bake bread", "bake bread bread"].map(|text| meaning.vector(&words(text)));
        let start = size() - centre_size();
        assert!(likeness(&once[..start], &twice[..start]) < 0.999);
        assert!(likeness(&once[start..], &twice[start..]) > 0.999);
    }

    #[test]
    fn products_compare_like_squares() {
        let (first, second) = ([0.6, -0.8, 0.0], [0.0, 0.6, 0.8]);
        let compared = product(&products(&first).collect::<Vec<_>>(), &products(&second).collect::<Vec<_>>());
        assert!((compared - PRODUCTS * PRODUCTS * product(&first, &second).powi(2)).abs() < 1e-6, "{compared}");
    }

    #[test]
    fn axes_are_orthogonal_and_contain_what_varies_most() {
        let dims = WordVectors::builtin().dims();
        let unit = |place: usize, length: f32| {
            let mut vector = vec![0.0; dims];
            vector[place] = length;
            vector
        };
        let axes = main_axes(&[unit(100, 3.0), unit(5, 2.0), unit(7, 0.1)]);
        let axes: Vec<&[f32]> = axes.chunks(dims).collect();
        for (place, axis) in axes.iter().enumerate() {
            for other in &axes[..place] {
                assert!(product(axis, other).abs() < 1e-3);
            }
            let size = product(axis, axis);
            assert!(size == 0.0 || (size - 1.0).abs() < 1e-3, "{size}");
        }
        let inside = |place: usize| axes.iter().map(|axis| axis[place].powi(2)).sum::<f32>();
        assert!([100, 5, 7].into_iter().all(|place| inside(place) > 0.99), "{axes:?}");
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
