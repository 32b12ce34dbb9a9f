//! A session that an agent outside works on: its place there, and what is chosen there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::external::{ExternalTurn, resume_policy};
use super::recorder::row;
use super::setup::SessionSetup;
use super::{PromptError, Session, SessionError};
use crate::agents::{Event, ExternalSession, ExternalSessionRequest, Notifier};

impl Session {
    /// Everything for a turn that an agent outside works on; nothing if none does.
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

    /// The session's place at the agent outside that works on it in its mode, if one does. It is taken if it is not
    /// yet; if the agent knew the session before and `must` be asked to go on with it, it does or this fails.
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
            // What the mode needs is there before the program is started.
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

    /// Takes the session's place at the agent outside that works on it, if one does.
    pub async fn open_external_session(&self) -> Result<(), SessionError> {
        self.ensure_external_session(&self.setup(), false).await.map(drop)
    }

    /// The same for a session that was opened again: an agent that cannot go on with it is an error.
    pub async fn reopen_external_session(&self) -> Result<(), SessionError> {
        self.ensure_external_session(&self.setup(), true).await.map(drop)
    }

    /// Whether an agent outside works on it in its mode.
    pub fn is_external(&self) -> bool {
        self.setup().external_agent().is_some()
    }

    /// The place that it has at the moment.
    pub fn external_session(&self) -> Option<Arc<dyn ExternalSession>> {
        let setup = self.setup();
        let (_, key) = setup.external_agent()?;
        setup.external_sessions().current(&key)
    }

    /// Chooses something at the agent outside itself.
    pub async fn set_external_option(&self, option: &str, value: Value) -> Result<(), String> {
        let setup = self.setup();
        let (_, key) = setup.external_agent().ok_or("no agent outside works on the session")?;
        setup.external_sessions().choose(&key, option, value).await
    }

    /// What the record says about agents outside.
    pub(super) fn restore_external_sessions(&self, events: &[Event]) {
        if let Ok(history) = self.history.try_lock() {
            self.setup().external_sessions().restore(self.id(), events, &history);
        }
    }
}
