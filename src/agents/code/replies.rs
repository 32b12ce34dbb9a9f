//! Writes the replies to the model: the list of functions, their details and the result of code.

use std::fmt::Write as _;

use super::engine::{CodeEnd, CodeLimits, CodeReport, CodeStop};
use super::functions::Function;
use super::typescript;
use crate::broker::Binding;
use crate::ids::nearest;
use crate::tool::ToolOutcome;

/// Maximum characters of a function's line in the list.
const MAX_ABOUT: usize = 120;

/// Maximum characters of the reason of an unhandled promise rejection.
const MAX_UNHANDLED_BYTES: usize = 300;

/// Lists the functions by service, one line each. A query selects those that contain all of its words.
pub(super) fn function_list(functions: &[Function], binding: &Binding, query: &str) -> String {
    let words: Vec<_> = query.split_whitespace().map(str::to_lowercase).collect();
    let mut text = String::new();
    let mut found = 0;
    for of_one in functions.chunk_by(|a, b| a.object == b.object) {
        let mut object = None;
        for function in of_one {
            let Some(tool) = binding.tools().get(&function.tool) else { continue };
            let searched = format!("{function} {}", tool.spec.description).to_lowercase();
            if !words.iter().all(|word| searched.contains(word)) {
                continue;
            }
            if object.replace(&function.object).is_none() {
                _ = writeln!(text, "{}", function.object);
            }
            found += 1;
            _ = writeln!(text, "  {function}: {}", cut(first_sentence(&tool.spec.description), MAX_ABOUT));
        }
    }
    match found {
        0 => format!(
            "None of the {} functions holds all words of `{query}`. Use fewer words, or none to see them all.",
            functions.len()
        ),
        _ => text,
    }
}

/// Returns the signatures and complete descriptions, and names the unknown functions. The outcome is an error if all of
/// them are unknown.
pub(super) fn function_details(functions: &[Function], binding: &Binding, names: &[&str]) -> ToolOutcome {
    let (mut text, mut unknown) = (String::new(), Vec::new());
    for name in names {
        let named = |function: &&Function| function.to_string() == *name || function.tool == *name;
        let found = functions.iter().find(named).and_then(|of| Some((of, binding.tools().get(&of.tool)?)));
        let Some((function, tool)) = found else {
            let all: Vec<_> = functions.iter().map(ToString::to_string).collect();
            let near = nearest(name, all.iter().map(String::as_str));
            let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
            unknown.push(format!("`{name}`{near}"));
            continue;
        };
        let about = tool.spec.description.trim().replace("*/", "* /");
        let given = typescript::of(&tool.spec.input_schema);
        let back =
            tool.spec.output_schema.as_ref().map_or_else(|| "string".to_owned(), |schema| typescript::of(schema));
        _ = writeln!(text, "/** {about} */\n{function}(arguments: {given}): Promise<{back}>\n");
    }
    if !unknown.is_empty() {
        _ = write!(text, "There is no function {}.", unknown.join(", "));
    }
    if unknown.len() == names.len() { ToolOutcome::error(text) } else { ToolOutcome::text(text.trim_end()) }
}

/// Converts the report of a piece of code to the result that the model reads.
pub(super) fn outcome(report: &CodeReport, limits: &CodeLimits) -> ToolOutcome {
    let CodeReport { end, printed, unhandled: unheard, calls } = report;
    let mut problem = match end {
        CodeEnd::Returned(_) => String::new(),
        CodeEnd::Unwritable(why) => {
            format!(
                "The code ran to its end, but what it returned cannot be written as JSON: {why}. Return plain data."
            )
        }
        CodeEnd::OutOfMemory(why) => {
            format!("The code failed: {why}, of which code has {} MiB", limits.memory >> 20)
        }
        CodeEnd::Threw(why) => format!("The code failed: {why}"),
        CodeEnd::Stopped(why) => stop_message(*why, limits),
    };
    if !unheard.is_empty() {
        let failures: Vec<_> = unheard.iter().map(|why| format!("- {}", cut(why, MAX_UNHANDLED_BYTES))).collect();
        let lead = if problem.is_empty() { "The code ran to its end, but something" } else { "\nSomething" };
        _ = write!(problem, "{lead} failed that it did not wait for; use `await`:\n{}", failures.join("\n"));
    }
    let mut parts = Vec::new();
    if !problem.is_empty() {
        let made = match calls {
            0 => String::new(),
            1 => "\nIt had made 1 call, and what that did stays done.".to_owned(),
            _ => format!("\nIt had made {calls} calls, and what they did stays done."),
        };
        parts.push(format!("{problem}{made}"));
    }
    if !printed.is_empty() {
        parts.push(format!("Printed:\n{}", printed.trim_end_matches('\n')));
    }
    match end {
        CodeEnd::Returned(Some(value)) if parts.is_empty() => parts.push(value.clone()),
        CodeEnd::Returned(Some(value)) => parts.push(format!("Returned:\n{value}")),
        CodeEnd::Returned(None) if parts.is_empty() => {
            parts.push("The code ran to its end and returned nothing; `return` gives a value.".to_owned());
        }
        _ => {}
    }
    ToolOutcome { is_error: !problem.is_empty(), ..ToolOutcome::text(parts.join("\n\n")) }
}

fn stop_message(why: CodeStop, limits: &CodeLimits) -> String {
    match why {
        CodeStop::Cancelled => "The code was stopped: the turn was cancelled.".to_owned(),
        CodeStop::Time => format!(
            "The code was stopped: it ran for more than {} s, without what it waited for. Does it have an end?",
            limits.time.as_secs_f32()
        ),
        CodeStop::Stuck => {
            "The code did not stop when its time was over, and was left alone; it can make no more calls. \
                        Do less in one step: shorter texts, fewer repetitions."
                .to_owned()
        }
        CodeStop::Output => format!(
            "The code was stopped: it printed more than {} bytes. Print less, and return only what is needed.",
            limits.output
        ),
        CodeStop::Waiting => {
            "The code was stopped: it waits for something that will never happen. There are no timers, and only the \
             functions of services can be waited for."
                .to_owned()
        }
    }
}

fn first_sentence(text: &str) -> &str {
    let line = text.trim().lines().next().unwrap_or_default();
    line.split_once(". ").map_or(line, |(sentence, _)| sentence).trim_end_matches('.')
}

fn cut(text: &str, max: usize) -> String {
    let short: String = text.chars().take(max).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}
