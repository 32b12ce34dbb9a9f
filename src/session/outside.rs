//! A session that an agent outside works on: its place there, and what is chosen there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::recorder::row;
use super::seats::{Guest, before};
use super::setup::Setup;
use super::{Live, PromptError, SessionError};
use crate::agents::{Entering, Event, Notifier, Seat};

impl Live {
    /// Everything for a turn that an agent outside works on; nothing if none does.
    pub(super) async fn prepare_guest(
        &self,
        setup: &Setup,
        prompt: &str,
        front: &Arc<dyn Notifier>,
    ) -> Result<Option<Guest>, PromptError> {
        let Some((_, key)) = setup.outsider() else { return Ok(None) };
        let Some(seat) = self.seat_of(setup, false).await? else { return Ok(None) };
        let binding = setup.binding().await?;
        let system =
            setup.told_outside(&binding, prompt, self.sessions.options.os).await.map_err(PromptError::Prompt)?;
        let (seats, notifier) = (Arc::clone(setup.seats()), self.recorder(front));
        Ok(Some(Guest { seats, key, seat, notifier, system }))
    }

    /// The session's place at the agent outside that works on it in its mode, if one does. It is taken if it is not
    /// yet; if the agent knew the session before and `must` be asked to go on with it, it does or this fails.
    pub(super) async fn seat_of(&self, setup: &Setup, must: bool) -> Result<Option<Arc<dyn Seat>>, SessionError> {
        let Some((who, key)) = setup.outsider() else { return Ok(None) };
        let host = setup.host();
        let entering = Entering {
            who,
            session: Arc::clone(self.session()),
            // What the mode needs is there before the program is started.
            binding: setup.binding().await?,
            asker: Arc::clone(&host.asker),
            before: before(setup.seats().known(&key), must),
        };
        let (seat, taken) = setup.seats().take(&key, host.outside.as_ref(), entering).await?;
        if let Some(event) = taken {
            self.sessions.store.append(self.id(), row(&event));
            self.events.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(seat))
    }

    /// Takes the session's place at the agent outside that works on it, if one does.
    pub async fn be_seated(&self) -> Result<(), SessionError> {
        self.seat_of(&self.setup(), false).await.map(drop)
    }

    /// The same for a session that was opened again: an agent that cannot go on with it is an error.
    pub async fn be_seated_again(&self) -> Result<(), SessionError> {
        self.seat_of(&self.setup(), true).await.map(drop)
    }

    /// Whether an agent outside works on it in its mode.
    pub fn is_outside(&self) -> bool {
        self.setup().outsider().is_some()
    }

    /// The place that it has at the moment.
    pub fn seat(&self) -> Option<Arc<dyn Seat>> {
        let setup = self.setup();
        let (_, key) = setup.outsider()?;
        setup.seats().current(&key)
    }

    /// Chooses something at the agent outside itself.
    pub async fn choose_outside(&self, option: &str, value: Value) -> Result<(), String> {
        let setup = self.setup();
        let (_, key) = setup.outsider().ok_or("no agent outside works on the session")?;
        setup.seats().choose(&key, option, value).await
    }

    /// What the record says about agents outside.
    pub(super) fn recall_seats(&self, events: &[Event]) {
        if let Ok(history) = self.history.try_lock() {
            self.setup().seats().recorded(self.id(), events, &history);
        }
    }
}
