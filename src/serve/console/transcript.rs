//! Converts stored events to markup: messages, calls, diffs, to-do lists and the ends of turns.
//!
//! Invariant: text of users, models and tools is escaped. Links in it cannot be clicked, and pictures are shown only
//! in formats without scripts.

use std::cell::Cell;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::layout::ConsoleProblem;
use crate::agents::{Event, ROUTE, StopReason, TurnEnd};
use crate::clock;
use crate::conversation::{Content, Message, MessagePart, Role};
use crate::store::StoredEvent;
use crate::text::line_diff::LineDiff;
use crate::tool::{Activity, StepStatus, TodoStep, ToolOutcome, strip_invisible, truncate};

/// Maximum bytes of a text, of arguments and of a result on the page. The export has all of it.
const MAX_TEXT: usize = 64 * 1024;
/// Maximum lines of a diff.
const MAX_DIFF_LINES: usize = 400;
/// How long all diffs of one answer may take together.
const DIFF_TIME: Duration = Duration::from_secs(1);
/// Formats of pictures that a browser shows without running anything.
pub(super) const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The time that is left for the diffs of one answer. A page may have hundreds.
pub(super) struct DiffBudget {
    left: Cell<Duration>,
}

impl Default for DiffBudget {
    fn default() -> Self {
        Self { left: Cell::new(DIFF_TIME) }
    }
}

impl DiffBudget {
    /// Returns the unified diff of two texts. `None` if no time is left.
    fn compare(&self, before: &str, after: &str) -> Option<String> {
        let left = self.left.get();
        if left.is_zero() {
            return None;
        }
        let begun = Instant::now();
        let text = LineDiff::new(before, after, Some(left)).format(3, None);
        self.left.set(left.saturating_sub(begun.elapsed()));
        Some(text)
    }
}

/// Makes markup with diffs outside the async runtime, because they take long.
pub(super) async fn render(
    work: impl FnOnce(&DiffBudget) -> Markup + Send + 'static,
) -> Result<Markup, ConsoleProblem> {
    crate::task::run_blocking(move || work(&DiffBudget::default())).await.map_err(|error| {
        tracing::error!(%error, "a page of the console cannot be made");
        ConsoleProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "This page cannot be shown at the moment.")
    })
}

/// Returns the entries of events, in order.
pub(super) fn entries(events: &[StoredEvent], budget: &DiffBudget) -> Markup {
    html! {
        @for (event, parts) in events.iter().map(|event| (event, entry_markup(event, budget))) {
            @if !parts.is_empty() {
                div class="event" id={ "e" (event.seq) } data-seq=(event.seq) {
                    @for part in &parts { (part) }
                }
            }
        }
    }
}

fn entry_markup(event: &StoredEvent, budget: &DiffBudget) -> Vec<Markup> {
    match serde_json::from_str::<Event>(&event.body) {
        Ok(read) => read.native_events().iter().filter_map(|read| one_event(event, read, budget)).collect(),
        Err(_) => {
            let text = format!("event {} ({}) cannot be read by this version", event.seq, event.kind);
            vec![entry(event, "remark", None, &html! { p class="meta" { (text) } })]
        }
    }
}

/// Returns one entry. `by` names its author.
fn entry(event: &StoredEvent, kind: &str, by: Option<&str>, body: &Markup) -> Markup {
    html! {
        article class={ "entry " (kind) } {
            @if let Some(by) = by {
                div class="by" {
                    (by) " "
                    time datetime=(clock::iso(event.at)) { (clock::moment(event.at)) }
                }
            }
            (body)
        }
    }
}

/// Returns the entry of an event. `None` if other events show what it says.
fn one_event(stored: &StoredEvent, event: &Event, budget: &DiffBudget) -> Option<Markup> {
    Some(match event {
        Event::Message { message } => message_entry(stored, message)?,
        Event::ToolStarted { call, by } => {
            let kind = if call.name == ROUTE { "Route" } else { "Call" };
            let title = match by {
                Some(by) => format!("{kind} of {by}"),
                None => kind.to_owned(),
            };
            let body = html! {
                details {
                    summary { code { (display_text(&call.name)) } }
                    pre tabindex="0" { (pretty(&call.arguments)) }
                }
            };
            entry(stored, "call", Some(&title), &body)
        }
        Event::ToolEnded { name, outcome, activity, .. } => {
            let changes: Vec<_> = activity.iter().filter_map(|activity| activity_markup(activity, budget)).collect();
            result_entry(stored, name, outcome, &changes)
        }
        Event::Compacted { messages, .. } => {
            remark(stored, &format!("From here on, a summary stands for the first {messages} messages."))
        }
        Event::TurnEnded { end } => turn_end(stored, end),
        Event::ExternalSessionOpened { agent, .. } => {
            remark(stored, &format!("From here on, the external agent {agent} works on this session."))
        }
        Event::Undone { .. } => remark(stored, "Turns were undone, or an undo was reversed."),
        Event::External { .. } => return None,
    })
}

fn remark(stored: &StoredEvent, text: &str) -> Markup {
    entry(stored, "remark", None, &html! { p class="meta" { (display_text(text)) } })
}

/// Returns the entry of a message. `None` if it has only tool uses and results, which the events of their calls show.
fn message_entry(stored: &StoredEvent, message: &Message) -> Option<Markup> {
    let parts: Vec<Markup> = message.parts.iter().filter_map(part_markup).collect();
    if parts.is_empty() {
        return None;
    }
    let (kind, by) = match message.role {
        Role::User => ("prompt", "You"),
        Role::Assistant => ("answer", "Agent"),
    };
    let body = html! { @for part in &parts { (part) } };
    Some(entry(stored, kind, Some(by), &body))
}

fn part_markup(part: &MessagePart) -> Option<Markup> {
    match part {
        MessagePart::Content(Content::Injected(text)) => Some(html! {
            details class="meta" {
                summary { "Skein added " (text.len()) " bytes for the model" }
                pre tabindex="0" { (display_text(text)) }
            }
        }),
        MessagePart::Content(content) => content_markup(content),
        MessagePart::Thought(text) => Some(html! {
            details class="thought" {
                summary { "Thought" }
                p class="said" { (display_text(text)) }
            }
        }),
        MessagePart::ToolUse(_) | MessagePart::ToolResult(_) => None,
    }
}

fn content_markup(content: &Content) -> Option<Markup> {
    match content {
        Content::Text(text) if text.trim().is_empty() => None,
        Content::Text(text) => Some(html! { p class="said" { (display_text(text)) } }),
        Content::Image { mime, data } if IMAGE_TYPES.contains(&mime.as_str()) && is_base64(data) => {
            Some(html! { img src={ "data:" (mime) ";base64," (data) } alt="Attached picture"; })
        }
        Content::Image { mime, .. } | Content::Audio { mime, .. } => {
            Some(html! { p class="meta" { "[" (display_text(mime)) "]" } })
        }
        Content::Resource(_) | Content::Link(_) => {
            Some(html! { pre tabindex="0" { (display_text(&content.to_plain_text())) } })
        }
        Content::Injected(_) => None,
    }
}

fn result_entry(stored: &StoredEvent, name: &str, outcome: &ToolOutcome, changes: &[Markup]) -> Markup {
    let (kind, word) = match (outcome.refused, outcome.is_error) {
        (true, _) => ("result failure", "Refused"),
        (false, true) => ("result failure", "Failed"),
        (false, false) => ("result", "Result"),
    };
    let body = html! {
        details open[outcome.is_error || outcome.refused] {
            summary { code { (display_text(name)) } }
            @for markup in outcome.content.iter().filter_map(content_markup) { (markup) }
        }
        @for change in changes { (change) }
    };
    entry(stored, kind, Some(word), &body)
}

/// Returns what a call changed. `None` if it is of the moment.
fn activity_markup(activity: &Activity, budget: &DiffBudget) -> Option<Markup> {
    match activity {
        Activity::Changed { path, before, after } => {
            Some(diff(&path.to_string_lossy(), before.as_deref().unwrap_or_default(), after, budget))
        }
        Activity::TodoList(steps) => Some(todo_list(steps)),
        Activity::Terminal { .. } => Some(html! { p class="meta" { "ran in a terminal of the editor" } }),
        Activity::Running | Activity::Progress(_) | Activity::Location { .. } => None,
    }
}

/// Returns the diff of a file, with a bounded number of lines. Without time left, it says only that the file changed.
pub(super) fn diff(path: &str, before: &str, after: &str, budget: &DiffBudget) -> Markup {
    let Some(text) = budget.compare(before, after) else {
        return html! {
            p class="meta" {
                "Changed " code { (display_text(path)) } ". The changes on this page are too long to compare."
            }
        };
    };
    let all = text.lines().count();
    html! {
        details class="diff" open {
            summary { "Changed " code { (display_text(path)) } }
            pre tabindex="0" {
                @for line in text.lines().take(MAX_DIFF_LINES) {
                    span class=(line_class(line)) { (display_text(line)) }
                }
                @if all > MAX_DIFF_LINES {
                    span class="at" { "… " (all - MAX_DIFF_LINES) " more lines" }
                }
            }
        }
    }
}

fn line_class(line: &str) -> &'static str {
    match line.chars().next() {
        Some('+') => "add",
        Some('-') => "del",
        Some('@') => "at",
        _ => "same",
    }
}

fn todo_list(steps: &[TodoStep]) -> Markup {
    html! {
        ol class="todo" aria-label="To-do list" {
            @for step in steps {
                li {
                    @match step.status {
                        StepStatus::Pending => { "open: " }
                        StepStatus::InProgress => { "in progress: " }
                        StepStatus::Completed => { "done: " }
                    }
                    (display_text(&step.text))
                }
            }
        }
    }
}

fn turn_end(stored: &StoredEvent, end: &TurnEnd) -> Markup {
    let text = match &end.ending {
        StopReason::EndTurn => "Turn ended".to_owned(),
        StopReason::MaxTokens => "Turn ended: the answer reached its maximum length".to_owned(),
        StopReason::Exhausted { why } => format!("Turn ended: {why}"),
        StopReason::Refusal => "Turn ended: the model declined".to_owned(),
        StopReason::Cancelled => "Turn cancelled".to_owned(),
        StopReason::CallRefused { tool } => format!("Turn ended: {tool} was refused"),
        StopReason::Failed { why, .. } => format!("Turn failed: {why}"),
    };
    let usage = format!("{} tokens in, {} out", end.usage.input, end.usage.output);
    let kind = if matches!(end.ending, StopReason::Failed { .. }) { "remark failure" } else { "remark" };
    entry(stored, kind, None, &html! { p class="meta" { (display_text(&text)) " · " (usage) } })
}

/// Returns text for a page: without invisible characters, and of bounded length.
pub(super) fn display_text(text: &str) -> String {
    let beginning = truncate(text, MAX_TEXT);
    let kept = strip_invisible(beginning);
    match text.len() - beginning.len() {
        0 => kept,
        rest => format!("{kept}\n… {rest} more bytes; the export has them"),
    }
}

/// Returns JSON on several lines.
pub(super) fn pretty(value: &Value) -> String {
    display_text(&serde_json::to_string_pretty(value).unwrap_or_default())
}

pub(super) fn is_base64(data: &str) -> bool {
    !data.is_empty() && data.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='))
}

#[cfg(test)]
#[path = "transcript_tests.rs"]
mod tests;
