//! A turn that runs by itself: whoever has its ends hears of it, answers its questions, and ends it by letting go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ask::{Asked, Reach};
use super::talks::Talk;
use super::told::Told;
use crate::agents::TurnEnd;
use crate::conversation::Content;
use crate::orchestrator::{Orchestrator, Wish};
use crate::session::PromptError;
use crate::task::Scope;

pub(super) type Ended = Result<TurnEnd, PromptError>;

pub(super) struct Turn {
    pub(super) talk: Arc<Talk>,
    pub(super) asked: mpsc::UnboundedReceiver<Asked>,
    pub(super) told: mpsc::Receiver<String>,
    pub(super) ended: oneshot::Receiver<Ended>,
    /// How often the client was told something.
    pub(super) count: u64,
    cancel: CancellationToken,
    _let_go: DropGuard,
}

impl Turn {
    /// `Err` if the session is busy.
    pub(super) fn begin(
        talk: Arc<Talk>,
        prompt: String,
        reach: Reach,
        orchestrator: &Orchestrator,
        scope: &Scope,
    ) -> Result<Self, String> {
        let begun = talk.live.begin().map_err(|_| {
            let id = talk.live.id();
            format!("the session `{id}` is still busy with the prompt before: wait for its end, or leave `session` out")
        })?;
        let (asking, asked) = mpsc::unbounded_channel();
        talk.asker.speaks_to(asking, reach);
        let (front, told) = Told::new();
        let (over, ended) = oneshot::channel();
        let cancel = scope.cancelled().child_token();
        let (running, cancelled, orchestrator) = (Arc::clone(&talk), cancel.clone(), orchestrator.clone());
        scope.spawn(async move {
            // The words of another program: they do not choose who works.
            let wish = Wish { plan_only: false, typed: false };
            let prompt = vec![Content::text(prompt)];
            let seated = if running.reopened.swap(false, Ordering::Relaxed) {
                tokio::select! {
                    biased;
                    () = cancelled.cancelled() => Ok(()),
                    seated = running.live.be_seated_again() => seated,
                }
            } else {
                Ok(())
            };
            let ended = match seated {
                Ok(()) => orchestrator.prompt(begun, prompt, wish, Arc::new(front), &cancelled).await,
                Err(error) => Err(error.into()),
            };
            // Whoever let go of the turn does not hear of its end.
            drop(over.send(ended));
        });
        Ok(Self { talk, asked, told, ended, count: 0, _let_go: cancel.clone().drop_guard(), cancel })
    }

    pub(super) fn cancel(&self) {
        self.cancel.cancel();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}
