//! OpenAI's chat completions, which most providers speak.
//!
//! Invariant: requests are those of genai, which a test compares byte by byte, unless genai's would be refused.

mod body;
mod call_extras;
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
    tool_effort: ToolEffort,
}

/// What a model takes as its effort in a request with tools.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ToolEffort {
    /// The effort of a request without tools.
    Same,
    /// No such field.
    LeftOut,
    /// `none`, also if the user states no effort.
    Zero,
}

impl Completions {
    pub(super) fn new(provider: AdapterKind, model: &ModelName) -> Self {
        let (effort, model) = split_effort(model);
        let version = gpt_version(model).filter(|_| provider == AdapterKind::OpenAI);
        let (marks_cache, tool_effort) = (needs_cache_marks(version), tool_effort(version));
        Self { provider, model: model.to_owned(), effort, marks_cache, tool_effort }
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
        let effort = match (tools, self.tool_effort) {
            (None, _) | (_, ToolEffort::Same) => self.effort.as_ref().map(effort_word),
            (Some(_), ToolEffort::LeftOut) => None,
            (Some(_), ToolEffort::Zero) => Some(NO_EFFORT),
        };
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

/// Returns the version of a GPT model. `None` for other models.
fn gpt_version(name: &str) -> Option<(u32, u32)> {
    let rest = name.strip_prefix("gpt")?;
    let version = rest.strip_prefix('-').unwrap_or(rest).split('-').next().unwrap_or_default();
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns true for GPT-5.6 and later. OpenAI charges more for what these put into the cache by themselves.
fn needs_cache_marks(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= (5, 6))
}

/// Returns what a GPT model takes. From GPT-5.4 on, OpenAI refuses tools with an effort in this dialect. From GPT-5.6
/// on, it also refuses them without one, except for `none`.
fn tool_effort(version: Option<(u32, u32)>) -> ToolEffort {
    match version {
        Some(version) if version >= (5, 6) => ToolEffort::Zero,
        Some(version) if version >= (5, 4) => ToolEffort::LeftOut,
        Some(_) | None => ToolEffort::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_marked_from_gpt_5_6_on() {
        let needs_cache_marks = |name| needs_cache_marks(gpt_version(name));
        let marked = ["gpt-5.6", "gpt-5.6-mini", "gpt-5.10", "gpt-6", "gpt-12", "gpt6", "gpt-41"];
        assert_eq!(marked.map(needs_cache_marks), marked.map(|_| true), "{marked:?}");
        let plain =
            ["gpt-4o", "gpt-4.1-mini", "gpt-5", "gpt-5.5", "gpt-5-mini", "gpt-oss-20b", "o3", "llama3.2", "a/b"];
        assert_eq!(plain.map(needs_cache_marks), plain.map(|_| false), "{plain:?}");
    }

    #[test]
    fn gpt_gets_tools_with_an_effort_that_it_takes() {
        let effort = |provider, model: &str, has_tools: bool| {
            let dialect = Completions::new(provider, &ModelName::from(model));
            let tools = has_tools.then(|| dialect.write_tools(&[]).unwrap());
            let body = dialect.write_body(tools.as_deref(), &[]).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            body.get("reasoning_effort").map(|effort| effort.as_str().unwrap().to_owned())
        };
        for (model, with_tools, without) in [
            ("gpt-5.2-high", Some("high"), Some("high")),
            ("gpt-5.4-high", None, Some("high")),
            ("gpt-5.5", None, None),
            ("gpt-5.6", Some("none"), None),
            ("gpt-5.6-mini-low", Some("none"), Some("low")),
            ("gpt-6-none", Some("none"), Some("none")),
        ] {
            assert_eq!(effort(AdapterKind::OpenAI, model, true).as_deref(), with_tools, "{model} with tools");
            assert_eq!(effort(AdapterKind::OpenAI, model, false).as_deref(), without, "{model} without tools");
        }
        assert_eq!(effort(AdapterKind::Groq, "gpt-5.6-high", true).as_deref(), Some("high"), "another provider");
    }
}
