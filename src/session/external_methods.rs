//! Opens and uses the external session of a session that an external agent works on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::external::{ExternalTurn, resume_policy};
use super::recorder::row;
use super::setup::SessionSetup;
use super::{PromptError, Session, SessionError};
use crate::agents::{Event, ExternalSession, ExternalSessionRequest, Notifier};

impl Session {
    /// Prepares a turn of an external agent. `None` if no external agent works on the session.
    pub(super) async fn prepare_external_turn(
        &self,
        setup: &SessionSetup,
        prompt: &str,
        front: &Arc<dyn Notifier>,
    ) -> Result<Option<ExternalTurn>, PromptError> {
        let Some((_, key)) = setup.external_agent() else { return Ok(None) };
        let Some(seat) = self.ensure_external_session(setup, false).await? else { return Ok(None) };
        let binding = setup.binding().await?;
        let system = setup
            .external_system_prompt(&binding, prompt, self.sessions.options.os)
            .await
            .map_err(PromptError::Prompt)?;
        let (seats, notifier) = (Arc::clone(setup.external_sessions()), self.recorder(front));
        Ok(Some(ExternalTurn { sessions: seats, key, session: seat, notifier, system }))
    }

    /// Returns the external session for the mode of `setup`, and opens it if necessary. `None` if no external agent
    /// works on the session. If `must`, fails if the agent cannot resume its earlier session.
    pub(super) async fn ensure_external_session(
        &self,
        setup: &SessionSetup,
        must: bool,
    ) -> Result<Option<Arc<dyn ExternalSession>>, SessionError> {
        let Some((who, key)) = setup.external_agent() else { return Ok(None) };
        let host = setup.host();
        let entering = ExternalSessionRequest {
            agent: who,
            session: Arc::clone(self.context()),
            // The services of the mode start before the agent process.
            binding: setup.binding().await?,
            asker: Arc::clone(&host.asker),
            resume: resume_policy(setup.external_sessions().external_id(&key), must),
        };
        let (seat, taken) =
            setup.external_sessions().ensure_open(&key, host.external_agents.as_ref(), entering).await?;
        if let Some(event) = taken {
            self.sessions.store.append(self.id(), row(&event));
            self.events.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(seat))
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
    pub async fn set_external_option(&self, option: &str, value: Value) -> Result<(), String> {
        let setup = self.setup();
        let (_, key) = setup.external_agent().ok_or("no external agent works on the session")?;
        setup.external_sessions().choose(&key, option, value).await
    }

    /// Restores the external sessions from the stored events.
    pub(super) fn restore_external_sessions(&self, events: &[Event]) {
        if let Ok(history) = self.history.try_lock() {
            self.setup().external_sessions().restore(self.id(), events, &history);
        }
    }
}
