//! Keeps the external sessions of a session: one for each mode and external agent. An agent that missed messages
//! receives them with its next prompt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agents::{
    Event, ExternalAgentError, ExternalAgents, ExternalSession, ExternalSessionRequest, History, Notifier,
    ResumePolicy, StatusUpdate, TurnEnd, TurnInput, emit_completed_call,
};
use crate::conversation::{Content, Message, Role};
use crate::ids::{AgentName, ModeId};
use crate::tool::truncate;

/// Maximum bytes of missed messages that an agent receives.
const MAX_CATCH_UP_BYTES: usize = 40_000;

/// A mode, and the external agent that runs its turns.
pub(super) type ExternalSessionKey = (ModeId, AgentName);

#[derive(Default)]
pub(super) struct ExternalSessions {
    states: Mutex<HashMap<ExternalSessionKey, ExternalSessionState>>,
    /// Locked while an external session is opened, so that none is opened twice.
    opening: tokio::sync::Mutex<()>,
}

/// Options set at an agent, each with its value.
type ChosenOptions = Vec<(String, Value)>;

#[derive(Clone)]
struct ExternalSessionState {
    /// Set by the user, and set again when the agent is restarted.
    chosen: ChosenOptions,
    /// The agent's id for the session.
    id: String,
    session: Option<Arc<dyn ExternalSession>>,
    /// The agent has lost the session, and the user has not been notified yet.
    forgot: bool,
    /// The agent has not received anything yet, not even the mode prompt.
    fresh: bool,
    /// Number of messages in the history that the agent knows.
    knows: usize,
}

impl ExternalSessions {
    /// Restores the ids of the external sessions from the events of `session`.
    pub(super) fn restore(&self, session: &str, events: &[Event], history: &History) {
        let mut taken = self.states();
        for event in events {
            // The agents still know the undone turn, so they must open new sessions.
            if matches!(event, Event::Undone { .. }) {
                taken.clear();
            }
            if let Event::ExternalSessionOpened { mode, agent, id, of } = event
                && of == session
                && let (Ok(mode), agent) = (mode.parse::<ModeId>(), AgentName::new(agent))
            {
                let knows = history.messages().len();
                taken.insert(
                    (mode, agent),
                    ExternalSessionState {
                        chosen: ChosenOptions::new(),
                        id: id.clone(),
                        session: None,
                        forgot: false,
                        fresh: false,
                        knows,
                    },
                );
            }
        }
    }

    pub(super) fn external_id(&self, key: &ExternalSessionKey) -> Option<String> {
        self.states().get(key).map(|taken| taken.id.clone())
    }

    /// Returns the external session in use. `None` if there is none or its agent has ended.
    pub(super) fn current(&self, key: &ExternalSessionKey) -> Option<Arc<dyn ExternalSession>> {
        self.states().get(key)?.session.clone().filter(|seat| seat.is_alive())
    }

    /// Returns the external session in use, or opens one. The event reports an opened one, and the caller must store
    /// it.
    pub(super) async fn ensure_open(
        &self,
        key: &ExternalSessionKey,
        outside: &dyn ExternalAgents,
        entering: ExternalSessionRequest,
    ) -> Result<(Arc<dyn ExternalSession>, Option<Event>), ExternalAgentError> {
        let _taking = self.opening.lock().await;
        if let Some(seat) = self.current(key) {
            seat.rebind(entering.binding, entering.asker);
            return Ok((seat, None));
        }
        let of = entering.session.id.clone();
        let seat = outside.enter(entering).await?;
        let chosen = self.states().get(key).map(|taken| taken.chosen.clone()).unwrap_or_default();
        for (option, value) in &chosen {
            if let Err(problem) = seat.choose(option.clone(), value.clone()).await {
                tracing::warn!(problem, option, "the options of the external agent differ from the chosen ones");
            }
        }
        let id = seat.id();
        let mut all = self.states();
        let knows = all.get(key).filter(|_| seat.remembers()).map_or(0, |taken| taken.knows);
        let fresh = !seat.remembers();
        let forgot = fresh && all.contains_key(key);
        all.insert(
            key.clone(),
            ExternalSessionState { chosen, id: id.clone(), session: Some(Arc::clone(&seat)), forgot, fresh, knows },
        );
        let event = Event::ExternalSessionOpened { mode: key.0.to_string(), agent: key.1.to_string(), id, of };
        Ok((seat, Some(event)))
    }

    /// Sets an option at the agent, and keeps it for later restarts. Fails if the agent does not run or refuses.
    pub(super) async fn choose(&self, key: &ExternalSessionKey, option: &str, value: Value) -> Result<(), String> {
        let seat = self.current(key).ok_or("the agent does not run; it is started with the next prompt")?;
        seat.choose(option.to_owned(), value.clone()).await?;
        if let Some(taken) = self.states().get_mut(key) {
            taken.chosen.retain(|(known, _)| known != option);
            taken.chosen.push((option.to_owned(), value));
        }
        Ok(())
    }

    /// Forgets all external sessions, because the agents know messages that are no longer in the history.
    pub(super) fn forget(&self) {
        self.states().clear();
    }

    fn states(&self) -> MutexGuard<'_, HashMap<ExternalSessionKey, ExternalSessionState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that an external agent runs.
pub(super) struct ExternalTurn {
    pub(super) sessions: Arc<ExternalSessions>,
    pub(super) key: ExternalSessionKey,
    pub(super) session: Arc<dyn ExternalSession>,
    pub(super) notifier: Arc<dyn Notifier>,
    /// The mode prompt, for an agent that has not received it.
    pub(super) system: Option<Arc<str>>,
}

impl ExternalTurn {
    pub(super) async fn turn(self, history: &mut History, opening: TurnInput, cancel: &CancellationToken) -> TurnEnd {
        let beside = self.catch_up_content(history);
        let missed = !beside.is_empty();
        let prompt = Arc::new(Message::user(opening.prompt.clone()));
        history.push(Arc::clone(&prompt));
        self.notifier.log(Event::Message { message: prompt });
        for event in opening.decided {
            emit_completed_call(self.notifier.as_ref(), event);
        }
        if self.sessions.states().get_mut(&self.key).is_some_and(|taken| std::mem::take(&mut taken.forgot)) {
            let who = &self.key.1;
            let text = format!(
                "`{who}` was restarted and lost this session; the conversation is resent with your next prompt"
            );
            self.notifier.status(StatusUpdate::notice(text));
        }
        let heard = Arc::new(HistoryTap { inner: Arc::clone(&self.notifier), messages: Mutex::default() });
        let front = Arc::clone(&heard) as Arc<dyn Notifier>;
        // A command must come first in the prompt, and is for the agent alone.
        let command = self.is_command(&opening.prompt);
        let prompt = if command {
            opening.prompt.into_iter().filter(|content| !matches!(content, Content::Injected(_))).collect()
        } else {
            beside.into_iter().chain(opening.prompt).collect()
        };
        let end = self.session.turn(prompt, front, cancel).await;
        let said = std::mem::take(&mut *heard.messages.lock().unwrap_or_else(PoisonError::into_inner));
        said.into_iter().for_each(|message| history.push(message));
        // With a command, the agent has not received the messages that it missed.
        if let Some(taken) = self.sessions.states().get_mut(&self.key).filter(|_| !(command && missed)) {
            (taken.fresh, taken.knows) = (false, history.messages().len());
        }
        self.notifier.log(Event::TurnEnded { end: end.clone() });
        end
    }

    /// Returns true if the prompt is one of the agent's own commands.
    fn is_command(&self, prompt: &[Content]) -> bool {
        let Some(line) = prompt.iter().find_map(Content::as_text).and_then(|text| text.trim_start().strip_prefix('/'))
        else {
            return false;
        };
        let name = line.split_whitespace().next().unwrap_or_default();
        self.session.commands().iter().any(|command| command["name"] == name)
    }

    /// Returns what the agent must receive before the prompt: the mode prompt and the missed messages.
    fn catch_up_content(&self, history: &History) -> Vec<Content> {
        let (fresh, knows) =
            self.sessions.states().get(&self.key).map_or((true, 0), |taken| (taken.fresh, taken.knows));
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
    messages: Mutex<Vec<Arc<Message>>>,
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

/// Returns the policy to resume the external session `id`. If `must`, failing to resume is an error.
pub(super) fn resume_policy(id: Option<String>, must: bool) -> ResumePolicy {
    match id {
        None => ResumePolicy::Never,
        Some(id) if must => ResumePolicy::Required(id),
        Some(id) => ResumePolicy::IfSupported(id),
    }
}
