//! Models. Whatever answers a conversation with text and wishes for tools is a `Provider`.
//!
//! Invariant: knows what tools look like, never calls one.

pub mod offline;
mod failure;
mod overflow;
pub mod remote;
pub mod replay;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use serde_json::{Map, Value};

use crate::conversation::{Message, ToolUse, Usage};

/// Bytes of one answer: text, thoughts and the arguments of its calls. A longer answer is stopped. No model of today
/// writes half of it in one answer.
pub const MAX_ANSWER: usize = 8 << 20;

/// A model that can be asked.
pub trait Provider: Send + Sync {
    /// As a user names it: `provider:model`.
    fn name(&self) -> &str;

    /// The answer as it comes. The stream ends after [`StreamEvent::Done`] or an error.
    ///
    /// It asks once: whoever asks decides whether to ask again after [`LlmError::Passing`], or after a stream that
    /// ends without `Done`, which was cut off.
    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>>;

    /// How many tokens it can be shown and answer in all, if that is known.
    fn window(&self) -> Option<u64> {
        None
    }

    /// Where it is asked, if that is behind HTTP.
    fn address(&self) -> Option<&str> {
        None
    }

    /// What it costs, if that is known.
    fn price(&self) -> Option<Price> {
        None
    }
}

/// What a million tokens cost, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    /// Of the input, what the provider had in its cache.
    pub cached: f64,
}

impl Price {
    /// What these tokens cost, in US dollars.
    #[allow(clippy::cast_precision_loss, reason = "no talk has so many tokens that it matters")]
    pub fn of(&self, usage: &Usage) -> f64 {
        let new = usage.input.saturating_sub(usage.cached) as f64;
        (new * self.input + usage.cached as f64 * self.cached + usage.output as f64 * self.output) / 1_000_000.0
    }
}

/// What a model is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// The same bytes throughout a session in one mode, so that providers' caches hold.
    pub system: Arc<str>,
    pub tools: Arc<[OfferedTool]>,
    pub messages: Vec<Arc<Message>>,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    pub name: String,
    pub description: String,
    pub schema: Arc<Map<String, Value>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    Text(String),
    Thought(String),
    ToolUse(ToolUse),
    Done { stop: ModelStop, usage: Usage },
}

impl StreamEvent {
    /// The bytes that it adds to an answer.
    pub fn size(&self) -> usize {
        match self {
            StreamEvent::Text(text) | StreamEvent::Thought(text) => text.len(),
            StreamEvent::ToolUse(call) => call.name.len() + size_of_json(&call.arguments),
            StreamEvent::Done { .. } => 0,
        }
    }
}

/// About as many bytes as the value takes as JSON, without writing it.
fn size_of_json(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + size_of_json(item)).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + 4 + size_of_json(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}

/// Why a model stopped talking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelStop {
    /// It has said what it wanted to say, or waits for its tools.
    Finished,
    /// Its answer reached the longest it may be.
    Length,
    /// It declines to answer.
    Refused,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LlmError {
    #[error("the model `{model}` cannot be used: {reason}")]
    Unusable { model: String, reason: String },
    #[error("the model `{model}` failed: {reason}")]
    Failed { model: String, reason: String },
    /// It may go better if it is asked again, after `retry_after` if it said so.
    #[error("the model `{model}` failed: {reason}")]
    Transient { model: String, reason: String, retry_after: Option<Duration> },
    /// Its answer is longer than [`MAX_ANSWER`], and was stopped.
    #[error("the answer of the model `{model}` was stopped because it is longer than {} MiB", MAX_ANSWER >> 20)]
    AnswerTooLong { model: String },
    /// It was shown more than fits into its window.
    #[error("this is more than the model `{model}` can be shown: {reason}")]
    Overflow { model: String, reason: String },
}

/// What the user says about models and providers.
#[derive(Debug, Clone, Default)]
pub struct ModelRegistry {
    /// Further providers, and other addresses for known ones.
    pub providers: BTreeMap<String, ProviderEndpoint>,
    /// By `provider:model`.
    pub facts: BTreeMap<String, ModelInfo>,
}

/// Where a provider is. A new one speaks the OpenAI dialect, a known one its own.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderEndpoint {
    pub base_url: String,
    /// The name of the environment variable that holds the key.
    pub key: Option<String>,
}

/// What is known about a model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ModelInfo {
    pub window: Option<u64>,
    pub price: Option<Price>,
}

/// What somebody who chooses a provider has to know.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderInfo {
    pub name: String,
    pub base: String,
    /// The environment variable that holds its key, if it needs one.
    pub key: Option<String>,
}

impl ModelRegistry {
    /// Every provider that a model can be named with: ours, and the user's.
    pub fn providers(&self) -> Vec<ProviderInfo> {
        let mut known = remote::builtin_providers();
        for (name, address) in &self.providers {
            match known.iter_mut().find(|facts| facts.name == *name) {
                Some(facts) => {
                    facts.base.clone_from(&address.base_url);
                    facts.key = address.key.clone().or(facts.key.take());
                }
                None => known.push(ProviderInfo {
                    name: name.clone(),
                    base: address.base_url.clone(),
                    key: address.key.clone(),
                }),
            }
        }
        known
    }

    /// The model a user names: `offline`, `replay:FILE`, or `provider:model` with what `variable` finds in the
    /// environment.
    pub fn provider(
        &self,
        name: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Arc<dyn Provider>, LlmError> {
        if name == "offline" {
            return Ok(Arc::new(offline::OfflineProvider));
        }
        match name.strip_prefix("replay:") {
            Some(file) => Ok(Arc::new(replay::ReplayProvider::new(Path::new(file))?)),
            None => Ok(Arc::new(remote::HttpProvider::new(name, self, variable)?)),
        }
    }
}
