//! Decodes the pieces of an answer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use genai::chat::{StopReason, ToolCall, Usage};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::Value;

use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, CallSize, EventDecoder, ProviderError,
};
use crate::llm::dialect::{take_string, usage_from};

/// The data of the last event.
const DONE: &str = "[DONE]";

/// A piece that only adds text, as nearly all are. Another piece does not parse, or has a field that is `Some`.
#[derive(Deserialize)]
struct PlainPiece<'a> {
    #[serde(default)]
    error: FieldPresence,
    usage: Option<IgnoredAny>,
    x_groq: Option<IgnoredAny>,
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
    let PlainPiece { error, usage, x_groq, choices: [choice] } = serde_json::from_str(data).ok()?;
    let PlainDelta { content, reasoning_content, reasoning, tool_calls } = choice.delta;
    let others = [usage, x_groq, choice.finish_reason, reasoning_content, reasoning, tool_calls];
    (!error.0 && others.iter().all(Option::is_none)).then_some(content)
}

/// Decodes one answer. Keeps what it has so far, besides the text that went out.
pub(super) struct PieceDecoder {
    /// Whether the provider leaves the tokens of thoughts out of those of the answer.
    counts_thoughts_apart: bool,
    /// By their index. The arguments are text until the end.
    calls: BTreeMap<u64, ToolCall>,
    call_size: CallSize,
    usage: Option<Usage>,
    stop: Option<String>,
}

impl PieceDecoder {
    pub(super) fn new(counts_thoughts_apart: bool) -> Self {
        let (calls, call_size) = (BTreeMap::new(), CallSize::default());
        Self { counts_thoughts_apart, calls, call_size, usage: None, stop: None }
    }
}

impl EventDecoder for PieceDecoder {
    fn decode(&mut self, _name: &str, data: &str, events: &mut AnswerQueue) -> Result<AnswerState, ProviderError> {
        if data == DONE {
            events.push_back(Ok(AnswerEvent::End(self.end())));
            return Ok(AnswerState::Over);
        }
        match plain_text(data) {
            Some(text) => push_text(text.into_owned(), events),
            None => self.decode_piece(data, events)?,
        }
        Ok(AnswerState::Open)
    }
}

impl PieceDecoder {
    /// Decodes a piece of any form. Fields with an unexpected type count as absent.
    fn decode_piece(&mut self, data: &str, events: &mut AnswerQueue) -> Result<(), ProviderError> {
        let mut piece: Value = serde_json::from_str(data)?;
        if let Some(body) = piece.get_mut("error").map(Value::take) {
            return Err(ProviderError::Reported(body));
        }
        for place in ["/usage", "/x_groq/usage"] {
            self.note_usage(take_usage(piece.pointer_mut(place)));
        }
        let Some(mut choice) = piece.pointer_mut("/choices/0").map(Value::take) else { return Ok(()) };
        let (text, thought) = take_content(&mut choice);
        let thought = thought
            .or_else(|| take_string(choice.pointer_mut("/delta/reasoning_content")))
            .or_else(|| take_string(choice.pointer_mut("/delta/reasoning")));
        if let Some(thought) = thought.filter(|thought| !thought.is_empty()) {
            events.push_back(Ok(AnswerEvent::Thought(thought)));
        }
        push_text(text.unwrap_or_default(), events);
        if let Some(Value::Array(calls)) = choice.pointer_mut("/delta/tool_calls").map(Value::take) {
            calls.into_iter().try_for_each(|call| self.add_call(call))?;
        }
        // The reason comes alone, or with the last text or call.
        if let Some(reason) = take_string(choice.get_mut("finish_reason")) {
            self.stop = Some(reason);
        }
        Ok(())
    }

    /// Keeps the highest numbers. Some providers send growing numbers, or zeros, with each piece.
    fn note_usage(&mut self, usage: Option<Usage>) {
        let total = |usage: &Usage| usage_from(usage).input.saturating_add(usage_from(usage).output);
        if let Some(usage) = usage
            && self.usage.as_ref().is_none_or(|known| total(known) <= total(&usage))
        {
            self.usage = Some(usage);
        }
    }

    /// Adds a piece of a call. Pieces without an index or a function are ignored.
    fn add_call(&mut self, mut call: Value) -> Result<(), ProviderError> {
        let index = call.get("index").and_then(Value::as_u64).filter(|index| u32::try_from(*index).is_ok());
        let function = call.get_mut("function").map(Value::take);
        let (Some(index), Some(mut function)) = (index, function) else { return Ok(()) };
        let call_id = take_string(call.get_mut("id")).unwrap_or_else(|| format!("call_{index}"));
        let fn_name = take_string(function.get_mut("name")).unwrap_or_default();
        let arguments = take_string(function.get_mut("arguments")).unwrap_or_default();
        self.call_size.add(call_id.len() + fn_name.len() + arguments.len())?;
        match self.calls.get_mut(&index) {
            None => {
                self.call_size.add_call()?;
                let fn_arguments = Value::String(arguments);
                self.calls.insert(index, ToolCall { call_id, fn_name, fn_arguments, thought_signatures: None });
            }
            Some(known) => {
                if let Value::String(text) = &mut known.fn_arguments {
                    text.push_str(&arguments);
                }
                if !fn_name.is_empty() {
                    known.call_id = call_id;
                    known.fn_name = fn_name;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> AnswerEnd {
        let mut usage = self.usage.take().unwrap_or_default();
        let thoughts = usage.completion_tokens_details.as_ref().and_then(|details| details.reasoning_tokens);
        if let Some(thoughts) = thoughts.filter(|_| self.counts_thoughts_apart) {
            usage.completion_tokens = Some(usage.completion_tokens.unwrap_or_default().saturating_add(thoughts));
        }
        AnswerEnd {
            calls: std::mem::take(&mut self.calls).into_values().map(parse_arguments).collect(),
            usage: usage_from(&usage),
            stop: self.stop.take().map(StopReason::from),
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

fn push_text(text: String, events: &mut AnswerQueue) {
    if !text.is_empty() {
        events.push_back(Ok(AnswerEvent::Text(text)));
    }
}

/// Takes a usage. `None` if it has no numbers.
fn take_usage(value: Option<&mut Value>) -> Option<Usage> {
    let value = value.map(Value::take).filter(|value| !value.is_null())?;
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
