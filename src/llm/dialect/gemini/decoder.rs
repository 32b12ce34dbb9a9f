//! Decodes the chunks of an answer.

use genai::chat::{StopReason, ToolCall};
use serde_json::Value;

use crate::conversation::Usage;
use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, CallSize, EventDecoder, ProviderError,
};
use crate::llm::dialect::json_size::{parse_event, tree_size};
use crate::llm::dialect::{take_string, token_count};

/// Reasons that the same request gets again.
const LASTING_DEFECTS: [&str; 2] = ["MISSING_THOUGHT_SIGNATURE", "TOO_MANY_TOOL_CALLS"];

/// Decodes one answer. Keeps what it has so far, besides the text that went out.
#[derive(Default)]
pub(super) struct ChunkDecoder {
    calls: Vec<ToolCall>,
    call_size: CallSize,
    tokens: GeminiTokens,
    /// Why the answer ends. Some servers give a reason in each chunk, so that the last one counts.
    stop: Option<String>,
    /// The provider's words about the reason. Empty if it has none.
    stop_message: String,
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
        let mut chunk = parse_event(data)?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(ProviderError::Reported(chunk));
        }
        if let Some(reason) = chunk["promptFeedback"]["blockReason"].as_str() {
            return Err(ProviderError::Blocked(reason.to_owned()));
        }
        self.tokens.update(&chunk["usageMetadata"]);
        let earlier_calls = self.calls.len();
        self.take_parts(&mut chunk, events)?;
        if self.calls.len() > earlier_calls {
            self.call_size.add(data.len() + tree_size(data))?;
        }
        if let Some(reason) = take_string(chunk.pointer_mut("/candidates/0/finishReason")) {
            self.stop = Some(reason);
        }
        if let Some(message) = take_string(chunk.pointer_mut("/candidates/0/finishMessage")) {
            self.stop_message = message;
        }
        // Other chunks have text, which is counted by itself.
        if self.calls.len() > earlier_calls || self.stop.is_some() {
            events.push_back(Ok(AnswerEvent::Progress { bytes: 0, usage: Some(self.tokens.sum()) }));
        }
        Ok(if self.stop.is_some() { AnswerState::Complete } else { AnswerState::Open })
    }

    /// Fails if the reason is a defect of the answer, such as `MALFORMED_FUNCTION_CALL`.
    fn finish(&mut self) -> Option<Result<AnswerEnd, ProviderError>> {
        Some(match StopReason::from(self.stop.take()?) {
            StopReason::Other(reason) => {
                let is_lasting = LASTING_DEFECTS.contains(&reason.as_str());
                let separator = if self.stop_message.is_empty() { "" } else { ": " };
                let reason = format!("{reason}{separator}{}", self.stop_message);
                Err(if is_lasting { ProviderError::Stopped(reason) } else { ProviderError::BrokenOff(reason) })
            }
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
        // The session gives each call without an id one.
        let call_id = take_string(part.pointer_mut("/functionCall/id")).unwrap_or_default();
        let fn_arguments = part.pointer_mut("/functionCall/args").map(Value::take).unwrap_or_default();
        self.call_size.add_call()?;
        let thought_signatures = signature.map(|signature| vec![signature]);
        self.calls.push(ToolCall { call_id, fn_name, fn_arguments, thought_signatures });
        Ok(())
    }
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
