//! Converts scores to confidences: how often a route with such a score is right on examples the model has not seen. An
//! example whose own mode is left out represents a request that fits no mode.

use super::train::{Example, train};

/// The number of folds for cross-validation.
const FOLDS: usize = 4;
/// Fewer rounds than for the model itself, because the scores converge before the weights.
const ROUNDS: usize = 8;
/// The number of examples that suffice; with many examples, not every fold is evaluated.
const JUDGED: usize = 600;
/// The result on many sets of examples, which is the prior where there are few.
const TYPICAL: [f64; 3] = [-4.5, 7.0, 2.5];
/// The weight of an example without its own mode. One in three points then stands for a request that fits no mode; in
/// practice fewer do, but they are less like the modes than an example is.
const OUTSIDE: f64 = 0.5;
/// The approximate number of examples that the prior weighs as much as.
const PRIOR: f64 = 1.0;

/// A logistic curve over a mode's score and its lead over the best other mode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Curve(pub(super) [f64; 3]);

impl Curve {
    pub(super) fn confidence(&self, score: f32, lead: f32) -> f64 {
        let [base, by_score, by_lead] = self.0;
        logistic(base + by_score * f64::from(score) + by_lead * f64::from(lead))
    }

    /// Fits a curve. The first `seen` examples were written by people; the rest are only used for training. The column
    /// after the last mode is that of vague requests, see [`Scores`].
    pub(super) fn learn(examples: &[Example], seen: usize, features: usize, modes: usize) -> Self {
        let mut counted = vec![0; modes + 1];
        let folds: Vec<usize> = examples.iter().map(|example| fold(example.mode, &mut counted)).collect();
        let mut points = Vec::new();
        for part in 0..FOLDS {
            let others: Vec<_> =
                examples.iter().zip(&folds).filter(|(_, fold)| **fold != part).map(|(example, _)| example).collect();
            let held = || examples.iter().zip(&folds).take(seen).filter(|(_, fold)| **fold == part);
            if others.is_empty() || held().next().is_none() || points.len() >= 2 * JUDGED {
                continue;
            }
            let weights = train(&others, features, modes + 1, ROUNDS);
            for (example, _) in held() {
                let mut scores = Scores::new(weights.scores(&example.features));
                if let Some((mode, score, lead)) = scores.best() {
                    points.push(Point { score, lead, right: mode == example.mode, weight: 1.0 });
                }
                scores.leave_out(example.mode);
                if let Some((_, score, lead)) = scores.best() {
                    points.push(Point { score, lead, right: false, weight: OUTSIDE });
                }
            }
        }
        fit(&points)
    }
}

fn fold(mode: usize, counted: &mut [usize]) -> usize {
    counted[mode] += 1;
    (counted[mode] * 7 + mode) % FOLDS
}

fn logistic(value: f64) -> f64 {
    1.0 / (1.0 + (-value).exp())
}

/// The scores of the modes for a request, and that of a request that is too vague for any mode.
#[derive(Debug, Clone)]
pub(super) struct Scores {
    pub(super) modes: Vec<f32>,
    vague: f32,
}

impl Scores {
    /// Splits a row of scores, in which the last column is that of vague requests.
    pub(super) fn new(mut row: Vec<f32>) -> Self {
        let vague = row.pop().unwrap_or(f32::MIN);
        Self { modes: row, vague }
    }

    /// Returns the modes from best to worst.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.modes.len()).collect();
        order.sort_by(|a, b| self.modes[*b].total_cmp(&self.modes[*a]).then(a.cmp(b)));
        order
    }

    /// Returns how far a mode is ahead of the best other mode and of the vague requests; negative if it is behind.
    pub(super) fn lead(&self, mode: usize) -> f32 {
        let others = self.modes.iter().enumerate().filter(|(other, _)| *other != mode).map(|(_, score)| *score);
        self.modes[mode] - others.fold(self.vague, f32::max)
    }

    fn leave_out(&mut self, mode: usize) {
        if let Some(score) = self.modes.get_mut(mode) {
            *score = f32::MIN;
        }
    }

    /// Returns the best mode that is not left out, with its score and its lead.
    fn best(&self) -> Option<(usize, f32, f32)> {
        let best = *self.order().first()?;
        let score = self.modes[best];
        (score > f32::MIN).then(|| (best, score, self.lead(best)))
    }
}

/// The best route of an example: its score, its lead, whether it is right, and how much that counts.
#[derive(Debug, Clone, Copy)]
struct Point {
    score: f32,
    lead: f32,
    right: bool,
    weight: f64,
}

/// Fits the most likely curve with Newton's method.
fn fit(points: &[Point]) -> Curve {
    let mut curve = TYPICAL;
    for _ in 0..25 {
        let mut slope = [0.0; 3];
        let mut bend = [[0.0; 3]; 3];
        for axis in 0..3 {
            slope[axis] = PRIOR * (TYPICAL[axis] - curve[axis]);
            bend[axis][axis] = PRIOR;
        }
        for Point { score, lead, right, weight } in points {
            let inputs = [1.0, f64::from(*score), f64::from(*lead)];
            let expected = logistic(inputs.iter().zip(curve).map(|(input, factor)| input * factor).sum());
            let miss = weight * (if *right { 1.0 } else { 0.0 } - expected);
            for row in 0..3 {
                slope[row] += miss * inputs[row];
                for column in 0..3 {
                    bend[row][column] += weight * expected * (1.0 - expected) * inputs[row] * inputs[column];
                }
            }
        }
        let change = solve(bend, slope);
        for (weight, change) in curve.iter_mut().zip(change) {
            *weight += change.clamp(-5.0, 5.0);
        }
    }
    // A higher score must not lower the confidence, even if a small set of examples suggests it.
    Curve([curve[0], curve[1].max(0.1), curve[2].max(0.0)])
}

/// Solves by Gaussian elimination; the prior makes the matrix positive definite.
fn solve(mut matrix: [[f64; 3]; 3], mut right: [f64; 3]) -> [f64; 3] {
    for pivot in 0..3 {
        for row in pivot + 1..3 {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let above = matrix[pivot];
            for (value, above) in matrix[row].iter_mut().zip(above).skip(pivot) {
                *value -= factor * above;
            }
            right[row] -= factor * right[pivot];
        }
    }
    for row in (0..3).rev() {
        for column in row + 1..3 {
            right[row] -= matrix[row][column] * right[column];
        }
        right[row] /= matrix[row][row];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_examples_the_typical_curve_counts() {
        let curve = fit(&[]);
        assert_eq!(curve, Curve(TYPICAL));
        assert!(curve.confidence(1.0, 0.8) > 0.9 && curve.confidence(0.1, 0.05) < 0.1);
    }

    #[test]
    fn the_curve_follows_what_was_right() {
        let point = |at: u16| Point { score: f32::from(at) / 400.0, lead: 0.1, right: at > 100, weight: 1.0 };
        let points: Vec<_> = (0..400).map(point).collect();
        let curve = fit(&points);
        assert!(curve.confidence(0.6, 0.1) > 0.8, "{curve:?}");
        assert!(curve.confidence(0.05, 0.1) < 0.3, "{curve:?}");
    }
}
