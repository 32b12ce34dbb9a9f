//! Evaluates the router on labelled cases: accuracy, confidence, confusion and time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::route::{UnknownModeError, parse_mode};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::router::{self, Router, THRESHOLD};

/// The number of ranges of confidence in which the calibration error is measured.
const RANGES: usize = 10;

/// A prompt and its mode; `None` if it belongs to no mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvaluationCase {
    pub mode: Option<ModeId>,
    pub prompt: String,
}

/// A line that is no case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    #[error("there is no tab between a mode and a prompt")]
    NoTab,
    #[error("{}", .0.problem)]
    UnknownMode(UnknownModeError),
}

/// The agents whose modes take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvaluatedAgents {
    /// Those of the cases.
    OfCases,
    All,
}

/// Reads cases: on each line a mode, a tab and a prompt, with `-` as the mode of prompts that belong nowhere. Fails with
/// the number of the first line that is no case.
pub fn read_cases(text: &str, plan: &Plan) -> Result<Vec<EvaluationCase>, (usize, CaseError)> {
    let mut cases = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let parts = line.split_once('\t').filter(|(_, prompt)| !prompt.trim().is_empty());
        let (label, prompt) = parts.ok_or((number, CaseError::NoTab))?;
        let mode = match label.trim() {
            "-" => None,
            label => Some(parse_mode(label, plan).map_err(|error| (number, CaseError::UnknownMode(error)))?),
        };
        cases.push(EvaluationCase { mode, prompt: prompt.to_owned() });
    }
    Ok(cases)
}

/// Trains a router on the modes of the plan and routes the prompts of all cases.
pub fn evaluate(plan: &Plan, cases: &[EvaluationCase], agents: EvaluatedAgents) -> RouteEvaluation {
    let mut candidates = router::candidates(plan.manifests());
    candidates.retain(|candidate| plan.is_selectable(&candidate.mode));
    let named: BTreeSet<_> = cases.iter().filter_map(|case| Some(case.mode.as_ref()?.agent.clone())).collect();
    if agents == EvaluatedAgents::OfCases && !named.is_empty() {
        candidates.retain(|candidate| named.contains(&candidate.mode.agent));
    }
    let started = Instant::now();
    let router = Router::learn(&candidates);
    measure(&router, cases, started.elapsed())
}

/// How well the router knows the modes of cases.
#[derive(Debug, Default)]
pub struct RouteEvaluation {
    pub modes: usize,
    /// Number of cases with a mode. The next four fields count those ranked first, ranked in the top three, above the
    /// threshold, and both first and above it.
    pub within: usize,
    pub right: usize,
    pub among_three: usize,
    pub sure: usize,
    pub right_and_sure: usize,
    /// Number of cases without a mode; `wrongly_sure` counts those above the threshold.
    pub outside: usize,
    pub wrongly_sure: usize,
    pub auroc: Option<f64>,
    /// The expected calibration error over all cases; a route of a case without a mode is wrong.
    pub calibration_error: Option<f64>,
    /// Pairs of expected and chosen mode with their counts, the most frequent first.
    pub confusion: Vec<((ModeId, ModeId), usize)>,
    /// The number of right cases of each mode.
    pub right_by_mode: BTreeMap<ModeId, usize>,
    pub learning: Duration,
    pub each: Duration,
}

fn measure(router: &Router, cases: &[EvaluationCase], learning: Duration) -> RouteEvaluation {
    let mut measured = RouteEvaluation { modes: router.modes().len(), learning, ..RouteEvaluation::default() };
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    let mut confusion: BTreeMap<(ModeId, ModeId), usize> = BTreeMap::new();
    let mut judged = Vec::new();
    let mut spent = Duration::ZERO;
    for case in cases {
        let started = Instant::now();
        let ranked = router.rank(&case.prompt);
        spent += started.elapsed();
        let Some(best) = ranked.first() else { continue };
        let sure = best.confidence >= THRESHOLD;
        judged.push((best.confidence, case.mode.as_ref() == Some(&best.mode)));
        let Some(mode) = &case.mode else {
            measured.wrongly_sure += usize::from(sure);
            outside.push(best.confidence);
            continue;
        };
        let right = best.mode == *mode;
        measured.right += usize::from(right);
        measured.among_three += usize::from(ranked.iter().take(3).any(|ranked| ranked.mode == *mode));
        measured.sure += usize::from(sure);
        measured.right_and_sure += usize::from(sure && right);
        inside.push(best.confidence);
        match right {
            true => *measured.right_by_mode.entry(mode.clone()).or_default() += 1,
            false => *confusion.entry((mode.clone(), best.mode.clone())).or_default() += 1,
        }
    }
    (measured.within, measured.outside) = (inside.len(), outside.len());
    measured.auroc = auroc(&inside, &outside);
    measured.calibration_error = calibration_error(&judged);
    measured.confusion = confusion.into_iter().collect();
    measured.confusion.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    measured.each = spent / u32::try_from(cases.len()).unwrap_or(u32::MAX).max(1);
    measured
}

/// Returns the probability that a case with a mode has a higher confidence than one without; a tie counts half. `None`
/// if either set is empty.
fn auroc(inside: &[f64], outside: &[f64]) -> Option<f64> {
    if inside.is_empty() || outside.is_empty() {
        return None;
    }
    let mut sorted = outside.to_vec();
    sorted.sort_by(f64::total_cmp);
    let above = |value: &f64| {
        let (below, up_to) = (sorted.partition_point(|it| it < value), sorted.partition_point(|it| it <= value));
        count(below) + count(up_to - below) / 2.0
    };
    Some(inside.iter().map(above).sum::<f64>() / (count(inside.len()) * count(outside.len())))
}

/// Returns how far the confidence is from the share of right routes, on average: in each of ten equal ranges of
/// confidence, weighted by the number of routes. `None` without routes.
fn calibration_error(judged: &[(f64, bool)]) -> Option<f64> {
    let mut ranges = [0.0_f64; RANGES];
    for (confidence, right) in judged {
        let range = (1..RANGES).rev().find(|range| *confidence >= count(*range) / count(RANGES));
        ranges[range.unwrap_or_default()] += confidence - if *right { 1.0 } else { 0.0 };
    }
    let off: f64 = ranges.iter().map(|off| off.abs()).sum();
    (!judged.is_empty()).then(|| off / count(judged.len()))
}

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auroc_is_the_share_of_pairs_in_order() {
        assert_eq!(auroc(&[0.9, 0.8], &[0.1]), Some(1.0));
        assert_eq!(auroc(&[0.1], &[0.9]), Some(0.0));
        assert_eq!(auroc(&[0.5, 0.9], &[0.5, 0.1]), Some(0.875));
        assert_eq!(auroc(&[], &[0.5]), None);
    }

    #[test]
    fn calibration_error_compares_confidence_with_what_is_right() {
        let near = |judged: &[(f64, bool)], expected: f64| {
            let error = calibration_error(judged).unwrap();
            assert!((error - expected).abs() < 1e-9, "{error} instead of {expected}");
        };
        near(&[(0.5, true), (0.55, false)], 0.025);
        near(&[(1.0, true), (0.0, false)], 0.0);
        near(&[(0.9, false), (0.1, true)], 0.9);
        near(&[(0.8, true), (0.8, true), (0.8, true), (0.8, true), (0.8, false)], 0.0);
        assert_eq!(calibration_error(&[]), None);
    }
}
