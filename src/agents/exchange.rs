//! Runs the exchange between model and tools until the turn ends. The only place where a turn ends.
//!
//! Invariant: the model receives every failure that it could correct. Every tool use gets a result, even if the turn is
//! cancelled.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::ask::{FailedReply, FailureCause, ModelCall, ModelReply};
use super::budget::BudgetMeter;
use super::code::{AbandonedThreads, Code, is_own};
use super::inner_calls::InnerCallLog;
use super::offered_tools::tools_for_model;
use super::turn_types::{StopReason, TurnEnd, TurnInput, TurnLimits};
use super::{Event, History, Notifier, RecoveryPolicy, StatusUpdate};
use crate::broker::Binding;
use crate::conversation::{Content, Message, MessagePart, Role, ToolResult, ToolUse, Usage};
use crate::ids::random_id;
use crate::llm::{ModelRequest, ModelStop, OfferedTool, Provider};
use crate::tool::{Activity, CallContext, ExchangeView, InnerCallSink, ServiceError, SessionContext, ToolOutcome};

/// Connects the model of a session with the tools of its mode.
pub struct Exchange {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) binding: Arc<Binding>,
    pub(super) session: Arc<SessionContext>,
    pub(super) notifier: Arc<dyn Notifier>,
    limits: TurnLimits,
    pub(super) recovery: RecoveryPolicy,
    pub(super) system: Arc<str>,
    pub(super) tools: Arc<[OfferedTool]>,
    /// The limits of the session.
    budget: Arc<BudgetMeter>,
    /// Replaces the tools if the mode uses code execution.
    code: Option<Code>,
    /// Threads of the session's earlier code that did not stop.
    pub(super) abandoned: Arc<AbandonedThreads>,
}

/// The result of a call.
pub(super) struct CallResult {
    pub(super) outcome: ToolOutcome,
    /// The tool that was refused for lack of consent. For code, the tool of its last call, if that call was refused.
    pub(super) refused: Option<String>,
}

impl Exchange {
    pub fn new(
        provider: Arc<dyn Provider>,
        binding: Arc<Binding>,
        session: Arc<SessionContext>,
        notifier: Arc<dyn Notifier>,
        limits: TurnLimits,
        system: impl Into<Arc<str>>,
    ) -> Self {
        // The offline provider writes no code.
        let code = Code::of(&binding).filter(|_| !provider.name().is_offline());
        let (tools, system) = match &code {
            Some(code) => (code.tools(), Code::with_instructions(&system.into())),
            None => (tools_for_model(&binding), system.into()),
        };
        let (recovery, budget, abandoned) = (RecoveryPolicy::default(), Arc::default(), Arc::default());
        Self { provider, binding, session, notifier, limits, recovery, system, tools, budget, code, abandoned }
    }

    /// Replaces the recovery policy, which handles a full window and failed requests.
    #[must_use]
    pub fn with_recovery(mut self, upkeep: RecoveryPolicy) -> Self {
        self.recovery = upkeep;
        self
    }

    /// Ends turns at the limits of the session.
    #[must_use]
    pub fn with_budget(self, budget: Arc<BudgetMeter>) -> Self {
        Self { budget, ..self }
    }

    /// Shares the count of threads that did not stop with the other exchanges of the session.
    #[must_use]
    pub fn with_abandoned_threads(mut self, abandoned: Arc<AbandonedThreads>) -> Self {
        self.abandoned = abandoned;
        self
    }

    /// Runs one turn. Appends its messages to `history` and logs [`Event::TurnEnded`] last.
    pub async fn turn(
        &self,
        history: &mut History,
        opening: impl Into<TurnInput>,
        cancel: &CancellationToken,
    ) -> TurnEnd {
        let opening = opening.into();
        let mut turn = TurnState { ids: history.ids(), ..TurnState::default() };
        self.say(history, Message::user(opening.prompt));
        for event in opening.decided {
            emit_completed_call(self.notifier.as_ref(), event);
        }
        let ending = match (self.run(history, opening.first, &mut turn, cancel).await, self.budget.time_reached()) {
            (StopReason::Cancelled, Some(why)) => StopReason::Exhausted { why },
            (ending, _) => ending,
        };
        let end = TurnEnd { ending, usage: turn.usage };
        self.notifier.log(Event::TurnEnded { end: end.clone() });
        end
    }

    async fn run(
        &self,
        history: &mut History,
        first: Vec<MessagePart>,
        turn: &mut TurnState,
        cancel: &CancellationToken,
    ) -> StopReason {
        let mut known = Some(first).filter(|first| !first.is_empty());
        for _ in 0..self.limits.requests {
            let asked = known.is_none();
            let answer = match known.take() {
                Some(parts) => {
                    // The calls of a known answer may take long, so the history is compacted before them.
                    self.make_room(history, &mut turn.usage, cancel).await;
                    let (usage, stopped) = (Usage::default(), Usage::default());
                    Ok(ModelReply { parts: self.aloud(parts), stop: ModelStop::Finished, usage, stopped })
                }
                None => self.ask(history, turn, cancel).await,
            };
            let ModelReply { parts, stop, usage, stopped } = match answer {
                Ok(answer) => answer,
                Err(ending) => return ending,
            };
            turn.usage += usage;
            turn.usage += stopped;
            let context = usage.input + usage.output;
            if asked {
                self.notifier.status(StatusUpdate::Usage { turn: turn.usage, context });
            }
            let parts: Vec<_> = parts.into_iter().map(|part| turn.with_unique_id(part)).collect();
            let calls: Vec<_> = parts.iter().filter_map(tool_use).cloned().collect();
            if parts.is_empty() {
                self.notifier.status(StatusUpdate::notice(format!(
                    "the model `{}` said nothing",
                    self.model_at(turn.model).0.name()
                )));
            } else {
                self.say(history, Message { role: Role::Assistant, parts });
            }
            if asked {
                history.set_token_count(context);
            }
            if calls.is_empty() {
                return match (stop, turn.refused.take()) {
                    (ModelStop::Length, _) => StopReason::MaxTokens,
                    (ModelStop::Refused, _) => StopReason::Refusal,
                    (ModelStop::Finished, Some(tool)) => StopReason::CallRefused { tool },
                    (ModelStop::Finished, None) => StopReason::EndTurn,
                };
            }
            let view = ExchangeView::new(history.messages());
            let results = self.call_all(calls, &view, turn, cancel).await;
            self.say(
                history,
                Message { role: Role::User, parts: results.into_iter().map(MessagePart::ToolResult).collect() },
            );
            if cancel.is_cancelled() {
                return StopReason::Cancelled;
            }
            if let Some(why) = turn.limit_reached(&self.limits) {
                return StopReason::Exhausted { why };
            }
        }
        StopReason::Exhausted { why: format!("the model was asked {} times in this turn", self.limits.requests) }
    }

    fn say(&self, history: &mut History, message: Message) {
        let message = Arc::new(message);
        history.push(Arc::clone(&message));
        self.notifier.log(Event::Message { message });
    }

    /// Sends the text of an answer that was not streamed to the notifier.
    fn aloud(&self, parts: Vec<MessagePart>) -> Vec<MessagePart> {
        for part in &parts {
            if let MessagePart::Content(Content::Text(text)) = part {
                self.notifier.status(StatusUpdate::Text(text.clone()));
            }
        }
        parts
    }

    /// Asks the model, and compacts the history if it does not fit. If the request fails, the history keeps the part of
    /// the answer that arrived.
    async fn ask(
        &self,
        history: &mut History,
        turn: &mut TurnState,
        cancel: &CancellationToken,
    ) -> Result<ModelReply, StopReason> {
        // Work that is done stays as it is: nothing is compacted for a request that cannot follow.
        if let Some(why) = self.budget.limit_reached() {
            return Err(StopReason::Exhausted { why });
        }
        self.make_room(history, &mut turn.usage, cancel).await;
        let mut overflows = 0;
        loop {
            let request = ModelRequest {
                system: Arc::clone(&self.system),
                tools: Arc::clone(&self.tools),
                messages: history.visible_messages(),
            };
            let (provider, next) = self.model_at(turn.model);
            let asking = ModelCall {
                provider: provider.as_ref(),
                notifier: self.notifier.as_ref(),
                retry: self.recovery.retry,
                cancel,
                streamed: true,
                has_fallback: next.is_some(),
            };
            let FailedReply { parts, cause: why, stopped } = match asking.ask(&request).await {
                Ok(answer) => return Ok(answer),
                Err(unanswered) => unanswered,
            };
            turn.usage += stopped;
            if !parts.is_empty() {
                self.say(history, Message { role: Role::Assistant, parts });
            }
            match why {
                FailureCause::Cancelled => return Err(StopReason::Cancelled),
                FailureCause::Limit(why) => return Err(StopReason::Exhausted { why }),
                FailureCause::Unavailable(why) => match next {
                    Some(next) => {
                        turn.model += 1;
                        let notice = format!("{why}; `{}` answers instead until this turn ends", next.name());
                        self.notifier.status(StatusUpdate::notice(notice));
                    }
                    None => return Err(StopReason::failure(why)),
                },
                FailureCause::Failed { why, status } => return Err(StopReason::Failed { why, status }),
                FailureCause::Overflow(refusal) => {
                    overflows += 1;
                    let relieved = self.relieve(history, overflows, &mut turn.usage, cancel).await;
                    relieved.map_err(|error| StopReason::failure(format!("{refusal}; {error}")))?;
                }
            }
        }
    }

    /// Returns the model of the exchange or the fallback with this index, and the one after it.
    fn model_at(&self, index: usize) -> (&Arc<dyn Provider>, Option<&Arc<dyn Provider>>) {
        let mut models = std::iter::once(&self.provider).chain(&self.recovery.fallbacks).skip(index);
        (models.next().unwrap_or(&self.provider), models.next())
    }

    /// Returns a result for every call, in their order. Adjacent read-only calls run in parallel.
    async fn call_all(
        &self,
        calls: Vec<ToolUse>,
        view: &ExchangeView,
        turn: &mut TurnState,
        cancel: &CancellationToken,
    ) -> Vec<ToolResult> {
        let mut results = Vec::with_capacity(calls.len());
        let mut rest = calls.as_slice();
        while let Some(first) = rest.first() {
            let side_by_side = rest.iter().take_while(|call| self.reads_only(call)).count().max(1);
            let (now, later) = rest.split_at(if self.reads_only(first) { side_by_side } else { 1 });
            rest = later;
            let outcomes = futures::future::join_all(now.iter().map(|call| self.call(call, view, cancel))).await;
            for (call, called) in now.iter().zip(outcomes) {
                turn.note(call, &called);
                let outcome = called.outcome;
                results.push(ToolResult {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    content: outcome.content,
                    is_error: outcome.is_error,
                });
            }
        }
        results
    }

    fn reads_only(&self, call: &ToolUse) -> bool {
        match self.code_for(call) {
            Some(_) => Code::reads_only(&call.name),
            None => {
                let Some(tool) = self.binding.tools().get(&call.name) else { return false };
                call.arguments.as_object().is_some_and(|arguments| tool.reads_only(arguments))
            }
        }
    }

    fn code_for(&self, call: &ToolUse) -> Option<&Code> {
        self.code.as_ref().filter(|_| is_own(&call.name))
    }

    async fn call(&self, call: &ToolUse, view: &ExchangeView, cancel: &CancellationToken) -> CallResult {
        self.notifier.log(Event::ToolStarted { call: call.without_signature(), by: None });
        let seen = Arc::default();
        let called = match self.code_for(call) {
            _ if cancel.is_cancelled() => CallResult { outcome: self.cancel_outcome(), refused: None },
            Some(code) => self.call_code(code, call, view, cancel).await,
            None => {
                let outcome = self.dispatch(call, view, &seen, cancel).await;
                CallResult { refused: outcome.refused.then(|| call.name.clone()), outcome }
            }
        };
        let outcome = self.shorten_outcome(called.outcome, &call.id);
        self.log_call_end(call, outcome.clone(), &seen);
        CallResult { outcome, ..called }
    }

    /// Returns the result of a call in a turn that was cancelled: by the user, or by a time limit.
    pub(super) fn cancel_outcome(&self) -> ToolOutcome {
        if self.budget.is_out_of_time() { ToolOutcome::out_of_time() } else { ToolOutcome::cancelled() }
    }

    pub(super) fn log_call_end(&self, call: &ToolUse, outcome: ToolOutcome, seen: &Mutex<Vec<Activity>>) {
        let activity = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        let (id, name) = (call.id.clone(), call.name.clone());
        self.notifier.log(Event::ToolEnded { id, name, outcome, activity });
    }

    /// Makes a call. Sends its activities and the calls inside it to the notifier, and adds the activities that are stored
    /// to `seen`.
    pub(super) async fn dispatch(
        &self,
        call: &ToolUse,
        view: &ExchangeView,
        seen: &Arc<Mutex<Vec<Activity>>>,
        cancel: &CancellationToken,
    ) -> ToolOutcome {
        let arguments = match &call.arguments {
            Value::Object(arguments) => arguments.clone(),
            Value::Null => Map::new(),
            Value::String(text) => return ToolOutcome::error(not_json(text)),
            other => return ToolOutcome::error(format!("the arguments must be a JSON object, not {other}")),
        };
        let (notifier, id, seen) = (Arc::clone(&self.notifier), call.id.clone(), Arc::clone(seen));
        let inner = InnerCallLog::new(&self.notifier, &call.id);
        let context = CallContext::new(Arc::clone(&self.session))
            .with_id(&call.id)
            .with_inner_calls(Arc::clone(&inner) as Arc<dyn InnerCallSink>)
            .with_view(view.clone())
            .with_cancel(cancel.child_token())
            .with_activity(move |activity| {
                if activity.lasts() {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    // A to-do list replaces the one before it.
                    let is_plan = |activity: &Activity| matches!(activity, Activity::TodoList(_));
                    seen.retain(|before| !(is_plan(before) && is_plan(&activity)));
                    seen.push(activity.clone());
                }
                notifier.status(StatusUpdate::ToolActivity { id: id.clone(), activity });
            });
        let called = self.binding.call(&call.name, arguments, context).await;
        inner.close(&self.cancel_outcome());
        match called {
            Ok(outcome) => outcome,
            Err(ServiceError::Cancelled) => self.cancel_outcome(),
            Err(error) => ToolOutcome::error(error.to_string()),
        }
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange")
            .field("model", &self.provider.name())
            .field("binding", &self.binding)
            .finish_non_exhaustive()
    }
}

fn tool_use(part: &MessagePart) -> Option<&ToolUse> {
    match part {
        MessagePart::ToolUse(call) => Some(call),
        MessagePart::Content(_) | MessagePart::Thought(_) | MessagePart::ToolResult(_) => None,
    }
}

/// Reports a call that happened outside the exchange: its activities as status updates, then the event.
pub fn emit_completed_call(notifier: &dyn Notifier, event: Event) {
    if let Event::ToolEnded { id, activity, .. } = &event {
        for activity in activity {
            notifier.status(StatusUpdate::ToolActivity { id: id.clone(), activity: activity.clone() });
        }
    }
    notifier.log(event);
}

/// Returns the error for a model that sent arguments as text, mostly because they do not parse.
fn not_json(text: &str) -> String {
    let beginning: String = text.chars().take(200).collect();
    match serde_json::from_str::<Value>(text) {
        Ok(_) => "the arguments must be a JSON object, not text that holds one; nothing was run".to_owned(),
        Err(error) => {
            format!("the arguments are no valid JSON, so nothing was run: {error}. They began with: {beginning}")
        }
    }
}

/// Usage, failures and call ids of a turn so far.
#[derive(Default)]
struct TurnState {
    usage: Usage,
    failures: HashMap<String, usize>,
    /// Ids of all tool uses in the history.
    ids: HashSet<String>,
    /// The tool of the last call, if that call was refused.
    refused: Option<String>,
    /// The model that answers: the index of the fallback plus one, or zero for the model of the exchange.
    model: usize,
}

impl TurnState {
    /// Gives a call a new id if its id is malformed or already used. Models choose the ids, and some count from one in
    /// every answer.
    fn with_unique_id(&mut self, part: MessagePart) -> MessagePart {
        let MessagePart::ToolUse(mut call) = part else { return part };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let usable = (1..=64).contains(&call.id.len()) && call.id.chars().all(plain);
        if !usable || self.ids.contains(&call.id) {
            call.id = random_id("call");
        }
        self.ids.insert(call.id.clone());
        MessagePart::ToolUse(call)
    }

    fn note(&mut self, call: &ToolUse, called: &CallResult) {
        self.refused.clone_from(&called.refused);
        if called.outcome.is_error {
            *self.failures.entry(format!("{} {}", call.name, call.arguments)).or_default() += 1;
        }
    }

    fn limit_reached(&self, limits: &TurnLimits) -> Option<String> {
        if let Some((call, count)) = self.failures.iter().find(|(_, count)| **count >= limits.same_failure) {
            let call: String = call.chars().take(200).collect();
            return Some(format!("the same call failed {count} times: {call}"));
        }
        let tokens = self.usage.input + self.usage.output;
        (tokens >= limits.tokens).then(|| format!("{tokens} tokens were used in this turn"))
    }
}
