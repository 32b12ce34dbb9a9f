//! Decodes the bytes of an answer: lines of server-sent events, and the pieces of the answer inside.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::str::Utf8Error;

use genai::ModelIden;
use genai::chat::{ChatStreamEvent, MessageContent, StopReason, StreamChunk, StreamEnd, ToolCall, ToolChunk, Usage};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::Value;

use super::stream_failure;
use crate::llm::MAX_ANSWER;

type AnswerQueue = VecDeque<genai::Result<ChatStreamEvent>>;

/// The data of the last event.
const DONE: &str = "[DONE]";

/// Maximum bytes of one event. Each event is a piece of an answer.
const MAX_EVENT: usize = 8 << 20;

/// Why the bytes of an answer are no events.
#[derive(Debug, thiserror::Error)]
enum EventError {
    #[error(transparent)]
    Text(#[from] Utf8Error),
    #[error("one event of its answer is longer than {} MiB", MAX_EVENT >> 20)]
    TooLong,
}

/// Decodes one answer. Nothing follows the end or an error.
pub(super) struct StreamDecoder {
    model: ModelIden,
    lines: EventLines,
    answer: PartialAnswer,
}

impl StreamDecoder {
    pub(super) fn new(model: ModelIden) -> Self {
        Self { model, lines: EventLines::default(), answer: PartialAnswer::default() }
    }

    /// Returns true after the end of the answer, or an error in it.
    pub(super) fn is_over(&self) -> bool {
        self.answer.is_over
    }

    /// Decodes the next bytes, which may end anywhere.
    pub(super) fn feed(&mut self, bytes: &[u8], events: &mut AnswerQueue) {
        let Self { model, lines, answer } = self;
        let fed = lines.feed(bytes, |data| answer.decode(model, data, events));
        self.note(fed, events);
    }

    /// Decodes an event that the end of the bytes ends.
    pub(super) fn finish(&mut self, events: &mut AnswerQueue) {
        let Self { model, lines, answer } = self;
        let finished = lines.finish(|data| answer.decode(model, data, events));
        self.note(finished, events);
    }

    fn note(&mut self, result: Result<(), EventError>, events: &mut AnswerQueue) {
        if let Err(error) = result
            && !self.answer.is_over
        {
            self.answer.is_over = true;
            events.push_back(Err(match error {
                EventError::Text(error) => stream_failure(&self.model, error),
                // The same request would get the same answer, so that a retry is of no use.
                EventError::TooLong => genai::Error::Internal(error.to_string()),
            }));
        }
    }
}

/// Splits bytes into lines, and collects the data of each event.
#[derive(Default)]
struct EventLines {
    /// The begin of a line whose end is missing.
    rest: Vec<u8>,
    /// The data of an event whose end is missing.
    data: String,
    /// The last byte was a carriage return, so that a line feed belongs to it.
    after_return: bool,
}

impl EventLines {
    fn feed(&mut self, mut bytes: &[u8], mut on_data: impl FnMut(&str)) -> Result<(), EventError> {
        if let Some((first, others)) = bytes.split_first() {
            if self.after_return && *first == b'\n' {
                bytes = others;
            }
            self.after_return = false;
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, end) = bytes.split_at(end);
            bytes = match end {
                [b'\r', b'\n', others @ ..] => others,
                [b'\r'] => {
                    self.after_return = true;
                    &[]
                }
                [_, others @ ..] => others,
                [] => &[],
            };
            if self.rest.is_empty() {
                self.line(line, &mut on_data)?;
            } else {
                let mut rest = std::mem::take(&mut self.rest);
                rest.extend_from_slice(line);
                self.line(&rest, &mut on_data)?;
                rest.clear();
                self.rest = rest;
            }
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > MAX_EVENT { Err(EventError::TooLong) } else { Ok(()) }
    }

    fn finish(&mut self, mut on_data: impl FnMut(&str)) -> Result<(), EventError> {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.line(&rest, &mut on_data)?;
        }
        self.line(b"", &mut on_data)
    }

    /// Takes one line. An empty line ends an event.
    fn line(&mut self, line: &[u8], on_data: &mut impl FnMut(&str)) -> Result<(), EventError> {
        if line.is_empty() {
            if !self.data.is_empty() {
                on_data(&self.data);
                self.data.clear();
            }
            return Ok(());
        }
        // Comments and the names of events do not matter.
        if let Some(data) = std::str::from_utf8(line)?.trim().strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.trim());
        }
        if self.data.len() > MAX_EVENT { Err(EventError::TooLong) } else { Ok(()) }
    }
}

/// A piece that only adds text, as nearly all are. Another piece does not parse, or has a field that is `Some`.
#[derive(Deserialize)]
struct PlainPiece<'a> {
    #[serde(default)]
    error: FieldPresence,
    #[serde(borrow)]
    choices: [PlainChoice<'a>; 1],
}

#[derive(Deserialize)]
struct PlainChoice<'a> {
    #[serde(borrow)]
    delta: PlainDelta<'a>,
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct PlainDelta<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
    reasoning_content: Option<IgnoredAny>,
    reasoning: Option<IgnoredAny>,
    tool_calls: Option<IgnoredAny>,
}

/// Whether a field is there, with any value.
#[derive(Default)]
struct FieldPresence(bool);

impl<'de> Deserialize<'de> for FieldPresence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

/// Returns the text of a piece that only adds text. `None` for other pieces.
fn plain_text(data: &str) -> Option<Cow<'_, str>> {
    let PlainPiece { error, choices: [choice] } = serde_json::from_str(data).ok()?;
    let PlainDelta { content, reasoning_content, reasoning, tool_calls } = choice.delta;
    let others = [choice.finish_reason, reasoning_content, reasoning, tool_calls];
    (!error.0 && others.iter().all(Option::is_none)).then_some(content)
}

/// What an answer has so far, besides the text that went out.
#[derive(Default)]
struct PartialAnswer {
    /// By their index. The arguments are text until the end.
    calls: BTreeMap<u64, ToolCall>,
    /// Bytes of the ids, names and arguments of the calls.
    call_bytes: usize,
    usage: Option<Usage>,
    stop: Option<String>,
    is_over: bool,
}

impl PartialAnswer {
    fn decode(&mut self, model: &ModelIden, data: &str, events: &mut AnswerQueue) {
        if self.is_over {
            return;
        }
        if data == DONE {
            self.is_over = true;
            events.push_back(Ok(ChatStreamEvent::End(self.end())));
        } else if let Some(text) = plain_text(data) {
            push_text(text.into_owned(), events);
        } else if let Err(error) = self.decode_piece(model, data, events) {
            self.is_over = true;
            events.push_back(Err(error));
        }
    }

    /// Decodes a piece of any form. Fields with an unexpected type count as absent.
    fn decode_piece(&mut self, model: &ModelIden, data: &str, events: &mut AnswerQueue) -> genai::Result<()> {
        let parse_error = |serde_error| genai::Error::StreamParse { model_iden: model.clone(), serde_error };
        let mut piece: Value = serde_json::from_str(data).map_err(parse_error)?;
        if let Some(body) = piece.get_mut("error").map(Value::take) {
            return Err(genai::Error::ChatResponse { model_iden: model.clone(), body });
        }
        let Some(mut choice) = piece.pointer_mut("/choices/0").map(Value::take) else {
            if self.usage.is_none() {
                self.usage = take_usage(&mut piece);
            }
            return Ok(());
        };
        let (text, thought) = take_content(&mut choice);
        let thought = thought
            .or_else(|| take_string(choice.pointer_mut("/delta/reasoning_content")))
            .or_else(|| take_string(choice.pointer_mut("/delta/reasoning")));
        if let Some(thought) = thought.filter(|thought| !thought.is_empty()) {
            events.push_back(Ok(ChatStreamEvent::ReasoningChunk(StreamChunk { content: thought })));
        }
        push_text(text.unwrap_or_default(), events);
        if let Some(Value::Array(calls)) = choice.pointer_mut("/delta/tool_calls").map(Value::take) {
            calls.into_iter().for_each(|call| self.add_call(call));
            self.report_long_calls(events);
        }
        // The reason comes alone, or with the last text or call.
        if let Some(reason) = take_string(choice.get_mut("finish_reason")) {
            self.stop = Some(reason);
            if let Some(usage) = take_usage(&mut piece) {
                self.usage = Some(usage);
            }
        }
        Ok(())
    }

    /// Adds a piece of a call. Pieces without an index or a function are ignored.
    fn add_call(&mut self, mut call: Value) {
        let index = call.get("index").and_then(Value::as_u64).filter(|index| u32::try_from(*index).is_ok());
        let function = call.get_mut("function").map(Value::take);
        let (Some(index), Some(mut function)) = (index, function) else { return };
        let call_id = take_string(call.get_mut("id")).unwrap_or_else(|| format!("call_{index}"));
        let fn_name = take_string(function.get_mut("name")).unwrap_or_default();
        let arguments = take_string(function.get_mut("arguments")).unwrap_or_default();
        self.call_bytes += arguments.len();
        match self.calls.get_mut(&index) {
            None => {
                self.call_bytes += call_id.len() + fn_name.len();
                let fn_arguments = Value::String(arguments);
                self.calls.insert(index, ToolCall { call_id, fn_name, fn_arguments, thought_signatures: None });
            }
            Some(known) => {
                if let Value::String(text) = &mut known.fn_arguments {
                    text.push_str(&arguments);
                }
                if !fn_name.is_empty() {
                    self.call_bytes += call_id.len() + fn_name.len();
                    self.call_bytes -= known.call_id.len() + known.fn_name.len();
                    known.call_id = call_id;
                    known.fn_name = fn_name;
                }
            }
        }
    }

    /// Reports the calls if they are too long together. Before that, their pieces are not needed: the end has the calls.
    fn report_long_calls(&self, events: &mut AnswerQueue) {
        if self.call_bytes <= MAX_ANSWER {
            return;
        }
        let chunk = |(index, call): (&u64, &ToolCall)| -> genai::Result<ChatStreamEvent> {
            // Each call counts with its id, also if the model gives two of them one id.
            let fn_name = format!("{}{}", call.call_id, call.fn_name);
            let tool_call = ToolCall { call_id: index.to_string(), fn_name, ..call.clone() };
            Ok(ChatStreamEvent::ToolCallChunk(ToolChunk { tool_call }))
        };
        events.extend(self.calls.iter().map(chunk));
    }

    fn end(&mut self) -> StreamEnd {
        let calls: Vec<_> = std::mem::take(&mut self.calls).into_values().map(parse_arguments).collect();
        StreamEnd {
            captured_usage: self.usage.take(),
            captured_stop_reason: self.stop.take().map(StopReason::from),
            captured_content: (!calls.is_empty()).then(|| MessageContent::from_tool_calls(calls)),
            ..StreamEnd::default()
        }
    }
}

/// Parses the arguments of a complete call. Arguments that are no JSON stay text.
fn parse_arguments(call: ToolCall) -> ToolCall {
    match call.fn_arguments.as_str().map(serde_json::from_str) {
        Some(Ok(fn_arguments)) => ToolCall { fn_arguments, ..call },
        Some(Err(_)) | None => call,
    }
}

fn push_text(content: String, events: &mut AnswerQueue) {
    if !content.is_empty() {
        events.push_back(Ok(ChatStreamEvent::Chunk(StreamChunk { content })));
    }
}

fn take_string(value: Option<&mut Value>) -> Option<String> {
    match value.map(Value::take) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// Takes the usage of a piece. `None` if it has no numbers.
fn take_usage(piece: &mut Value) -> Option<Usage> {
    let value = piece.get_mut("usage").map(Value::take).filter(|value| !value.is_null())?;
    let mut usage: Usage = serde_json::from_value(value).ok()?;
    usage.compact_details();
    (usage != Usage::default()).then_some(usage)
}

/// Takes the text and the thoughts of a choice. Some models send them as a list of typed parts.
fn take_content(choice: &mut Value) -> (Option<String>, Option<String>) {
    match choice.pointer_mut("/delta/content").map(Value::take) {
        Some(Value::String(text)) => (Some(text), None),
        Some(Value::Array(parts)) => {
            let (mut text, mut thought) = (String::new(), String::new());
            for part in &parts {
                match part["type"].as_str() {
                    Some("text") => text.push_str(part["text"].as_str().unwrap_or_default()),
                    Some("thinking") => push_thinking(&part["thinking"], &mut thought),
                    _ => {}
                }
            }
            let full = |text: String| Some(text).filter(|text| !text.is_empty());
            (full(text), full(thought))
        }
        _ => (None, None),
    }
}

fn push_thinking(thinking: &Value, thought: &mut String) {
    match thinking {
        Value::String(text) => thought.push_str(text),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).for_each(|text| thought.push_str(text));
        }
        _ => {}
    }
}
