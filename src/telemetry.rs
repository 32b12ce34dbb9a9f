//! The spans of Skein, with the names of OpenTelemetry's conventions for generative AI. They are spans of `tracing`,
//! which `cli` exports if the user asks for it. Otherwise they cost one comparison each.
//!
//! Invariant: a span contains no text of a user, a model or a tool. Such text goes through `WorkSpan::content`, which
//! computes it only if the user asked for message content.

use std::future::Future;
use std::pin::Pin;

use serde_json::Value;
use tracing::field::Empty;
use tracing::instrument::Instrumented;
use tracing::{Instrument as _, Span};

/// The target of all spans here. Logs leave it out.
pub const SPAN_TARGET: &str = "telemetry";
/// The target of message content.
pub const CONTENT_TARGET: &str = "telemetry::content";

/// Maximum size of a text attribute, in bytes.
pub const MAX_TEXT: usize = 64 << 10;

/// A span that covers a piece of work and records how it ended.
#[derive(Debug, Clone)]
pub struct WorkSpan(Span);

impl WorkSpan {
    /// Opens the span of a session. It ends when the last clone is dropped.
    pub fn session(id: &str) -> Self {
        Self(tracing::info_span!(target: SPAN_TARGET, "session", "gen_ai.conversation.id" = id))
    }

    /// Opens the span of a turn in this session, with the provider of its model.
    pub fn turn(&self, id: &str, agent: &str, mode: &str, provider: &str) -> Self {
        Self(tracing::info_span!(
            target: SPAN_TARGET,
            parent: &self.0,
            "turn",
            "otel.name" = format!("invoke_agent {agent}"),
            "otel.kind" = Empty,
            "gen_ai.operation.name" = "invoke_agent",
            "gen_ai.provider.name" = provider,
            "gen_ai.agent.name" = agent,
            "skein.mode" = mode,
            "gen_ai.conversation.id" = id,
            "gen_ai.usage.input_tokens" = Empty,
            "gen_ai.usage.output_tokens" = Empty,
            "gen_ai.usage.cache_read.input_tokens" = Empty,
            "gen_ai.response.finish_reasons" = Empty,
            "error.type" = Empty,
        ))
    }

    /// Opens the span of one request to a model.
    pub fn model_request(provider: &str, model: &str) -> Self {
        Self(tracing::info_span!(
            target: SPAN_TARGET,
            "model request",
            "otel.name" = format!("chat {model}"),
            "otel.kind" = "client",
            "gen_ai.operation.name" = "chat",
            "gen_ai.provider.name" = provider,
            "gen_ai.request.model" = model,
            "gen_ai.usage.input_tokens" = Empty,
            "gen_ai.usage.output_tokens" = Empty,
            "gen_ai.usage.cache_read.input_tokens" = Empty,
            "gen_ai.response.finish_reasons" = Empty,
            "error.type" = Empty,
        ))
    }

    /// Opens the span of a tool call in the session `session`. `id` is a label of the call, not an id that a model chose.
    /// `turn` is the span of its turn, if the call runs in another task. `None`: the span around it is the current one.
    pub fn tool_call(tool: &str, id: Option<&str>, session: &str, turn: Option<&Self>) -> Self {
        let parent = turn.map_or_else(Span::current, |turn| turn.0.clone());
        Self::open_tool_call(&parent, tool, "function", id, Some(session))
    }

    /// Opens the span of a call that an external agent makes itself in this turn. `tool` and `id` are no text of the
    /// agent.
    pub fn agent_tool_call(&self, tool: &str, id: &str) -> Self {
        Self::open_tool_call(&self.0, tool, "extension", Some(id), None)
    }

    fn open_tool_call(parent: &Span, tool: &str, kind: &str, id: Option<&str>, session: Option<&str>) -> Self {
        Self(tracing::info_span!(
            target: SPAN_TARGET,
            parent: parent,
            "tool call",
            "otel.name" = format!("execute_tool {tool}"),
            "gen_ai.operation.name" = "execute_tool",
            "gen_ai.tool.name" = tool,
            "gen_ai.tool.type" = kind,
            "gen_ai.tool.call.id" = id,
            "gen_ai.conversation.id" = session,
            "error.type" = Empty,
        ))
    }

    /// Opens the span of a service start.
    pub fn service_start(service: &str) -> Self {
        Self(tracing::info_span!(
            target: SPAN_TARGET,
            "service start",
            "otel.name" = format!("start_service {service}"),
            "skein.service.name" = service,
            "error.type" = Empty,
        ))
    }

    /// Opens the span of a sandbox start.
    pub fn sandbox_start() -> Self {
        Self(tracing::info_span!(target: SPAN_TARGET, "start_sandbox", "error.type" = Empty))
    }

    /// Runs work inside the span. Spans that the work opens become its children. The work is on the heap: turns
    /// contain turns of delegated tasks, and each level would otherwise take several copies of its state on the stack.
    pub fn run<W: Future>(&self, work: W) -> Instrumented<Pin<Box<W>>> {
        Box::pin(work).instrument(self.0.clone())
    }

    /// Marks the work as failed. `kind` is one of few short names, never the text of an error, which may contain data.
    pub fn fail(&self, kind: &str) {
        self.0.record("error.type", kind);
    }

    /// Names another provider than the one with which the span was opened.
    pub fn record_provider(&self, provider: &str) {
        self.0.record("gen_ai.provider.name", provider);
    }

    /// Reports the work as a request to another program.
    pub fn mark_client(&self) {
        self.0.record("otel.kind", "client");
    }

    /// Records tokens. Nothing is recorded if all are zero: the provider or the agent has reported none.
    pub fn record_tokens(&self, input: u64, output: u64, cached: u64) {
        if (input, output, cached) == (0, 0, 0) {
            return;
        }
        self.0.record("gen_ai.usage.input_tokens", input);
        self.0.record("gen_ai.usage.output_tokens", output);
        self.0.record("gen_ai.usage.cache_read.input_tokens", cached);
    }

    pub fn record_finish(&self, reason: &str) {
        self.0.record("gen_ai.response.finish_reasons", reason);
    }

    /// Adds an attribute with text of users, models or tools. Computes it only if the user asked for message content.
    pub fn content(&self, key: &'static str, text: impl FnOnce() -> String) {
        tracing::info!(target: CONTENT_TARGET, parent: &self.0, key, value = text());
    }
}

/// Returns a list as JSON that fits an attribute. The first elements are left out as far as needed. If the last one alone
/// is too long, its texts are cut.
pub fn fit_list(list: &[Value]) -> String {
    let (mut kept, mut room) = (Vec::new(), MAX_TEXT - "[]".len());
    for element in list.iter().rev() {
        let text = element.to_string();
        let Some(rest) = room.checked_sub(text.len() + ",".len()) else { break };
        room = rest;
        kept.push(text);
    }
    if let (true, Some(last)) = (kept.is_empty(), list.last()) {
        kept.push(cut_to(last, room));
    }
    kept.reverse();
    format!("[{}]", kept.join(","))
}

/// Returns a value as JSON that fits an attribute. If it is too long, its texts are cut.
pub fn fit_value(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= MAX_TEXT { text } else { cut_to(value, MAX_TEXT) }
}

/// Returns a value as JSON of at most `room` bytes, with shorter texts. `{}` if that is not enough.
fn cut_to(value: &Value, room: usize) -> String {
    let limits = std::iter::successors(Some(room), |limit| Some(limit / 2).filter(|limit| *limit > 0));
    let mut texts = limits.map(|limit| cut_texts(value, limit).to_string());
    texts.find(|text| text.len() <= room).unwrap_or_else(|| "{}".to_owned())
}

fn cut_texts(value: &Value, limit: usize) -> Value {
    match value {
        Value::String(text) => Value::from(&text[..cut_point(text, limit)]),
        Value::Array(list) => list.iter().map(|element| cut_texts(element, limit)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), cut_texts(field, limit))).collect(),
        other => other.clone(),
    }
}

/// Returns the end of the longest part of at most `limit` bytes that has whole characters.
pub fn cut_point(text: &str, limit: usize) -> usize {
    if text.len() <= limit {
        return text.len();
    }
    (0..=limit).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Value {
        assert!(text.len() <= MAX_TEXT, "{} bytes", text.len());
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_list_that_is_too_long_loses_its_first_elements() {
        let message = |number: usize| json!({"role": "user", "parts": [{"content": "a\"".repeat(5_000)}], "n": number});
        let list: Vec<_> = (0..20).map(message).collect();
        let fitted = parse(&fit_list(&list));
        let kept = fitted.as_array().unwrap();
        assert!(kept.len() > 1 && kept.len() < list.len(), "{}", kept.len());
        assert_eq!(kept.as_slice(), &list[list.len() - kept.len()..]);
        assert_eq!(parse(&fit_list(&list[..2])), json!(list[..2]));
        assert_eq!(fit_list(&[]), "[]");
    }

    #[test]
    fn a_value_that_is_too_long_has_shorter_texts() {
        let message = json!({"role": "user", "parts": [{"content": "ä".repeat(MAX_TEXT)}, {"content": "short"}]});
        let fitted = parse(&fit_list(&[json!("earlier"), message.clone()]));
        assert_eq!((&fitted[0]["role"], &fitted[0]["parts"][1]["content"]), (&json!("user"), &json!("short")));
        assert!(fitted[0]["parts"][0]["content"].as_str().unwrap().len() > MAX_TEXT / 8);
        assert_eq!(parse(&fit_value(&message))["parts"][1], fitted[0]["parts"][1]);
        assert_eq!(fit_value(&json!({"a": 1})), "{\"a\":1}");
        assert_eq!(fit_value(&json!(vec![1; MAX_TEXT])), "{}", "numbers cannot be cut");
    }
}
