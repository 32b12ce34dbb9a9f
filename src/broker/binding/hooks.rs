//! Runs the hooks of the configs for a session: before and after its calls, and at the events that the session reports.
//!
//! Invariant: a hook can only refuse, ask or add text. A hook of a project can only refuse and ask.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::hook_reply::{self, HookDecision, HookReply, HookReplyError};
use super::{AdmittedCall, Binding};
use crate::manifest::{ConfiguredHook, HookEvent, HookFailure};
use crate::services::{HookProcess, HookProcessError};
use crate::tool::{AuditVerdict, CallContext, Notice, ServiceError, ToolOutcome, strip_to_line, truncate};

/// The time of a hook without its own limit.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// The same at the end of a session, because the user waits for the end of the program.
const LAST_LIMIT: Duration = Duration::from_secs(10);
/// Maximum bytes of a command in a message.
const MAX_SHOWN: usize = 100;

/// An event of a session, for its hooks.
#[derive(Debug)]
pub struct HookOccasion<'a> {
    pub event: HookEvent,
    /// The name that matchers select: a tool, or the kind of the event.
    pub subject: &'a str,
    /// The fields of the input that belong to the event.
    pub fields: Map<String, Value>,
}

/// What the hooks of an event decided and added.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HookVerdict {
    /// The reasons why a hook refuses. At the end of a turn: why the model must continue.
    pub refusal: Option<String>,
    /// Why a hook wants the user to decide.
    pub question: Option<String>,
    /// Texts for the model.
    pub context: Vec<String>,
}

/// Why a hook has no reply.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(transparent)]
    Process(#[from] HookProcessError),
    #[error(transparent)]
    Reply(#[from] HookReplyError),
}

/// A call that runs, for the hooks after it.
pub(super) struct HookedCall {
    arguments: Map<String, Value>,
    context: CallContext,
}

impl Binding {
    /// Returns whether a config has hooks at this event.
    pub fn has_hooks(&self, event: HookEvent) -> bool {
        self.policy.hooks.iter().any(|hook| hook.event == event)
    }

    /// Runs the hooks of an event, one after another. Reports those that fail to the user. Fails if `context` is cancelled.
    pub async fn run_hooks(
        &self,
        occasion: HookOccasion<'_>,
        context: &CallContext,
    ) -> Result<HookVerdict, ServiceError> {
        let HookOccasion { event, subject, fields } = occasion;
        let is_due = |hook: &&ConfiguredHook| hook.event == event && hook.matcher.matches(subject);
        let due: Vec<_> = self.policy.hooks.iter().filter(is_due).collect();
        if due.is_empty() {
            return Ok(HookVerdict::default());
        }
        let input = self.hook_input(event, fields, context).to_string();
        let mut verdict = HookVerdict::default();
        let mut refusals = Vec::new();
        for hook in due {
            match self.run_hook(hook, &input, context).await {
                Err(HookError::Process(HookProcessError::Cancelled)) => return Err(ServiceError::Cancelled),
                Err(error) => {
                    let refusal = report_failure(hook, &error, context);
                    if refusal.is_some() {
                        self.record_hook(hook, AuditVerdict::Refuse, context);
                    }
                    refusals.extend(refusal);
                }
                Ok(HookReply { decision, context: added, message }) => {
                    tracing::debug!(event = event.as_str(), hook = %hook.place, ?decision, "a hook has ended");
                    let verdict_of_hook = match &decision {
                        Some(HookDecision::Refuse(_)) => AuditVerdict::Refuse,
                        Some(HookDecision::Ask(_)) => AuditVerdict::Ask,
                        None => AuditVerdict::Allow,
                    };
                    self.record_hook(hook, verdict_of_hook, context);
                    match decision {
                        Some(HookDecision::Refuse(reason)) => refusals.push(refusal_text(hook, &reason)),
                        Some(HookDecision::Ask(reason)) => verdict.question = Some(reason),
                        None => {}
                    }
                    // A project only refuses and asks.
                    if !hook.is_of_project {
                        verdict.context.extend(added);
                        message.into_iter().for_each(|text| context.session.notices.send(Notice::new(text)));
                    }
                }
            }
        }
        verdict.refusal = (!refusals.is_empty()).then(|| refusals.join("; "));
        Ok(verdict)
    }

    /// Runs `SessionEnd` hooks on their own task, because the session may be dropped before they end.
    pub fn run_last_hooks(self: Arc<Self>, context: CallContext) {
        let pool = self.policy.pool.clone();
        pool.run_last_hooks(async move {
            let fields = Map::from_iter([("reason".to_owned(), json!("other"))]);
            let occasion = HookOccasion { event: HookEvent::SessionEnd, subject: "other", fields };
            if let Err(error) = self.run_hooks(occasion, &context).await {
                tracing::warn!(%error, "hooks at the end of a session were cut off");
            }
        });
    }

    /// Runs the hooks before a call. `None` if there are none.
    pub(super) async fn run_call_hooks(
        &self,
        name: &str,
        admitted: &AdmittedCall<'_>,
        arguments: &Map<String, Value>,
        context: &CallContext,
    ) -> Result<Option<HookVerdict>, ServiceError> {
        if !self.has_hooks(HookEvent::PreToolUse) {
            return Ok(None);
        }
        let mut fields = call_fields(name, arguments, context);
        if let Some(target) = &admitted.target {
            // The file that the call really works on.
            fields.insert("tool_target".to_owned(), json!(target.real.to_string_lossy()));
        }
        let occasion = HookOccasion { event: HookEvent::PreToolUse, subject: name, fields };
        self.run_hooks(occasion, context).await.map(Some)
    }

    /// Returns what the hooks after a call need. `None` if there are none.
    pub(super) fn call_to_report(&self, arguments: &Map<String, Value>, context: &CallContext) -> Option<HookedCall> {
        let call = || HookedCall { arguments: arguments.clone(), context: context.clone() };
        self.has_hooks(HookEvent::PostToolUse).then(call)
    }

    /// Runs the hooks after a call, and adds to its outcome what the hooks before and after it say to the model.
    pub(super) async fn finish_hooks(
        &self,
        name: &str,
        mut outcome: ToolOutcome,
        mut added: Vec<String>,
        hooked: Option<HookedCall>,
    ) -> ToolOutcome {
        if let Some(HookedCall { arguments, context }) = hooked {
            let mut fields = call_fields(name, &arguments, &context);
            let response = json!({
                "content": outcome.all_text(),
                "is_error": outcome.is_error,
                "structured": outcome.structured,
            });
            fields.insert("tool_response".to_owned(), response);
            let occasion = HookOccasion { event: HookEvent::PostToolUse, subject: name, fields };
            match self.run_hooks(occasion, &context).await {
                Ok(verdict) => added.extend(verdict.context),
                // The call has run, so its outcome must reach the caller.
                Err(error) => tracing::debug!(%error, "the hooks after a call were cut off"),
            }
        }
        for text in added {
            outcome.content.extend(ToolOutcome::text(format!("[A hook of the user adds: {text}]")).content);
        }
        outcome
    }

    async fn run_hook(
        &self,
        hook: &ConfiguredHook,
        input: &str,
        context: &CallContext,
    ) -> Result<HookReply, HookError> {
        let call = CallContext::new(Arc::clone(&context.session)).with_cancel(context.cancel.clone());
        let mut call = call.with_asker(Arc::clone(context.client_asker().unwrap_or(&self.request.asker)));
        if let Some(id) = &context.id {
            call = call.with_id(id);
        }
        if let Some(sandbox) = self.hook_sandbox(hook.is_of_project) {
            call = call.with_sandbox(sandbox);
        }
        let default = if hook.event == HookEvent::SessionEnd { LAST_LIMIT } else { DEFAULT_LIMIT };
        let limit = hook.command.timeout.map_or(default, Duration::from_secs);
        let process = HookProcess { line: &hook.command.command, input, limit };
        let output = self.policy.pool.run_hook(process, &call).await?;
        Ok(hook_reply::read(hook.event, &output)?)
    }

    /// Returns the JSON for the standard input of a hook.
    fn hook_input(&self, event: HookEvent, mut fields: Map<String, Value>, context: &CallContext) -> Value {
        let session = &context.session;
        fields.insert("session_id".to_owned(), json!(session.family()));
        if session.family() != session.id {
            fields.insert("child_session_id".to_owned(), json!(session.id));
        }
        fields.insert("cwd".to_owned(), json!(session.cwd.to_string_lossy()));
        fields.insert("hook_event_name".to_owned(), json!(event.as_str()));
        fields.insert("mode".to_owned(), json!(self.mode.to_string()));
        fields.insert("approval".to_owned(), json!(self.approval().as_str()));
        Value::Object(fields)
    }
}

fn call_fields(name: &str, arguments: &Map<String, Value>, context: &CallContext) -> Map<String, Value> {
    let fields = json!({"tool_name": name, "tool_input": arguments, "tool_use_id": context.id.as_deref()});
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Reports a hook that failed to the user. Returns a refusal if `onFailure` is `block`.
fn report_failure(hook: &ConfiguredHook, error: &HookError, context: &CallContext) -> Option<String> {
    let label = hook_label(hook);
    tracing::warn!(event = hook.event.as_str(), hook = %hook.place, %error, "a hook failed");
    context
        .session
        .notices
        .send(Notice::new(format!("The hook {label} failed: {}", strip_to_line(&error.to_string()))));
    let blocks = hook.command.on_failure == HookFailure::Block && hook.event.is_refusable();
    blocks.then(|| format!("the hook {label} failed, and its `onFailure` is `block`: {error}"))
}

fn refusal_text(hook: &ConfiguredHook, reason: &str) -> String {
    match (hook.event, hook.is_of_project) {
        // The model reads it as the reason to continue.
        (HookEvent::Stop, _) => reason.to_owned(),
        (_, false) => format!("a hook refused: {reason}"),
        (_, true) => format!("a hook of the project refused: {reason}"),
    }
}

/// Returns the command of a hook and its place.
fn hook_label(hook: &ConfiguredHook) -> String {
    let line = strip_to_line(&hook.command.command);
    let cut = truncate(&line, MAX_SHOWN);
    let more = if cut.len() < line.len() { "…" } else { "" };
    format!("`{cut}{more}` ({}, {})", hook.event.as_str(), hook.place)
}
