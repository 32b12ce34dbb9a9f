//! Anthropic's messages.
//!
//! Invariant: requests are those of genai, which a test compares byte by byte, unless genai's would be refused.

mod body;
mod decoder;
mod model;

use genai::ModelName;
use genai::chat::ChatMessage;
use reqwest::RequestBuilder;
use serde_json::value::RawValue;

use super::Dialect;
use super::answer_reader::EventDecoder;
use crate::llm::OfferedTool;
use crate::llm::effort::split_effort;
use decoder::MessageDecoder;
use model::ReasoningOptions;

/// The version of the API that requests and answers are written for.
const VERSION: &str = "2023-06-01";

pub(super) struct Anthropic {
    /// The name that the provider knows, without an effort.
    model: String,
    reasoning: ReasoningOptions,
    max_tokens: u32,
}

impl Anthropic {
    pub(super) fn new(model: &ModelName) -> Self {
        let (effort, model) = split_effort(model);
        let reasoning = effort.map(|effort| model::reasoning(model, &effort)).unwrap_or_default();
        Self { reasoning, max_tokens: model::max_tokens(model), model: model.to_owned() }
    }
}

impl Dialect for Anthropic {
    fn path(&self) -> Vec<String> {
        vec!["messages".to_owned()]
    }

    fn authorize(&self, request: RequestBuilder, key: &str) -> RequestBuilder {
        super::secret_header(request, "x-api-key", key).header("anthropic-version", VERSION)
    }

    fn write_tools(&self, tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
        body::write_tools(tools)
    }

    fn write_body(&self, tools: Option<&RawValue>, messages: &[ChatMessage]) -> serde_json::Result<Vec<u8>> {
        body::write_body(self, tools, messages)
    }

    fn decoder(&self) -> Box<dyn EventDecoder> {
        Box::new(MessageDecoder::default())
    }
}
