//! Decodes the chunks of an answer.

use genai::chat::{StopReason, ToolCall};
use serde_json::Value;

use crate::conversation::Usage;
use crate::llm::MAX_ANSWER;
use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, EventDecoder, ProviderError,
};
use crate::llm::dialect::{take_string, token_count};

/// Decodes one answer. Keeps what it has so far, besides the text that went out.
#[derive(Default)]
pub(super) struct ChunkDecoder {
    calls: Vec<ToolCall>,
    /// Bytes of the ids, names, arguments and signatures of the calls.
    call_bytes: usize,
    usage: Usage,
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
        // Each chunk has all numbers so far.
        if let Some(usage) = chunk.get("usageMetadata") {
            self.usage = usage_of(usage);
        }
        self.take_parts(&mut chunk, events)?;
        // There is no other mark of the end.
        match take_string(chunk.pointer_mut("/candidates/0/finishReason")) {
            Some(reason) => {
                events.push_back(Ok(AnswerEvent::End(self.end(reason)?)));
                Ok(AnswerState::Over)
            }
            None => Ok(AnswerState::Open),
        }
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
        let arguments = crate::llm::size_of_json(&fn_arguments);
        self.call_bytes += call_id.len() + fn_name.len() + arguments + signature.as_ref().map_or(0, String::len);
        if self.call_bytes > MAX_ANSWER {
            return Err(ProviderError::CallsTooLong);
        }
        let thought_signatures = signature.map(|signature| vec![signature]);
        self.calls.push(ToolCall { call_id, fn_name, fn_arguments, thought_signatures });
        Ok(())
    }

    /// Fails if the reason is a defect of the answer, such as `MALFORMED_FUNCTION_CALL`.
    fn end(&mut self, reason: String) -> Result<AnswerEnd, ProviderError> {
        match StopReason::from(reason) {
            StopReason::Other(reason) => Err(ProviderError::BrokenOff(reason)),
            stop => Ok(AnswerEnd { calls: std::mem::take(&mut self.calls), usage: self.usage, stop: Some(stop) }),
        }
    }
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

/// Converts the numbers of a chunk.
fn usage_of(usage: &Value) -> Usage {
    let tokens = |name: &str| token_count(&usage[name]).unwrap_or_default();
    // The provider has separate counts for thoughts and for the results of built-in tools.
    Usage {
        input: tokens("promptTokenCount").saturating_add(tokens("toolUsePromptTokenCount")),
        output: tokens("candidatesTokenCount").saturating_add(tokens("thoughtsTokenCount")),
        cached: tokens("cachedContentTokenCount"),
    }
}
