//! Formats a report for a terminal.

use std::fmt::Write as _;

use super::super::output::{BOLD, QUIET, display_line};
use super::summary::{ActivityReport, ModeActivity, PrincipalActivity, ToolActivity};
use crate::clock;
use crate::store::UsageTotals;

/// Lines of a section.
const MAX_LINES: usize = 15;

/// Returns the report as lines.
pub(super) fn render(report: &ActivityReport) -> String {
    let mut out = String::new();
    let (from, to) = (clock::moment(report.since), clock::moment(report.until));
    let ActivityReport { sessions, turns, calls, .. } = report;
    push(&mut out, &format!("{BOLD}From {from} to {to}{BOLD:#}"));
    push(&mut out, &format!("  {sessions} sessions, {turns} turns, {calls} calls"));
    push(&mut out, &format!("  spent {}", usage_line(&report.spent)));
    let endings: Vec<_> = report.endings.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if !endings.is_empty() {
        push(&mut out, &format!("  turns: {}", endings.join(", ")));
    }
    if report.has_several_principals() {
        let principals = report.principals.iter().map(|(name, of)| (of.turns, principal_line(name, of)));
        section(&mut out, "By principal", &sorted(principals.collect()));
    }
    let modes = sorted(report.modes.iter().map(|(name, mode)| (mode.calls, mode_line(name, mode))).collect());
    section(&mut out, "Did, by mode", &modes);
    let tools = sorted(report.tools.iter().map(|(name, tool)| (tool.calls, tool_line(name, tool))).collect());
    section(&mut out, "Calls, by tool", &tools);
    let files = report.files.iter().map(|(path, count)| (*count, format!("{count:>5}  {}", display_line(path))));
    section(&mut out, "Changed files", &sorted(files.collect()));
    let questions = &report.questions;
    let asked = questions.allowed + questions.refused + questions.unanswered;
    if asked > 0 {
        let line = format!(
            "{asked} requests: {} allowed, {} refused, {} without a user to ask",
            questions.allowed, questions.refused, questions.unanswered
        );
        section(&mut out, "Asked", &[line]);
    }
    let refusals: Vec<_> = report
        .refusals
        .iter()
        .map(|refusal| {
            let rule = refusal.rule.as_deref().map(|rule| format!(" ({})", display_line(rule))).unwrap_or_default();
            format!(
                "{:>5}  {}  {QUIET}by {}{rule}{QUIET:#}",
                refusal.count,
                display_line(&refusal.subject),
                refusal.source
            )
        })
        .collect();
    section(&mut out, "Refused", &refusals);
    if report.unreadable_events > 0 {
        push(&mut out, &format!("{} events cannot be read by this skein", report.unreadable_events));
    }
    out
}

/// Returns the tokens and the cost in words.
pub(super) fn usage_line(spent: &UsageTotals) -> String {
    let cost = match spent.cost {
        Some(cost) => format!("${cost:.2}"),
        None => "no known cost".to_owned(),
    };
    format!("{} tokens in and {} out, {cost}", spent.input, spent.output)
}

fn principal_line(name: &str, of: &PrincipalActivity) -> String {
    let PrincipalActivity { sessions, turns, calls, refusals, spent } = of;
    let numbers = format!("{sessions} sessions, {turns} turns, {calls} calls, {refusals} refused");
    format!("{}  {QUIET}{numbers}, {}{QUIET:#}", display_line(name), usage_line(spent))
}

fn mode_line(name: &str, mode: &ModeActivity) -> String {
    let ModeActivity { sessions, turns, calls, changes, tokens } = mode;
    let numbers = format!("{sessions} sessions, {turns} turns, {calls} calls, {changes} changes, {tokens} tokens");
    format!("{}  {QUIET}{numbers}{QUIET:#}", display_line(name))
}

fn tool_line(name: &str, tool: &ToolActivity) -> String {
    let ToolActivity { calls, failures, refusals } = tool;
    format!("{calls:>5}  {}  {QUIET}{failures} failed, {refusals} refused{QUIET:#}", display_line(name))
}

/// Returns the lines with the largest numbers first.
fn sorted(mut lines: Vec<(u64, String)>) -> Vec<String> {
    lines.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    lines.into_iter().map(|(_, line)| line).collect()
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    push(out, &format!("\n{BOLD}{title}{BOLD:#}"));
    lines.iter().take(MAX_LINES).for_each(|line| push(out, &format!("  {line}")));
    let more = lines.len().saturating_sub(MAX_LINES);
    if more > 0 {
        push(out, &format!("  {QUIET}and {more} more; --format json has all{QUIET:#}"));
    }
}

fn push(out: &mut String, line: &str) {
    // Writing to a text does not fail.
    writeln!(out, "{line}").unwrap_or_default();
}
