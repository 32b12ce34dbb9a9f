//! Runs the turns of external agents. An agent that missed messages receives them with its next prompt.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::external_sessions::{CollectedMessages, ExternalSessionKey, ExternalSessions, resume_policy};
use super::recorder::row;
use super::setup::SessionSetup;
use super::{PromptError, Session, SessionError};
use crate::agents::{
    BudgetMeter, Event, ExternalAgent, ExternalAgentError, ExternalOptionError, ExternalSession,
    ExternalSessionRequest, History, Notifier, StatusUpdate, StopReason, TurnEnd, TurnInput, emit_completed_call,
    record_answer, record_prompt,
};
use crate::conversation::{Content, Message, Role, Usage};
use crate::telemetry::WorkSpan;
use crate::tool::truncate;

/// Maximum bytes of missed messages that an agent receives.
const MAX_CATCH_UP_BYTES: usize = 40_000;

impl Session {
    /// Prepares a turn of an external agent. `None` if no external agent works on the session.
    pub(super) async fn prepare_external_turn(
        &self,
        setup: &SessionSetup,
        prompt: &str,
        front: &Arc<dyn Notifier>,
    ) -> Result<Option<ExternalTurn>, PromptError> {
        let Some((agent, key)) = setup.external_agent() else { return Ok(None) };
        let Some(session) = self.ensure_external_session(setup, false).await? else { return Ok(None) };
        let binding = setup.binding().await?;
        let system = setup
            .external_system_prompt(&binding, prompt, self.sessions.options.os)
            .await
            .map_err(PromptError::Prompt)?;
        let (sessions, notifier) = (Arc::clone(setup.external_sessions()), self.recorder(front));
        let budget = Arc::clone(self.meter());
        Ok(Some(ExternalTurn { sessions, agent, key, session, notifier, system, budget }))
    }

    /// Returns the external session for the mode of `setup`, and opens it if necessary. `None` if no external agent
    /// works on the session. If `must`, fails if the agent cannot resume its earlier session.
    pub(super) async fn ensure_external_session(
        &self,
        setup: &SessionSetup,
        must: bool,
    ) -> Result<Option<Arc<dyn ExternalSession>>, SessionError> {
        let Some((who, key)) = setup.external_agent() else { return Ok(None) };
        if self.context().lifetime().has_ended() {
            let reason = "its session is closed".to_owned();
            return Err(ExternalAgentError::NotStarted { agent: who.name().clone(), reason }.into());
        }
        let host = setup.host();
        // The services of the mode start before the agent process.
        let binding = setup.binding().await?;
        let request = ExternalSessionRequest {
            agent: who,
            session: Arc::clone(self.context()),
            asker: Arc::clone(binding.asker()),
            binding,
            resume: resume_policy(setup.external_sessions().external_id(&key), must),
        };
        let (session, opened) =
            setup.external_sessions().ensure_open(&key, host.external_agents.as_ref(), request).await?;
        if let Some(event) = opened {
            self.sessions.store.append(self.id(), row(&event));
            self.events.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(session))
    }

    /// Opens the external session, if an external agent works on this session.
    pub async fn open_external_session(&self) -> Result<(), SessionError> {
        self.ensure_external_session(&self.setup(), false).await.map(drop)
    }

    /// Resumes the external session of a reopened session. Fails if the agent cannot resume it.
    pub async fn reopen_external_session(&self) -> Result<(), SessionError> {
        self.ensure_external_session(&self.setup(), true).await.map(drop)
    }

    /// Returns true if an external agent works on the session in its mode.
    pub fn is_external(&self) -> bool {
        self.setup().external_agent().is_some()
    }

    /// Returns the external session in use. `None` if there is none.
    pub fn external_session(&self) -> Option<Arc<dyn ExternalSession>> {
        let setup = self.setup();
        let (_, key) = setup.external_agent()?;
        setup.external_sessions().current(&key)
    }

    /// Sets an option of the external agent. Fails if no agent works on the session, or if it does not run or refuses.
    pub async fn set_external_option(&self, option: &str, value: Value) -> Result<(), ExternalOptionError> {
        let setup = self.setup();
        let (_, key) = setup.external_agent().ok_or(ExternalOptionError::NoAgent)?;
        setup.external_sessions().choose(&key, option, value).await
    }

    /// Restores the external sessions from the stored events.
    pub(super) fn restore_external_sessions(&self, events: &[Event]) {
        if let Ok(history) = self.history.try_lock() {
            self.setup().external_sessions().restore(self.id(), events, &history);
        }
    }
}

/// A turn that an external agent runs.
pub(super) struct ExternalTurn {
    pub(super) sessions: Arc<ExternalSessions>,
    pub(super) agent: ExternalAgent,
    pub(super) key: ExternalSessionKey,
    pub(super) session: Arc<dyn ExternalSession>,
    pub(super) notifier: Arc<dyn Notifier>,
    /// The mode prompt, for an agent that has not received it.
    pub(super) system: Option<Arc<str>>,
    /// The limits of the session.
    pub(super) budget: Arc<BudgetMeter>,
}

impl ExternalTurn {
    /// Runs the turn. `span` gets its prompt and answer.
    pub(super) async fn turn(
        self,
        history: &mut History,
        opening: TurnInput,
        span: &WorkSpan,
        cancel: &CancellationToken,
    ) -> TurnEnd {
        let beside = self.catch_up_content(history);
        let missed = !beside.is_empty();
        let prompt = Arc::new(Message::user(opening.prompt.clone()));
        history.push(Arc::clone(&prompt));
        self.notifier.log(Event::Message { message: prompt });
        for event in opening.decided {
            emit_completed_call(self.notifier.as_ref(), event);
        }
        if self.sessions.states().get_mut(&self.key).is_some_and(|state| std::mem::take(&mut state.forgot)) {
            let who = &self.key.1;
            let text = format!(
                "`{who}` was restarted and lost this session; the conversation is resent with your next prompt"
            );
            self.notifier.status(StatusUpdate::notice(text));
        }
        let tap = Arc::new(HistoryTap { inner: Arc::clone(&self.notifier), messages: CollectedMessages::default() });
        let front = Arc::clone(&tap) as Arc<dyn Notifier>;
        // A command must come first in the prompt, and is for the agent alone.
        let command = self.is_command(&opening.prompt);
        let prompt: Vec<_> = if command {
            opening.prompt.into_iter().filter(|content| !matches!(content, Content::Injected(_))).collect()
        } else {
            beside.into_iter().chain(opening.prompt).collect()
        };
        record_prompt(span, &prompt);
        let end = self.run_within_limits(prompt, front, cancel).await;
        let said = std::mem::take(&mut *tap.messages.lock().unwrap_or_else(PoisonError::into_inner));
        record_answer(span, &said, &end.ending);
        said.into_iter().for_each(|message| history.push(message));
        if let Some(state) = self.sessions.states().get_mut(&self.key) {
            state.late = Arc::clone(&tap.messages);
        }
        // With a command, the agent has not received the messages that it missed.
        if let Some(state) = self.sessions.states().get_mut(&self.key).filter(|_| !(command && missed)) {
            (state.fresh, state.knows) = (false, history.messages().len());
        }
        self.notifier.log(Event::TurnEnded { end: end.clone() });
        end
    }

    /// Runs the agent's turn unless a limit is reached. Counts what the agent reports.
    async fn run_within_limits(
        &self,
        prompt: Vec<Content>,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> TurnEnd {
        if let Some(why) = self.budget.limit_reached() {
            return TurnEnd { ending: StopReason::Exhausted { why }, usage: Usage::default() };
        }
        let end = self.session.turn(prompt, front, cancel).await;
        self.budget.count_answer(&end.usage, None);
        let is_cancelled = matches!(end.ending, StopReason::Cancelled);
        match self.budget.time_reached().filter(|_| is_cancelled) {
            Some(why) => TurnEnd { ending: StopReason::Exhausted { why }, usage: end.usage },
            None => end,
        }
    }

    /// Returns true if the prompt is one of the agent's own commands.
    fn is_command(&self, prompt: &[Content]) -> bool {
        let Some(line) = prompt.iter().find_map(Content::as_text).and_then(|text| text.trim_start().strip_prefix('/'))
        else {
            return false;
        };
        let name = line.split_whitespace().next().unwrap_or_default();
        self.session.has_command(name)
    }

    /// Returns what the agent must receive before the prompt: the mode prompt and the missed messages.
    fn catch_up_content(&self, history: &History) -> Vec<Content> {
        let (fresh, knows) =
            self.sessions.states().get(&self.key).map_or((true, 0), |state| (state.fresh, state.knows));
        let system = self.system.iter().filter(|_| fresh).map(|system| Content::Injected(system.to_string()));
        let since = history.messages().get(knows..).unwrap_or_default();
        system.chain(catch_up_text(since).map(Content::Injected)).collect()
    }
}

/// Renders the messages that the agent missed, or the last of them if they are long. `None` if there are none.
fn catch_up_text(messages: &[Arc<Message>]) -> Option<String> {
    let line = |message: &Arc<Message>| {
        let text = message.text();
        let who = match message.role {
            Role::User if message.is_prompt() => "The user",
            Role::User => return None,
            Role::Assistant => "The answer",
        };
        (!text.trim().is_empty()).then(|| format!("{who}: {}", text.trim()))
    };
    let mut lines: Vec<_> = messages.iter().filter_map(line).collect();
    let (mut size, all) = (0, lines.len());
    let kept = lines.iter().rev().take_while(|line| {
        size += line.len();
        size <= MAX_CATCH_UP_BYTES
    });
    let kept = kept.count().max(1).min(all);
    lines.drain(..all - kept);
    let said = truncate(&lines.join("\n\n"), MAX_CATCH_UP_BYTES).to_owned();
    (!said.is_empty()).then(|| format!("The conversation of this session so far, without you:\n\n{said}"))
}

/// Collects messages for the history, and forwards all events to `inner`.
struct HistoryTap {
    inner: Arc<dyn Notifier>,
    messages: CollectedMessages,
}

impl Notifier for HistoryTap {
    fn log(&self, event: Event) {
        for event in event.native_events() {
            if let Event::Message { message } = event {
                self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(message));
            }
        }
        self.inner.log(event);
    }

    fn status(&self, status: StatusUpdate) {
        self.inner.status(status);
    }

    fn backlog(&self) -> usize {
        self.inner.backlog()
    }
}
