//! Prepares a turn: routes its prompt, records the decision and hands the turn to the chosen mode. Splits a compound
//! prompt, shows it as a to-do list and delegates each part.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::Orchestrator;
use super::decide::route_prompt;
use super::route::{self, DecisionSource, Route, RoutingContext, RoutingDecision};
use super::tasks::DELEGATE;
use crate::agents::{Event, Notifier, ROUTE, StatusUpdate, TurnInput};
use crate::conversation::{Content, MessagePart, ToolUse};
use crate::ids::{ModeId, random_id};
use crate::router::{Router, THRESHOLD, split};
use crate::session::{PendingTurn, PromptError, Session};
use crate::tool::{Activity, SessionContext, StepStatus, TodoStep, ToolOutcome, truncate};

/// A prompt with at most this many words is too short to start a new topic.
const MAX_FRAGMENT_WORDS: usize = 2;
/// First words that suggest a follow-up to the previous prompt.
const CONTINUATION_WORDS: [&str; 22] = [
    "and", "also", "now", "then", "but", "again", "yes", "no", "ok", "okay", "thanks", "it", "that", "this", "they",
    "those", "these", "instead", "why", "continue", "same", "better",
];
/// Words that refer to something in the previous prompt.
const REFERENCE_WORDS: [&str; 14] =
    ["it", "its", "that", "this", "them", "they", "those", "these", "same", "again", "too", "one", "ones", "instead"];
/// Confidence that the router needs to treat a prompt that starts like a follow-up as a new topic.
const MIN_CONFIDENCE: f64 = 0.8;
/// Bytes of attached text that each part of a split prompt receives.
const MAX_ATTACHED: usize = 20_000;

/// Options of a turn, in addition to its prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptOptions {
    /// Only show the routing decision.
    pub plan_only: bool,
    /// The user typed the prompt. Only then does a leading `@agent/mode` choose the mode; text from a file, a pipe or a
    /// service must not.
    pub from_user: bool,
}

/// The mode that worked last in an orchestrated session, and its prompt.
#[derive(Debug, Default)]
pub(super) struct LastRoute {
    last: Mutex<Option<PreviousRoute>>,
}

#[derive(Debug, Clone)]
struct PreviousRoute {
    mode: ModeId,
    prompt: Vec<Content>,
    /// True if the router chose the mode for a new request, not the user.
    guessed: bool,
}

impl LastRoute {
    fn get(&self) -> Option<PreviousRoute> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, last: Option<PreviousRoute>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }
}

impl Orchestrator {
    /// Decides how the prompt is processed and returns the input of the turn.
    pub(super) async fn open(
        &self,
        pending: &mut PendingTurn,
        prompt: Vec<Content>,
        named: Option<(ModeId, &str)>,
        options: PromptOptions,
        context: &RoutingContext,
        front: &Arc<dyn Notifier>,
    ) -> Result<TurnInput, PromptError> {
        let text = words(&prompt);
        let plan = pending.session().turn_plan();
        let own = pending.choice().mode.clone();
        let session = Arc::clone(pending.session().context());
        let last = self.last_routes.of(&session);
        if own.agent.as_str() != super::ORCHESTRATOR {
            self.note_choice(&session, &last, &own, &text, front).await;
            let Some((mode, task)) = named else { return Ok(prompt.into()) };
            if task.is_empty() {
                return Err(nothing_to_do(&mode));
            }
            let (task, prompt) = (task.to_owned(), replace_text(prompt, task));
            return Ok(hand_over(pending, &RoutingDecision::explicit(mode, task), prompt));
        }
        if last.get().is_none() && !pending.history().messages().is_empty() {
            last.set(last_route_from_events(pending).await);
        }
        if let Some((mode, task)) = named {
            let (task, prompt) = match (task, last.get()) {
                ("", None) => return Err(nothing_to_do(&mode)),
                // A mode name alone redirects the previous prompt to that mode.
                ("", Some(before)) => {
                    self.correct(&session, &before, &mode, front).await;
                    (words(&before.prompt), before.prompt)
                }
                (task, _) => (task.to_owned(), replace_text(prompt, task)),
            };
            last.set(Some(PreviousRoute { mode: mode.clone(), prompt: prompt.clone(), guessed: false }));
            return Ok(hand_over(pending, &RoutingDecision::explicit(mode, task), prompt));
        }
        // A slash command names a tool or a prompt of the current mode.
        if text.starts_with('/') {
            return Ok(prompt.into());
        }
        let router = self.router_cache().router(&plan, &own, session.principal(), &session.cwd).await;
        let router = router.map_err(|error| PromptError::Misdirected(error.to_string()))?;
        let decision = match last.get().filter(|last| is_continuation(&text, last, &router)) {
            Some(last) => continuation(last.mode, &text),
            None => {
                let adviser = pending.adviser()?;
                let decided = route_prompt(&plan, &own, &text, context, &router, adviser.as_deref()).await;
                pending.session().spend(decided.usage);
                if let Some(problem) = decided.problem {
                    front.status(StatusUpdate::notice(problem));
                }
                decided.decision
            }
        };
        if !options.plan_only {
            // After several routes the orchestrator continues itself, because it received all their reports.
            let mode = if let [only] = decision.routes.as_slice() { only.mode.clone() } else { own };
            let guessed = decision.by != DecisionSource::Continuing;
            last.set(Some(PreviousRoute { mode, prompt: prompt.clone(), guessed }));
        }
        Ok(if options.plan_only {
            let first = vec![MessagePart::Content(Content::text(decision_text(&decision)))];
            TurnInput { prompt, decided: decision_events(&decision), first }
        } else if decision.is_compound() {
            let first = calls(&decision, &prompt, &text);
            TurnInput { prompt, decided: decision_events(&decision), first }
        } else {
            hand_over(pending, &decision, prompt)
        })
    }

    /// Records a correction if the user repeats the same prompt in a mode they chose.
    async fn note_choice(
        &self,
        session: &SessionContext,
        last: &LastRoute,
        chosen: &ModeId,
        text: &str,
        front: &Arc<dyn Notifier>,
    ) {
        if let Some(before) = last.get() {
            last.set(None);
            if words(&before.prompt) == text {
                self.correct(session, &before, chosen, front).await;
            }
        }
    }

    async fn correct(
        &self,
        session: &SessionContext,
        before: &PreviousRoute,
        mode: &ModeId,
        front: &Arc<dyn Notifier>,
    ) {
        if !before.guessed || before.mode == *mode {
            return;
        }
        let prompt = words(&before.prompt);
        let told = match self.router_cache().correct(session.principal(), &session.cwd, &prompt, mode).await {
            Ok(()) => format!("remembered for this project: such a prompt is for {mode}"),
            Err(problem) => format!("the correction is not remembered: {problem}"),
        };
        front.status(StatusUpdate::notice(told));
    }
}

/// Returns the error for a prompt that names a mode which it cannot have. The audit log has what a managed setting
/// refuses.
pub(super) fn misdirection_error(error: route::UnknownModeError, session: &Session) -> PromptError {
    if let Some(refusal) = &error.refusal {
        session.record_managed(&refusal.name, &refusal.setting);
    }
    PromptError::Misdirected(error.to_string())
}

fn nothing_to_do(mode: &ModeId) -> PromptError {
    PromptError::Misdirected(format!("say what {mode} should do: @{mode} and the words for it"))
}

/// Returns the user's text without attachments.
pub(super) fn words(prompt: &[Content]) -> String {
    prompt.iter().find_map(Content::as_text).unwrap_or_default().trim().to_owned()
}

/// Returns the prompt with its first text replaced by `task`.
fn replace_text(mut prompt: Vec<Content>, task: &str) -> Vec<Content> {
    if let Some(first) = prompt.iter_mut().find(|content| content.as_text().is_some()) {
        *first = Content::text(task);
    }
    prompt
}

fn continuation(mode: ModeId, text: &str) -> RoutingDecision {
    let reason = "the session with it continues".to_owned();
    let route = Route { mode, confidence: 1.0, reason, task: text.to_owned(), after: Vec::new() };
    RoutingDecision { routes: vec![route], by: DecisionSource::Continuing, alternatives: Vec::new() }
}

/// Returns whether a prompt continues the previous one. True if its words refer back, it is very short, or no other
/// mode fits with enough confidence.
fn is_continuation(text: &str, last: &PreviousRoute, router: &Router) -> bool {
    let lower = text.to_lowercase();
    let words: Vec<_> = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let goes_on = words.first().is_some_and(|first| CONTINUATION_WORDS.contains(first));
    if words.len() <= MAX_FRAGMENT_WORDS || (goes_on && words.iter().any(|word| REFERENCE_WORDS.contains(word))) {
        return true;
    }
    let best = router.rank(text).into_iter().next();
    let bar = if goes_on { MIN_CONFIDENCE } else { THRESHOLD };
    let other = best.is_some_and(|best| best.confidence >= bar && best.mode != last.mode);
    // Two requests in one prompt are a new topic, even if no single mode fits both.
    !(other || split(text, router).len() > 1)
}

/// Finds the last routing decision in the session's events.
async fn last_route_from_events(pending: &PendingTurn) -> Option<PreviousRoute> {
    let session = pending.session();
    let events = session.sessions().events(session.id()).await.ok()?;
    let mut prompt = Vec::new();
    let mut last = None;
    for (_, event) in crate::agents::active_events(&events) {
        match event {
            Event::Message { message } if message.is_prompt() => prompt = vec![Content::text(message.text())],
            Event::ToolEnded { name, outcome, .. } if name == ROUTE => {
                let Some(decision) = outcome.structured.as_ref() else { continue };
                let own = || pending.choice().mode.clone();
                let mode = match decision["routes"].as_array().map(Vec::as_slice) {
                    Some([route]) => {
                        let text = |key: &str| route[key].as_str().unwrap_or_default().to_owned();
                        let named = format!("{}/{}", text("agent"), text("mode")).parse::<ModeId>().ok();
                        // The mode may have been removed since.
                        named.filter(|mode| session.turn_plan().mode(mode).is_some()).unwrap_or_else(own)
                    }
                    _ => own(),
                };
                last = Some(PreviousRoute { mode, prompt: prompt.clone(), guessed: false });
            }
            _ => {}
        }
    }
    last
}

/// Hands the turn to the mode of the only route.
fn hand_over(pending: &mut PendingTurn, decision: &RoutingDecision, prompt: Vec<Content>) -> TurnInput {
    let decided = decision_events(decision);
    if let [route] = decision.routes.as_slice() {
        pending.hand_to(route.mode.clone());
    }
    TurnInput { prompt, decided, first: Vec::new() }
}

/// Returns the decision as a tool call that every front end shows, with a to-do list if there are several parts.
fn decision_events(decision: &RoutingDecision) -> Vec<Event> {
    let id = random_id("route");
    let to: Vec<_> = decision.routes.iter().map(|route| route.mode.to_string()).collect();
    let arguments = json!({"to": to.join(", "), "by": decision.by.as_str()});
    let step = |route: &Route| TodoStep {
        text: format!("{}: {}", route.mode, route.task),
        status: StepStatus::Pending,
        priority: None,
    };
    let plan = Activity::TodoList(decision.routes.iter().map(step).collect());
    let activity = if decision.is_compound() { vec![plan] } else { Vec::new() };
    let outcome = ToolOutcome { structured: Some(decision.to_json()), ..ToolOutcome::text(decision_text(decision)) };
    let call = ToolUse::new(id.clone(), ROUTE.to_owned(), arguments);
    vec![Event::ToolStarted { call, by: None }, Event::ToolEnded { id, name: ROUTE.to_owned(), outcome, activity }]
}

/// Formats the decision, for example `coding/backend (83 %): it speaks of endpoints`, and its alternatives.
fn decision_text(decision: &RoutingDecision) -> String {
    let percent = |confidence: f64| format!("{:.0} %", confidence * 100.0);
    let sure = |route: &Route| match decision.by {
        DecisionSource::Embedded => format!(" ({})", percent(route.confidence)),
        DecisionSource::Explicit | DecisionSource::Model | DecisionSource::Continuing | DecisionSource::Default => {
            String::new()
        }
    };
    let line = |(number, route): (usize, &Route)| {
        let after: Vec<_> = route.after.iter().map(|place| (place + 1).to_string()).collect();
        let after = if after.is_empty() { String::new() } else { format!(", after {}", after.join(" and ")) };
        format!("{}. {}{}: {}{after}", number + 1, route.mode, sure(route), route.task)
    };
    match decision.routes.as_slice() {
        [only] => {
            let others: Vec<_> = decision
                .alternatives
                .iter()
                .map(|other| format!("{} ({})", other.mode, percent(other.confidence)))
                .collect();
            let unsure = decision.by == DecisionSource::Default && !others.is_empty();
            let others = if unsure { format!("; it could be {}", others.join(", ")) } else { String::new() };
            let hint = if unsure { ". `@agent/mode` alone sends it there" } else { "" };
            format!("{}{}: {}{others}{hint}", only.mode, sure(only), only.reason)
        }
        several => several.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"),
    }
}

/// Returns the parts as delegation calls, as a model would make them.
fn calls(decision: &RoutingDecision, prompt: &[Content], text: &str) -> Vec<MessagePart> {
    let name = |place: usize| format!("part{}", place + 1);
    let mut context = match decision.by {
        // A model writes self-contained parts; the grammar only splits the text.
        DecisionSource::Model => String::new(),
        DecisionSource::Embedded | DecisionSource::Explicit | DecisionSource::Continuing | DecisionSource::Default => {
            format!("This is one part of a request, of which others do the rest. The whole of it: {text}")
        }
    };
    let said = prompt.iter().position(|content| content.as_text().is_some());
    let attached = prompt.iter().enumerate().filter(|(at, _)| Some(*at) != said);
    let attached = attached.map(|(_, content)| content.to_plain_text()).collect::<Vec<_>>().join("\n\n");
    if !attached.is_empty() {
        context.push_str(&format!("\n\nWhat came with it:\n{}", truncate(&attached, MAX_ATTACHED)));
    }
    let call = |(place, route): (usize, &Route)| {
        let after: Vec<_> = route.after.iter().copied().map(name).collect();
        let mut arguments = json!({
            "task": route.task, "agent": route.mode.agent, "mode": route.mode.mode, "name": name(place), "after": after,
        });
        if !context.trim().is_empty() {
            arguments["context"] = Value::String(context.trim().to_owned());
        }
        MessagePart::ToolUse(ToolUse::new(name(place), DELEGATE.to_owned(), arguments))
    };
    decision.routes.iter().enumerate().map(call).collect()
}
