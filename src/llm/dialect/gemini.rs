//! Google's API of Gemini.
//!
//! Invariant: requests are those of genai, which a test compares byte by byte.

mod body;
mod decoder;

use genai::ModelName;
use genai::chat::{ChatMessage, ReasoningEffort};
use reqwest::RequestBuilder;
use serde_json::value::RawValue;

use super::Dialect;
use super::answer_reader::EventDecoder;
use crate::llm::OfferedTool;
use crate::llm::effort::split_effort;
use body::ThinkingConfig;
use decoder::ChunkDecoder;

/// The folders of models.
const FOLDERS: [&str; 2] = ["models", "tunedModels"];

pub(super) struct Gemini {
    /// The name that the provider knows, without an effort.
    model: String,
    thinking: Option<ThinkingConfig>,
}

impl Gemini {
    pub(super) fn new(model: &ModelName) -> Self {
        let (effort, model) = split_effort(model);
        let thinking = effort.and_then(|effort| thinking(model, &effort));
        Self { model: model.to_owned(), thinking }
    }
}

impl Dialect for Gemini {
    fn path(&self) -> Vec<String> {
        // A tuned model has another folder in its name.
        let folder = self.model.split_once('/').filter(|(folder, _)| FOLDERS.contains(folder));
        let (folder, name) = folder.unwrap_or((FOLDERS[0], &self.model));
        vec![folder.to_owned(), format!("{name}:streamGenerateContent")]
    }

    fn parameter(&self) -> Option<(&'static str, &'static str)> {
        Some(("alt", "sse"))
    }

    fn authorize(&self, request: RequestBuilder, key: &str) -> RequestBuilder {
        super::secret_header(request, "x-goog-api-key", key)
    }

    fn write_tools(&self, tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
        body::write_tools(tools)
    }

    fn write_body(&self, tools: Option<&RawValue>, messages: &[ChatMessage]) -> serde_json::Result<Vec<u8>> {
        body::write_body(self.thinking, tools, messages)
    }

    fn decoder(&self) -> Box<dyn EventDecoder> {
        Box::new(ChunkDecoder::default())
    }
}

/// Returns how a model should think. Newer models take a level, the others a number of tokens. `None` if it has no
/// such choice.
fn thinking(model: &str, effort: &ReasoningEffort) -> Option<ThinkingConfig> {
    let takes_levels = model.contains("gemini-3") || model.contains("gemma-4");
    match effort {
        ReasoningEffort::Zero | ReasoningEffort::Budget(_) if takes_levels => None,
        ReasoningEffort::Minimal | ReasoningEffort::Low if takes_levels => Some(ThinkingConfig::Level("LOW")),
        ReasoningEffort::Medium if takes_levels => Some(ThinkingConfig::Level("MEDIUM")),
        _ if takes_levels => Some(ThinkingConfig::Level("HIGH")),
        ReasoningEffort::Zero => Some(ThinkingConfig::Budget(0)),
        ReasoningEffort::Minimal | ReasoningEffort::Low => Some(ThinkingConfig::Budget(1000)),
        ReasoningEffort::Medium => Some(ThinkingConfig::Budget(8000)),
        _ => Some(ThinkingConfig::Budget(24_000)),
    }
}
