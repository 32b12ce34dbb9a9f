//! Writes the body of a request. Only the messages are new in each request of a turn.

use std::borrow::Cow;

use genai::chat::{Binary, BinarySource, ChatMessage, ChatRole, ContentPart};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::Anthropic;
use super::model::ThinkingMode;
use crate::llm::OfferedTool;
use crate::llm::dialect::{is_cached, join_texts};

/// Returns the body of a request as JSON.
pub(super) fn write_body(
    model: &Anthropic,
    tools: Option<&RawValue>,
    messages: &[ChatMessage],
) -> serde_json::Result<Vec<u8>> {
    // The tools come before the messages, which change: providers cache the beginning of a request.
    let body = ClaudeRequest {
        model: &model.model,
        stream: true,
        system: messages.iter().filter_map(system_part).collect(),
        tools,
        messages: messages.iter().filter_map(message_entry).collect(),
        thinking: model.reasoning.thinking.filter(|thinking| tools.is_none() || !thinking.has_budget()),
        output_config: model.reasoning.effort.map(|effort| OutputConfig { effort }),
        max_tokens: model.max_tokens,
    };
    serde_json::to_vec(&body)
}

#[derive(Serialize)]
struct ClaudeRequest<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<ClaudePart<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    messages: Vec<ClaudeMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<ThinkingMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    max_tokens: u32,
}

#[derive(Serialize)]
struct OutputConfig {
    effort: &'static str,
}

#[derive(Serialize)]
struct ClaudeMessage<'a> {
    role: &'static str,
    content: ClaudeContent<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ClaudeContent<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<ClaudePart<'a>>),
}

/// A part, and whether the provider caches the request up to it.
#[derive(Serialize)]
struct ClaudePart<'a> {
    #[serde(flatten)]
    part: ClaudeBlock<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheMark>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ClaudeBlock<'a> {
    Text { text: Cow<'a, str> },
    Image { source: ImageSource<'a> },
    ToolUse { id: &'a str, name: &'a str, input: &'a Value },
    ToolResult { content: &'a str, tool_use_id: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ImageSource<'a> {
    Base64 { media_type: &'a str, data: &'a str },
}

#[derive(Serialize)]
struct CacheMark {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct ClaudeTool<'a> {
    name: &'a str,
    input_schema: &'a Map<String, Value>,
    description: &'a str,
}

pub(super) fn write_tools(tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
    let entry = |tool: &'_ OfferedTool| -> serde_json::Result<Box<RawValue>> {
        to_raw_value(&ClaudeTool { name: &tool.name, input_schema: &tool.schema, description: &tool.description })
    };
    to_raw_value(&tools.iter().map(entry).collect::<serde_json::Result<Vec<_>>>()?)
}

/// Returns the text of a system message. `None` if the message is another one.
fn system_part(message: &ChatMessage) -> Option<ClaudePart<'_>> {
    let texts = message.content.texts();
    if message.role != ChatRole::System || texts.is_empty() {
        return None;
    }
    let mut part = ClaudePart::text(join_texts(&texts));
    mark(std::slice::from_mut(&mut part), message);
    Some(part)
}

fn message_entry(message: &ChatMessage) -> Option<ClaudeMessage<'_>> {
    let role = match message.role {
        ChatRole::System => return None,
        ChatRole::User | ChatRole::Tool => "user",
        ChatRole::Assistant => "assistant",
    };
    let mut parts: Vec<_> = match message.role {
        ChatRole::User if message.content.is_text_only() => {
            vec![ClaudePart::text(join_texts(&message.content.texts()))]
        }
        _ => message.content.parts().iter().filter_map(part_item).collect(),
    };
    mark(&mut parts, message);
    let content = match parts.as_mut_slice() {
        [ClaudePart { part: ClaudeBlock::Text { text }, cache_control: None }]
            if message.role == ChatRole::Assistant || message.content.is_text_only() =>
        {
            ClaudeContent::Text(std::mem::take(text))
        }
        _ => ClaudeContent::Parts(parts),
    };
    Some(ClaudeMessage { role, content })
}

/// Lets the provider cache the request up to the last of the parts, if it should up to the message.
fn mark(parts: &mut [ClaudePart<'_>], message: &ChatMessage) {
    if is_cached(message)
        && let Some(last) = parts.last_mut()
    {
        last.cache_control = Some(CacheMark { kind: "ephemeral" });
    }
}

fn part_item(part: &ContentPart) -> Option<ClaudePart<'_>> {
    let part = match part {
        ContentPart::Text(text) => ClaudeBlock::Text { text: Cow::Borrowed(text) },
        ContentPart::Binary(binary) => ClaudeBlock::Image { source: image_source(binary)? },
        ContentPart::ToolCall(call) => {
            ClaudeBlock::ToolUse { id: &call.call_id, name: &call.fn_name, input: &call.fn_arguments }
        }
        ContentPart::ToolResponse(result) => {
            ClaudeBlock::ToolResult { content: result.content.as_str(), tool_use_id: &result.call_id }
        }
        // Skein repeats no thoughts to this provider.
        _ => return None,
    };
    Some(ClaudePart { part, cache_control: None })
}

/// Returns the data of an image. The provider takes no other media here.
fn image_source(binary: &Binary) -> Option<ImageSource<'_>> {
    match &binary.source {
        BinarySource::Base64(data) if binary.is_image() => {
            Some(ImageSource::Base64 { media_type: &binary.content_type, data })
        }
        BinarySource::Base64(_) | BinarySource::Url(_) => None,
    }
}

impl<'a> ClaudePart<'a> {
    fn text(text: Cow<'a, str>) -> Self {
        Self { part: ClaudeBlock::Text { text }, cache_control: None }
    }
}
