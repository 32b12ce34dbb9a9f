//! Questions that a service, or an agent outside, has for the user: some fields to fill in, or a page to open.
//!
//! Invariant: a port only. Whoever asks is named in the question, and no answer is ever made up.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

/// Whoever brings a question to the user of a session.
pub trait Elicitor: Send + Sync {
    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, Elicited>;
}

/// A question for the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    /// The service or the agent that asks.
    pub by: String,
    /// The call in which it asks, if it is known.
    pub call: Option<Arc<str>>,
    pub message: String,
    pub wanted: Wanted,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// Fields, as a flat JSON Schema of type `object`.
    Fields(Map<String, Value>),
    /// Something the user does on a page.
    Page { id: String, url: String },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Elicited {
    /// What the user filled in; empty for a page.
    Accepted(Map<String, Value>),
    Declined,
    /// The user closed the question without an answer.
    Dismissed,
    /// There is no one to ask.
    Unheard,
}
