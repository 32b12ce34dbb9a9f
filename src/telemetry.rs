//! The spans of Skein, with the names of OpenTelemetry's conventions for generative AI. They are spans of `tracing`,
//! which `cli` exports if the user asks for it. Otherwise they cost one comparison each.
//!
//! Invariant: a span contains no text of a user, a model or a tool. Such text goes through `WorkSpan::content`, which
//! computes it only if the user asked for message content.

use std::future::Future;
use std::pin::Pin;

use tracing::field::Empty;
use tracing::instrument::Instrumented;
use tracing::{Instrument as _, Span};

/// The target of all spans here. Logs leave it out.
pub const SPAN_TARGET: &str = "telemetry";
/// The target of message content.
pub const CONTENT_TARGET: &str = "telemetry::content";

/// A span that covers a piece of work and records how it ended.
#[derive(Debug, Clone)]
pub struct WorkSpan(Span);

impl WorkSpan {
    /// Opens the span of a session. It ends when the last clone is dropped.
    pub fn session(id: &str) -> Self {
        Self(tracing::info_span!(target: SPAN_TARGET, "session", "gen_ai.conversation.id" = id))
    }

    /// Opens the span of a turn in this session.
    pub fn turn(&self, id: &str, agent: &str, mode: &str) -> Self {
        Self(tracing::info_span!(
            target: SPAN_TARGET,
            parent: &self.0,
            "turn",
            "otel.name" = format!("invoke_agent {agent}"),
            "gen_ai.operation.name" = "invoke_agent",
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

    /// Opens the span of a tool call. `id` is a label of the call, not an id that a model chose.
    pub fn tool_call(tool: &str, id: Option<&str>) -> Self {
        Self(tracing::info_span!(
            target: SPAN_TARGET,
            "tool call",
            "otel.name" = format!("execute_tool {tool}"),
            "gen_ai.operation.name" = "execute_tool",
            "gen_ai.tool.name" = tool,
            "gen_ai.tool.type" = "function",
            "gen_ai.tool.call.id" = id,
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

    pub fn record_tokens(&self, input: u64, output: u64, cached: u64) {
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
