//! Reports each request to a model as a span, and what spans of turns have of external agents.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ExternalAgent, StopReason};
use crate::conversation::{Content, Message, MessagePart, Role, Usage};
use crate::ids::ModelRef;
use crate::llm::{LlmError, ModelRequest, ModelStop, Provider};
use crate::telemetry::{WorkSpan, fit_list};

/// The provider of external agents that are programs, in spans.
const PROGRAM_PROVIDER: &str = "acp";
/// The provider of remote agents in spans.
const REMOTE_PROVIDER: &str = "a2a";

/// Opens the span of a request. It has the messages only if the user asked for message content.
pub(super) fn open_request_span(provider: &dyn Provider, request: &ModelRequest) -> WorkSpan {
    let model = match provider.name() {
        ModelRef::Hosted { model, .. } => model.as_str(),
        ModelRef::Offline => "offline",
        // The path of a recording is a matter of the user.
        ModelRef::Replay(_) => "replay",
        ModelRef::External(agent) => agent.as_str(),
        ModelRef::Malformed(_) => "unknown",
    };
    let span = WorkSpan::model_request(provider_name(provider.name()), model);
    span.content("gen_ai.system_instructions", || fit_list(&[json!({"type": "text", "content": &*request.system})]));
    span.content("gen_ai.input.messages", || {
        fit_list(&request.messages.iter().map(|message| message_value(message)).collect::<Vec<_>>())
    });
    span
}

/// Returns the name of a model's provider in the conventions of spans.
pub fn provider_name(model: &ModelRef) -> &str {
    match model {
        ModelRef::Hosted { provider, .. } => convention_name(provider),
        ModelRef::External(_) => PROGRAM_PROVIDER,
        ModelRef::Offline | ModelRef::Replay(_) | ModelRef::Malformed(_) => "skein",
    }
}

/// Records that an external agent runs a turn. A remote agent is a server, and Skein its client.
pub fn record_external_agent(span: &WorkSpan, agent: &ExternalAgent) {
    match agent {
        ExternalAgent::Program(_) => span.record_provider(PROGRAM_PROVIDER),
        ExternalAgent::Remote(_) => {
            span.record_provider(REMOTE_PROVIDER);
            span.mark_client();
        }
    }
}

/// Adds the prompt of a turn, if the user asked for message content.
pub fn record_prompt(span: &WorkSpan, prompt: &[Content]) {
    span.content("gen_ai.input.messages", || {
        let parts = Value::from_iter(prompt.iter().map(content_value));
        fit_list(&[json!({"role": "user", "parts": parts})])
    });
}

/// Adds what an external agent said in a turn, if the user asked for message content.
pub fn record_answer(span: &WorkSpan, answer: &[Arc<Message>], ending: &StopReason) {
    span.content("gen_ai.output.messages", || {
        let parts = answer.iter().filter(|message| message.role == Role::Assistant).flat_map(|message| &message.parts);
        let parts = Value::from_iter(parts.map(part_value));
        let reason = finish_reason(ending).unwrap_or("error");
        fit_list(&[json!({"role": "assistant", "parts": parts, "finish_reason": reason})])
    });
}

/// Returns the name of a stop reason in the conventions. `None` if the turn failed or was cancelled.
pub fn finish_reason(ending: &StopReason) -> Option<&'static str> {
    match ending {
        StopReason::EndTurn => Some("stop"),
        StopReason::MaxTokens => Some("length"),
        StopReason::Refusal => Some("content_filter"),
        StopReason::CallRefused { .. } => Some("call_refused"),
        StopReason::Cancelled | StopReason::Exhausted { .. } | StopReason::Failed { .. } => None,
    }
}

/// Records a complete answer.
pub(super) fn record_reply(span: &WorkSpan, stop: ModelStop, usage: &Usage, parts: &[MessagePart]) {
    let has_calls = parts.iter().any(|part| matches!(part, MessagePart::ToolUse(_)));
    let reason = match stop {
        ModelStop::Finished if has_calls => "tool_calls",
        ModelStop::Finished => "stop",
        ModelStop::Length => "length",
        ModelStop::Refused => "content_filter",
    };
    span.record_tokens(usage.input, usage.output, usage.cached);
    span.record_finish(reason);
    span.content("gen_ai.output.messages", || {
        let parts = Value::from_iter(parts.iter().map(part_value));
        fit_list(&[json!({"role": "assistant", "parts": parts, "finish_reason": reason})])
    });
}

/// Returns the kind of a failure, without its text.
pub(super) fn failure_kind(error: &LlmError) -> &'static str {
    match error {
        LlmError::Unusable { .. } | LlmError::UnusableRecording { .. } => "unusable",
        LlmError::NotAllowed { .. } => "not_allowed",
        LlmError::MissingKey { .. } => "missing_key",
        LlmError::Failed { .. } => "failed",
        LlmError::Rejected { .. } => "rejected",
        LlmError::Transient { .. } => "transient",
        LlmError::RateLimited { .. } => "rate_limited",
        LlmError::AnswerTooLong { .. } => "answer_too_long",
        LlmError::LimitReached { .. } => "limit_reached",
        LlmError::Overflow { .. } => "overflow",
    }
}

/// Returns the name of a provider in the conventions, where it has another one.
fn convention_name(provider: &str) -> &str {
    match provider {
        "google" => "gcp.gemini",
        "mistral" => "mistral_ai",
        "xai" => "x_ai",
        other => other,
    }
}

fn message_value(message: &Message) -> Value {
    let is_result = message.parts.iter().any(|part| matches!(part, MessagePart::ToolResult(_)));
    let role = match message.role {
        Role::Assistant => "assistant",
        Role::User if is_result => "tool",
        Role::User => "user",
    };
    json!({"role": role, "parts": Value::from_iter(message.parts.iter().map(part_value))})
}

fn part_value(part: &MessagePart) -> Value {
    match part {
        MessagePart::Content(content) => content_value(content),
        MessagePart::Thought(text) => json!({"type": "reasoning", "content": text}),
        MessagePart::ToolUse(call) => {
            json!({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
        }
        MessagePart::ToolResult(result) => {
            let text: Vec<_> = result.content.iter().filter_map(Content::as_text).collect();
            json!({"type": "tool_call_response", "id": result.id, "response": text.join("\n")})
        }
    }
}

/// Returns the text of content. Pictures and files are too large for an attribute.
fn content_value(content: &Content) -> Value {
    match (content, content.as_text()) {
        (Content::Injected(text), _) => json!({"type": "text", "content": text}),
        (_, Some(text)) => json!({"type": "text", "content": text}),
        (_, None) => json!({"type": "other"}),
    }
}
