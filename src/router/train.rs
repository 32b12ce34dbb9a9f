//! Trains a linear multi-class model: the support vector machine of Crammer and Singer, by dual coordinate descent, one
//! example at a time. The order of all steps is fixed, so that the same examples give the same bytes.

/// The features of a text as (feature, value), and its mode.
#[derive(Debug, Clone, Default)]
pub(super) struct Example {
    pub(super) features: Vec<(u32, f32)>,
    pub(super) mode: usize,
    /// The influence of the example; 1 is a full one.
    pub(super) weight: f32,
}

/// The penalty for misplaced examples; a higher value fits the examples more closely.
const COST: f32 = 0.5;
/// Training stops when every example is closer than this to its optimum.
const ENOUGH: f32 = 0.3;
/// The number of rounds for which a well-placed example is skipped.
const REST: u8 = 3;

/// Weights with one row per feature and one column per mode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weights {
    pub(super) modes: usize,
    pub(super) rows: Vec<f32>,
}

impl Weights {
    fn zero(features: usize, modes: usize) -> Self {
        Self { modes, rows: vec![0.0; features * modes] }
    }

    /// Returns the row of a feature.
    pub(super) fn of(&self, feature: u32) -> &[f32] {
        let start = feature as usize * self.modes;
        self.rows.get(start..start + self.modes).unwrap_or_default()
    }

    pub(super) fn scores(&self, features: &[(u32, f32)]) -> Vec<f32> {
        let mut scores = vec![0.0; self.modes];
        for (feature, value) in features {
            for (score, weight) in scores.iter_mut().zip(self.of(*feature)) {
                *score += value * weight;
            }
        }
        scores
    }

    /// Adds the features to some modes, each with its step.
    fn add(&mut self, features: &[(u32, f32)], steps: &[(usize, f32)]) {
        for (feature, value) in features {
            let start = *feature as usize * self.modes;
            let Some(row) = self.rows.get_mut(start..start + self.modes) else { continue };
            for (mode, step) in steps {
                row[*mode] += step * value;
            }
        }
    }
}

/// Trains the model in at most `rounds` passes over the examples.
pub(super) fn train(examples: &[&Example], features: usize, modes: usize, rounds: usize) -> Weights {
    let mut weights = Weights::zero(features, modes);
    let mut pulls = vec![0.0; examples.len() * modes];
    let mut resting = vec![0_u8; examples.len()];
    let mut order: Vec<usize> = (0..examples.len()).collect();
    let mut chance = ShuffleRng(42);
    for _ in 0..rounds {
        chance.shuffle(&mut order);
        let mut worst = 0.0_f32;
        for at in order.iter().copied() {
            if resting[at] > 0 {
                resting[at] -= 1;
                continue;
            }
            let off = step(examples[at], &mut weights, &mut pulls[at * modes..][..modes]);
            if off <= ENOUGH / 10.0 {
                resting[at] = REST;
            }
            worst = worst.max(off);
        }
        if worst < ENOUGH {
            break;
        }
    }
    weights
}

/// Optimises one example while all others are fixed, and returns how far off it was. `pulls` are its dual variables:
/// for its own mode at most `COST`, for the others at most zero, with sum zero.
fn step(example: &Example, weights: &mut Weights, pulls: &mut [f32]) -> f32 {
    let size: f32 = example.features.iter().map(|(_, value)| value * value).sum();
    let own = example.mode;
    let cost = COST * example.weight;
    if size <= 0.0 {
        return 0.0;
    }
    let mut loss = weights.scores(&example.features);
    for (mode, loss) in loss.iter_mut().enumerate() {
        *loss += if mode == own { 0.0 } else { 1.0 };
    }
    let highest = loss.iter().copied().fold(f32::MIN, f32::max);
    let room = |mode: usize| if mode == own { cost } else { 0.0 };
    let free = loss.iter().enumerate().filter(|(mode, _)| pulls[*mode] < room(*mode));
    let off = highest - free.map(|(_, loss)| *loss).fold(f32::MAX, f32::min);
    if off <= ENOUGH / 10.0 {
        return off.max(0.0);
    }
    // Computes the loss without this example, and the level at which the optimal pulls sum to zero.
    for (loss, pull) in loss.iter_mut().zip(pulls.iter()) {
        *loss -= size * pull;
    }
    let level = level(&loss, own, size * cost);
    let mut steps = Vec::new();
    for (mode, loss) in loss.iter().enumerate() {
        let pull = room(mode).min((level - loss) / size);
        let change = pull - pulls[mode];
        if change.abs() > 1e-7 {
            pulls[mode] = pull;
            steps.push((mode, change));
        }
    }
    weights.add(&example.features, &steps);
    off
}

fn level(loss: &[f32], own: usize, bound: f32) -> f32 {
    let mut sorted = loss.to_vec();
    sorted[own] += bound;
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut sum, mut count) = (sorted[0] - bound, 1.0);
    for next in &sorted[1..] {
        if sum >= count * next {
            break;
        }
        sum += next;
        count += 1.0;
    }
    sum / count
}

/// A random number generator with a fixed sequence.
struct ShuffleRng(u64);

impl ShuffleRng {
    fn next_below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % bound
    }

    fn shuffle(&mut self, order: &mut [usize]) {
        for at in (1..order.len()).rev() {
            order.swap(at, self.next_below(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(features: &[u32], mode: usize) -> Example {
        Example { features: features.iter().map(|feature| (*feature, 1.0)).collect(), mode, weight: 1.0 }
    }

    #[test]
    fn what_can_be_told_apart_is_told_apart() {
        let examples = [example(&[0, 3], 0), example(&[1, 3], 1), example(&[2, 3], 2), example(&[0, 1], 0)];
        let weights = train(&examples.iter().collect::<Vec<_>>(), 4, 3, 30);
        for example in &examples {
            let scores = weights.scores(&example.features);
            let best = (0..3).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
            assert_eq!(best, Some(example.mode), "{scores:?}");
        }
    }

    #[test]
    fn an_example_without_features_changes_nothing() {
        let examples = [example(&[], 0), example(&[0], 1)];
        let weights = train(&examples.iter().collect::<Vec<_>>(), 1, 2, 5);
        assert!(weights.rows.iter().all(|weight| weight.is_finite()));
    }
}
