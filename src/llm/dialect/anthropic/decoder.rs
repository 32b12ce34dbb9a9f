//! Decodes the events of an answer.

use genai::chat::{StopReason, ToolCall};
use serde_json::{Map, Value};

use crate::conversation::Usage;
use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, CallSize, EventDecoder, ProviderError,
};
use crate::llm::dialect::{take_string, token_count};

/// Decodes one answer. Keeps what it has so far, besides the text that went out.
#[derive(Default)]
pub(super) struct MessageDecoder {
    block: Block,
    calls: Vec<ToolCall>,
    call_size: CallSize,
    tokens: ClaudeTokens,
    stop: Option<String>,
}

/// The block of the answer that is arriving.
#[derive(Default)]
enum Block {
    #[default]
    Text,
    Thought,
    Call(PartialCall),
}

/// A call whose arguments are still text.
struct PartialCall {
    id: String,
    name: String,
    arguments: String,
}

/// Numbers of tokens, each of which the provider counts separately.
#[derive(Default)]
struct ClaudeTokens {
    input: u64,
    written_to_cache: u64,
    read_from_cache: u64,
    output: u64,
}

impl EventDecoder for MessageDecoder {
    fn decode(&mut self, name: &str, data: &str, events: &mut AnswerQueue) -> Result<AnswerState, ProviderError> {
        match name {
            "message_start" => {
                let event: Value = serde_json::from_str(data)?;
                self.tokens.update(&event["message"]["usage"]);
            }
            "content_block_start" => self.start_block(serde_json::from_str(data)?, events)?,
            "content_block_delta" => self.extend_block(serde_json::from_str(data)?, events)?,
            "content_block_stop" => {
                if let Block::Call(call) = std::mem::take(&mut self.block) {
                    self.calls.push(call.finish());
                }
            }
            "message_delta" => {
                let event: Value = serde_json::from_str(data)?;
                self.tokens.update(&event["usage"]);
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop = Some(reason.to_owned());
                }
            }
            "message_stop" => {
                events.push_back(Ok(AnswerEvent::End(self.end())));
                return Ok(AnswerState::Over);
            }
            "error" => {
                let body = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
                return Err(ProviderError::Reported(body));
            }
            // `ping`, and events of later versions.
            _ => {}
        }
        Ok(AnswerState::Open)
    }
}

impl MessageDecoder {
    fn start_block(&mut self, mut event: Value, events: &mut AnswerQueue) -> Result<(), ProviderError> {
        let mut field = |name: &str| take_string(event.pointer_mut(&format!("/content_block/{name}")));
        match field("type").as_deref() {
            Some("text") => {
                self.block = Block::Text;
                push(field("text"), AnswerEvent::Text, events);
            }
            Some("thinking") => {
                self.block = Block::Thought;
                push(field("thinking"), AnswerEvent::Thought, events);
            }
            Some("tool_use") => {
                let (id, name) = (field("id").unwrap_or_default(), field("name").unwrap_or_default());
                // Some servers send all arguments here, and no pieces of them.
                let input = event["content_block"]["input"].as_object().filter(|input| !input.is_empty());
                let arguments = input.and_then(|input| serde_json::to_string(input).ok()).unwrap_or_default();
                self.call_size.add_call()?;
                self.call_size.add(id.len() + name.len() + arguments.len())?;
                self.block = Block::Call(PartialCall { id, name, arguments });
            }
            // Blocks that Skein does not ask for have neither text nor calls.
            _ => {}
        }
        Ok(())
    }

    fn extend_block(&mut self, mut event: Value, events: &mut AnswerQueue) -> Result<(), ProviderError> {
        match &mut self.block {
            Block::Text => push(take_string(event.pointer_mut("/delta/text")), AnswerEvent::Text, events),
            Block::Thought => push(take_string(event.pointer_mut("/delta/thinking")), AnswerEvent::Thought, events),
            Block::Call(call) => {
                let arguments = event["delta"]["partial_json"].as_str().unwrap_or_default();
                self.call_size.add(arguments.len())?;
                call.arguments.push_str(arguments);
            }
        }
        Ok(())
    }

    fn end(&mut self) -> AnswerEnd {
        // A call that reached the maximum length of the answer has no end.
        if let Block::Call(call) = std::mem::take(&mut self.block) {
            self.calls.push(call.cut_off());
        }
        AnswerEnd {
            calls: std::mem::take(&mut self.calls),
            usage: self.tokens.sum(),
            stop: self.stop.take().map(StopReason::from),
        }
    }
}

impl ClaudeTokens {
    /// Takes the numbers of a usage. Later ones replace earlier ones.
    fn update(&mut self, usage: &Value) {
        for (name, count) in [
            ("input_tokens", &mut self.input),
            ("cache_creation_input_tokens", &mut self.written_to_cache),
            ("cache_read_input_tokens", &mut self.read_from_cache),
            ("output_tokens", &mut self.output),
        ] {
            if let Some(tokens) = token_count(&usage[name]) {
                *count = tokens;
            }
        }
    }

    fn sum(&self) -> Usage {
        Usage {
            input: self.input + self.written_to_cache + self.read_from_cache,
            output: self.output,
            cached: self.read_from_cache,
        }
    }
}

impl PartialCall {
    /// Returns the complete call. One without arguments has an empty object.
    fn finish(self) -> ToolCall {
        match self.arguments.is_empty() {
            true => ToolCall { fn_arguments: Value::Object(Map::new()), ..self.cut_off() },
            false => self.cut_off(),
        }
    }

    /// Returns the call with the arguments that arrived. They stay text if they are no JSON.
    fn cut_off(self) -> ToolCall {
        let Self { id: call_id, name: fn_name, arguments } = self;
        let fn_arguments = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
        ToolCall { call_id, fn_name, fn_arguments, thought_signatures: None }
    }
}

fn push(text: Option<String>, event: impl Fn(String) -> AnswerEvent, events: &mut AnswerQueue) {
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        events.push_back(Ok(event(text)));
    }
}
