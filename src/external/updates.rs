//! Relays the updates of an external agent to the notifier of its turn. Plain text becomes native events; any other
//! update is passed on as ACP JSON, together with the native events it corresponds to.
//!
//! Invariant: every tool call that is reported as started is also reported as ended, and nothing is reported twice.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::rpc::{TERMINAL_METHODS, WRITE_METHOD};
use crate::agents::{ChunkTemplate, Event, Notifier, StatusUpdate};
use crate::conversation::{Content, Message, MessagePart, Role, ToolUse};
use crate::ids::call_label;
use crate::telemetry::{WorkSpan, fit_value};
use crate::tool::{Activity, ToolOutcome};

/// The params of `session/update`, parsed as far as needed here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateParams<'a> {
    #[serde(rename = "sessionId")]
    _session: IgnoredAny,
    #[serde(borrow)]
    update: &'a RawValue,
}

/// An update with a text chunk, which is the most frequent kind. The JSON around the text is not parsed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkUpdate<'a> {
    #[serde(rename = "sessionUpdate")]
    kind: TextChunkKind,
    #[serde(borrow)]
    content: ChunkText<'a>,
    #[serde(rename = "messageId")]
    message: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkText<'a> {
    #[serde(rename = "type")]
    _kind: TextKind,
    #[serde(borrow)]
    text: &'a RawValue,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
enum TextKind {
    #[serde(rename = "text")]
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum TextChunkKind {
    #[serde(rename = "agent_message_chunk")]
    Agent,
    #[serde(rename = "agent_thought_chunk")]
    Thought,
}

/// A text chunk and the JSON around it.
pub(super) struct TextChunk<'a> {
    kind: TextChunkKind,
    text: String,
    /// The update's JSON before and after the text. `None` if the update has no message id and no `_meta`.
    around: Option<(&'a str, &'a str)>,
}

impl<'a> TextChunk<'a> {
    /// Parses a text chunk. `None` if the update is of another kind or does not follow the protocol.
    pub(super) fn of(params: &'a RawValue) -> Option<Self> {
        let update = serde_json::from_str::<UpdateParams<'_>>(params.get()).ok()?.update.get();
        let chunk: ChunkUpdate<'_> = serde_json::from_str(update).ok()?;
        let is_object = |meta: &RawValue| meta.get().starts_with('{') || meta.get() == "null";
        if ![chunk.meta, chunk.content.meta].into_iter().flatten().all(is_object) {
            return None;
        }
        let raw = chunk.content.text.get();
        let text = serde_json::from_str(raw).ok()?;
        let plain = chunk.message.is_none() && chunk.meta.is_none() && chunk.content.meta.is_none();
        // `raw` is a slice of `update`, so the pointers give its offset.
        let at = raw.as_ptr() as usize - update.as_ptr() as usize;
        let around = (!plain).then(|| (&update[..at], &update[at + raw.len()..]));
        Some(Self { kind: chunk.kind, text, around })
    }
}

/// Maximum bytes of updates in one turn. The store keeps them, some of them twice.
pub(super) const MAX_TURN: usize = 16 << 20;
/// Maximum bytes of one update or request. Parsed, it may take fifty times as much memory.
pub(super) const MAX_UPDATE: usize = 4 << 20;
/// Maximum bytes of requests in one turn, without the contents of files.
pub(super) const MAX_REQUEST_BYTES: usize = 64 << 20;
/// Maximum bytes of one request that writes a file.
pub(super) const MAX_WRITE: usize = 16 << 20;
/// Maximum number of requests in one turn, except those that use an existing terminal.
pub(super) const MAX_REQUESTS: usize = 5_000;

/// The decision whether an update or a request is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateVerdict {
    Passes,
    /// Dropped, and the first one in this turn.
    FirstDropped,
    Dropped,
}

/// Relays the updates of one external session.
#[derive(Default)]
pub(super) struct UpdateRelay {
    /// Receives the updates. `None` before the first turn, and after a cancelled one.
    notifier: Option<Arc<dyn Notifier>>,
    /// Parts of the message that is being collected; `template` is the JSON around its text.
    parts: Vec<MessagePart>,
    template: Option<Arc<ChunkTemplate>>,
    /// The span of the turn. `None` between turns, and for an agent without a session.
    turn_span: Option<WorkSpan>,
    /// Calls that have started and not ended, by id.
    calls: BTreeMap<String, ActiveCall>,
    /// Bytes of the updates in this turn.
    size: usize,
    /// Number of requests in this turn that [`MAX_REQUESTS`] limits.
    requests: usize,
    /// Their bytes, without the contents of files.
    request_bytes: usize,
    /// True if updates were dropped in this turn.
    dropped: bool,
}

struct ActiveCall {
    name: String,
    /// `None` if the call began outside a turn.
    span: Option<WorkSpan>,
    /// The agent asked for permission and did not get it.
    is_refused: bool,
    /// The changes and locations of the call. An update carries the whole list and replaces the earlier one.
    changed: Vec<Activity>,
    locations: Vec<Activity>,
}

impl UpdateRelay {
    pub(super) fn begin(&mut self, notifier: Arc<dyn Notifier>, turn_span: Option<WorkSpan>) {
        // What arrived after the last turn belongs to that turn.
        self.end("the turn had ended", true);
        *self = Self { notifier: Some(notifier), turn_span, ..Self::default() };
    }

    pub(super) fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.notifier.clone()
    }

    /// Ends the turn: logs the collected text, and reports open calls as failed. If `heard`, later updates still reach
    /// the notifier.
    pub(super) fn end(&mut self, why: &str, heard: bool) {
        self.flush();
        // The span of the turn ends when nothing has it any more.
        self.turn_span = None;
        for (id, started) in std::mem::take(&mut self.calls) {
            if let Some(span) = &started.span {
                span.fail(if started.is_refused { "call_refused" } else { "not_ended" });
            }
            let failed = json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "failed"});
            let outcome = ToolOutcome::error(format!("it was left open: {why}"));
            let outcome = ToolOutcome { refused: started.is_refused, ..outcome };
            let activity = [started.changed, started.locations].concat();
            let ended = Event::ToolEnded { id, name: started.name, outcome, activity };
            self.log(Event::External {
                acp_update: json!({"update": failed}),
                events: vec![ended],
                streamed: false,
                title: None,
            });
        }
        if !heard {
            self.notifier = None;
        }
    }

    /// Logs an event of Skein itself, after the text that the agent has sent so far. `notifier` is that of the turn to
    /// which the event belongs, which may have ended.
    pub(super) fn log_own(&mut self, notifier: &dyn Notifier, event: Event) {
        self.flush();
        notifier.log(event);
    }

    /// Returns the name of a call that the agent has reported and not ended.
    pub(super) fn call_name(&self, id: &str) -> Option<String> {
        self.calls.get(id).map(|call| call.name.clone())
    }

    /// Counts the agent's call `id` as refused. Reports it as `call` if the agent has not reported it.
    pub(super) fn refuse(&mut self, id: &str, call: ToolUse) {
        if let Some(started) = self.calls.get_mut(id) {
            started.is_refused = true;
            return;
        }
        self.flush();
        if let Some(span) = self.open_span(id, None, acp::ToolKind::default()) {
            span.fail("call_refused");
        }
        for event in refusal_events(call) {
            self.log(event);
        }
    }

    /// Counts a request of `bytes` bytes against the limits of the turn. Returns the reason if it is over one.
    pub(super) fn count_request(&mut self, method: &str, bytes: usize) -> Option<String> {
        let is_write = method == WRITE_METHOD;
        let limit = if is_write { MAX_WRITE } else { MAX_UPDATE };
        if bytes > limit {
            return Some(format!("a request of this method has at most {} MiB", limit >> 20));
        }
        if TERMINAL_METHODS.contains(&method) {
            return None;
        }
        // The content of a file is neither stored nor shown, unless the user is asked.
        let size = self.request_bytes + if is_write { 0 } else { bytes };
        if self.requests >= MAX_REQUESTS || size > MAX_REQUEST_BYTES {
            let most = MAX_REQUEST_BYTES >> 20;
            return Some(format!("a turn has at most {MAX_REQUESTS} requests, with at most {most} MiB"));
        }
        self.requests += 1;
        self.request_bytes = size;
        None
    }

    /// Counts an update of `bytes` bytes against the limits of the turn.
    pub(super) fn admit(&mut self, bytes: usize) -> UpdateVerdict {
        let size = self.size.saturating_add(bytes);
        if bytes <= MAX_UPDATE && size <= MAX_TURN {
            self.size = size;
            UpdateVerdict::Passes
        } else if std::mem::replace(&mut self.dropped, true) {
            UpdateVerdict::Dropped
        } else {
            UpdateVerdict::FirstDropped
        }
    }

    /// Returns the notice about dropped updates.
    pub(super) fn drop_notice(agent: &str) -> String {
        format!(
            "`{agent}` sends more than Skein keeps ({} MiB in a turn, {} MiB in an update); the rest of it is dropped",
            MAX_TURN >> 20,
            MAX_UPDATE >> 20
        )
    }

    pub(super) fn piece(&mut self, piece: TextChunk<'_>) {
        let TextChunk { kind: voice, text, around } = piece;
        let same = match (&self.template, around) {
            (Some(frame), Some((before, after))) => frame.before == before && frame.after == after,
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.flush();
            let frame =
                |(before, after): (&str, &str)| ChunkTemplate { before: before.to_owned(), after: after.to_owned() };
            self.template = around.map(frame).map(Arc::new);
        }
        let Some(notifier) = &self.notifier else { return };
        match (self.parts.last_mut(), voice) {
            (Some(MessagePart::Content(Content::Text(said))), TextChunkKind::Agent)
            | (Some(MessagePart::Thought(said)), TextChunkKind::Thought) => {
                said.push_str(&text);
            }
            (_, TextChunkKind::Agent) => self.parts.push(MessagePart::Content(Content::text(text.as_str()))),
            (_, TextChunkKind::Thought) => self.parts.push(MessagePart::Thought(text.clone())),
        }
        notifier.status(match (&self.template, voice) {
            (Some(frame), _) => {
                StatusUpdate::ExternalChunk { text, thought: voice == TextChunkKind::Thought, frame: Arc::clone(frame) }
            }
            (None, TextChunkKind::Agent) => StatusUpdate::Text(text),
            (None, TextChunkKind::Thought) => StatusUpdate::Thought(text),
        });
    }

    /// Relays a valid update that is not a plain text chunk.
    pub(super) fn other(&mut self, typed: acp::SessionUpdate, acp_update: Value) {
        self.flush();
        let titled = matches!(typed, acp::SessionUpdate::SessionInfoUpdate(_));
        let title = acp_update["update"]["title"].as_str().filter(|_| titled).map(str::to_owned);
        let events = self.native_events(typed);
        self.log(Event::External { acp_update, events, streamed: false, title });
    }

    /// Logs the collected text as one message.
    fn flush(&mut self) {
        let (parts, frame) = (std::mem::take(&mut self.parts), self.template.take());
        let said = match parts.as_slice() {
            [] => return,
            [MessagePart::Content(Content::Text(text)) | MessagePart::Thought(text)] => text.clone(),
            _ => String::new(),
        };
        let message = Event::Message { message: Arc::new(Message { role: Role::Assistant, parts }) };
        // With a template there is exactly one part, because the template includes the kind of the chunk.
        let update = frame.and_then(|frame| serde_json::from_str::<Value>(&frame.around(&said)).ok());
        self.log(match update {
            Some(update) => Event::External {
                acp_update: json!({"update": update}),
                events: vec![message],
                streamed: true,
                title: None,
            },
            None => message,
        });
    }

    fn log(&self, event: Event) {
        if let Some(notifier) = &self.notifier {
            notifier.log(event);
        }
    }

    fn native_events(&mut self, update: acp::SessionUpdate) -> Vec<Event> {
        match update {
            acp::SessionUpdate::AgentMessageChunk(chunk) => {
                let parts = vec![MessagePart::Content(content(&chunk.content))];
                vec![Event::Message { message: Arc::new(Message { role: Role::Assistant, parts }) }]
            }
            acp::SessionUpdate::ToolCall(call) => {
                let id = call.tool_call_id.0.to_string();
                let fields = acp::ToolCallUpdateFields::new()
                    .title(call.title)
                    .name(call.name)
                    .kind(call.kind)
                    .status(call.status)
                    .content(call.content)
                    .locations(call.locations)
                    .raw_input(call.raw_input)
                    .raw_output(call.raw_output);
                self.call(id, fields)
            }
            acp::SessionUpdate::ToolCallUpdate(update) => self.call(update.tool_call_id.0.to_string(), update.fields),
            _ => Vec::new(),
        }
    }

    fn call(&mut self, id: String, fields: acp::ToolCallUpdateFields) -> Vec<Event> {
        let mut means = Vec::new();
        if !self.calls.contains_key(&id) {
            let name = fields.name.clone().or(fields.title.clone()).unwrap_or_else(|| id.clone());
            let arguments = fields.raw_input.clone().unwrap_or_else(|| json!({}));
            let call = ToolUse::new(id.clone(), name.clone(), arguments);
            means.push(Event::ToolStarted { call, by: None });
            let span = self.open_span(&id, fields.name.as_deref(), fields.kind.unwrap_or_default());
            let started = ActiveCall { name, span, is_refused: false, changed: Vec::new(), locations: Vec::new() };
            self.calls.insert(id.clone(), started);
        }
        let Some(started) = self.calls.get_mut(&id) else { return means };
        if let (Some(span), Some(arguments)) = (&started.span, &fields.raw_input) {
            span.content("gen_ai.tool.call.arguments", || fit_value(arguments));
        }
        if let Some(content) = &fields.content {
            started.changed = content.iter().filter_map(change).collect();
        }
        if let Some(places) = &fields.locations {
            started.locations = places.iter().map(place).collect();
        }
        let status = fields.status;
        let is_error = status == Some(acp::ToolCallStatus::Failed);
        if is_error || status == Some(acp::ToolCallStatus::Completed) {
            let Some(ended) = self.calls.remove(&id) else { return means };
            let ActiveCall { name, span, is_refused: refused, changed, locations: places } = ended;
            let activity = [changed, places].concat();
            let outcome = ToolOutcome { is_error, refused, structured: fields.raw_output, ..outcome(fields.content) };
            if let Some(span) = span {
                record_outcome(&span, &outcome);
            }
            means.push(Event::ToolEnded { id, name, outcome, activity });
        }
        means
    }

    /// Opens the span of a call. A title may be any text, so the tool has the name that the agent gives it, or else
    /// that of its kind.
    fn open_span(&self, id: &str, name: Option<&str>, kind: acp::ToolKind) -> Option<WorkSpan> {
        let turn = self.turn_span.as_ref()?;
        let kind = json!(kind);
        let name = name.filter(|name| matches!(call_label(name), Cow::Borrowed(_)));
        Some(turn.agent_tool_call(name.or(kind.as_str()).unwrap_or("other"), &call_label(id)))
    }
}

fn record_outcome(span: &WorkSpan, outcome: &ToolOutcome) {
    span.content("gen_ai.tool.call.result", || match &outcome.structured {
        Some(value) => fit_value(value),
        None => outcome.all_text(),
    });
    if outcome.refused {
        span.fail("call_refused");
    } else if outcome.is_error {
        span.fail("tool_error");
    }
}

/// Returns the events of a call that was refused before the agent reported it.
pub(super) fn refusal_events(call: ToolUse) -> [Event; 2] {
    let (id, name) = (call.id.clone(), call.name.clone());
    let outcome = ToolOutcome { refused: true, ..ToolOutcome::error("it was refused") };
    [Event::ToolStarted { call, by: None }, Event::ToolEnded { id, name, outcome, activity: Vec::new() }]
}

fn change(content: &acp::ToolCallContent) -> Option<Activity> {
    let acp::ToolCallContent::Diff(diff) = content else { return None };
    let (path, before, after) = (diff.path.clone(), diff.old_text.clone(), diff.new_text.clone());
    Some(Activity::Changed { path, before, after })
}

fn place(location: &acp::ToolCallLocation) -> Activity {
    Activity::Location { path: PathBuf::from(&location.path), line: location.line }
}

fn outcome(contents: Option<Vec<acp::ToolCallContent>>) -> ToolOutcome {
    let said = contents.into_iter().flatten().filter_map(|piece| match piece {
        acp::ToolCallContent::Content(piece) => Some(content(&piece.content)),
        _ => None,
    });
    ToolOutcome { content: said.collect(), ..ToolOutcome::default() }
}

pub(super) fn content(block: &acp::ContentBlock) -> Content {
    match block {
        acp::ContentBlock::Text(text) => Content::Text(text.text.clone()),
        acp::ContentBlock::Image(image) => Content::Image { mime: image.mime_type.clone(), data: image.data.clone() },
        acp::ContentBlock::Audio(audio) => Content::Audio { mime: audio.mime_type.clone(), data: audio.data.clone() },
        acp::ContentBlock::ResourceLink(link) => Content::Link(json!(link)),
        acp::ContentBlock::Resource(resource) => Content::Resource(json!(resource.resource)),
        other => Content::Text(json!(other).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_that_is_too_large_is_dropped() {
        let mut relay = UpdateRelay::default();
        assert_eq!(relay.admit(MAX_UPDATE), UpdateVerdict::Passes);
        assert_eq!(relay.admit(MAX_UPDATE + 1), UpdateVerdict::FirstDropped);
        assert_eq!(relay.admit(MAX_UPDATE + 1), UpdateVerdict::Dropped);
        assert_eq!(relay.admit(MAX_UPDATE), UpdateVerdict::Passes, "the turn has room for more");
    }
}
