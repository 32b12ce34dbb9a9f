//! Runs one turn of a remote agent: sends the prompt, shows what the agent says, and answers its requests until its
//! task ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::lock;
use super::agent_request::RequestContext;
use super::remote_error::RemoteError;
use super::task_update::{RemoteState, StateMessage, TaskPiece, TaskUpdate};
use super::{CALL_EXTENSION, RemoteSession, result};
use crate::agents::{Event, MAX_BACKLOG, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::conversation::{Content, Message, MessagePart, Role, Usage};
use crate::ids::random_uuid;
use crate::network::{JsonClientError, JsonReply};

/// Maximum number of requests that the agent makes in one turn.
const MAX_REQUESTS: usize = 200;
/// Maximum bytes that the agent sends in one turn. The store keeps its output.
const MAX_TURN: usize = 16 << 20;
/// The pause before the backlog or a task is looked at again.
const BACKLOG_POLL: Duration = Duration::from_millis(10);
const TASK_POLL: Duration = Duration::from_secs(1);
/// How often in a row the agent may be unreachable while its task runs.
const MAX_FAILURES: u32 = 5;
/// How long the agent may take to cancel a task.
const CANCEL_TIME: Duration = Duration::from_secs(10);

/// One turn.
pub(super) struct RemoteTurn<'a> {
    session: &'a RemoteSession,
    notifier: Arc<dyn Notifier>,
    cancel: &'a CancellationToken,
    /// The task, and whether it has ended. `None` until the agent names it.
    task: Option<(String, bool)>,
    /// The parts of the message that is being collected.
    parts: Vec<MessagePart>,
    /// What the user has seen of each artifact and message.
    shown: HashMap<String, ShownOutput>,
    /// Messages about states that the user has seen.
    told: HashSet<String>,
    /// The bytes that the agent has sent.
    size: usize,
}

/// The output of one artifact or message.
#[derive(Default)]
struct ShownOutput {
    text: String,
    /// The number of images and sounds.
    media: usize,
}

/// A state in which the agent waits for Skein, or has ended.
struct TaskStop {
    state: RemoteState,
    message: StateMessage,
}

impl<'a> RemoteTurn<'a> {
    pub(super) fn new(session: &'a RemoteSession, notifier: Arc<dyn Notifier>, cancel: &'a CancellationToken) -> Self {
        let (parts, shown, told) = (Vec::new(), HashMap::new(), HashSet::new());
        Self { session, notifier, cancel, task: None, parts, shown, told, size: 0 }
    }

    /// Runs the turn to its end.
    pub(super) async fn run(mut self, prompt: Vec<Content>) -> TurnEnd {
        let worked = self.work(message_parts(prompt)).await;
        if worked.is_err() {
            self.cancel_task().await;
        }
        self.flush();
        let ending = match worked {
            Ok(()) => StopReason::EndTurn,
            Err(RemoteError::Cancelled) => StopReason::Cancelled,
            Err(error) => StopReason::failure(self.session.failure(&error)),
        };
        TurnEnd { ending, usage: Usage::default() }
    }

    /// Sends the prompt, and then an answer to each request of the agent.
    async fn work(&mut self, prompt: Vec<Value>) -> Result<(), RemoteError> {
        let mut parts = prompt;
        for _ in 0..=MAX_REQUESTS {
            let TaskStop { state, message } = self.exchange(parts).await?;
            let reason = || match message.text.trim() {
                "" => "no reason given".to_owned(),
                text => text.to_owned(),
            };
            match state {
                RemoteState::Completed | RemoteState::Working => return Ok(()),
                RemoteState::Failed => return Err(RemoteError::Failed { reason: reason() }),
                RemoteState::Rejected => return Err(RemoteError::Rejected { reason: reason() }),
                RemoteState::Canceled => return Err(RemoteError::Withdrawn),
                RemoteState::AuthRequired => return Err(RemoteError::LoginNeeded { how: reason() }),
                RemoteState::InputRequired => {
                    // What the agent has said so far comes before its request.
                    self.flush();
                    let notifier = self.notifier.as_ref();
                    let context = RequestContext { session: self.session, notifier, cancel: self.cancel };
                    parts = context.answer(&message).await?;
                }
            }
        }
        Err(RemoteError::TooManyRequests { limit: MAX_REQUESTS })
    }

    /// Sends a message and returns the next stop of the task.
    async fn exchange(&mut self, parts: Vec<Value>) -> Result<TaskStop, RemoteError> {
        let session = self.session;
        let method = if session.card.streams { "SendStreamingMessage" } else { "SendMessage" };
        let reply = self.wait_for(session.send(method, json!({"message": self.message(parts)}))).await?;
        match self.follow(reply?).await? {
            Some(stop) => Ok(stop),
            None => self.reattach().await,
        }
    }

    fn message(&self, parts: Vec<Value>) -> Value {
        let context = lock(&self.session.context).clone();
        let mut message =
            json!({"messageId": random_uuid(), "role": "ROLE_USER", "parts": parts, "contextId": context});
        if let Some((task, _)) = &self.task {
            message["taskId"] = json!(task);
        } else if let Some(tools) = self.tool_list() {
            message["extensions"] = json!([CALL_EXTENSION]);
            message["metadata"] = json!({CALL_EXTENSION: {"tools": tools}});
        }
        message
    }

    /// Returns the tools of the mode, for an agent that calls them.
    fn tool_list(&self) -> Option<Vec<Value>> {
        let bound = self.session.binding().filter(|_| self.session.card.calls_tools)?;
        let tools = bound.binding.tools().iter().map(|(name, tool)| {
            let (description, schema) = (&tool.spec.description, &*tool.spec.input_schema);
            json!({"name": name, "description": description, "inputSchema": schema})
        });
        Some(tools.collect())
    }

    /// Reads a reply. `None` if the agent stops to answer before its task does.
    async fn follow(&mut self, reply: JsonReply) -> Result<Option<TaskStop>, RemoteError> {
        let mut events = match reply {
            JsonReply::Value(value) => return self.take(&result(value)?).await,
            JsonReply::Events(events) => events,
        };
        loop {
            let event = match self.wait_for(events.next_event()).await? {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(None),
                // The task continues without the connection.
                Err(JsonClientError::Unreachable { .. }) if self.task.is_some() => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if let Some(stop) = self.take(&result(event)?).await? {
                return Ok(Some(stop));
            }
        }
    }

    /// Follows a task that continues after its connection has ended. Fails if the agent cannot be reached any more.
    async fn reattach(&mut self) -> Result<TaskStop, RemoteError> {
        let Some((task, _)) = self.task.clone() else {
            let problem = "it closed the connection before it named a task; the message may have been received";
            return Err(RemoteError::Unexpected { problem: problem.to_owned() });
        };
        let (session, mut failures) = (self.session, 0);
        loop {
            match self.wait_for(session.call("GetTask", json!({"id": task}))).await? {
                Ok(found) => {
                    failures = 0;
                    let update = TaskUpdate::of_task(&found);
                    if let Some(stop) = self.apply(update).await? {
                        return Ok(stop);
                    }
                }
                Err(error @ RemoteError::Http(_)) if failures < MAX_FAILURES => {
                    let reason = session.failure(&error);
                    tracing::warn!(agent = %session.agent.name, reason, "the task cannot be read; trying again");
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
            if session.card.streams && failures == 0 {
                let subscribed = self.wait_for(session.send("SubscribeToTask", json!({"id": task}))).await?;
                // A refusal means that the task has just ended, or that only polling helps.
                if let Ok(reply @ JsonReply::Events(_)) = subscribed {
                    match self.follow(reply).await {
                        Ok(Some(stop)) => return Ok(stop),
                        Ok(None) | Err(RemoteError::Refused { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            let pause = TASK_POLL * 2_u32.pow(failures);
            self.wait_for(tokio::time::sleep(pause)).await?;
        }
    }

    /// Takes over a result of the agent. Returns its stop, if it has stopped.
    async fn take(&mut self, value: &Value) -> Result<Option<TaskStop>, RemoteError> {
        match TaskUpdate::read(value) {
            Some(update) => self.apply(update).await,
            None => {
                tracing::debug!(agent = %self.session.agent.name, "an event that the protocol does not know");
                Ok(None)
            }
        }
    }

    async fn apply(&mut self, update: TaskUpdate) -> Result<Option<TaskStop>, RemoteError> {
        let TaskUpdate { task, context, pieces, state, message } = update;
        if let Some(context) = context {
            let mut known = lock(&self.session.context);
            if *known != context {
                tracing::warn!(agent = %self.session.agent.name, "it replaced the id of the context");
                *known = context;
            }
        }
        if let Some(id) = task.or_else(|| self.task.take().map(|(id, _)| id)) {
            self.task = Some((id, state.is_terminal()));
        }
        for piece in pieces {
            self.show(piece).await?;
        }
        let message = message.unwrap_or_default();
        let is_new = message.id.is_empty() || !self.told.contains(&message.id);
        match state {
            RemoteState::Working => {
                if is_new && !message.text.is_empty() {
                    self.count(message.id.len() + message.text.len())?;
                    self.wait_for_backlog().await?;
                    self.notifier.status(StatusUpdate::Thought(format!("{}\n", message.text)));
                    self.told.insert(message.id);
                }
                return Ok(None);
            }
            // The last message may be the answer.
            RemoteState::Completed if is_new => {
                let piece = TaskPiece { id: message.id.clone(), content: message.content.clone(), appends: false };
                self.show(piece).await?;
            }
            RemoteState::InputRequired if !is_new => return Ok(None),
            _ => {}
        }
        self.count(message.id.len())?;
        self.told.insert(message.id.clone());
        Ok(Some(TaskStop { state, message }))
    }

    /// Shows a piece of the output, without what the user has seen of it.
    async fn show(&mut self, piece: TaskPiece) -> Result<(), RemoteError> {
        let TaskPiece { id, content, appends } = piece;
        let text: String = content.iter().filter_map(Content::as_text).collect();
        if !self.shown.contains_key(&id) {
            // Each artifact is a message.
            self.flush();
            self.count(id.len())?;
        }
        let shown = self.shown.entry(id).or_default();
        let known = if appends { "" } else { shown.text.as_str() };
        let (new, is_replaced) = match text.strip_prefix(known) {
            Some(new) => (new.to_owned(), false),
            // The agent has replaced its output.
            None => (format!("\n\n{text}"), true),
        };
        let media: Vec<_> = content.into_iter().filter(|content| content.as_text().is_none()).collect();
        // The whole output repeats the media that the user has seen.
        let repeated = if appends || is_replaced { 0 } else { shown.media };
        if appends {
            shown.text.push_str(&text);
            shown.media += media.len();
        } else {
            shown.text = text;
            shown.media = media.len().max(repeated);
        }
        let size: usize = media.iter().skip(repeated).map(content_size).sum();
        self.count(new.len() + size)?;
        self.parts.extend(media.into_iter().skip(repeated).map(MessagePart::Content));
        self.wait_for_backlog().await?;
        if !new.is_empty() {
            match self.parts.last_mut() {
                Some(MessagePart::Content(Content::Text(said))) => said.push_str(&new),
                _ => self.parts.push(MessagePart::Content(Content::text(new.as_str()))),
            }
            self.notifier.status(StatusUpdate::Text(new));
        }
        Ok(())
    }

    /// Counts bytes of the agent. Fails if they are too many for one turn.
    fn count(&mut self, bytes: usize) -> Result<(), RemoteError> {
        self.size = self.size.saturating_add(bytes);
        if self.size > MAX_TURN { Err(RemoteError::TooMuch { limit: MAX_TURN }) } else { Ok(()) }
    }

    /// Waits until the client and the store have room for more. Fails if the turn is cancelled.
    async fn wait_for_backlog(&self) -> Result<(), RemoteError> {
        while self.notifier.backlog() > MAX_BACKLOG {
            self.wait_for(tokio::time::sleep(BACKLOG_POLL)).await?;
        }
        Ok(())
    }

    /// Logs the collected output as one message.
    fn flush(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        if !parts.is_empty() {
            self.notifier.log(Event::Message { message: Arc::new(Message { role: Role::Assistant, parts }) });
        }
    }

    /// Asks the agent to end a task that has not ended.
    async fn cancel_task(&mut self) {
        let Some((task, false)) = self.task.take() else { return };
        let cancelling = self.session.call("CancelTask", json!({"id": task}));
        match tokio::time::timeout(CANCEL_TIME, cancelling).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                let reason = self.session.failure(&error);
                tracing::warn!(agent = %self.session.agent.name, reason, "its task could not be cancelled");
            }
            Err(_) => tracing::warn!(agent = %self.session.agent.name, "it did not cancel its task in time"),
        }
    }

    /// Waits for the agent, and notifies the user if that takes long. Fails if the turn is cancelled.
    async fn wait_for<T>(&self, work: impl Future<Output = T>) -> Result<T, RemoteError> {
        let stale = self.session.agent.runtime.timeouts.stale.duration();
        let mut silence = Duration::ZERO;
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(RemoteError::Cancelled),
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(stale) => {
                    silence += stale;
                    let (agent, seconds) = (&self.session.agent.name, silence.as_secs());
                    let text = format!("`{agent}` has said nothing for {seconds} s; cancel if you do not want to wait");
                    self.notifier.status(StatusUpdate::notice(text));
                }
            }
        }
    }
}

/// Returns the bytes of a piece of output.
fn content_size(content: &Content) -> usize {
    match content {
        Content::Text(text) | Content::Injected(text) => text.len(),
        Content::Image { data, .. } | Content::Audio { data, .. } => data.len(),
        Content::Resource(_) | Content::Link(_) => content.to_plain_text().len(),
    }
}

/// Converts a prompt to the parts of a message.
fn message_parts(prompt: Vec<Content>) -> Vec<Value> {
    let part = |content: Content| match content {
        Content::Text(text) | Content::Injected(text) => json!({"text": text}),
        Content::Image { mime, data } | Content::Audio { mime, data } => json!({"raw": data, "mediaType": mime}),
        Content::Resource(_) | Content::Link(_) => json!({"text": content.to_plain_text()}),
    };
    prompt.into_iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::super::remote_card::RemoteCard;
    use super::*;
    use crate::agents::RemoteAgentSpec;
    use crate::ids::AgentName;
    use crate::network::JsonClient;
    use crate::services::SecretValues;

    const URL: &str = "http://127.0.0.1:9/";

    /// A client that has not read this many bytes.
    #[derive(Default)]
    struct SlowClient(AtomicUsize);

    impl Notifier for SlowClient {
        fn log(&self, _: Event) {}

        fn status(&self, _: StatusUpdate) {}

        fn backlog(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// Returns a session of an agent to which these tests send nothing.
    fn session() -> RemoteSession {
        let runtime = serde_json::from_value(json!({"url": URL})).unwrap();
        RemoteSession {
            agent: RemoteAgentSpec { name: AgentName::new("there"), title: "There".to_owned(), runtime },
            client: JsonClient::new(Vec::new()).unwrap(),
            card: RemoteCard { url: URL.to_owned(), tenant: None, streams: true, calls_tools: false },
            secrets: SecretValues::default(),
            id: "c1".to_owned(),
            context: Mutex::new("c1".to_owned()),
            remembers: false,
            binding: None,
            changes: watch::Sender::new(0),
        }
    }

    #[tokio::test]
    async fn a_remote_agent_that_sends_too_much_in_a_turn_fails() {
        let (session, cancel) = (session(), CancellationToken::new());
        let mut turn = RemoteTurn::new(&session, Arc::new(SlowClient::default()), &cancel);
        let piece = |size: usize| {
            let content = vec![Content::text("x".repeat(size))];
            TaskPiece { id: String::new(), content, appends: true }
        };
        turn.show(piece(MAX_TURN)).await.unwrap();
        let refused = turn.show(piece(1)).await;
        assert!(matches!(refused, Err(RemoteError::TooMuch { limit: MAX_TURN })), "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_agent_waits_for_a_client_that_does_not_read() {
        let (session, cancel) = (session(), CancellationToken::new());
        let client = Arc::new(SlowClient(AtomicUsize::new(MAX_BACKLOG + 1)));
        let turn = RemoteTurn::new(&session, Arc::clone(&client) as Arc<dyn Notifier>, &cancel);
        let mut waiting = pin!(turn.wait_for_backlog());
        let waited = tokio::time::timeout(10 * BACKLOG_POLL, &mut waiting).await;
        assert!(waited.is_err(), "the client has read nothing");
        client.0.store(MAX_BACKLOG, Ordering::Relaxed);
        waiting.await.unwrap();
    }
}
