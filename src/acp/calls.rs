//! Converts tool calls to what a client displays: title, kind, locations, diffs, raw input and output.

use std::path::{Path, PathBuf};

use agent_client_protocol::v1::schema as acp;
use serde_json::{Map, Value, json};

use super::{content, tool_output};
use crate::agents::{self, ROUTE};
use crate::broker::{ToolClaims, ui_of};
use crate::conversation::ToolUse;
use crate::diagnostic::printable;
use crate::graph::Plan;
use crate::ids::{ServiceName, ToolName};
use crate::manifest::Transport;
use crate::text::{code_block, escape_json, fence};
use crate::tool::{
    self, Activity, CallProgress, FileChange, FileTarget, StepPriority, StepStatus, TodoStep, ToolOutcome,
    WorkingFolder,
};

/// Bytes of a running command's output that are shown; older output is dropped.
const MAX_LIVE: usize = 8 << 10;

/// The state of one call on the client's display.
#[derive(Debug, Default)]
pub(super) struct CallDisplay {
    /// The code that the call runs, if it runs code.
    code: Option<acp::ToolCallContent>,
    /// Diffs and terminals, which stay visible after the call has ended.
    kept: Vec<acp::ToolCallContent>,
    /// The latest output and progress, shown until the call ends.
    live: String,
    places: Vec<acp::ToolCallLocation>,
    /// The tool is from a third-party service: its progress is shown in lines, and its result is searched for files.
    foreign: bool,
    /// The kind according to the tool's own hints, if no manifest determines it.
    hinted: Option<acp::ToolKind>,
    /// A link to the page of the tool's MCP app.
    app: Option<acp::ToolCallContent>,
    name: String,
}

/// Returns a call as it starts. `by` is the agent that makes it, if that is not the session's. `said` holds the tool's
/// claims about itself. `folder` makes its paths absolute.
pub(super) fn tool_call(
    call: &ToolUse,
    by: Option<&str>,
    said: Option<&ToolClaims>,
    plan: &Plan,
    folder: &WorkingFolder,
) -> acp::ToolCall {
    let kind = kind_from_hints(&call.name, said, plan).unwrap_or_else(|| kind(&call.name, plan));
    let target = target(call, plan, folder);
    acp::ToolCall::new(acp::ToolCallId::new(call.id.as_str()), title(call, by, said, kind, target.as_ref()))
        .name(call.name.clone())
        .kind(kind)
        .content(code(call).into_iter().chain(app(call, said)).collect::<Vec<_>>())
        .locations(location(call, target.as_ref(), plan, folder).into_iter().collect::<Vec<_>>())
        .raw_input(call.arguments.clone())
}

/// Returns the code that a call runs, as a Markdown code block. `None` if the call runs no code.
fn code(call: &ToolUse) -> Option<acp::ToolCallContent> {
    let code = call.arguments.get("code").and_then(Value::as_str).filter(|_| call.name == agents::EXECUTE)?;
    Some(text(&code_block("js", &code.lines().map(printable).collect::<Vec<_>>().join("\n"))))
}

/// Returns a link to the MCP app page in which a client can show the tool's result.
fn app(call: &ToolUse, said: Option<&ToolClaims>) -> Option<acp::ToolCallContent> {
    said.and_then(|said| said.ui.as_deref()).map(|uri| tool_output::app(uri, &call.name))
}

/// Returns the kind that a third-party tool claims, if the groups of its service do not determine one. For display
/// only: a permission request never uses it, because a client may ask less about a tool that claims to be harmless.
fn kind_from_hints(name: &str, said: Option<&ToolClaims>, plan: &Plan) -> Option<acp::ToolKind> {
    let hints = said.filter(|_| kind(name, plan) == acp::ToolKind::Other)?.hints;
    match (hints.read_only, hints.destructive, hints.open_world) {
        (Some(true), _, Some(true)) => Some(acp::ToolKind::Fetch),
        (Some(true), _, _) => Some(acp::ToolKind::Read),
        (_, Some(true), _) => Some(acp::ToolKind::Edit),
        (_, _, Some(true)) => Some(acp::ToolKind::Fetch),
        _ => None,
    }
}

/// Returns true if the tool belongs to a service that is not built in.
fn is_foreign(name: &str, plan: &Plan) -> bool {
    let Some((service, _)) = name.split_once("__").filter(|_| !agents::is_own(name)) else { return false };
    let ours = |entry: &crate::manifest::ServiceEntry| matches!(entry.manifest.transport, Transport::Builtin(_));
    !plan.service(service).is_some_and(ours)
}

/// Returns the title of a third-party tool as its only claim, for a permission request. `None` for other tools.
pub(super) fn claims_with_title(name: &str, title: Option<String>, plan: &Plan) -> Option<ToolClaims> {
    let (service, _) = name.split_once("__").filter(|_| is_foreign(name, plan))?;
    Some(ToolClaims { service: service.to_owned(), title, ..ToolClaims::default() })
}

/// Formats the progress of a call as a line of text. `None` if it has neither a total nor a message.
fn line_of(progress: &CallProgress) -> Option<String> {
    let share = progress.total.filter(|total| *total > 0.0).map(|total| (progress.progress / total).clamp(0.0, 1.0));
    let share = share.map(|share| format!("{:.0} %", share * 100.0));
    let message = progress.message.as_deref().map(tool::strip_to_line).filter(|message| !message.is_empty());
    match (share, message) {
        (Some(share), Some(message)) => Some(format!("{share} · {message}\n")),
        (Some(said), None) | (None, Some(said)) => Some(format!("{said}\n")),
        (None, None) => None,
    }
}

impl CallDisplay {
    pub(super) fn of(call: &ToolUse, said: Option<&ToolClaims>, plan: &Plan) -> Self {
        let (foreign, hinted) = (is_foreign(&call.name, plan), kind_from_hints(&call.name, said, plan));
        Self { code: code(call), foreign, hinted, app: app(call, said), name: call.name.clone(), ..Self::default() }
    }

    /// Records an activity of a call and returns the update to send. `None` if the activity changes nothing visible.
    pub(super) fn active(&mut self, id: &str, activity: &Activity) -> Option<acp::SessionUpdate> {
        let fields = acp::ToolCallUpdateFields::new();
        let fields = match activity {
            // A permission request shows the kind from the manifest; restore the hinted kind.
            Activity::Running => fields.status(acp::ToolCallStatus::InProgress).kind(self.hinted),
            Activity::TodoList(steps) => return Some(plan_update(steps)),
            Activity::Progress(progress) => {
                let said = if self.foreign { line_of(progress) } else { progress.message.clone() };
                self.live.push_str(&said?);
                keep_tail(&mut self.live, MAX_LIVE);
                fields.content(self.content(None))
            }
            Activity::Location { .. } => {
                self.note(activity);
                fields.locations(self.places.clone())
            }
            Activity::Changed { .. } | Activity::Terminal { .. } => {
                self.note(activity);
                fields.content(self.content(None))
            }
        };
        Some(acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(acp::ToolCallId::new(id), fields)))
    }

    fn note(&mut self, activity: &Activity) {
        match activity {
            Activity::Location { path, line } => {
                let place = acp::ToolCallLocation::new(wire_path(path)).line(*line);
                if !self.places.contains(&place) {
                    self.places.push(place);
                }
            }
            Activity::Changed { path, before, after } => {
                let diff = acp::Diff::new(wire_path(path), after.clone()).old_text(before.clone());
                self.kept.push(acp::ToolCallContent::Diff(diff));
            }
            Activity::Terminal { id } => {
                self.kept.push(acp::ToolCallContent::Terminal(acp::Terminal::new(acp::TerminalId::new(id.as_str()))));
            }
            Activity::Running | Activity::Progress(_) | Activity::TodoList(_) => {}
        }
    }

    /// Returns the update for a call that has ended. `activity` holds all its lasting activity, shown before or not.
    /// `cwd` and `roots` are the session's folders.
    pub(super) fn finish(
        self,
        id: &str,
        outcome: &ToolOutcome,
        activity: &[Activity],
        (cwd, roots): (&Path, &[PathBuf]),
    ) -> acp::SessionUpdate {
        let mut shown = Self { live: String::new(), kept: Vec::new(), places: Vec::new(), ..self };
        activity.iter().for_each(|activity| shown.note(activity));
        if shown.foreign {
            shown.places.extend(tool_output::places(outcome, roots));
            shown.kept.extend(tool_output::diffs(outcome, cwd, roots));
            shown.app = ui_of(outcome.meta.as_ref()).map(|uri| tool_output::app(&uri, &shown.name)).or(shown.app);
        }
        let status = if outcome.is_error { acp::ToolCallStatus::Failed } else { acp::ToolCallStatus::Completed };
        // The terminal is released by now, and clients reject an update that names it. They keep showing it unless the
        // content is replaced.
        let had_terminal = shown.kept.iter().any(|kept| matches!(kept, acp::ToolCallContent::Terminal(_)));
        shown.kept.retain(|kept| !matches!(kept, acp::ToolCallContent::Terminal(_)));
        let content = (!had_terminal || outcome.is_error).then(|| shown.content(Some(outcome)));
        let fields = acp::ToolCallUpdateFields::new()
            .status(status)
            .content(content)
            .locations((!shown.places.is_empty()).then_some(shown.places))
            .raw_output(raw_output(outcome));
        acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(acp::ToolCallId::new(id), fields))
    }

    fn content(&self, outcome: Option<&ToolOutcome>) -> Vec<acp::ToolCallContent> {
        let mut content: Vec<_> = self.code.iter().chain(&self.kept).cloned().collect();
        match outcome {
            // For a successful built-in call, diffs and terminals replace the text for the model.
            Some(outcome) if self.kept.is_empty() || outcome.is_error || self.foreign => {
                let annotations = |at: usize| outcome.annotations.get(&at);
                let pieces = outcome.content.iter().enumerate();
                content.extend(pieces.map(|(at, piece)| content::tool_output(piece, annotations(at)).into()));
            }
            None if !self.live.is_empty() => content.push(text(&fence(&self.live))),
            Some(_) | None => {}
        }
        content.extend(self.app.clone());
        content
    }
}

/// Returns the content of a permission request: the whole command, one diff of the whole file, or the arguments.
pub(super) fn preview(
    tool: &str,
    arguments: &Map<String, Value>,
    change: Option<&FileChange>,
    plan: &Plan,
) -> Vec<acp::ToolCallContent> {
    if let Some(FileChange { path, before, after, .. }) = change {
        let diff = acp::Diff::new(wire_path(path), after.clone()).old_text(before.clone());
        return vec![acp::ToolCallContent::Diff(diff)];
    }
    let mut shown = Vec::new();
    let mut rest = arguments.clone();
    // Only a built-in tool is known to run its argument `command` as it is.
    if let Some(command) = tool::command(arguments).filter(|_| !is_foreign(tool, plan)) {
        let lines = command.lines().map(printable).collect::<Vec<_>>().join("\n");
        shown.push(text(&code_block("sh", &lines)));
        rest.remove("command");
    } else if let Some(script) = tool::script(arguments).filter(|_| !is_foreign(tool, plan)) {
        let lines = script.text.lines().map(printable).collect::<Vec<_>>().join("\n");
        let language = if script.language == "shell" { "sh" } else { script.language };
        shown.push(text(&code_block(language, &lines)));
        rest.remove("script");
    }
    if !rest.is_empty() {
        // Clients need not show the raw input, and the title shows one argument at most.
        let json = format!("{:#}", Value::Object(rest));
        shown.push(text(&code_block("json", &escape_json(&json))));
    }
    shown
}

pub(super) fn plan_update(steps: &[TodoStep]) -> acp::SessionUpdate {
    let entry = |step: &TodoStep| {
        let priority = match step.priority {
            Some(StepPriority::High) => acp::PlanEntryPriority::High,
            Some(StepPriority::Medium) | None => acp::PlanEntryPriority::Medium,
            Some(StepPriority::Low) => acp::PlanEntryPriority::Low,
        };
        let status = match step.status {
            StepStatus::Pending => acp::PlanEntryStatus::Pending,
            StepStatus::InProgress => acp::PlanEntryStatus::InProgress,
            StepStatus::Completed => acp::PlanEntryStatus::Completed,
        };
        acp::PlanEntry::new(step.text.clone(), priority, status)
    };
    acp::SessionUpdate::Plan(acp::Plan::new(steps.iter().map(entry).collect()))
}

/// Returns the kind of a tool, derived from the groups that its service declares.
pub(super) fn kind(name: &str, plan: &Plan) -> acp::ToolKind {
    if name == ROUTE {
        return acp::ToolKind::SwitchMode;
    }
    if agents::is_own(name) {
        return if name == agents::EXECUTE { acp::ToolKind::Execute } else { acp::ToolKind::Search };
    }
    let Some((service, tool)) = name.split_once("__") else { return acp::ToolKind::Other };
    let Some(entry) = plan.service(ServiceName::new(service).as_str()) else { return acp::ToolKind::Other };
    // Both are in the group `read`, which decides about scope and not about display.
    if !is_foreign(name, plan) && matches!(tool, "search" | "find_files") {
        return acp::ToolKind::Search;
    }
    let tool = ToolName::new(tool);
    let in_group =
        |group: &str| entry.manifest.groups.iter().any(|(name, tools)| name.as_str() == group && tools.contains(&tool));
    let kinds = [
        ("plan", acp::ToolKind::Think),
        ("edit", acp::ToolKind::Edit),
        ("command", acp::ToolKind::Execute),
        ("fetch", acp::ToolKind::Fetch),
        ("search", acp::ToolKind::Search),
        ("read", acp::ToolKind::Read),
    ];
    kinds.into_iter().find(|(group, _)| in_group(group)).map_or(acp::ToolKind::Other, |(_, kind)| kind)
}

/// Returns a title such as `cargo test`, `src/lib.rs` or `notes: add`. Clients show it after the kind of the call, so it
/// does not repeat the kind. If another mode makes the call for this session, the title starts with its name, as in
/// `coding/backend: `.
pub(super) fn title(
    call: &ToolUse,
    by: Option<&str>,
    said: Option<&ToolClaims>,
    kind: acp::ToolKind,
    target: Option<&FileTarget>,
) -> String {
    let title = said.and_then(|said| title_from_claims(call, said)).unwrap_or_else(|| own_title(call, kind, target));
    by_whom(by, title)
}

/// Prefixes a title with the agent or mode that makes the call. `by` is `None` if the session makes it.
pub(super) fn by_whom(by: Option<&str>, title: String) -> String {
    match by {
        Some(by) => format!("{}: {title}", printable(by)),
        None => title,
    }
}

/// Returns a title with the name a third-party tool gives itself. It starts with the service name, so that a tool
/// cannot pose as one of another service. `None` if the tool has no title.
fn title_from_claims(call: &ToolUse, said: &ToolClaims) -> Option<String> {
    let title = one_line(said.title.as_deref().filter(|title| !title.trim().is_empty())?);
    let about = tool::subject(&call.arguments).map(|about| format!(": {}", one_line(about))).unwrap_or_default();
    Some(format!("{}: {title}{about}", said.service))
}

fn own_title(call: &ToolUse, kind: acp::ToolKind, target: Option<&FileTarget>) -> String {
    if let (ROUTE, Some(to)) = (call.name.as_str(), call.arguments["to"].as_str()) {
        return format!("Route to {}", printable(to));
    }
    let (service, name) = call.name.split_once("__").unwrap_or(("", &call.name));
    let words = name.replace('_', " ");
    let about = match target.filter(|_| call.arguments.get("path").is_some()) {
        Some(target) => match call.arguments["pattern"].as_str() {
            Some(pattern) => Some(format!("{} in {target}", one_line(pattern))),
            None => Some(target.to_string()),
        },
        None => tool::subject(&call.arguments).map(one_line),
    };
    match (kind, about) {
        _ if call.name == agents::EXECUTE => "Run code".to_owned(),
        (acp::ToolKind::Execute, Some(command)) if name == "shell" => command,
        (_, _) if service == "todo" || name == "update_plan" => "To-do list".to_owned(),
        (_, Some(about)) if service == "developer" && name != "undo_edit" => about,
        (acp::ToolKind::Fetch, Some(about)) if service == "fetch" => about,
        (_, Some(about)) => format!("{}: {about}", capital(&words)),
        (_, None) if service.is_empty() => words,
        (_, None) => format!("{service}: {words}"),
    }
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Shortens text to one line of at most 100 characters. Line breaks stay visible, so that text after one is not
/// mistaken for a continuation.
fn one_line(text: &str) -> String {
    let line = printable(&text.trim().replace('\n', " ⏎ "));
    let short: String = line.chars().take(100).collect();
    if short.len() < line.len() { format!("{short}…") } else { short }
}

/// Returns the file that a call of a built-in tool refers to. `None` if it has no path or the path cannot be resolved.
fn target(call: &ToolUse, plan: &Plan, folder: &WorkingFolder) -> Option<FileTarget> {
    let path = call.arguments.get("path").and_then(Value::as_str).filter(|path| !path.is_empty())?;
    (!is_foreign(&call.name, plan)).then(|| folder.target(path)).flatten()
}

/// Returns the location of the call's `path` argument. Only a third-party service knows what its paths mean, so such a
/// path is not resolved, only joined to the folder.
fn location(
    call: &ToolUse,
    target: Option<&FileTarget>,
    plan: &Plan,
    folder: &WorkingFolder,
) -> Option<acp::ToolCallLocation> {
    let path = call.arguments.get("path").and_then(Value::as_str).filter(|path| !path.is_empty())?;
    let written = || is_foreign(&call.name, plan).then(|| folder.path.join(path));
    target.map(|target| wire_path(&target.path)).or_else(written).map(acp::ToolCallLocation::new)
}

/// Returns a path as the client gets it. JSON is UTF-8, so other bytes become U+FFFD: an update with them would not be
/// sent.
pub(super) fn wire_path(path: &Path) -> PathBuf {
    PathBuf::from(path.to_string_lossy().into_owned())
}

fn raw_output(outcome: &ToolOutcome) -> Value {
    match &outcome.structured {
        Some(structured) => structured.clone(),
        None => json!({"text": outcome.all_text()}),
    }
}

pub(super) fn text(text: &str) -> acp::ToolCallContent {
    acp::ContentBlock::Text(acp::TextContent::new(text)).into()
}

fn keep_tail(text: &mut String, max: usize) {
    if text.len() <= max {
        return;
    }
    let mut start = text.len() - max;
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.drain(..start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_long_live_output_is_shown() {
        let mut display = CallDisplay::default();
        let mut show = |output: &str| {
            let progress = CallProgress { progress: 0.0, total: None, message: Some(output.to_owned()) };
            assert!(display.active("call", &Activity::Progress(progress)).is_some());
            display.live.clone()
        };
        let full = "x".repeat(MAX_LIVE);
        assert_eq!(show(&full), full);
        assert_eq!(show("the end"), format!("{}the end", &full["the end".len()..]));
    }
}
