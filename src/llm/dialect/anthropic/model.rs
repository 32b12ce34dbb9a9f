//! Knows what Anthropic's models take, by their names.

use genai::chat::ReasoningEffort;
use serde::Serialize;

/// The fields of a request that control how a model thinks.
#[derive(Default)]
pub(super) struct ReasoningOptions {
    pub(super) thinking: Option<ThinkingMode>,
    pub(super) effort: Option<&'static str>,
}

/// How a model thinks before it answers.
#[derive(Clone, Copy, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum ThinkingMode {
    Disabled,
    /// The model decides.
    Adaptive,
    /// Up to this number of tokens.
    Enabled {
        budget_tokens: u32,
    },
}

impl ThinkingMode {
    /// Returns true if the provider refuses the result of a call without the thoughts before it, which Skein does not
    /// keep.
    pub(super) fn has_budget(self) -> bool {
        matches!(self, Self::Enabled { .. })
    }
}

/// A family and the version of a model, such as Opus 4.8.
#[derive(Clone, Copy, PartialEq)]
enum Model {
    Opus(u32, u32),
    Sonnet(u32, u32),
    Haiku(u32, u32),
    /// Fable or Mythos.
    Story,
    /// A name without a family that is known, or of a version before 4.
    Other,
}

impl Model {
    fn parse(name: &str) -> Self {
        if name.contains("fable") || name.contains("mythos") {
            return Self::Story;
        }
        let version = |family: &str| {
            let (_, version) = name.split_once(family)?;
            let mut parts = version.split('-');
            // A longer number is a date.
            let mut number = || parts.next().filter(|part| part.len() <= 2)?.parse::<u32>().ok();
            Some((number()?, number().unwrap_or_default()))
        };
        let families = [("claude-opus-", Self::Opus as fn(u32, u32) -> Self), ("claude-sonnet-", Self::Sonnet)];
        let families = families.into_iter().chain([("claude-haiku-", Self::Haiku as fn(u32, u32) -> Self)]);
        let known = families.filter_map(|(name, family)| version(name).map(|(major, minor)| family(major, minor)));
        known.into_iter().next().unwrap_or(Self::Other)
    }

    /// Returns true if the model takes an effort.
    fn takes_effort(self) -> bool {
        match self {
            Self::Opus(major, minor) => (major, minor) >= (4, 5),
            Self::Sonnet(major, minor) => (major, minor) >= (4, 6),
            Self::Haiku(major, _) => major >= 5,
            Self::Story => true,
            Self::Other => false,
        }
    }

    /// Returns true if the model decides how long it thinks. It then also takes the effort `max`.
    fn adapts(self) -> bool {
        match self {
            Self::Opus(major, minor) => (major, minor) >= (4, 6),
            _ => self.takes_effort(),
        }
    }

    fn takes_extra_high_effort(self) -> bool {
        match self {
            Self::Opus(major, minor) => (major, minor) >= (4, 7),
            Self::Sonnet(major, _) => major >= 5,
            _ => self.takes_effort(),
        }
    }

    /// Returns true if the model thinks unless a request says otherwise.
    fn thinks_by_default(self) -> bool {
        matches!(self, Self::Opus(major, _) | Self::Sonnet(major, _) | Self::Haiku(major, _) if major >= 5)
    }
}

/// Returns the maximum length of an answer, which each request must state.
pub(super) fn max_tokens(name: &str) -> u32 {
    match Model::parse(name) {
        Model::Story => 128_000,
        Model::Opus(major, minor) if (major, minor) >= (4, 8) => 128_000,
        Model::Opus(major, minor) if (major, minor) >= (4, 5) => 64_000,
        Model::Opus(major, _) if major >= 4 => 32_000,
        Model::Haiku(major, _) if major >= 5 => 128_000,
        Model::Other if name.contains("claude-3-5") => 8192,
        Model::Other if name.contains("3-opus") || name.contains("3-haiku") => 4096,
        Model::Opus(..) | Model::Sonnet(..) | Model::Haiku(..) | Model::Other => 64_000,
    }
}

/// Returns the fields for an effort.
pub(super) fn reasoning(name: &str, effort: &ReasoningEffort) -> ReasoningOptions {
    let model = Model::parse(name);
    if matches!(effort, ReasoningEffort::Zero) {
        // Other models think only if a request asks for it.
        return ReasoningOptions {
            thinking: model.thinks_by_default().then_some(ThinkingMode::Disabled),
            effort: None,
        };
    }
    if !model.takes_effort() {
        let budget_tokens = match effort {
            ReasoningEffort::Minimal | ReasoningEffort::Low => 1024,
            ReasoningEffort::Medium => 8000,
            _ => 24_000,
        };
        return ReasoningOptions { thinking: Some(ThinkingMode::Enabled { budget_tokens }), effort: None };
    }
    let effort = match effort {
        ReasoningEffort::Minimal | ReasoningEffort::Low => "low",
        ReasoningEffort::Medium => "medium",
        ReasoningEffort::XHigh if model.takes_extra_high_effort() => "xhigh",
        ReasoningEffort::Max if model.adapts() => "max",
        _ => "high",
    };
    ReasoningOptions { thinking: model.adapts().then_some(ThinkingMode::Adaptive), effort: Some(effort) }
}
