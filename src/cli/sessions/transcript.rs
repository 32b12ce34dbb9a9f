//! Formats a stored session for people and programs.
//!
//! Events are `agents::Event`. An event that cannot be parsed, because it is damaged or of another version, is shown as
//! unreadable.

use std::collections::HashSet;

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::super::output::{BOLD, CommandOutput, QUIET, display_line, display_lines};
use crate::agents::{Event, StopReason, active_places};
use crate::clock;
use crate::conversation::{Content, Message, MessagePart, Role};
use crate::store::{StoredEvent, StoredSession};
use crate::text::escape_json;

/// Maximum characters of a tool's arguments or result to show.
const GLANCE: usize = 160;

/// An item of the transcript.
enum TranscriptItem {
    /// Text of the user.
    Prompt {
        text: String,
        is_undone: bool,
    },
    /// Text of the agent.
    Answer(String),
    Call {
        name: String,
        arguments: String,
    },
    Outcome {
        name: String,
        is_error: bool,
        text: String,
    },
    /// A remark about anything else.
    Remark(String),
}

/// Returns the items of all events. The prompts of undone turns are marked.
fn items(events: &[StoredEvent]) -> Vec<TranscriptItem> {
    let read: Vec<Option<Event>> = events.iter().map(|event| serde_json::from_str(&event.body).ok()).collect();
    let active: HashSet<usize> = active_places(read.iter().map(Option::as_ref)).into_iter().collect();
    let mut items = Vec::new();
    for (place, (read, event)) in read.into_iter().zip(events).enumerate() {
        let Some(read) = read else {
            items.push(TranscriptItem::Remark(format!(
                "event {} ({}) cannot be read by this skein",
                event.seq,
                display_line(&event.kind)
            )));
            continue;
        };
        let is_undone = !active.contains(&place);
        items.extend(items_of(read).into_iter().map(|item| match item {
            TranscriptItem::Prompt { text, .. } => TranscriptItem::Prompt { text, is_undone },
            item => item,
        }));
    }
    items
}

fn items_of(event: Event) -> Vec<TranscriptItem> {
    match event {
        Event::External { events, .. } => events.into_iter().flat_map(items_of).collect(),
        Event::ExternalSessionOpened { agent, .. } => {
            vec![TranscriptItem::Remark(format!(
                "from here on the external agent `{agent}` has its own session for this one"
            ))]
        }
        Event::Message { message } => message_items(&message),
        Event::ToolStarted { call, by } => {
            let name = by.map_or(call.name.clone(), |by| format!("{by}: {}", call.name));
            vec![TranscriptItem::Call { name, arguments: call.arguments.to_string() }]
        }
        Event::ToolEnded { name, outcome, .. } => {
            vec![TranscriptItem::Outcome { name, is_error: outcome.is_error, text: outcome.all_text() }]
        }
        Event::Compacted { messages, .. } => {
            vec![TranscriptItem::Remark(format!("from here on a summary stands for the first {messages} messages"))]
        }
        Event::Undone { .. } => {
            vec![TranscriptItem::Remark("turns were undone, or an undo was reversed".to_owned())]
        }
        Event::TurnEnded { end } => stop_text(end.ending).map(TranscriptItem::Remark).into_iter().collect(),
    }
}

/// Returns the text of a message. Tool uses and results are left out, because the events of their calls show them.
fn message_items(message: &Message) -> Vec<TranscriptItem> {
    let text: Vec<_> = message
        .parts
        .iter()
        .filter_map(|part| match part {
            MessagePart::Content(Content::Text(text)) => Some(text.clone()),
            MessagePart::Content(Content::Image { mime, .. } | Content::Audio { mime, .. }) => {
                Some(format!("[{mime}]"))
            }
            MessagePart::Content(Content::Resource(value) | Content::Link(value)) => {
                let uri = value.pointer("/resource/uri").or(value.get("uri")).and_then(Value::as_str);
                Some(format!("[{}]", uri.unwrap_or("resource")))
            }
            MessagePart::Content(Content::Injected(_))
            | MessagePart::Thought(_)
            | MessagePart::ToolUse(_)
            | MessagePart::ToolResult(_) => None,
        })
        .collect();
    let text = text.join("");
    let injected: usize = message.injections().map(str::len).sum();
    let remark = format!("with this prompt skein sent the model {injected} bytes; `sessions export` has them");
    let mut items: Vec<_> = (injected > 0).then_some(TranscriptItem::Remark(remark)).into_iter().collect();
    match message.role {
        _ if text.trim().is_empty() => {}
        Role::User => items.push(TranscriptItem::Prompt { text, is_undone: false }),
        Role::Assistant => items.push(TranscriptItem::Answer(text)),
    }
    items
}

/// Returns why the turn ended. `None` for a normal end.
fn stop_text(ending: StopReason) -> Option<String> {
    match ending {
        StopReason::EndTurn => None,
        StopReason::MaxTokens => Some("the answer was cut at its longest".to_owned()),
        StopReason::Exhausted { why } => Some(format!("the turn ended: {why}")),
        StopReason::Refusal => Some("the model declined".to_owned()),
        StopReason::Cancelled => Some("the turn was cancelled".to_owned()),
        StopReason::CallRefused { tool } => Some(format!("the turn ended because {tool} was refused")),
        StopReason::Failed { why, .. } => Some(format!("the turn failed: {why}")),
    }
}

fn glance(text: &str) -> String {
    let text = display_line(text);
    if text.chars().count() > GLANCE { format!("{}…", text.chars().take(GLANCE).collect::<String>()) } else { text }
}

fn about(session: &StoredSession) -> Vec<(&'static str, String)> {
    let spent = &session.spent;
    let cost = spent.cost.map(|cost| format!(", {cost:.4} USD")).unwrap_or_default();
    vec![
        ("agent", format!("{}/{}", display_line(&session.agent), display_line(&session.mode))),
        ("model", display_line(&session.model)),
        ("folder", display_line(&session.cwd.to_string_lossy())),
        ("begun", clock::moment(session.created_at)),
        ("last", clock::moment(session.updated_at)),
        ("tokens", format!("{} in ({} cached), {} out{cost}", spent.input, spent.cached, spent.output)),
    ]
}

/// Prints a summary of the session to the terminal.
pub(super) fn show(session: &StoredSession, events: &[StoredEvent], output: &mut CommandOutput) {
    let title = session.title.as_deref().map_or_else(|| "(no title)".to_owned(), display_line);
    output.line(&format!("{BOLD}{}{BOLD:#}  {title}", session.id));
    for (name, value) in about(session) {
        output.line(&format!("  {QUIET}{name:<7}{QUIET:#} {value}"));
    }
    for item in items(events) {
        match item {
            TranscriptItem::Prompt { text, is_undone } => {
                let text = display_lines(&text).replace('\n', "\n  ");
                let undone = if is_undone { format!(" {QUIET}(undone){QUIET:#}") } else { String::new() };
                output.line(&format!("\n{BOLD}› {text}{BOLD:#}{undone}"));
            }
            TranscriptItem::Answer(text) => output.line(&format!("\n{}", display_lines(&text))),
            TranscriptItem::Call { name, arguments } => {
                output.line(&format!("{QUIET}→ {} {}{QUIET:#}", display_line(&name), glance(&arguments)));
            }
            TranscriptItem::Outcome { name, is_error: true, text } => {
                output.line(&format!("✗ {} {}", display_line(&name), glance(&text)));
            }
            TranscriptItem::Outcome { .. } => {}
            TranscriptItem::Remark(text) => output.line(&format!("{QUIET}({}){QUIET:#}", display_line(&text))),
        }
    }
}

/// Formats the whole session as Markdown.
pub(super) fn markdown(session: &StoredSession, events: &[StoredEvent]) -> String {
    let title = session.title.as_deref().map_or_else(|| format!("Session {}", session.id), display_line);
    let mut text = format!("# {title}\n\n- session: {}\n", session.id);
    for (name, value) in about(session) {
        text.push_str(&format!("- {name}: {value}\n"));
    }
    for item in items(events) {
        text.push_str(&match item {
            TranscriptItem::Prompt { text, is_undone } => {
                let undone = if is_undone { " (undone)" } else { "" };
                format!("\n## You{undone}\n\n{}\n", display_lines(&text))
            }
            TranscriptItem::Answer(said) => {
                format!("\n## {}\n\n{}\n", display_line(&session.agent), display_lines(&said))
            }
            TranscriptItem::Call { name, arguments } => {
                format!("\n**{}**\n\n{}", display_line(&name), code_block("json", &arguments))
            }
            TranscriptItem::Outcome { name, is_error, text } => {
                let what = if is_error { "failed" } else { "answered" };
                format!("\n{} {what}:\n\n{}", display_line(&name), code_block("text", &text))
            }
            TranscriptItem::Remark(remark) => format!("\n*{}*\n", display_line(&remark)),
        });
    }
    text
}

/// Returns a code block with a fence that the text cannot close.
fn code_block(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}{language}\n{}\n{fence}\n", display_lines(text))
}

/// Formats the session as JSON with every byte of every event. Copies the stored JSON, because parsing and writing it
/// could change numbers.
pub(super) fn json(session: &StoredSession, events: &[StoredEvent]) -> String {
    let events: Vec<_> = events
        .iter()
        .map(|event| {
            let (kind, body) = (escape_json(&json!(event.kind).to_string()), escape_json(&event.body));
            let body = match serde_json::from_str::<IgnoredAny>(&event.body) {
                Ok(_) => format!("\"event\": {body}"),
                Err(_) => format!("\"unreadable\": {}", escape_json(&json!(event.body).to_string())),
            };
            format!("    {{\"seq\": {}, \"at\": {}, \"kind\": {kind}, {body}}}", event.seq, event.at)
        })
        .collect();
    let session = escape_json(&format!("{:#}", json!(session))).replace('\n', "\n  ");
    let events = if events.is_empty() { "[]".to_owned() } else { format!("[\n{}\n  ]", events.join(",\n")) };
    format!("{{\n  \"session\": {session},\n  \"events\": {events}\n}}\n")
}
