//! A turn that has begun: the session is held for it, and what it is done with can still be decided.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::external::ExternalTurn;
use super::setup::SessionSetup;
use super::{PromptError, Session, SessionSettings};
use crate::agents::{Event, Exchange, History, Notifier, StopReason, TurnEnd, TurnInput};
use crate::conversation::{Content, Usage};
use crate::ids::ModeId;
use crate::llm::{LlmError, Provider};

/// A turn that has started and not yet run. The session is busy until it is dropped.
pub struct PendingTurn {
    session: Arc<Session>,
    history: OwnedMutexGuard<History>,
    setup: Arc<SessionSetup>,
    /// Another mode than the session's own, for this turn.
    mode: Option<ModeId>,
    cleanup: TurnCleanup,
}

impl PendingTurn {
    pub(super) fn new(session: Arc<Session>, history: OwnedMutexGuard<History>, setup: Arc<SessionSetup>) -> Self {
        Self { cleanup: TurnCleanup(Arc::clone(&session)), session, history, setup, mode: None }
    }

    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// What the session was set to when the turn began.
    pub fn choice(&self) -> &SessionSettings {
        &self.setup.choice
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Reads the history anew if another program has gone on with the session.
    pub async fn catch_up(&mut self) -> Result<(), PromptError> {
        self.session.catch_up(&mut self.history).await
    }

    /// The model for decisions, if there is one: the accelerator, or else the model of the session.
    pub fn adviser(&self) -> Result<Option<Arc<dyn Provider>>, LlmError> {
        let accelerator = self.setup.models().recovery_policy()?.accelerator;
        let provider = accelerator.map_or_else(|| self.setup.provider(), Ok)?;
        // An agent outside is too slow for small decisions.
        let decides =
            |provider: &Arc<dyn Provider>| provider.name() != "offline" && !provider.name().starts_with("acp:");
        Ok(Some(provider).filter(decides))
    }

    /// Names the session after its first prompt. Returns the title if it is new.
    pub fn name_after(&self, prompt: &[Content]) -> Option<String> {
        self.session.name_after(&words(prompt))
    }

    /// Hands the turn to another mode, under the consent that the session's own mode needs.
    pub fn hand_to(&mut self, mode: ModeId) {
        self.mode = Some(mode).filter(|mode| *mode != self.setup.choice.mode);
    }

    /// Runs the turn on a history that is current (`catch_up`). `front` receives its events; the last one, its end, is
    /// sent after the store has all of them.
    pub async fn run(
        self,
        opening: TurnInput,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> Result<TurnEnd, PromptError> {
        let Self { session: live, mut history, setup, mode, cleanup: _over } = self;
        let text = words(&opening.prompt);
        // A first answer that is known is followed up by whoever is asked for the next.
        let whole = opening.first.is_empty();
        let prepare = async {
            let setup = match mode {
                Some(mode) => setup.for_mode(mode).await?,
                None => setup,
            };
            let guest = if whole { live.prepare_external_turn(&setup, &text, &front).await? } else { None };
            match guest {
                Some(guest) => Ok(Worker::External(guest)),
                None => live.prepare(&setup, &text, &front).await.map(|exchange| Worker::Exchange(Box::new(exchange))),
            }
        };
        let prepared = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            prepared = prepare => Some(prepared?),
        };
        let Some(worker) = prepared else {
            let end = TurnEnd { ending: StopReason::Cancelled, usage: Usage::default() };
            front.log(Event::TurnEnded { end: end.clone() });
            return Ok(end);
        };
        let mut end = match worker {
            Worker::Exchange(exchange) => exchange.turn(&mut history, opening, cancel).await,
            Worker::External(guest) => guest.turn(&mut history, opening, cancel).await,
        };
        end.usage += live.take_extra_usage();
        live.count(end.usage);
        live.finish_turn().await?;
        // The next prompt may follow at once.
        drop(history);
        front.log(Event::TurnEnded { end: end.clone() });
        Ok(end)
    }
}

/// Who works on a turn.
enum Worker {
    Exchange(Box<Exchange>),
    External(ExternalTurn),
}

/// Clears the turn's state in the session when the turn ends, in any way.
struct TurnCleanup(Arc<Session>);

impl Drop for TurnCleanup {
    fn drop(&mut self) {
        self.0.clear_turn();
    }
}

fn words(prompt: &[Content]) -> String {
    prompt.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n")
}

impl std::fmt::Debug for PendingTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingTurn").field("live", &self.session).field("mode", &self.mode).finish_non_exhaustive()
    }
}
