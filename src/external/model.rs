//! Uses an external agent as a model. Each request runs in a new session without tools and without a user. Whole turns
//! are run by `session/external.rs`.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client_context::ClientContext;
use super::client_methods::GrantedCapabilities;
use super::prompt::single_text;
use super::session::AcpSession;
use super::{Inner, OPEN_TIMEOUT};
use crate::agents::{Event, ExternalAgentSpec, Notifier, StatusUpdate, StopReason};
use crate::conversation::{Content, Usage};
use crate::ids::ModelRef;
use crate::llm::{LlmError, ModelRequest, ModelStop, Provider, StreamEvent};

pub(super) struct ExternalModel {
    inner: Arc<Inner>,
    who: ExternalAgentSpec,
    name: ModelRef,
}

type StreamItem = Result<StreamEvent, LlmError>;

impl ExternalModel {
    pub(super) fn new(inner: Arc<Inner>, who: ExternalAgentSpec) -> Self {
        let name = ModelRef::External(who.name.clone());
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
            let last = asked.map_err(|reason| LlmError::Failed { model, reason });
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

async fn ask(
    inner: &Inner,
    who: ExternalAgentSpec,
    request: &ModelRequest,
    tell: mpsc::UnboundedSender<StreamItem>,
    cancel: &CancellationToken,
) -> Result<StreamEvent, String> {
    let connection = inner.connection(&who, GrantedCapabilities::default()).await.map_err(|error| error.to_string())?;
    let cwd = &inner.launch.scratch;
    tokio::fs::create_dir_all(cwd).await.map_err(|error| format!("no folder to work in: {error}"))?;
    let session = AcpSession::new(Arc::clone(&connection), ClientContext::new(who, inner.local(), None));
    let opening = connection.begin_opening();
    let new = connection.request("session/new", json!({"cwd": cwd, "mcpServers": []}));
    let answer = tokio::time::timeout(OPEN_TIMEOUT, new).await.map_err(|_| "it did not answer".to_owned())?;
    let answer = answer.map_err(|error| error.message)?;
    let id = answer["sessionId"].as_str().ok_or("it gave the session no id")?;
    session.complete_opening(id, &answer, false)?;
    drop(opening);
    let prompt = vec![Content::text(single_text(&request.system, &request.messages))];
    let end = session.run(prompt, Arc::new(StreamNotifier(tell)), cancel).await;
    let stop = match end.ending {
        StopReason::EndTurn | StopReason::CallRefused { .. } => ModelStop::Finished,
        StopReason::MaxTokens | StopReason::Exhausted { .. } => ModelStop::Length,
        StopReason::Refusal => ModelStop::Refused,
        StopReason::Cancelled => return Err("it was cancelled".to_owned()),
        StopReason::Failed { why } => return Err(why),
    };
    Ok(StreamEvent::Done { stop, usage: Usage::default() })
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

/// A model that fails every request, because external agents are disabled.
pub(super) struct UnavailableModel {
    name: ModelRef,
}

impl UnavailableModel {
    pub(super) fn new(who: &ExternalAgentSpec) -> Self {
        Self { name: ModelRef::External(who.name.clone()) }
    }
}

impl Provider for UnavailableModel {
    fn name(&self) -> &ModelRef {
        &self.name
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'_, StreamItem> {
        let reason = "this skein runs no external agents".to_owned();
        futures::stream::iter([Err(LlmError::Unusable { model: self.name.to_string(), reason })]).boxed()
    }
}
