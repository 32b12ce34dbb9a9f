//! OpenAI's chat completions, which most providers speak.
//!
//! Invariant: requests are those of genai, which a test compares byte by byte.

mod body;
mod decoder;

use genai::ModelName;
use genai::adapter::AdapterKind;
use genai::chat::{ChatMessage, ReasoningEffort};
use serde_json::value::RawValue;

use super::Dialect;
use super::answer_reader::EventDecoder;
use crate::llm::OfferedTool;
use crate::llm::effort::split_effort;
use body::RequestOptions;
use decoder::PieceDecoder;

pub(super) struct Completions {
    provider: AdapterKind,
    /// The name that the provider knows, without an effort.
    model: String,
    effort: Option<ReasoningEffort>,
    /// Whether the provider caches only what the request marks.
    marks_cache: bool,
}

impl Completions {
    pub(super) fn new(provider: AdapterKind, model: &ModelName) -> Self {
        let (effort, model) = split_effort(model);
        let marks_cache = provider == AdapterKind::OpenAI && needs_cache_marks(model);
        Self { provider, model: model.to_owned(), effort, marks_cache }
    }
}

impl Dialect for Completions {
    fn path(&self) -> Vec<String> {
        vec!["chat".to_owned(), "completions".to_owned()]
    }

    fn authorize(&self, request: reqwest::RequestBuilder, key: &str) -> reqwest::RequestBuilder {
        request.bearer_auth(key)
    }

    fn write_tools(&self, tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
        body::write_tools(tools)
    }

    fn write_body(&self, tools: Option<&RawValue>, messages: &[ChatMessage]) -> serde_json::Result<Vec<u8>> {
        let effort = self.effort.as_ref().map(effort_word);
        let options = RequestOptions {
            model: &self.model,
            thinking: effort.filter(|_| self.provider == AdapterKind::DeepSeek).map(|effort| effort != NO_EFFORT),
            effort: effort.filter(|effort| self.provider != AdapterKind::DeepSeek || *effort != NO_EFFORT),
            marks_cache: self.marks_cache,
        };
        body::write_body(&options, tools, messages)
    }

    fn decoder(&self) -> Box<dyn EventDecoder> {
        // Grok leaves the tokens of its thoughts out of those of its answer.
        Box::new(PieceDecoder::new(self.provider == AdapterKind::Xai))
    }
}

/// The effort of a model that does not think.
const NO_EFFORT: &str = "none";

fn effort_word(effort: &ReasoningEffort) -> &'static str {
    match effort {
        ReasoningEffort::Zero => NO_EFFORT,
        ReasoningEffort::Minimal => "minimal",
        ReasoningEffort::Low => "low",
        ReasoningEffort::Medium => "medium",
        ReasoningEffort::High => "high",
        ReasoningEffort::XHigh => "xhigh",
        // A name has no budget.
        ReasoningEffort::Max | ReasoningEffort::Budget(_) => "max",
    }
}

/// Returns true for GPT-5.6 and later. OpenAI charges more for what these put into the cache by themselves.
fn needs_cache_marks(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("gpt") else { return false };
    let version = rest.strip_prefix('-').unwrap_or(rest).split('-').next().unwrap_or_default();
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    matches!((major.parse::<u32>(), minor.parse::<u32>()), (Ok(major), Ok(minor)) if (major, minor) >= (5, 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_marked_from_gpt_5_6_on() {
        let marked = ["gpt-5.6", "gpt-5.6-mini", "gpt-5.10", "gpt-6", "gpt-12", "gpt6", "gpt-41"];
        assert_eq!(marked.map(needs_cache_marks), marked.map(|_| true), "{marked:?}");
        let plain =
            ["gpt-4o", "gpt-4.1-mini", "gpt-5", "gpt-5.5", "gpt-5-mini", "gpt-oss-20b", "o3", "llama3.2", "a/b"];
        assert_eq!(plain.map(needs_cache_marks), plain.map(|_| false), "{plain:?}");
    }
}
