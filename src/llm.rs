//! Models. Whatever answers a conversation with text and wishes for tools is a `Provider`.
//!
//! Invariant: knows what tools look like, never calls one.

pub mod offline;
mod overflow;
pub mod remote;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use serde_json::{Map, Value};

use crate::conversation::{Message, ToolUse, Usage};

/// A model that can be asked.
pub trait Provider: Send + Sync {
    /// As a user names it: `provider:model`.
    fn name(&self) -> &str;

    /// The answer as it comes. The stream ends after [`StreamEvent::Done`] or an error.
    ///
    /// It asks once: whoever asks decides whether to ask again after [`LlmError::Passing`], or after a stream that
    /// ends without `Done`, which was cut off.
    fn stream(&self, request: Request) -> BoxStream<'_, Result<StreamEvent, LlmError>>;

    /// How many tokens it can be shown and answer in all, if that is known.
    fn window(&self) -> Option<u64> {
        None
    }
}

/// What a model is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
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
    Passing { model: String, reason: String, retry_after: Option<Duration> },
    /// It was shown more than fits into its window.
    #[error("this is more than the model `{model}` can be shown: {reason}")]
    Overflow { model: String, reason: String },
}

/// The model a user names: `offline`, or `provider:model` with what `variable` finds in the environment.
pub fn provider(name: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Arc<dyn Provider>, LlmError> {
    if name == "offline" {
        return Ok(Arc::new(offline::Offline));
    }
    Ok(Arc::new(remote::Remote::new(name, variable)?))
}
