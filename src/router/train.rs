//! A linear model for many modes at once: Crammer and Singer's machine, trained by going through the dual, one
//! example at a time. Every step is in a fixed order, so that the same examples give the same bytes.

/// A text as (feature, value), and the mode it belongs to.
#[derive(Debug, Clone, Default)]
pub(super) struct Example {
    pub(super) features: Vec<(u32, f32)>,
    pub(super) mode: usize,
    /// How much an example may pull; 1 is a whole one.
    pub(super) weight: f32,
}

/// How far an example may be from its place, summed up; more fits the examples closer.
const COST: f32 = 0.5;
/// It is good enough when no example is further from its best place than this.
const ENOUGH: f32 = 0.3;
/// An example in its place is not looked at for so many rounds.
const REST: u8 = 3;

/// Weights in rows: one row for each feature, one column for each mode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weights {
    pub(super) modes: usize,
    pub(super) rows: Vec<f32>,
}

impl Weights {
    fn zero(features: usize, modes: usize) -> Self {
        Self { modes, rows: vec![0.0; features * modes] }
    }

    /// The row of a feature.
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

    fn add(&mut self, features: &[(u32, f32)], mode: usize, step: f32) {
        for (feature, value) in features {
            if let Some(weight) = self.rows.get_mut(*feature as usize * self.modes + mode) {
                *weight += step * value;
            }
        }
    }
}

/// Goes through the examples `rounds` times at most.
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

/// Puts one example where it belongs, given all others; tells how far off it was. `pulls` is how much it draws
/// each mode towards itself: its own at most `COST`, no other above zero, all together nothing.
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
    // What the loss would be without this example, and the level at which the best pulls cancel out.
    for (loss, pull) in loss.iter_mut().zip(pulls.iter()) {
        *loss -= size * pull;
    }
    let level = level(&loss, own, size * cost);
    for (mode, loss) in loss.iter().enumerate() {
        let pull = room(mode).min((level - loss) / size);
        let change = pull - pulls[mode];
        if change.abs() > 1e-7 {
            pulls[mode] = pull;
            weights.add(&example.features, mode, change);
        }
    }
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

/// The same sequence every time.
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
