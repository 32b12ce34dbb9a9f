//! Asks models. A `Provider` answers a conversation with text and tool calls.
//!
//! Invariant: knows the specs of tools and never calls one.

pub mod offline;
mod chat_history;
mod dialect;
mod effort;
mod failure;
mod known_models;
mod known_providers;
mod media;
mod model_policy;
mod overflow;
mod queue;
#[cfg(any(test, fuzzing))]
mod reference;
pub mod remote;
pub mod replay;
mod request_rules;
mod tool_schema;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use serde_json::{Map, Value};

use crate::conversation::{Message, ToolUse, Usage};
use crate::ids::ModelRef;
use effort::split_effort;

#[cfg(any(test, fuzzing))]
pub use dialect::decode_pieces;
pub use model_policy::{AllowedModels, AllowedProviders, ModelPolicy};
pub use queue::{RequestLimits, RequestOrigin, RequestQueues};

/// Maximum bytes of one answer: text, thoughts and the arguments of its calls. A longer answer is stopped. No current
/// model writes half as much in one answer.
pub const MAX_ANSWER: usize = 8 << 20;

/// A model that answers requests.
pub trait Provider: Send + Sync {
    /// Returns the name that users write.
    fn name(&self) -> &ModelRef;

    /// Streams the answer. The stream ends after [`StreamEvent::Done`] or an error.
    ///
    /// Sends one request and does not retry. The caller decides whether to retry after [`LlmError::Transient`],
    /// or after a stream without `Done`, which was cut off.
    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>>;

    /// Returns the size of the model's window in tokens, for request and answer together. `None` if unknown.
    fn window(&self) -> Option<u64> {
        None
    }

    /// Returns the base URL. `None` if the model is not reached over HTTP.
    fn address(&self) -> Option<&str> {
        None
    }

    /// Returns the price of the model. `None` if unknown.
    fn price(&self) -> Option<Price> {
        None
    }

    /// Returns whether requests repeat the thoughts of earlier answers.
    fn earlier_thoughts(&self) -> EarlierThoughts {
        EarlierThoughts::LeftOut
    }

    /// Returns the same model for the requests of one session, which then take turns with those of others. `None` if
    /// requests to the model never wait.
    fn for_origin(&self, _origin: &RequestOrigin) -> Option<Arc<dyn Provider>> {
        None
    }
}

/// What requests to a model do with the thoughts of its earlier answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierThoughts {
    LeftOut,
    Repeated,
}

/// The price of a million tokens, in US dollars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    /// Input tokens that the provider read from its cache.
    pub cached: f64,
}

impl Price {
    /// Returns the price of these tokens, in US dollars.
    #[allow(clippy::cast_precision_loss, reason = "no conversation has enough tokens to lose precision")]
    pub fn of(&self, usage: &Usage) -> f64 {
        let new = usage.input.saturating_sub(usage.cached) as f64;
        (new * self.input + usage.cached as f64 * self.cached + usage.output as f64 * self.output) / 1_000_000.0
    }

    /// Returns the higher price of each kind of tokens.
    fn highest(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cached: self.cached.max(other.cached),
        }
    }
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// Byte for byte the same throughout a session in one mode, so that provider caches apply.
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

impl OfferedTool {
    /// Returns the tool with a schema that every provider takes.
    pub fn new(name: String, mut description: String, mut schema: Arc<Map<String, Value>>) -> Self {
        if tool_schema::is_refused(&schema)
            && let Some(removed) = tool_schema::adapt(Arc::make_mut(&mut schema))
        {
            description.push_str(&format!("\n\nThe arguments must also match this JSON schema: {removed}"));
        }
        Self { name, description, schema }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The request waits for its turn, with this many requests in the queue. Comes before the answer, if at all.
    Queued {
        waiting: usize,
    },
    Text(String),
    Thought(String),
    ToolUse(ToolUse),
    /// A part of the answer arrived that no other event has yet: `bytes` of a call, or tokens that the provider states.
    Progress {
        bytes: usize,
        usage: Option<Usage>,
    },
    Done {
        stop: ModelStop,
        usage: Usage,
    },
}

impl StreamEvent {
    /// Returns the number of bytes that the event adds to an answer.
    pub fn size(&self) -> usize {
        match self {
            StreamEvent::Text(text) | StreamEvent::Thought(text) => text.len(),
            StreamEvent::ToolUse(call) => {
                let signature = call.signature.as_ref().map_or(0, |signature| signature.value.len());
                call.name.len() + size_of_json(&call.arguments) + signature
            }
            StreamEvent::Progress { .. } | StreamEvent::Done { .. } | StreamEvent::Queued { .. } => 0,
        }
    }
}

/// Estimates the bytes of the value as JSON, without serializing it.
fn size_of_json(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + size_of_json(item)).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + 4 + size_of_json(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}

/// The reason why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelStop {
    /// The answer is complete, or the model waits for its tools.
    Finished,
    /// The answer reached its maximum length.
    Length,
    /// The model declined to answer.
    Refused,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LlmError {
    #[error("the model `{model}` cannot be used: {reason}")]
    Unusable { model: String, reason: String },
    /// The file that records or replays the model cannot be used.
    #[error("the model `{model}` cannot be used: {reason}")]
    UnusableRecording { model: String, reason: String },
    /// A managed setting does not allow the model. `setting` names it.
    #[error("the model `{model}` cannot be used: {reason}")]
    NotAllowed { model: String, reason: String, setting: String },
    /// `note` adds why no key was found elsewhere; it is empty or begins with a separator.
    #[error("the model `{model}` cannot be used: set {variable} in the environment, or run `skein configure`{note}")]
    MissingKey { model: String, variable: String, note: String },
    #[error("the model `{model}` failed: {reason}")]
    Failed { model: String, reason: String },
    /// The provider rejected the request with this HTTP status. A retry would fail again.
    #[error("the model `{model}` failed: {reason}")]
    Rejected { model: String, status: u16, reason: String },
    /// A retry may succeed, after `retry_after` if the provider gave a time.
    #[error("the model `{model}` failed: {reason}")]
    Transient { model: String, reason: String, retry_after: Option<Duration> },
    /// The provider had too many requests. The next request waits in the queue until the provider admits more.
    #[error("the model `{model}` failed: {reason}")]
    RateLimited { model: String, reason: String, retry_after: Option<Duration> },
    /// The answer is longer than [`MAX_ANSWER`] and was stopped.
    #[error("the answer of the model `{model}` was stopped because it is longer than {} MiB", MAX_ANSWER >> 20)]
    AnswerTooLong { model: String },
    /// A limit of the session is reached, so the request was not sent.
    #[error("{reason}")]
    LimitReached { reason: String },
    /// The request does not fit into the model's window.
    #[error("this is more than the model `{model}` can be shown: {reason}")]
    Overflow { model: String, reason: String },
}

impl LlmError {
    /// Returns the HTTP status with which the provider rejected the request. `None` for other errors.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Rejected { status, .. } => Some(*status),
            Self::Unusable { .. }
            | Self::UnusableRecording { .. }
            | Self::NotAllowed { .. }
            | Self::MissingKey { .. }
            | Self::Failed { .. }
            | Self::Transient { .. }
            | Self::RateLimited { .. }
            | Self::AnswerTooLong { .. }
            | Self::LimitReached { .. }
            | Self::Overflow { .. } => None,
        }
    }
}

/// The models and providers in the user's settings.
#[derive(Debug, Clone, Default)]
pub struct ModelRegistry {
    /// Additional providers, and other addresses for built-in ones.
    pub providers: BTreeMap<String, ProviderEndpoint>,
    pub facts: BTreeMap<ModelRef, ModelInfo>,
    /// The queues of requests, which all models of the process share.
    pub queues: Arc<RequestQueues>,
    /// The models that may be used.
    pub policy: ModelPolicy,
}

/// The address of a provider. A provider from the settings uses the OpenAI dialect, a built-in one its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProviderEndpoint {
    /// `None` for a built-in provider at its own address.
    pub base_url: Option<String>,
    /// The name of the environment variable that holds the key.
    pub key: Option<String>,
    pub limits: RequestLimits,
}

/// Known properties of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ModelInfo {
    pub window: Option<u64>,
    pub price: Option<Price>,
}

/// A provider in the list that users choose from.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderInfo {
    pub name: String,
    pub base: String,
    /// The environment variable that holds its key. `None` if it needs no key.
    pub key: Option<String>,
}

impl ModelRegistry {
    /// Returns every provider that a model name may use: the built-in ones and those of the user.
    pub fn providers(&self) -> Vec<ProviderInfo> {
        let mut known = known_providers::builtin_providers();
        for (name, address) in &self.providers {
            match known.iter_mut().find(|facts| facts.name == *name) {
                Some(facts) => {
                    facts.base = address.base_url.clone().unwrap_or_else(|| std::mem::take(&mut facts.base));
                    facts.key = address.key.clone().or(facts.key.take());
                }
                None => known.push(ProviderInfo {
                    name: name.clone(),
                    base: address.base_url.clone().unwrap_or_default(),
                    key: address.key.clone(),
                }),
            }
        }
        known
    }

    /// Returns what is known about a model: the user's facts, then the published ones. A provider at an address of the
    /// user has its own prices. The user's prices do not count if an administrator limits the cost. What is not known
    /// about a model with an effort is that about the model without one.
    fn info(&self, name: &ModelRef, own_address: bool) -> ModelInfo {
        let plain = match name {
            ModelRef::Hosted { provider, model } => {
                ModelRef::Hosted { provider: provider.clone(), model: split_effort(model).1.to_owned() }
            }
            other => other.clone(),
        };
        let user = self.facts.get(name).or(self.facts.get(&plain)).copied().unwrap_or_default();
        let published = match &plain {
            ModelRef::Hosted { provider, model } if !own_address => known_models::published(provider, model),
            _ => None,
        };
        let published = published.unwrap_or_default();
        let price = match self.policy.fixes_prices() {
            true => self.policy.price_of(name, &plain, published.price),
            false => user.price.or(published.price),
        };
        ModelInfo { window: user.window.or(published.window), price }
    }

    /// Returns the model with this name. `variable` looks up the environment. Fails if the provider is unknown, its key
    /// is missing or the file cannot be read, and for external agents: only a session can ask them.
    pub fn provider(
        &self,
        name: &ModelRef,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Arc<dyn Provider>, LlmError> {
        match name {
            ModelRef::Offline => Ok(Arc::new(offline::OfflineProvider)),
            ModelRef::Replay(file) => Ok(Arc::new(replay::ReplayProvider::new(file)?)),
            ModelRef::External(_) => {
                let reason = "an external agent can only be the model of a session".to_owned();
                Err(LlmError::Unusable { model: name.to_string(), reason })
            }
            ModelRef::Hosted { .. } | ModelRef::Malformed(_) => {
                Ok(Arc::new(remote::HttpProvider::new(name, self, variable)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_has_a_schema_that_every_provider_takes() {
        let taken = json!({"type": "object", "properties": {}});
        let refused = json!({"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]});
        let more = "Reads.\n\nThe arguments must also match this JSON schema: {\"anyOf\":[{\"required\":[\"a\"]}]}";
        for (given, description) in [(taken.clone(), "Reads."), (json!({"type": "object"}), "Reads."), (refused, more)]
        {
            let Value::Object(schema) = given else { panic!("a schema is an object") };
            let tool = OfferedTool::new("read".to_owned(), "Reads.".to_owned(), Arc::new(schema));
            assert_eq!(Value::Object(tool.schema.as_ref().clone()), taken);
            assert_eq!(tool.description, description);
        }
    }
}
