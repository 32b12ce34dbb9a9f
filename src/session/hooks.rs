//! Runs the hooks of a session: at its start and its end, before a prompt, and at the end of a turn.
//!
//! A child session has none of these events, because it belongs to a turn of its parent. Hooks about calls apply to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::setup::SessionSetup;
use super::{PromptError, Session};
use crate::agents::{Exchange, History, StopReason, TurnEnd, between};
use crate::broker::{BindError, Binding, HookOccasion, HookVerdict};
use crate::conversation::{Content, Role};
use crate::manifest::HookEvent;
use crate::tool::{CallContext, Notice};

/// How often hooks can extend a turn.
const MAX_CONTINUATIONS: usize = 5;
const MARK: &str = "hook-context";
const PROMPT_NOTE: &str = "added by a hook of the user";
const STOP_NOTE: &str = "a hook of the user asks you to continue";

/// Which hooks of a session have run.
#[derive(Debug)]
pub(super) struct SessionHooks {
    is_reopened: bool,
    has_started: AtomicBool,
    /// The texts of the hooks at the start. `None` until these hooks have ended, empty once a prompt of the history has
    /// the texts.
    start_texts: Mutex<Option<Vec<String>>>,
}

impl SessionHooks {
    pub(super) fn new(is_reopened: bool) -> Self {
        Self { is_reopened, has_started: AtomicBool::new(false), start_texts: Mutex::default() }
    }
}

impl Session {
    /// Runs the hooks before a prompt, and those at the start of the session before its first one. Returns the text that
    /// they add for the model. Fails if a hook refuses the prompt.
    pub(super) async fn run_prompt_hooks(
        &self,
        setup: &SessionSetup,
        prompt: &str,
        cancel: &CancellationToken,
    ) -> Result<Option<Content>, PromptError> {
        if self.permit.is_none() {
            return Ok(None);
        }
        self.hooks.has_started.store(true, Ordering::Relaxed);
        let run = async {
            let events = [HookEvent::SessionStart, HookEvent::UserPromptSubmit];
            let Some(binding) = self.hook_binding(setup, &events).await? else { return Ok(None) };
            if self.start_texts().is_none() {
                let source = if self.hooks.is_reopened { "resume" } else { "startup" };
                let fields = fields([("source", json!(source))]);
                let occasion = HookOccasion { event: HookEvent::SessionStart, subject: source, fields };
                let verdict = self.run_hooks(&binding, occasion, cancel).await;
                if cancel.is_cancelled() {
                    return Ok(None);
                }
                *self.start_texts() = Some(verdict.context);
            }
            let fields = fields([("prompt", json!(prompt))]);
            let occasion = HookOccasion { event: HookEvent::UserPromptSubmit, subject: "", fields };
            let verdict = self.run_hooks(&binding, occasion, cancel).await;
            if let Some(reason) = verdict.refusal {
                return Err(PromptError::HookRefusal { reason });
            }
            // A prompt that is not accepted leaves the texts to the next one.
            let mut texts = self.start_texts().clone().unwrap_or_default();
            texts.extend(verdict.context);
            Ok::<_, PromptError>((!texts.is_empty()).then(|| add_mark(PROMPT_NOTE, &texts.join("\n\n"))))
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(None),
            added = run => added,
        }
    }

    /// Forgets the texts of the hooks at the start of the session, if a prompt that enters the history has them.
    pub(super) fn forget_start_texts(&self, prompt: &[Content]) {
        if prompt.iter().any(has_mark) {
            *self.start_texts() = Some(Vec::new());
        }
    }

    fn start_texts(&self) -> MutexGuard<'_, Option<Vec<String>>> {
        self.hooks.start_texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the hooks at the end of a turn of an exchange, and lets the model continue if a hook asks for that.
    pub(super) async fn finish_exchange(
        &self,
        setup: &SessionSetup,
        exchange: &Exchange,
        history: &mut History,
        mut end: TurnEnd,
        cancel: &CancellationToken,
    ) -> TurnEnd {
        for round in 0..=MAX_CONTINUATIONS {
            let Some(reason) = self.run_stop_hooks(setup, &end, history, round > 0, cancel).await else { break };
            if !matches!(end.ending, StopReason::EndTurn | StopReason::CallRefused { .. }) {
                break;
            }
            if round == MAX_CONTINUATIONS {
                let text = format!("A hook extended the turn {MAX_CONTINUATIONS} times; it ends now.");
                self.context.notices.send(Notice::new(text));
                break;
            }
            let next = exchange.turn(history, vec![add_mark(STOP_NOTE, &reason)], cancel).await;
            let mut usage = end.usage;
            usage += next.usage;
            end = TurnEnd { usage, ..next };
        }
        end
    }

    /// Runs the hooks at the end of a turn of an external agent, which decides itself when it stops.
    pub(super) async fn finish_external_turn(
        &self,
        setup: &SessionSetup,
        end: &TurnEnd,
        history: &History,
        cancel: &CancellationToken,
    ) {
        if self.run_stop_hooks(setup, end, history, false, cancel).await.is_some() {
            let text = "A hook asks the external agent to continue, which Skein does not support.";
            self.context.notices.send(Notice::new(text));
        }
    }

    /// Runs the hooks at the end of a turn. Returns the reason if a hook asks the model to continue.
    async fn run_stop_hooks(
        &self,
        setup: &SessionSetup,
        end: &TurnEnd,
        history: &History,
        is_continued: bool,
        cancel: &CancellationToken,
    ) -> Option<String> {
        if cancel.is_cancelled() || end.ending == StopReason::Cancelled {
            return None;
        }
        // The turn had this binding, so it exists.
        let binding = self.hook_binding(setup, &[HookEvent::Stop]).await.ok().flatten()?;
        let messages = history.messages();
        let last = messages.last().filter(|message| message.role == Role::Assistant);
        let fields = fields([
            ("stop_hook_active", json!(is_continued)),
            ("last_assistant_message", json!(last.map(|message| message.text()))),
        ]);
        let occasion = HookOccasion { event: HookEvent::Stop, subject: "", fields };
        self.run_hooks(&binding, occasion, cancel).await.refusal
    }

    /// Starts the hooks at the end of the session, once, if a prompt has started it.
    pub(super) fn run_end_hooks(&self) {
        if !self.hooks.has_started.swap(false, Ordering::Relaxed) {
            return;
        }
        let binding = self.setup().current_binding().filter(|binding| binding.has_hooks(HookEvent::SessionEnd));
        if let Some(binding) = binding {
            binding.run_last_hooks(CallContext::new(Arc::clone(&self.context)));
        }
    }

    /// Returns the binding that runs hooks of these events. `None` if there are none.
    async fn hook_binding(
        &self,
        setup: &SessionSetup,
        events: &[HookEvent],
    ) -> Result<Option<Arc<Binding>>, BindError> {
        let hooks = setup.host().broker.plan().manifests().hooks();
        if self.permit.is_none() || !hooks.iter().any(|hook| events.contains(&hook.event)) {
            return Ok(None);
        }
        setup.binding().await.map(Some)
    }

    /// Runs the hooks of an event. If they are cancelled, the verdict is empty, and the turn ends by itself.
    async fn run_hooks(
        &self,
        binding: &Binding,
        occasion: HookOccasion<'_>,
        cancel: &CancellationToken,
    ) -> HookVerdict {
        let context = CallContext::new(Arc::clone(&self.context)).with_cancel(cancel.clone());
        binding.run_hooks(occasion, &context).await.unwrap_or_default()
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns text of a hook for the model, which no front end shows as words of the user.
fn add_mark(note: &str, text: &str) -> Content {
    Content::Injected(between(MARK, ("note", note), "", text).trim_start().to_owned())
}

/// Returns whether hooks have added this.
fn has_mark(content: &Content) -> bool {
    let is_added = |text: &str| text.strip_prefix('<').is_some_and(|text| text.starts_with(MARK));
    matches!(content, Content::Injected(text) if is_added(text))
}
