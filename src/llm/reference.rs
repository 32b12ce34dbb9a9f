//! Asks models through the library genai, so that tests can compare Skein's own clients with it.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;
use genai::adapter::AdapterKind;
use genai::chat::{
    ChatMessage, ChatOptions, ChatRequest, ChatStreamEvent, MessageContent, StopReason, StreamEnd, Tool,
};
use genai::{Client, ModelSpec, ServiceTarget};
use serde_json::Value;

use super::OfferedTool;
use super::dialect::{AnswerEnd, AnswerEvent, AnswerEvents, ProviderError, usage_from};
use crate::network;

/// A model that genai asks.
#[derive(Clone)]
pub(super) struct Reference {
    client: Client,
    target: ServiceTarget,
}

impl Reference {
    pub(super) fn new(target: ServiceTarget) -> Self {
        let http = network::client_builder().redirect(reqwest::redirect::Policy::none()).build();
        let http = http.unwrap_or_else(|error| panic!("no HTTP client: {error}"));
        let client = Client::builder().with_reqwest(http).build();
        Self { client: client.unwrap_or_else(|error| panic!("no client of genai: {error}")), target }
    }

    /// Returns the events of the answer. The first poll sends the request.
    pub(super) fn ask(&self, messages: Vec<ChatMessage>, tools: &Arc<[OfferedTool]>) -> AnswerEvents {
        let Self { client, target } = self.clone();
        let kind = target.model.adapter_kind;
        let request = with_tools(ChatRequest::new(messages), tools);
        let options = ChatOptions::default().with_capture_usage(true).with_capture_tool_calls(true);
        let response = async move {
            match client.exec_chat_stream(ModelSpec::Target(target), request, Some(&options)).await {
                Ok(response) => response.stream.boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        };
        let events = stream::once(response).flatten();
        events.filter_map(move |event| std::future::ready(convert(event, kind))).boxed()
    }
}

/// Converts an event. `None` if Skein's own clients have no such event.
fn convert(event: genai::Result<ChatStreamEvent>, kind: AdapterKind) -> Option<Result<AnswerEvent, ProviderError>> {
    match event {
        Ok(ChatStreamEvent::Chunk(chunk)) => {
            (!chunk.content.is_empty()).then_some(Ok(AnswerEvent::Text(chunk.content)))
        }
        Ok(ChatStreamEvent::ReasoningChunk(chunk)) => Some(Ok(AnswerEvent::Thought(chunk.content))),
        Ok(ChatStreamEvent::End(end)) if kind == AdapterKind::Gemini => match &end.captured_stop_reason {
            // genai also reports an end when the connection was lost.
            None => None,
            Some(StopReason::Other(reason)) => Some(Err(ProviderError::BrokenOff(reason.clone()))),
            Some(_) => Some(Ok(AnswerEvent::End(end_of(end)))),
        },
        Ok(ChatStreamEvent::End(end)) => Some(Ok(AnswerEvent::End(end_of(end)))),
        Ok(
            ChatStreamEvent::ToolCallChunk(_)
            | ChatStreamEvent::ThoughtSignatureChunk(_)
            | ChatStreamEvent::Start
            | ChatStreamEvent::Heartbeat,
        ) => None,
        Err(error) => Some(Err(error_of(error))),
    }
}

fn end_of(end: StreamEnd) -> AnswerEnd {
    AnswerEnd {
        calls: end.captured_content.map(MessageContent::into_tool_calls).unwrap_or_default(),
        usage: usage_from(&end.captured_usage.unwrap_or_default()),
        stop: end.captured_stop_reason,
    }
}

fn error_of(error: genai::Error) -> ProviderError {
    match error {
        genai::Error::HttpError { status, headers, body, .. } => ProviderError::Status { status, headers, body },
        genai::Error::ChatResponse { body, .. } => ProviderError::Reported(body),
        genai::Error::StreamParse { serde_error, .. } => ProviderError::Malformed(serde_error),
        genai::Error::WebStream { error, .. } => match error.downcast::<genai::Error>() {
            Ok(inner) => error_of(*inner),
            Err(error) => ProviderError::Connection(error),
        },
        other => ProviderError::Connection(Box::new(other)),
    }
}

/// Adds the tools to a request of genai.
fn with_tools(chat: ChatRequest, tools: &[OfferedTool]) -> ChatRequest {
    if tools.is_empty() {
        return chat;
    }
    let tools = tools.iter().map(|tool| {
        let schema = Value::Object(tool.schema.as_ref().clone());
        Tool::new(tool.name.clone()).with_description(tool.description.clone()).with_schema(schema)
    });
    chat.with_tools(tools)
}
