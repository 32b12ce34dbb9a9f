//! The one vocabulary for what is said between people, models and tools.
//!
//! Invariant: values only; no IO, no async, no protocol's own types.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One piece of a message or of a tool's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Text(String),
    /// Base64 data.
    Image {
        mime: String,
        data: String,
    },
    /// Base64 data.
    Audio {
        mime: String,
        data: String,
    },
    /// An embedded resource, in MCP's JSON.
    Resource(Value),
    /// A link to a resource, in MCP's JSON.
    Link(Value),
}

impl Content {
    pub fn text(text: impl Into<String>) -> Self {
        Content::Text(text.into())
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Content::Text(text) => Some(text),
            Content::Image { .. } | Content::Audio { .. } | Content::Resource(_) | Content::Link(_) => None,
        }
    }
}
