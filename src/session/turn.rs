//! A turn that has begun: the session is held for it, and what it is done with can still be decided.

use std::sync::Arc;

use tokio::sync::MutexGuard;
use tokio_util::sync::CancellationToken;

use super::seats::Guest;
use super::setup::Setup;
use super::{Choice, Live, PromptError};
use crate::agents::{Ending, Event, Exchange, History, Notifier, Opening, TurnEnd};
use crate::conversation::{Content, Usage};
use crate::ids::ModeId;
use crate::llm::{LlmError, Provider};

/// See the module.
pub struct Begun<'a> {
    live: &'a Arc<Live>,
    history: MutexGuard<'a, History>,
    setup: Arc<Setup>,
    /// Another mode than the session's own, for this turn.
    mode: Option<ModeId>,
    /// The history is what the store has.
    current: bool,
    over: Over<'a>,
}

impl<'a> Begun<'a> {
    pub(super) fn new(live: &'a Arc<Live>, history: MutexGuard<'a, History>, setup: Arc<Setup>) -> Self {
        Self { live, history, setup, mode: None, current: false, over: Over(live) }
    }

    pub fn live(&self) -> &Arc<Live> {
        self.live
    }

    /// What the session was set to when the turn began.
    pub fn choice(&self) -> &Choice {
        &self.setup.choice
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Reads the history anew if another program has gone on with the session.
    pub async fn catch_up(&mut self) -> Result<(), PromptError> {
        self.live.catch_up(&mut self.history).await?;
        self.current = true;
        Ok(())
    }

    /// The model for decisions, if there is one: the accelerator, or else the model of the session.
    pub fn adviser(&self) -> Result<Option<Arc<dyn Provider>>, LlmError> {
        let accelerator = self.setup.models().upkeep()?.accelerator;
        let provider = accelerator.map_or_else(|| self.setup.provider(), Ok)?;
        // An agent outside is too slow for small decisions.
        let decides =
            |provider: &Arc<dyn Provider>| provider.name() != "offline" && !provider.name().starts_with("acp:");
        Ok(Some(provider).filter(decides))
    }

    /// The first prompt names the session.
    pub fn name_after(&self, prompt: &[Content]) {
        self.live.name_after(&words(prompt));
    }

    /// Hands the turn to another mode, under the consent that the session's own mode needs.
    pub fn hand_to(&mut self, mode: ModeId) {
        self.mode = Some(mode).filter(|mode| *mode != self.setup.choice.mode);
    }

    /// The whole turn. `front` hears of it, last of all of its end, which is in the store by then.
    pub async fn run(
        self,
        opening: Opening,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> Result<TurnEnd, PromptError> {
        let Self { live, mut history, setup, mode, current, over: _over } = self;
        let text = words(&opening.prompt);
        live.name_after(&text);
        // A first answer that is known is followed up by whoever is asked for the next.
        let whole = opening.first.is_empty();
        let prepare = async {
            let setup = match mode {
                Some(mode) => setup.handed_to(mode).await?,
                None => setup,
            };
            let guest = if whole { live.prepare_guest(&setup, &text, &front).await? } else { None };
            match guest {
                Some(guest) => Ok(Worker::Guest(guest)),
                None => live.prepare(&setup, &text, &front).await.map(|exchange| Worker::Ours(Box::new(exchange))),
            }
        };
        let catch_up = async { if current { Ok(()) } else { live.catch_up(&mut history).await } };
        let prepared = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            (prepared, current) = async { tokio::join!(prepare, catch_up) } => {
                current?;
                Some(prepared?)
            }
        };
        let Some(worker) = prepared else {
            let end = TurnEnd { ending: Ending::Cancelled, usage: Usage::default() };
            front.log(Event::TurnEnded { end: end.clone() });
            return Ok(end);
        };
        let mut end = match worker {
            Worker::Ours(exchange) => exchange.turn(&mut history, opening, cancel).await,
            Worker::Guest(guest) => guest.turn(&mut history, opening, cancel).await,
        };
        end.usage += live.spent_beside();
        live.count(end.usage);
        live.ended().await?;
        // The next prompt may follow at once.
        drop(history);
        front.log(Event::TurnEnded { end: end.clone() });
        Ok(end)
    }
}

/// Who works on a turn.
enum Worker {
    Ours(Box<Exchange>),
    Guest(Guest),
}

/// Whichever way a turn ends, nothing of it is kept by the session.
struct Over<'a>(&'a Live);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over();
    }
}

fn words(prompt: &[Content]) -> String {
    prompt.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n")
}

impl std::fmt::Debug for Begun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("live", &self.live).field("mode", &self.mode).finish_non_exhaustive()
    }
}
