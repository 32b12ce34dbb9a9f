//! Asks a model one question, without tools and without a history.

use std::sync::Arc;

use futures::StreamExt as _;

use super::request_span::{open_request_span, record_reply};
use crate::conversation::{Content, Message, MessagePart, Usage};
use crate::llm::{ModelRequest, ModelStop, Provider, StreamEvent};

/// Returns the model's answer and its usage. `None` if the answer is incomplete, is longer than `longest` bytes or
/// calls a tool.
pub async fn ask_once(
    provider: &dyn Provider,
    system: Arc<str>,
    question: String,
    longest: usize,
) -> Option<(String, Usage)> {
    let messages = vec![Arc::new(Message::user(vec![Content::text(question)]))];
    let request = ModelRequest { system, tools: Arc::default(), messages };
    let span = open_request_span(provider, &request);
    let answer = span.run(read_answer(provider, request, longest)).await;
    match &answer {
        Some((text, usage)) => {
            record_reply(&span, ModelStop::Finished, usage, &[MessagePart::Content(Content::text(text.as_str()))]);
        }
        None => span.fail("no_answer"),
    }
    answer
}

async fn read_answer(provider: &dyn Provider, request: ModelRequest, longest: usize) -> Option<(String, Usage)> {
    let mut stream = provider.stream(request);
    let mut answer = String::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(StreamEvent::Text(text)) => answer.push_str(&text),
            Ok(StreamEvent::Thought(_) | StreamEvent::Queued { .. } | StreamEvent::Progress { .. }) => {}
            Ok(StreamEvent::Done { stop: ModelStop::Finished, usage }) => return Some((answer, usage)),
            Ok(StreamEvent::ToolUse(_) | StreamEvent::Done { .. }) => return None,
            Err(error) => {
                tracing::warn!(model = %provider.name(), %error, "a question to a model failed");
                return None;
            }
        }
        if answer.len() > longest {
            return None;
        }
    }
    None
}
