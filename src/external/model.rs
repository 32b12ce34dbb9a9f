//! An agent outside in the place of a model: asked one question, in a session of its own, with no tools and nobody to
//! ask. Whole turns are given to it otherwise (`session/seats.rs`).

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::host::Admitted;
use super::place::Place;
use super::prompt::in_one;
use super::{Inner, OPENING};
use crate::agents::{Ending, Event, Notifier, Outsider, Status};
use crate::conversation::{Content, Usage};
use crate::llm::{LlmError, ModelStop, Provider, Request, StreamEvent};

pub(super) struct AsModel {
    inner: Arc<Inner>,
    who: Outsider,
    name: String,
}

type Told = Result<StreamEvent, LlmError>;

impl AsModel {
    pub(super) fn new(inner: Arc<Inner>, who: Outsider) -> Self {
        let name = format!("acp:{}", who.name);
        Self { inner, who, name }
    }
}

impl Provider for AsModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self, request: Request) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let (tell, told) = mpsc::unbounded_channel();
        let cancel = CancellationToken::new();
        let (inner, who, model, given_up) =
            (Arc::clone(&self.inner), self.who.clone(), self.name.clone(), cancel.clone());
        self.inner.scope.spawn(async move {
            let asked = ask(&inner, who, &request, tell.clone(), &given_up).await;
            let last = asked.map_err(|reason| LlmError::Failed { model, reason });
            // Nobody may listen any more.
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
    who: Outsider,
    request: &Request,
    tell: mpsc::UnboundedSender<Told>,
    cancel: &CancellationToken,
) -> Result<StreamEvent, String> {
    let peer = inner.peer(&who, Admitted::default()).await.map_err(|error| error.to_string())?;
    let cwd = &inner.around.scratch;
    tokio::fs::create_dir_all(cwd).await.map_err(|error| format!("no folder to work in: {error}"))?;
    let place = Place::new(who, Arc::clone(&peer), inner.local(), None);
    let opening = peer.opening();
    let new = peer.request("session/new", json!({"cwd": cwd, "mcpServers": []}));
    let answer = tokio::time::timeout(OPENING, new).await.map_err(|_| "it did not answer".to_owned())?;
    let answer = answer.map_err(|error| error.message)?;
    let id = answer["sessionId"].as_str().ok_or("it gave the session no id")?;
    place.opened(id, &answer, false)?;
    drop(opening);
    let prompt = vec![Content::text(in_one(&request.system, &request.messages))];
    let end = place.run(prompt, Arc::new(Streamed(tell)), cancel).await;
    let stop = match end.ending {
        Ending::EndTurn | Ending::CallRefused { .. } => ModelStop::Finished,
        Ending::MaxTokens | Ending::Exhausted { .. } => ModelStop::Length,
        Ending::Refusal => ModelStop::Refused,
        Ending::Cancelled => return Err("it was cancelled".to_owned()),
        Ending::Failed { why } => return Err(why),
    };
    Ok(StreamEvent::Done { stop, usage: Usage::default() })
}

/// Text and thoughts of a turn as pieces of an answer.
struct Streamed(mpsc::UnboundedSender<Told>);

impl Notifier for Streamed {
    fn log(&self, event: Event) {
        // What came otherwise than as plain text.
        if let Event::Relayed { means, heard: false, .. } = event {
            for event in means {
                if let Event::Message { message } = event {
                    drop(self.0.send(Ok(StreamEvent::Text(message.text()))));
                }
            }
        }
    }

    fn status(&self, status: Status) {
        let piece = match status {
            Status::Text(text) | Status::Piece { text, thought: false, .. } => StreamEvent::Text(text),
            Status::Thought(text) | Status::Piece { text, .. } => StreamEvent::Thought(text),
            Status::ToolActivity { .. } | Status::Usage { .. } | Status::Notice(_) | Status::Title(_) => return,
        };
        drop(self.0.send(Ok(piece)));
    }
}

/// A model that is not there.
pub(super) struct Absent {
    name: String,
}

impl Absent {
    pub(super) fn new(who: &Outsider) -> Self {
        Self { name: format!("acp:{}", who.name) }
    }
}

impl Provider for Absent {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self, _: Request) -> BoxStream<'_, Told> {
        let reason = "this skein runs no agents outside".to_owned();
        futures::stream::iter([Err(LlmError::Unusable { model: self.name.clone(), reason })]).boxed()
    }
}
