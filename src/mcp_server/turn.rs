//! Runs a turn on its own task. The handle receives progress and questions; dropping it cancels the turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::progress::ProgressNotifier;
use super::sessions::OpenSession;
use crate::adapter::client_asker::{ElicitationSupport, PendingQuestion};
use crate::agents::TurnEnd;
use crate::conversation::Content;
use crate::orchestrator::{Orchestrator, PromptOptions};
use crate::session::PromptError;
use crate::task::TaskScope;

pub(super) type TurnResult = Result<TurnEnd, PromptError>;

pub(super) struct BackgroundTurn {
    pub(super) session: Arc<OpenSession>,
    pub(super) questions: mpsc::UnboundedReceiver<PendingQuestion>,
    pub(super) progress: mpsc::Receiver<String>,
    pub(super) ended: oneshot::Receiver<TurnResult>,
    /// Number of progress messages so far.
    pub(super) count: u64,
    cancel: CancellationToken,
    _let_go: DropGuard,
}

/// Why no turn begins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TurnStartError {
    #[error("the session `{session}` is still busy with the prompt before: wait for its end, or leave `session` out")]
    Busy { session: String },
    /// A limit of the client's token, which the message describes.
    #[error("{problem}")]
    Limit { problem: String },
}

impl TurnStartError {
    fn new(error: &PromptError, session: &str) -> Self {
        if let PromptError::Grant(limit) = error {
            return Self::Limit { problem: limit.to_string() };
        }
        Self::Busy { session: session.to_owned() }
    }
}

impl BackgroundTurn {
    /// Starts a turn on its own task. Fails if the session is busy, or too many turns of the token run.
    pub(super) fn begin(
        talk: Arc<OpenSession>,
        prompt: String,
        reach: ElicitationSupport,
        orchestrator: &Orchestrator,
        scope: &TaskScope,
    ) -> Result<Self, TurnStartError> {
        let pending = talk.session.begin().map_err(|error| TurnStartError::new(&error, talk.session.id()))?;
        let (asking, asked) = mpsc::unbounded_channel();
        talk.asker.set_client(asking, reach);
        let (front, told) = ProgressNotifier::new();
        let (over, ended) = oneshot::channel();
        let cancel = scope.cancelled().child_token();
        let (running, cancelled, orchestrator) = (Arc::clone(&talk), cancel.clone(), orchestrator.clone());
        scope.spawn(async move {
            // Another program wrote this prompt, so it cannot select an agent.
            let options = PromptOptions { plan_only: false, from_user: false };
            let prompt = vec![Content::text(prompt)];
            let seated = if running.reopened.swap(false, Ordering::Relaxed) {
                tokio::select! {
                    biased;
                    () = cancelled.cancelled() => Ok(()),
                    seated = running.session.reopen_external_session() => seated,
                }
            } else {
                Ok(())
            };
            let ended = match seated {
                Ok(()) => orchestrator.prompt(pending, prompt, options, Arc::new(front), &cancelled).await,
                Err(error) => Err(error.into()),
            };
            // Fails only if the handle was dropped.
            drop(over.send(ended));
        });
        Ok(Self {
            session: talk,
            questions: asked,
            progress: told,
            ended,
            count: 0,
            _let_go: cancel.clone().drop_guard(),
            cancel,
        })
    }

    pub(super) fn cancel(&self) {
        self.cancel.cancel();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}
