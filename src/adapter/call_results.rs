//! Converts the results of a service's calls to those of MCP, and its failures to errors.

use rmcp::ErrorData;
use rmcp::model::{Annotations, CallToolResult, ContentBlock};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::conversation::Content;
use crate::tool::{ServiceError, ToolOutcome};

/// Converts unchanged MCP JSON of a service to a type of rmcp. `None` if it does not fit.
pub(super) fn parse<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

pub(super) fn refusal(error: &ServiceError) -> ErrorData {
    match error {
        ServiceError::Refused { .. } | ServiceError::NotPermitted { .. } => {
            ErrorData::invalid_params(error.to_string(), None)
        }
        ServiceError::Cancelled
        | ServiceError::Died { .. }
        | ServiceError::TimedOut { .. }
        | ServiceError::NotStarted { .. }
        | ServiceError::CircuitOpen { .. } => ErrorData::internal_error(error.to_string(), None),
    }
}

pub(super) fn result(outcome: ToolOutcome) -> CallToolResult {
    let annotations = |at: usize| outcome.annotations.get(&at).and_then(parse);
    let content = outcome.content.iter().cloned().enumerate();
    let content = content.map(|(at, content)| with_annotations(block(content), annotations(at))).collect();
    let mut result = if outcome.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = outcome.structured;
    result.meta = outcome.meta.and_then(|meta| serde_json::from_value(meta).ok());
    result
}

/// Adds the annotations of the service to a part of a result. Links and resources contain their own.
fn with_annotations(mut block: ContentBlock, annotations: Option<Annotations>) -> ContentBlock {
    match &mut block {
        ContentBlock::Text(text) => text.annotations = annotations,
        ContentBlock::Image(image) => image.annotations = annotations,
        ContentBlock::Audio(audio) => audio.annotations = annotations,
        _ => {}
    }
    block
}

fn block(content: Content) -> ContentBlock {
    match content {
        Content::Text(text) | Content::Injected(text) => ContentBlock::text(text),
        Content::Image { mime, data } => ContentBlock::image(data, mime),
        Content::Audio { mime, data } => ContentBlock::audio(data, mime),
        Content::Link(value) => match parse(&value) {
            Some(link) => ContentBlock::ResourceLink(link),
            None => ContentBlock::text(value.to_string()),
        },
        Content::Resource(value) => match parse(&value) {
            Some(resource) => ContentBlock::Resource(resource),
            None => ContentBlock::text(value.to_string()),
        },
    }
}
