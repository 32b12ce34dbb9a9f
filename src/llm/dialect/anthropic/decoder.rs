//! Decodes the events of an answer.

use genai::chat::{StopReason, ToolCall};
use serde_json::{Map, Value};

use crate::conversation::Usage;
use crate::llm::dialect::answer_reader::{
    AnswerEnd, AnswerEvent, AnswerQueue, AnswerState, CallSize, EventDecoder, ProviderError,
};
use crate::llm::dialect::json_size::{parse_arguments, parse_event};
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
                let event = parse_event(data)?;
                self.tokens.update(&event["message"]["usage"]);
                events.push_back(Ok(AnswerEvent::Progress { bytes: 0, usage: Some(self.tokens.sum()) }));
            }
            "content_block_start" => self.start_block(parse_event(data)?, events)?,
            "content_block_delta" => self.extend_block(parse_event(data)?, events)?,
            "content_block_stop" => self.finish_block()?,
            "message_delta" => {
                let event = parse_event(data)?;
                self.tokens.update(&event["usage"]);
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop = Some(reason.to_owned());
                }
            }
            "message_stop" => {
                events.push_back(Ok(AnswerEvent::End(self.end()?)));
                return Ok(AnswerState::Over);
            }
            "error" => {
                let body = parse_event(data).unwrap_or_else(|_| Value::String(data.to_owned()));
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
        // Some servers do not say where a call ends.
        if matches!(self.block, Block::Call(_)) {
            self.finish_block()?;
        }
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
                let bytes = name.len() + arguments.len();
                events.push_back(Ok(AnswerEvent::Progress { bytes, usage: None }));
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
                events.push_back(Ok(AnswerEvent::Progress { bytes: arguments.len(), usage: None }));
            }
        }
        Ok(())
    }

    fn finish_block(&mut self) -> Result<(), ProviderError> {
        if let Block::Call(call) = std::mem::take(&mut self.block) {
            self.calls.push(call.finish(&mut self.call_size)?);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<AnswerEnd, ProviderError> {
        // A call that reached the maximum length of the answer has no end.
        if let Block::Call(call) = std::mem::take(&mut self.block) {
            self.calls.push(call.cut_off(&mut self.call_size)?);
        }
        Ok(AnswerEnd {
            calls: std::mem::take(&mut self.calls),
            usage: self.tokens.sum(),
            stop: self.stop.take().map(StopReason::from),
        })
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
    fn finish(self, call_size: &mut CallSize) -> Result<ToolCall, ProviderError> {
        match self.arguments.is_empty() {
            true => Ok(ToolCall { fn_arguments: Value::Object(Map::new()), ..self.cut_off(call_size)? }),
            false => self.cut_off(call_size),
        }
    }

    /// Returns the call with the arguments that arrived.
    fn cut_off(self, call_size: &mut CallSize) -> Result<ToolCall, ProviderError> {
        let Self { id: call_id, name: fn_name, arguments } = self;
        let fn_arguments = parse_arguments(arguments, call_size)?;
        Ok(ToolCall { call_id, fn_name, fn_arguments, thought_signatures: None })
    }
}

fn push(text: Option<String>, event: impl Fn(String) -> AnswerEvent, events: &mut AnswerQueue) {
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        events.push_back(Ok(event(text)));
    }
}
