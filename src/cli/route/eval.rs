//! Evaluates the router on labelled cases: accuracy, confidence and time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::output::{CommandError, CommandOutput, display_line};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::orchestrator::route::parse_mode;
use crate::router::{self, Router, THRESHOLD};

/// Maximum number of confusions to print; the JSON has all.
const SHOWN: usize = 20;

/// A prompt and its mode; `None` if it belongs to no mode.
struct EvalCase {
    mode: Option<ModeId>,
    prompt: String,
}

pub(super) fn run(
    file: &Path,
    all: bool,
    json: bool,
    plan: &Plan,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let cases = read(file, plan)?;
    let mut candidates = router::candidates(plan.manifests());
    let agents: BTreeSet<_> = cases.iter().filter_map(|case| Some(case.mode.as_ref()?.agent.clone())).collect();
    if !all && !agents.is_empty() {
        candidates.retain(|candidate| agents.contains(&candidate.mode.agent));
    }
    let started = Instant::now();
    let router = Router::learn(&candidates);
    let learning = started.elapsed();
    let measured = measure(&router, &cases, learning);
    if json {
        output.json(&measured.to_json());
    } else {
        measured.lines().iter().for_each(|line| output.line(line));
    }
    Ok(())
}

fn read(file: &Path, plan: &Plan) -> Result<Vec<EvalCase>, CommandError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        CommandError::usage(
            format!("{} cannot be read: {error}", file.display()),
            "name a text file with `agent/mode<TAB>prompt` on each line",
        )
    })?;
    let mut cases = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("{}, line {number}", file.display());
        let Some((label, prompt)) = line.split_once('\t').filter(|(_, prompt)| !prompt.trim().is_empty()) else {
            return Err(CommandError::usage(
                format!("{place}: there is no tab between a mode and a prompt"),
                "write `agent/mode`, a tab, and the prompt; - instead of a mode for what belongs nowhere",
            ));
        };
        let mode = match label.trim() {
            "-" => None,
            label => Some(parse_mode(label, plan).map_err(|error| {
                CommandError::usage(
                    display_line(&format!("{place}: {}", error.problem)),
                    display_line(&error.help.replace('@', "")),
                )
            })?),
        };
        cases.push(EvalCase { mode, prompt: prompt.to_owned() });
    }
    if cases.is_empty() {
        return Err(CommandError::usage(format!("{} has no cases", file.display()), "write one on each line"));
    }
    Ok(cases)
}

#[derive(Debug, Default)]
struct EvalMetrics {
    modes: usize,
    /// Number of cases with a mode. The next four fields count those ranked first, ranked in the top three, above the
    /// threshold, and both first and above it.
    within: usize,
    right: usize,
    among_three: usize,
    sure: usize,
    right_and_sure: usize,
    /// Number of cases without a mode; `wrongly_sure` counts those above the threshold.
    outside: usize,
    wrongly_sure: usize,
    auroc: Option<f64>,
    /// Pairs of expected and chosen mode with their counts, the most frequent first.
    confusion: Vec<((ModeId, ModeId), usize)>,
    learning: Duration,
    each: Duration,
}

fn measure(router: &Router, cases: &[EvalCase], learning: Duration) -> EvalMetrics {
    let mut measured = EvalMetrics { modes: router.modes().len(), learning, ..EvalMetrics::default() };
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    let mut confusion: BTreeMap<(ModeId, ModeId), usize> = BTreeMap::new();
    let mut spent = Duration::ZERO;
    for case in cases {
        let started = Instant::now();
        let ranked = router.rank(&case.prompt);
        spent += started.elapsed();
        let Some(best) = ranked.first() else { continue };
        let sure = best.confidence >= THRESHOLD;
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
        if !right {
            *confusion.entry((mode.clone(), best.mode.clone())).or_default() += 1;
        }
    }
    (measured.within, measured.outside) = (inside.len(), outside.len());
    measured.auroc = auroc(&inside, &outside);
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

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| count(part) / count(whole))
}

impl EvalMetrics {
    fn to_json(&self) -> serde_json::Value {
        let rounded = |share: Option<f64>| share.map(|share| (share * 10_000.0).round() / 10_000.0);
        let confused = |((wanted, got), count): &((ModeId, ModeId), usize)| json!({"expected": wanted, "routed": got, "count": count});
        json!({
            "modes": self.modes, "cases": self.within, "out_of_scope": self.outside,
            "accuracy": rounded(share(self.right, self.within)),
            "top3": rounded(share(self.among_three, self.within)),
            "coverage": rounded(share(self.sure, self.within)),
            "accuracy_where_sure": rounded(share(self.right_and_sure, self.sure)),
            "auroc": rounded(self.auroc),
            "wrongly_sure": rounded(share(self.wrongly_sure, self.outside)),
            "confusion": self.confusion.iter().map(confused).collect::<Vec<_>>(),
            "micros_per_prompt": self.each.as_micros(),
            "learning_ms": self.learning.as_millis(),
        })
    }

    fn lines(&self) -> Vec<String> {
        let percent =
            |part, whole| share(part, whole).map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
        let mut lines = vec![
            format!("cases     {} for {} modes, {} that belong nowhere", self.within, self.modes, self.outside),
            format!("accuracy  {}", percent(self.right, self.within)),
            format!("top-3     {}", percent(self.among_three, self.within)),
            format!(
                "sure      {} of them, of which {} are right",
                percent(self.sure, self.within),
                percent(self.right_and_sure, self.sure)
            ),
        ];
        if let Some(auroc) = self.auroc {
            let wrongly = percent(self.wrongly_sure, self.outside);
            lines.push(format!("nowhere   AUROC {auroc:.3}; sure all the same: {wrongly}"));
        }
        lines.push(format!(
            "time      {} µs for a prompt, {} ms to learn",
            self.each.as_micros(),
            self.learning.as_millis()
        ));
        if !self.confusion.is_empty() {
            lines.push("confused".to_owned());
        }
        let confused = self.confusion.iter().take(SHOWN);
        lines.extend(confused.map(|((wanted, got), count)| format!("  {count:>3}  {wanted} taken for {got}")));
        let more = self.confusion.len().saturating_sub(SHOWN);
        lines.extend((more > 0).then(|| format!("       and {more} more pairs; --json has them all")));
        lines
    }
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
}
