//! Decodes the chunks of an answer.

use genai::chat::{StopReason, ToolCall};
use serde_json::Value;

use crate::conversation::Usage;
use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, CallSize, EventDecoder, ProviderError,
};
use crate::llm::dialect::{take_string, token_count};

/// Decodes one answer. Keeps what it has so far, besides the text that went out.
#[derive(Default)]
pub(super) struct ChunkDecoder {
    calls: Vec<ToolCall>,
    call_size: CallSize,
    tokens: GeminiTokens,
    /// Why the answer ends. Some servers give a reason in each chunk, so that the last one counts.
    stop: Option<String>,
}

/// Numbers of tokens, each of which the provider counts separately.
#[derive(Default)]
struct GeminiTokens {
    prompt: u64,
    /// The results of tools that run at the provider.
    tool_results: u64,
    cached: u64,
    answer: u64,
    thoughts: u64,
}

impl EventDecoder for ChunkDecoder {
    fn decode(&mut self, _name: &str, data: &str, events: &mut AnswerQueue) -> Result<AnswerState, ProviderError> {
        let mut chunk: Value = serde_json::from_str(data)?;
        if chunk.get("error").is_some() {
            return Err(ProviderError::Reported(chunk));
        }
        if let Some(reason) = chunk["promptFeedback"]["blockReason"].as_str() {
            return Err(ProviderError::Blocked(reason.to_owned()));
        }
        self.tokens.update(&chunk["usageMetadata"]);
        self.take_parts(&mut chunk, events)?;
        if let Some(reason) = take_string(chunk.pointer_mut("/candidates/0/finishReason")) {
            self.stop = Some(reason);
        }
        Ok(if self.stop.is_some() { AnswerState::Complete } else { AnswerState::Open })
    }

    /// Fails if the reason is a defect of the answer, such as `MALFORMED_FUNCTION_CALL`.
    fn finish(&mut self) -> Option<Result<AnswerEnd, ProviderError>> {
        Some(match StopReason::from(self.stop.take()?) {
            StopReason::Other(reason) => Err(ProviderError::BrokenOff(reason)),
            stop => {
                Ok(AnswerEnd { calls: std::mem::take(&mut self.calls), usage: self.tokens.sum(), stop: Some(stop) })
            }
        })
    }
}

impl ChunkDecoder {
    fn take_parts(&mut self, chunk: &mut Value, events: &mut AnswerQueue) -> Result<(), ProviderError> {
        let parts = chunk.pointer_mut("/candidates/0/content/parts").and_then(Value::as_array_mut);
        let (mut text, mut thought) = (String::new(), String::new());
        for part in parts.into_iter().flatten() {
            if part.get("functionCall").is_some() {
                self.take_call(part)?;
            } else if let Some(piece) = take_string(part.get_mut("text")) {
                let is_thought = part["thought"].as_bool().unwrap_or_default();
                if is_thought { &mut thought } else { &mut text }.push_str(&piece);
            }
        }
        let pieces = [(thought, AnswerEvent::Thought as fn(String) -> AnswerEvent), (text, AnswerEvent::Text)];
        events.extend(pieces.into_iter().filter(|(text, _)| !text.is_empty()).map(|(text, event)| Ok(event(text))));
        Ok(())
    }

    fn take_call(&mut self, part: &mut Value) -> Result<(), ProviderError> {
        let signature = take_string(part.get_mut("thoughtSignature"));
        let fn_name = take_string(part.pointer_mut("/functionCall/name")).unwrap_or_default();
        let id = take_string(part.pointer_mut("/functionCall/id"));
        let call_id = id.unwrap_or_else(|| fallback_id(&fn_name, self.calls.len()));
        let fn_arguments = part.pointer_mut("/functionCall/args").map(Value::take).unwrap_or_default();
        self.call_size.add_call()?;
        self.call_size.add(call_id.len() + fn_name.len() + signature.as_ref().map_or(0, String::len))?;
        self.call_size.add(memory_of_json(&fn_arguments))?;
        let thought_signatures = signature.map(|signature| vec![signature]);
        self.calls.push(ToolCall { call_id, fn_name, fn_arguments, thought_signatures });
        Ok(())
    }
}

/// Returns about how much memory a value takes. Small values take more than their text.
fn memory_of_json(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory_of_json).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + memory_of_json(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
}

/// Returns an id for a call to which the provider gave none.
fn fallback_id(name: &str, number: usize) -> String {
    format!("call#{name}#{number}")
}

/// Returns true if the id is one of [`fallback_id`].
pub(super) fn is_fallback_id(id: &str) -> bool {
    let parts = id.strip_prefix("call#").and_then(|rest| rest.rsplit_once('#'));
    parts.is_some_and(|(name, number)| !name.is_empty() && number.parse::<usize>().is_ok())
}

impl GeminiTokens {
    /// Takes the numbers of a chunk. Later ones replace earlier ones.
    fn update(&mut self, usage: &Value) {
        for (name, count) in [
            ("promptTokenCount", &mut self.prompt),
            ("toolUsePromptTokenCount", &mut self.tool_results),
            ("cachedContentTokenCount", &mut self.cached),
            ("candidatesTokenCount", &mut self.answer),
            ("thoughtsTokenCount", &mut self.thoughts),
        ] {
            if let Some(tokens) = token_count(&usage[name]) {
                *count = tokens;
            }
        }
    }

    fn sum(&self) -> Usage {
        Usage { input: self.prompt + self.tool_results, output: self.answer + self.thoughts, cached: self.cached }
    }
}
