//! Keeps the external sessions of a session: one for each mode and external agent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::agents::{
    Event, ExternalAgentError, ExternalAgents, ExternalOptionError, ExternalSession, ExternalSessionRequest, History,
    ResumePolicy,
};
use crate::conversation::Message;
use crate::ids::{AgentName, ModeId};

/// A mode, and the external agent that runs its turns.
pub(super) type ExternalSessionKey = (ModeId, AgentName);

/// The external sessions of a session.
#[derive(Default)]
pub(super) struct ExternalSessions {
    states: Mutex<HashMap<ExternalSessionKey, ExternalSessionState>>,
    /// Locked while an external session is opened, so that none is opened twice.
    opening: tokio::sync::Mutex<()>,
}

/// Options set at an agent, each with its value.
type ChosenOptions = Vec<(String, Value)>;

#[derive(Clone)]
pub(super) struct ExternalSessionState {
    /// Set by the user, and set again when the agent is restarted.
    chosen: ChosenOptions,
    /// The agent's id for the session.
    id: String,
    session: Option<Arc<dyn ExternalSession>>,
    /// The agent has lost the session, and the user has not been notified yet.
    pub(super) forgot: bool,
    /// The agent has not received anything yet, not even the mode prompt.
    pub(super) fresh: bool,
    /// Number of messages in the history that the agent knows.
    pub(super) knows: usize,
    /// The messages that the agent sent after its last turn.
    pub(super) late: CollectedMessages,
}

/// Messages that a notifier collects.
pub(super) type CollectedMessages = Arc<Mutex<Vec<Arc<Message>>>>;

impl ExternalSessions {
    /// Restores the ids of the external sessions from the events of `session`.
    pub(super) fn restore(&self, session: &str, events: &[Event], history: &History) {
        let mut states = self.states();
        for event in events {
            // The agents still know the undone turn, so they must open new sessions.
            if matches!(event, Event::Undone { .. }) {
                states.clear();
            }
            if let Event::ExternalSessionOpened { mode, agent, id, of } = event
                && of == session
                && let (Ok(mode), agent) = (mode.parse::<ModeId>(), AgentName::new(agent))
            {
                let knows = history.messages().len();
                states.insert(
                    (mode, agent),
                    ExternalSessionState {
                        chosen: ChosenOptions::new(),
                        id: id.clone(),
                        session: None,
                        forgot: false,
                        fresh: false,
                        knows,
                        late: CollectedMessages::default(),
                    },
                );
            }
        }
    }

    pub(super) fn external_id(&self, key: &ExternalSessionKey) -> Option<String> {
        self.states().get(key).map(|state| state.id.clone())
    }

    /// Returns the external session in use. `None` if there is none or its agent has ended.
    pub(super) fn current(&self, key: &ExternalSessionKey) -> Option<Arc<dyn ExternalSession>> {
        self.states().get(key)?.session.clone().filter(|session| session.is_alive())
    }

    /// Returns the external session in use, or opens one. The event reports an opened one, and the caller must store
    /// it.
    pub(super) async fn ensure_open(
        &self,
        key: &ExternalSessionKey,
        agents: &dyn ExternalAgents,
        entering: ExternalSessionRequest,
    ) -> Result<(Arc<dyn ExternalSession>, Option<Event>), ExternalAgentError> {
        let _taking = self.opening.lock().await;
        if let Some(session) = self.current(key) {
            session.rebind(entering.binding, entering.asker);
            return Ok((session, None));
        }
        let of = entering.session.id.clone();
        let session = agents.enter(entering).await?;
        let chosen = self.states().get(key).map(|state| state.chosen.clone()).unwrap_or_default();
        for (option, value) in &chosen {
            if let Err(problem) = session.choose(option.clone(), value.clone()).await {
                tracing::warn!(%problem, option, "the options of the external agent differ from the chosen ones");
            }
        }
        let id = session.id();
        let mut all = self.states();
        let knows = all.get(key).filter(|_| session.remembers()).map_or(0, |state| state.knows);
        let fresh = !session.remembers();
        let forgot = fresh && all.contains_key(key);
        let (open, late) = (Some(Arc::clone(&session)), CollectedMessages::default());
        all.insert(
            key.clone(),
            ExternalSessionState { chosen, id: id.clone(), session: open, forgot, fresh, knows, late },
        );
        let event = Event::ExternalSessionOpened { mode: key.0.to_string(), agent: key.1.to_string(), id, of };
        Ok((session, Some(event)))
    }

    /// Sets an option at the agent, and keeps it for later restarts. Fails if the agent does not run or refuses.
    pub(super) async fn choose(
        &self,
        key: &ExternalSessionKey,
        option: &str,
        value: Value,
    ) -> Result<(), ExternalOptionError> {
        let session = self.current(key).ok_or(ExternalOptionError::NotRunning)?;
        session.choose(option.to_owned(), value.clone()).await?;
        if let Some(state) = self.states().get_mut(key) {
            state.chosen.retain(|(known, _)| known != option);
            state.chosen.push((option.to_owned(), value));
        }
        Ok(())
    }

    /// Returns the messages that the agents sent after their last turns. The caller adds them to the history, which has
    /// `count` messages.
    pub(super) fn take_late(&self, count: usize) -> Vec<Arc<Message>> {
        let open: Vec<_> = self.states().values().filter_map(|state| state.session.clone()).collect();
        // Without the lock: a session logs the messages of its agent.
        open.iter().for_each(|session| session.finish_last_turn());
        let mut late = Vec::new();
        for state in self.states().values_mut() {
            let said = std::mem::take(&mut *state.late.lock().unwrap_or_else(PoisonError::into_inner));
            if state.knows == count + late.len() {
                state.knows += said.len();
            }
            late.extend(said);
        }
        late
    }

    /// Closes all external sessions. Keeps their ids.
    pub(super) fn close(&self) {
        let open: Vec<_> = self.states().values_mut().filter_map(|state| state.session.take()).collect();
        // Without the lock: a session that ends logs what its agent left open.
        drop(open);
    }

    /// Forgets all external sessions, because the agents know messages that are no longer in the history.
    pub(super) fn forget(&self) {
        self.states().clear();
    }

    pub(super) fn states(&self) -> MutexGuard<'_, HashMap<ExternalSessionKey, ExternalSessionState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
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
