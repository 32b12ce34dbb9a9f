//! Runs turns. A pending turn reserves the session, and its mode can still be changed.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::external::ExternalTurn;
use super::metrics::CountGuard;
use super::recorder::SessionRecorder;
use super::setup::SessionSetup;
use super::{PromptError, Session, SessionSettings};
use crate::agents::{
    Event, Exchange, History, Notifier, StopReason, TurnEnd, TurnInput, finish_reason, provider_name,
    record_external_agent,
};
use crate::checkpoint::SessionHold;
use crate::conversation::{Content, Message, Usage};
use crate::ids::ModeId;
use crate::llm::{LlmError, Provider};
use crate::principal::UsagePermit;
use crate::telemetry::WorkSpan;
use crate::tool::CallContext;
use crate::tool::protected_check::check_new_protected;

/// A turn that has started and not yet run. The session is busy until it is dropped.
pub struct PendingTurn {
    session: Arc<Session>,
    /// Keeps other processes from working on the session. `None` before [`Self::catch_up`].
    hold: Option<SessionHold>,
    history: OwnedMutexGuard<History>,
    setup: Arc<SessionSetup>,
    /// The mode of this turn, if it differs from the session's.
    mode: Option<ModeId>,
    cleanup: TurnCleanup,
    /// Counts the turn for its token. `None` in a child session.
    permit: Option<UsagePermit>,
    /// Counts the turn for the token of the client that began it, if that is another one.
    client_permit: Option<UsagePermit>,
    counted: CountGuard,
}

impl PendingTurn {
    pub(super) fn new(
        session: Arc<Session>,
        history: OwnedMutexGuard<History>,
        setup: Arc<SessionSetup>,
        permit: Option<UsagePermit>,
    ) -> Self {
        let counted = session.sessions().metrics().begin_turn();
        let cleanup = TurnCleanup(Arc::clone(&session));
        Self { cleanup, session, hold: None, history, setup, mode: None, permit, client_permit: None, counted }
    }

    pub(super) fn setup(&self) -> &SessionSetup {
        &self.setup
    }

    /// Returns the turn with another setup, counted for one more token.
    pub(super) fn with_setup(self, setup: Arc<SessionSetup>, permit: UsagePermit) -> Self {
        Self { setup, client_permit: Some(permit), ..self }
    }

    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the settings of the session when the turn started.
    pub fn choice(&self) -> &SessionSettings {
        &self.setup.choice
    }

    /// Returns the mode that works on the turn: the session's, or the one that the turn was routed to.
    pub fn mode(&self) -> &ModeId {
        self.mode.as_ref().unwrap_or(&self.setup.choice.mode)
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Reloads the history if another process has continued or restored the session. Until the turn ends, no other
    /// process does so. Fails if one is at it.
    pub async fn catch_up(&mut self) -> Result<(), PromptError> {
        self.session.check_owned()?;
        if self.hold.is_none() {
            self.hold = self.session.hold_turn().await?;
        }
        self.session.catch_up(&mut self.history).await
    }

    /// Returns the model for decisions: the accelerator, or else the model of the session. `None` if that is offline or
    /// an external agent.
    pub fn adviser(&self) -> Result<Option<Arc<dyn Provider>>, LlmError> {
        let accelerator = self.setup.recovery_policy()?.accelerator;
        let provider = accelerator.map_or_else(|| self.setup.provider(), Ok)?;
        Ok(Some(provider).filter(|provider| provider.name().can_advise()))
    }

    /// Names the session after its first prompt. Returns the title if it is new.
    pub fn name_after(&self, prompt: &[Content]) -> Option<String> {
        self.session.name_after(prompt)
    }

    /// Runs the hooks before the prompt. Returns the text that they add for the model. Fails if one refuses the prompt.
    pub async fn run_prompt_hooks(
        &self,
        prompt: &[Content],
        cancel: &CancellationToken,
    ) -> Result<Option<Content>, PromptError> {
        self.session.run_prompt_hooks(&self.setup, &words(prompt), cancel).await
    }

    /// Routes the turn to another mode. Its calls still need the consent that the session's own mode requires.
    pub fn hand_to(&mut self, mode: ModeId) {
        self.mode = Some(mode).filter(|mode| *mode != self.setup.choice.mode);
    }

    /// Runs the turn. The history must be current ([`Self::catch_up`]). `front` receives the events; the last one, the
    /// end of the turn, follows after the store has all of them.
    pub async fn run(
        self,
        opening: TurnInput,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> Result<TurnEnd, PromptError> {
        let metrics = Arc::clone(self.session.sessions().metrics());
        let mode = self.mode();
        let provider = provider_name(&self.setup.choice.model);
        let span = self.session.span.turn(self.session.id(), mode.agent.as_str(), mode.mode.as_str(), provider);
        self.session.context().set_turn_span(Some(span.clone()));
        let ended = span.run(self.run_to_end(opening, front, cancel, &span)).await;
        metrics.count_turn(ended.as_ref().ok().map(|end| &end.ending));
        record_end(&span, ended.as_ref().ok());
        ended
    }

    async fn run_to_end(
        self,
        opening: TurnInput,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
        span: &WorkSpan,
    ) -> Result<TurnEnd, PromptError> {
        let Self { session, hold, mut history, setup, mode, cleanup, permit, client_permit, counted } = self;
        let until_end = (cleanup, counted);
        let (text, own_setup) = (words(&opening.prompt), Arc::clone(&setup));
        // A background task may have changed files since the last turn.
        session.finish_checkpoint().await;
        // Only an exchange can continue a given first answer; an external agent takes whole turns.
        let whole = opening.first.is_empty();
        let prepare = async {
            let setup = match mode {
                Some(mode) => setup.for_mode(mode).await?,
                None => setup,
            };
            let external = if whole { session.prepare_external_turn(&setup, &text, &front).await? } else { None };
            match external {
                Some(external) => Ok(Worker::External(Box::new(external))),
                None => {
                    session.prepare(&setup, &text, &front).await.map(|exchange| Worker::Exchange(Box::new(exchange)))
                }
            }
        };
        let prepared = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            prepared = prepare => Some(prepared?),
        };
        let Some(worker) = prepared else {
            let end = TurnEnd { ending: StopReason::Cancelled, usage: Usage::default() };
            if let Err(error) = session.store_cancelled_turn(&mut history, opening.prompt, &end, &front).await {
                tracing::warn!(session = session.id(), %error, "the prompt of a cancelled turn could not be stored");
            }
            drop((until_end, hold, history, permit, client_permit));
            front.log(Event::TurnEnded { end: end.clone() });
            return Ok(end);
        };
        // An external agent may change files without a call.
        let is_external = matches!(worker, Worker::External(_));
        if let Some(keeper) = session.context().keeper.get().filter(|_| is_external) {
            keeper.before_change().await;
        }
        if let Worker::External(external) = &worker {
            record_external_agent(span, &external.agent);
            session.admit_work().await?;
        }
        session.forget_start_texts(&opening.prompt);
        let limited = cancel.child_token();
        let work = async {
            match worker {
                Worker::Exchange(exchange) => {
                    let end = exchange.turn(&mut history, opening, &limited).await;
                    session.finish_exchange(&own_setup, &exchange, &mut history, end, &limited).await
                }
                Worker::External(external) => {
                    let end = external.turn(&mut history, opening, span, &limited).await;
                    session.finish_external_turn(&own_setup, &end, &history, &limited).await;
                    end
                }
            }
        };
        // Boxed, because each of these functions would keep room for it twice.
        let work = session.run_while_owned(Box::pin(work), &limited);
        let mut end = session.run_in_time(work, &limited).await;
        let call = CallContext::new(Arc::clone(session.context())).with_cancel(cancel.clone());
        check_new_protected(&call.with_asker(session.asker())).await;
        end.usage += session.take_extra_usage();
        session.count(end.usage);
        let store = async {
            // The new owner ends the turn in the store.
            session.check_owned()?;
            session.flush().await
        };
        // Both wait for the disk, and neither needs the other.
        let ((), stored) = tokio::join!(session.finish_checkpoint(), store);
        stored?;
        // Unlocks the history before the front end knows the end, so that the next prompt can follow at once. What the
        // next turn sets must not be cleared, so the cleanup comes first.
        drop((until_end, hold, history, permit, client_permit));
        front.log(Event::TurnEnded { end: end.clone() });
        Ok(end)
    }
}

impl Session {
    /// Stores the prompt and the end of a turn that was cancelled before its work began.
    async fn store_cancelled_turn(
        &self,
        history: &mut History,
        prompt: Vec<Content>,
        end: &TurnEnd,
        front: &Arc<dyn Notifier>,
    ) -> Result<(), PromptError> {
        self.check_owned()?;
        // The turn may have been cancelled before its history was current.
        self.catch_up(history).await?;
        let recorder = SessionRecorder::new(&self.sessions, self.id(), &self.events, front);
        self.forget_start_texts(&prompt);
        let prompt = Arc::new(Message::user(prompt));
        history.push(Arc::clone(&prompt));
        recorder.log(Event::Message { message: prompt });
        recorder.log(Event::TurnEnded { end: end.clone() });
        Ok(self.flush().await?)
    }
}

/// Runs a turn: an exchange or an external agent.
enum Worker {
    Exchange(Box<Exchange>),
    External(Box<ExternalTurn>),
}

/// Clears the turn's state in the session when the turn ends, in any way.
struct TurnCleanup(Arc<Session>);

impl Drop for TurnCleanup {
    fn drop(&mut self) {
        self.0.clear_turn();
        if let Some(checkpoints) = &self.0.checkpoints {
            checkpoints.abandon();
        }
    }
}

/// Records how a turn ended. `None`: it could not run.
fn record_end(span: &WorkSpan, end: Option<&TurnEnd>) {
    let Some(TurnEnd { ending, usage }) = end else { return span.fail("not_run") };
    span.record_tokens(usage.input, usage.output, usage.cached);
    if let Some(reason) = finish_reason(ending) {
        span.record_finish(reason);
    }
    match ending {
        StopReason::EndTurn | StopReason::MaxTokens | StopReason::Refusal | StopReason::CallRefused { .. } => {}
        StopReason::Cancelled => span.fail("cancelled"),
        StopReason::Exhausted { .. } => span.fail("limit_reached"),
        StopReason::Failed { .. } => span.fail("model_failed"),
    }
}

fn words(prompt: &[Content]) -> String {
    prompt.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n")
}

impl std::fmt::Debug for PendingTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingTurn").field("session", &self.session).field("mode", &self.mode).finish_non_exhaustive()
    }
}
