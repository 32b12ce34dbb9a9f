//! Decodes the pieces of an answer.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use genai::chat::{StopReason, ToolCall, Usage};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::call_extras::CallExtras;
use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, CallSize, EventDecoder, ProviderError,
};
use crate::llm::dialect::json_size::{parse_arguments, parse_event, tree_size};
use crate::llm::dialect::{take_string, usage_from};

/// The data of the last event.
const DONE: &str = "[DONE]";

/// The reason to end of an answer that the provider stopped.
const REFUSED: &str = "content_filter";

/// Reasons to end of an answer that is not complete: of OpenRouter and Mistral, DeepSeek, and vLLM.
const DEFECTS: [&str; 4] = ["error", "insufficient_system_resource", "abort", "aborted"];

/// A piece that only adds text, as nearly all are. Another piece does not parse, or has a field that is `Some`.
#[derive(Deserialize)]
struct PlainPiece<'a> {
    error: Option<IgnoredAny>,
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
    refusal: Option<IgnoredAny>,
    reasoning_content: Option<IgnoredAny>,
    reasoning: Option<IgnoredAny>,
    #[expect(dead_code, reason = "a list with entries does not parse; OpenRouter may send an empty one with text")]
    reasoning_details: Option<[IgnoredAny; 0]>,
    tool_calls: Option<IgnoredAny>,
}

/// Returns the text of a piece that only adds text. `None` for other pieces.
fn plain_text(data: &str) -> Option<Cow<'_, str>> {
    let PlainPiece { error, usage, x_groq, choices: [choice] } = serde_json::from_str(data).ok()?;
    let PlainDelta { content, refusal, reasoning_content, reasoning, tool_calls, .. } = choice.delta;
    let others = [error, usage, x_groq, choice.finish_reason, refusal, reasoning_content, reasoning, tool_calls];
    others.iter().all(Option::is_none).then_some(content)
}

/// Decodes one answer. Keeps what it has so far, besides the text that went out.
pub(super) struct PieceDecoder {
    /// Whether the provider leaves the tokens of thoughts out of those of the answer.
    counts_thoughts_apart: bool,
    calls: BTreeMap<CallKey, CallDraft>,
    /// The call that the last piece of a call belongs to.
    last_call: Option<CallKey>,
    /// Signatures of calls that are no part of the calls, by the ids of the calls.
    signatures: HashMap<String, String>,
    call_size: CallSize,
    usage: Option<Usage>,
    stop: Option<String>,
    /// Whether a part of the answer came with a reason to end, or after one. Some servers send a reason with each piece.
    has_early_reason: bool,
    /// Whether the model declined to answer. Its reason to end is that of any answer then.
    is_refused: bool,
}

/// The index of a call, and its number among the calls with this index.
type CallKey = (u64, usize);

/// A call whose arguments are still text. A text that did not arrive is empty.
struct CallDraft {
    id: String,
    name: String,
    arguments: String,
    signature: String,
}

impl PieceDecoder {
    pub(super) fn new(counts_thoughts_apart: bool) -> Self {
        Self {
            counts_thoughts_apart,
            calls: BTreeMap::new(),
            last_call: None,
            signatures: HashMap::new(),
            call_size: CallSize::default(),
            usage: None,
            stop: None,
            has_early_reason: false,
            is_refused: false,
        }
    }
}

impl EventDecoder for PieceDecoder {
    fn decode(&mut self, _name: &str, data: &str, events: &mut AnswerQueue) -> Result<AnswerState, ProviderError> {
        if data == DONE {
            events.push_back(Ok(AnswerEvent::End(self.end()?)));
            return Ok(AnswerState::Over);
        }
        let earlier_events = events.len();
        match plain_text(data) {
            Some(text) => push_text(text.into_owned(), events),
            None => self.decode_piece(data, events)?,
        }
        self.has_early_reason |= self.stop.is_some() && events.len() > earlier_events;
        // Some servers send no `[DONE]`. The numbers of tokens may follow the reason.
        Ok(match self.stop {
            None => AnswerState::Open,
            Some(_) if self.has_early_reason => AnswerState::CompleteAtEnd,
            Some(_) => AnswerState::Complete,
        })
    }

    fn finish(&mut self) -> Option<Result<AnswerEnd, ProviderError>> {
        self.stop.is_some().then(|| self.end())
    }
}

impl PieceDecoder {
    /// Decodes a piece of any form. Fields with an unexpected type count as absent.
    fn decode_piece(&mut self, data: &str, events: &mut AnswerQueue) -> Result<(), ProviderError> {
        let mut piece = parse_event(data)?;
        if let Some(body) = piece.get_mut("error").map(Value::take).filter(|body| !body.is_null()) {
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
        if let Some(refusal) = take_string(choice.pointer_mut("/delta/refusal")).filter(|text| !text.is_empty()) {
            self.is_refused = true;
            push_text(refusal, events);
        }
        if let Some(Value::Array(calls)) = choice.pointer_mut("/delta/tool_calls").map(Value::take)
            && !calls.is_empty()
        {
            let mut bytes = 0;
            for call in calls {
                bytes += self.add_call(call)?;
            }
            events.push_back(Ok(AnswerEvent::Progress { bytes, usage: None }));
        }
        if let Some(Value::Array(details)) = choice.pointer_mut("/delta/reasoning_details").map(Value::take) {
            details.into_iter().try_for_each(|detail| self.add_signature(detail))?;
        }
        if let Some(reason) = take_string(choice.get_mut("finish_reason")).filter(|reason| !reason.is_empty()) {
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

    /// Adds a piece of a call, and returns the bytes of its texts. Pieces without a function are ignored.
    fn add_call(&mut self, mut piece: Value) -> Result<usize, ProviderError> {
        let index = piece.get("index").and_then(Value::as_u64).filter(|index| u32::try_from(*index).is_ok());
        let Some(mut function) = piece.get_mut("function").map(Value::take) else { return Ok(0) };
        let extra_content = piece.get_mut("extra_content").map(Value::take).filter(|extra| !extra.is_null());
        let piece = CallDraft {
            id: take_string(piece.get_mut("id")).unwrap_or_default(),
            name: take_string(function.get_mut("name")).unwrap_or_default(),
            arguments: take_string(function.get_mut("arguments")).unwrap_or_default(),
            signature: CallExtras { extra_content, ..CallExtras::default() }.to_text(),
        };
        let bytes = piece.name.len() + piece.arguments.len();
        self.call_size.add(piece.id.len() + bytes + piece.signature.len() + tree_size(&piece.signature))?;
        let Some(key) = self.find_key(index, &piece) else { return Ok(0) };
        self.last_call = Some(key);
        match self.calls.entry(key) {
            Entry::Vacant(entry) => {
                self.call_size.add_call()?;
                entry.insert(piece);
            }
            Entry::Occupied(entry) => entry.into_mut().extend(piece),
        }
        Ok(bytes)
    }

    /// Keeps a detail that is the signature of a call. Others repeat the thoughts, or sign them.
    fn add_signature(&mut self, detail: Value) -> Result<(), ProviderError> {
        let id = detail["id"].as_str().filter(|_| detail["type"] == "reasoning.encrypted").map(str::to_owned);
        if let Some(id) = id {
            let text = CallExtras { reasoning_detail: Some(detail), ..CallExtras::default() }.to_text();
            self.call_size.add_call()?;
            self.call_size.add(id.len() + text.len() + tree_size(&text))?;
            self.signatures.insert(id, text);
        }
        Ok(())
    }

    /// Returns the call that a piece begins or continues. Google leaves out the index, and Ollama may give several calls
    /// the same one. `None` if the piece continues no call.
    fn find_key(&self, index: Option<u64>, piece: &CallDraft) -> Option<CallKey> {
        let Some(index) = index else {
            let last = self.last_call.filter(|key| self.calls.get(key).is_some_and(|call| call.is_same(piece)));
            let next = || self.calls.last_key_value().map_or(0, |((index, _), _)| index + 1);
            return last.or_else(|| (!piece.name.is_empty()).then(|| (next(), 0)));
        };
        Some(match self.calls.range((index, 0)..=(index, usize::MAX)).next_back() {
            None => (index, 0),
            Some((key, call)) if call.id.is_empty() || piece.id.is_empty() || call.is_same(piece) => *key,
            Some((&(_, number), _)) => (index, number + 1),
        })
    }

    /// Fails if the reason to end is a defect of the answer, or the arguments take too much memory.
    fn end(&mut self) -> Result<AnswerEnd, ProviderError> {
        let stop = if self.is_refused { Some(REFUSED.to_owned()) } else { self.stop.take() };
        if let Some(reason) = stop.as_ref().filter(|reason| DEFECTS.contains(&reason.as_str())) {
            return Err(ProviderError::BrokenOff(reason.clone()));
        }
        let mut usage = self.usage.take().unwrap_or_default();
        let thoughts = usage.completion_tokens_details.as_ref().and_then(|details| details.reasoning_tokens);
        if let Some(thoughts) = thoughts.filter(|_| self.counts_thoughts_apart) {
            usage.completion_tokens = Some(usage.completion_tokens.unwrap_or_default().saturating_add(thoughts));
        }
        let mut calls = std::mem::take(&mut self.calls);
        for call in calls.values_mut().filter(|call| call.signature.is_empty()) {
            call.signature = self.signatures.remove(&call.id).unwrap_or_default();
        }
        Ok(AnswerEnd {
            calls: calls.into_iter().map(|call| finish_call(call, &mut self.call_size)).collect::<Result<_, _>>()?,
            usage: usage_from(&usage),
            stop: stop.map(StopReason::from),
        })
    }
}

impl CallDraft {
    /// Returns true if a piece belongs to this call, and not to another one: it has no name, or the same id.
    fn is_same(&self, piece: &CallDraft) -> bool {
        piece.name.is_empty() || (!piece.id.is_empty() && piece.id == self.id)
    }

    fn extend(&mut self, piece: CallDraft) {
        self.arguments.push_str(&piece.arguments);
        if !piece.name.is_empty() {
            self.name = piece.name;
        }
        if self.id.is_empty() {
            self.id = piece.id;
        }
        if self.signature.is_empty() {
            self.signature = piece.signature;
        }
    }
}

/// Returns a complete call.
fn finish_call(((index, _), call): (CallKey, CallDraft), call_size: &mut CallSize) -> Result<ToolCall, ProviderError> {
    let CallDraft { id, name: fn_name, arguments, signature } = call;
    let call_id = if id.is_empty() { format!("call_{index}") } else { id };
    let fn_arguments = parse_arguments(arguments, call_size)?;
    let thought_signatures = (!signature.is_empty()).then(|| vec![signature]);
    Ok(ToolCall { call_id, fn_name, fn_arguments, thought_signatures })
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

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
