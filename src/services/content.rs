//! Converts MCP types to Skein's types. `adapter` converts in the other direction.

use rmcp::model::{CallToolResult, ContentBlock, Tool};
use serde::Serialize;
use serde_json::Value;

use crate::conversation::Content;
use crate::ids::ToolName;
use crate::tool::{ToolHints, ToolOutcome, ToolSpec};

pub(super) fn spec(tool: Tool) -> ToolSpec {
    let annotations = tool.annotations.unwrap_or_default();
    ToolSpec {
        name: ToolName::new(tool.name.into_owned()),
        title: tool.title.or(annotations.title),
        description: tool.description.map(std::borrow::Cow::into_owned).unwrap_or_default(),
        input_schema: tool.input_schema,
        output_schema: tool.output_schema,
        hints: ToolHints {
            read_only: annotations.read_only_hint,
            destructive: annotations.destructive_hint,
            idempotent: annotations.idempotent_hint,
            open_world: annotations.open_world_hint,
        },
        meta: tool.meta.and_then(|meta| serde_json::to_value(meta).ok()),
    }
}

pub(super) fn outcome(result: CallToolResult) -> ToolOutcome {
    let annotations = |(at, block): (usize, &ContentBlock)| {
        let annotations = match block {
            ContentBlock::Text(text) => text.annotations.as_ref(),
            ContentBlock::Image(image) => image.annotations.as_ref(),
            ContentBlock::Audio(audio) => audio.annotations.as_ref(),
            // Links and resources keep their annotations in their JSON.
            _ => None,
        };
        annotations.map(|annotations| (at, json(annotations)))
    };
    ToolOutcome {
        structured: result.structured_content,
        is_error: result.is_error.unwrap_or(false),
        refused: false,
        annotations: result.content.iter().enumerate().filter_map(annotations).collect(),
        content: result.content.into_iter().map(content).collect(),
        meta: result.meta.and_then(|meta| serde_json::to_value(meta).ok()),
    }
}

fn content(block: ContentBlock) -> Content {
    match block {
        ContentBlock::Text(text) => Content::Text(text.text),
        ContentBlock::Image(image) => Content::Image { mime: image.mime_type, data: image.data },
        ContentBlock::Audio(audio) => Content::Audio { mime: audio.mime_type, data: audio.data },
        ContentBlock::ResourceLink(link) => Content::Link(json(&link)),
        ContentBlock::Resource(resource) => Content::Resource(json(&resource)),
        // The enum is non-exhaustive; unknown content is passed on as JSON text.
        other => Content::Text(json(&other).to_string()),
    }
}

/// Converts an MCP value to JSON. MCP values are plain data, so this cannot fail.
pub(super) fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Returns the tools in a list of a server, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub fn read_tools(list: &[u8]) -> Vec<ToolSpec> {
    let list = serde_json::from_slice::<rmcp::model::ListToolsResult>(list);
    list.map(|list| list.tools.into_iter().map(spec).collect()).unwrap_or_default()
}

/// Returns the result of a call, for the fuzzer. `None` if it is not a result.
#[cfg(any(test, fuzzing))]
pub fn read_outcome(result: &[u8]) -> Option<ToolOutcome> {
    serde_json::from_slice(result).ok().map(outcome)
}
