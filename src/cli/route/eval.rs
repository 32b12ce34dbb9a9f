//! `skein route --eval`: prints how well the router knows the modes of labelled cases.

use std::path::Path;

use serde_json::{Value, json};

use super::super::output::{CommandError, CommandOutput, display_line};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::orchestrator::evaluation::{
    CaseError, EvaluatedAgents, EvaluationCase, RouteEvaluation, evaluate, read_cases,
};

/// Maximum number of confusions to print; the JSON has all.
const SHOWN: usize = 20;

pub(super) fn run(
    file: &Path,
    all: bool,
    json: bool,
    plan: &Plan,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let cases = read(file, plan)?;
    let agents = if all { EvaluatedAgents::All } else { EvaluatedAgents::OfCases };
    let measured = evaluate(plan, &cases, agents);
    if json {
        output.json(&metrics_json(&measured));
    } else {
        metric_lines(&measured).iter().for_each(|line| output.line(line));
    }
    Ok(())
}

fn read(file: &Path, plan: &Plan) -> Result<Vec<EvaluationCase>, CommandError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        CommandError::usage(
            format!("{} cannot be read: {error}", file.display()),
            "name a text file with `agent/mode<TAB>prompt` on each line",
        )
    })?;
    let cases = read_cases(&text, plan).map_err(|(number, error)| {
        let place = format!("{}, line {number}", file.display());
        match error {
            CaseError::NoTab => CommandError::usage(
                format!("{place}: {error}"),
                "write `agent/mode`, a tab, and the prompt; - instead of a mode for what belongs nowhere",
            ),
            CaseError::UnknownMode(unknown) => CommandError::usage(
                display_line(&format!("{place}: {}", unknown.problem)),
                display_line(&unknown.help.replace('@', "")),
            ),
        }
    })?;
    if cases.is_empty() {
        return Err(CommandError::usage(format!("{} has no cases", file.display()), "write one on each line"));
    }
    Ok(cases)
}

fn share(part: usize, whole: usize) -> Option<f64> {
    let number = |count: usize| u32::try_from(count).map_or(f64::MAX, f64::from);
    (whole > 0).then(|| number(part) / number(whole))
}

fn metrics_json(measured: &RouteEvaluation) -> Value {
    let rounded = |share: Option<f64>| share.map(|share| (share * 10_000.0).round() / 10_000.0);
    let confused =
        |((wanted, got), count): &((ModeId, ModeId), usize)| json!({"expected": wanted, "routed": got, "count": count});
    json!({
        "modes": measured.modes, "cases": measured.within, "out_of_scope": measured.outside,
        "accuracy": rounded(share(measured.right, measured.within)),
        "top3": rounded(share(measured.among_three, measured.within)),
        "coverage": rounded(share(measured.sure, measured.within)),
        "accuracy_where_sure": rounded(share(measured.right_and_sure, measured.sure)),
        "auroc": rounded(measured.auroc),
        "calibration_error": rounded(measured.calibration_error),
        "wrongly_sure": rounded(share(measured.wrongly_sure, measured.outside)),
        "confusion": measured.confusion.iter().map(confused).collect::<Vec<_>>(),
        "micros_per_prompt": measured.each.as_micros(),
        "learning_ms": measured.learning.as_millis(),
    })
}

fn metric_lines(measured: &RouteEvaluation) -> Vec<String> {
    let percent = |part, whole| share(part, whole).map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let mut lines = vec![
        format!("cases     {} for {} modes, {} that belong nowhere", measured.within, measured.modes, measured.outside),
        format!("accuracy  {}", percent(measured.right, measured.within)),
        format!("top-3     {}", percent(measured.among_three, measured.within)),
        format!(
            "sure      {} of them, of which {} are right",
            percent(measured.sure, measured.within),
            percent(measured.right_and_sure, measured.sure)
        ),
    ];
    if let Some(auroc) = measured.auroc {
        let wrongly = percent(measured.wrongly_sure, measured.outside);
        lines.push(format!("nowhere   AUROC {auroc:.3}; sure all the same: {wrongly}"));
    }
    if let Some(error) = measured.calibration_error {
        lines.push(format!("off by    {error:.3}, between confidence and accuracy (expected calibration error)"));
    }
    lines.push(format!(
        "time      {} µs for a prompt, {} ms to learn",
        measured.each.as_micros(),
        measured.learning.as_millis()
    ));
    if !measured.confusion.is_empty() {
        lines.push("confused".to_owned());
    }
    let confused = measured.confusion.iter().take(SHOWN);
    lines.extend(confused.map(|((wanted, got), count)| format!("  {count:>3}  {wanted} taken for {got}")));
    let more = measured.confusion.len().saturating_sub(SHOWN);
    lines.extend((more > 0).then(|| format!("       and {more} more pairs; --json has them all")));
    lines
}
