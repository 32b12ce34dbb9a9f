//! Uses an external agent as a model. Each request runs in a new session without tools and without a user. Whole turns
//! are run by `session/external.rs`.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::a2a::RemoteSession;
use super::client_context::ClientContext;
use super::client_methods::GrantedCapabilities;
use super::prompt::single_text;
use super::session::{AcpSession, DuplicateSessionId};
use super::{Inner, OPEN_TIMEOUT};
use crate::agents::{
    Event, ExternalAgent, ExternalAgentError, ExternalAgentSpec, Notifier, ResumePolicy, StatusUpdate, StopReason,
};
use crate::conversation::{Content, Usage};
use crate::ids::ModelRef;
use crate::llm::{LlmError, ModelRequest, ModelStop, Provider, StreamEvent};

pub(super) struct ExternalModel {
    inner: Arc<Inner>,
    who: ExternalAgent,
    name: ModelRef,
}

type StreamItem = Result<StreamEvent, LlmError>;

impl ExternalModel {
    pub(super) fn new(inner: Arc<Inner>, who: ExternalAgent) -> Self {
        let name = ModelRef::External(who.name().clone());
        Self { inner, who, name }
    }
}

impl Provider for ExternalModel {
    fn name(&self) -> &ModelRef {
        &self.name
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let (tell, told) = mpsc::unbounded_channel();
        let cancel = CancellationToken::new();
        let (inner, who, model, given_up) =
            (Arc::clone(&self.inner), self.who.clone(), self.name.to_string(), cancel.clone());
        self.inner.scope.spawn(async move {
            let asked = ask(&inner, who, &request, tell.clone(), &given_up).await;
            let last = asked.map_err(|error| LlmError::Failed { model, reason: error.to_string() });
            // The stream may already be dropped.
            drop(tell.send(last));
        });
        let guard = cancel.drop_guard();
        futures::stream::unfold((told, guard), |(mut told, guard)| async move {
            let next = told.recv().await?;
            Some((next, (told, guard)))
        })
        .boxed()
    }
}

/// Why an external agent did not answer as a model.
#[derive(Debug, thiserror::Error)]
enum ExternalModelError {
    #[error(transparent)]
    Agent(#[from] ExternalAgentError),
    #[error("no folder to work in: {0}")]
    Folder(#[source] std::io::Error),
    #[error("it did not answer")]
    Timeout,
    #[error("{reason}")]
    Failed { reason: String },
    #[error("it gave the session no id")]
    NoSessionId,
    #[error(transparent)]
    Opening(#[from] DuplicateSessionId),
    #[error("it was cancelled")]
    Cancelled,
}

async fn ask(
    inner: &Inner,
    who: ExternalAgent,
    request: &ModelRequest,
    tell: mpsc::UnboundedSender<StreamItem>,
    cancel: &CancellationToken,
) -> Result<StreamEvent, ExternalModelError> {
    let prompt = vec![Content::text(single_text(&request.system, &request.messages))];
    let notifier = Arc::new(StreamNotifier(tell));
    let end = match who {
        ExternalAgent::Program(who) => {
            let session = open(inner, *who).await?;
            session.run(prompt, notifier, cancel).await
        }
        ExternalAgent::Remote(who) => {
            let session = RemoteSession::open(who, &inner.launch.environment, None, &ResumePolicy::Never).await?;
            session.run(prompt, notifier, cancel).await
        }
    };
    let stop = match end.ending {
        StopReason::EndTurn | StopReason::CallRefused { .. } => ModelStop::Finished,
        StopReason::MaxTokens | StopReason::Exhausted { .. } => ModelStop::Length,
        StopReason::Refusal => ModelStop::Refused,
        StopReason::Cancelled => return Err(ExternalModelError::Cancelled),
        StopReason::Failed { why, .. } => return Err(ExternalModelError::Failed { reason: why }),
    };
    Ok(StreamEvent::Done { stop, usage: Usage::default() })
}

/// Opens a session without services in the process of an agent.
async fn open(inner: &Inner, who: ExternalAgentSpec) -> Result<Arc<AcpSession>, ExternalModelError> {
    let connection = inner.connection(&who, GrantedCapabilities::default()).await?;
    // A process that belongs to a session sees only the scratch folder of the session.
    let of_session = who.sandbox.as_ref().filter(|sandbox| sandbox.spec.profile.is_per_root());
    let cwd = of_session.map_or(&inner.launch.scratch, |sandbox| &sandbox.session.scratch).clone();
    tokio::fs::create_dir_all(&cwd).await.map_err(ExternalModelError::Folder)?;
    let local = inner.local(&who);
    let session = AcpSession::new(Arc::clone(&connection), ClientContext::new(who, local, None));
    let opening = connection.begin_opening();
    let new = connection.request("session/new", json!({"cwd": cwd, "mcpServers": []}));
    let answer = tokio::time::timeout(OPEN_TIMEOUT, new).await.map_err(|_| ExternalModelError::Timeout)?;
    let answer = answer.map_err(|error| ExternalModelError::Failed { reason: error.message })?;
    let id = answer["sessionId"].as_str().ok_or(ExternalModelError::NoSessionId)?;
    session.complete_opening(id, &answer, false)?;
    drop(opening);
    Ok(session)
}

/// Converts the text and thoughts of a turn to stream events.
struct StreamNotifier(mpsc::UnboundedSender<StreamItem>);

impl Notifier for StreamNotifier {
    fn log(&self, event: Event) {
        // Messages that were not streamed as text chunks.
        if let Event::External { events, streamed: false, .. } = event {
            for event in events {
                if let Event::Message { message } = event {
                    drop(self.0.send(Ok(StreamEvent::Text(message.text()))));
                }
            }
        }
    }

    fn status(&self, status: StatusUpdate) {
        let piece = match status {
            StatusUpdate::Text(text) | StatusUpdate::ExternalChunk { text, thought: false, .. } => {
                StreamEvent::Text(text)
            }
            StatusUpdate::Thought(text) | StatusUpdate::ExternalChunk { text, .. } => StreamEvent::Thought(text),
            StatusUpdate::ToolActivity { .. }
            | StatusUpdate::Usage { .. }
            | StatusUpdate::Notice(_)
            | StatusUpdate::Title(_) => return,
        };
        drop(self.0.send(Ok(piece)));
    }
}
