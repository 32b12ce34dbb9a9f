//! The parts of an agent's messages, before a protocol writes them.

use serde_json::Value;

use crate::conversation::{Content, Message, MessagePart, Role, ToolResult};

/// A part of a message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) enum RunPart {
    Text(String),
    /// An image or a sound, in base64.
    Media {
        mime: String,
        data: String,
    },
    Thought(String),
    Call {
        tool: String,
        arguments: Value,
    },
    CallResult {
        tool: String,
        text: String,
        is_error: bool,
    },
}

impl RunPart {
    /// Returns whether clients get the part while the model writes it.
    pub(super) fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Returns about the bytes of memory of its content.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Text(text) | Self::Thought(text) => text.len(),
            Self::Media { mime, data } => mime.len() + data.len(),
            Self::Call { tool, arguments } => tool.len() + arguments.to_string().len(),
            Self::CallResult { tool, text, .. } => tool.len() + text.len(),
        }
    }

    /// Converts a message of a model, or the results of its calls. Empty for a prompt.
    pub(super) fn all_of(message: &Message) -> Vec<Self> {
        if message.is_prompt() {
            return Vec::new();
        }
        let part = |part: &MessagePart| match part {
            MessagePart::Content(content) if message.role == Role::Assistant => Self::of_content(content),
            // Text that Skein adds is for the model.
            MessagePart::Content(_) => None,
            MessagePart::Thought(text) => Some(Self::Thought(text.clone())),
            MessagePart::ToolUse(call) => {
                Some(Self::Call { tool: call.name.clone(), arguments: call.arguments.clone() })
            }
            MessagePart::ToolResult(result) => Some(Self::of_result(result)),
        };
        message.parts.iter().filter_map(part).collect()
    }

    fn of_content(content: &Content) -> Option<Self> {
        match content {
            Content::Text(text) if text.is_empty() => None,
            Content::Text(text) => Some(Self::Text(text.clone())),
            Content::Image { mime, data } | Content::Audio { mime, data } => {
                Some(Self::Media { mime: mime.clone(), data: data.clone() })
            }
            Content::Resource(_) | Content::Link(_) => Some(Self::Text(content.to_plain_text())),
            Content::Injected(_) => None,
        }
    }

    fn of_result(result: &ToolResult) -> Self {
        let text: Vec<_> = result.content.iter().map(Content::to_plain_text).collect();
        Self::CallResult { tool: result.name.clone(), text: text.join("\n"), is_error: result.is_error }
    }
}
