//! Defines the input, the limits and the end of a turn.

use serde::{Deserialize, Serialize};

use super::Event;
use crate::conversation::{Content, MessagePart, Usage};

/// Limits of a turn that does not end by itself.
#[derive(Debug, Clone, Copy)]
pub struct TurnLimits {
    /// Maximum requests to the model in one turn.
    pub requests: usize,
    /// How often the same call may fail in one turn before the turn ends.
    pub same_failure: usize,
    /// Maximum tokens of all requests and answers of one turn.
    pub tokens: u64,
}

impl Default for TurnLimits {
    fn default() -> Self {
        Self { requests: 100, same_failure: 3, tokens: 5_000_000 }
    }
}

/// The input of a turn.
#[derive(Debug, Default)]
pub struct TurnInput {
    pub prompt: Vec<Content>,
    /// Events of earlier decisions about the prompt: calls that no model made.
    pub decided: Vec<Event>,
    /// The first answer, if it is already known. If empty, the model is asked for it.
    pub first: Vec<MessagePart>,
}

impl From<Vec<Content>> for TurnInput {
    fn from(prompt: Vec<Content>) -> Self {
        Self { prompt, ..Self::default() }
    }
}

/// The stop reason and the usage of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    pub ending: StopReason,
    pub usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum StopReason {
    /// The model finished its answer.
    EndTurn,
    /// The answer reached its maximum length.
    MaxTokens,
    /// The turn reached its limit of requests or tokens, or the same call failed too often.
    Exhausted {
        why: String,
    },
    /// The model declined to answer.
    Refusal,
    Cancelled,
    /// A call did not get the consent it needed, and the model then ended the turn.
    CallRefused {
        tool: String,
    },
    Failed {
        why: String,
        /// The HTTP status with which the provider rejected the request. Not stored.
        #[serde(skip)]
        status: Option<u16>,
    },
}

impl StopReason {
    /// Returns the end of a turn that failed without an HTTP status.
    pub fn failure(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), status: None }
    }
}
