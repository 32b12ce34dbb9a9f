//! Asks a model one question, without tools and without a history.

use std::sync::Arc;

use futures::StreamExt as _;

use crate::conversation::{Content, Message, Usage};
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
    let mut stream = provider.stream(ModelRequest { system, tools: Arc::default(), messages });
    let mut answer = String::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(StreamEvent::Text(text)) => answer.push_str(&text),
            Ok(StreamEvent::Thought(_) | StreamEvent::Queued { .. }) => {}
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
