//! Sends the events of a session to its client as updates: live, and again when a session is loaded.
//!
//! Invariant: the client receives only updates that it advertised support for.

mod subagent;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use agent_client_protocol::v1::schema as acp;
use serde_json::{Value, json};

use super::calls::{self, CallDisplay};
use super::content;
use super::output_item::{ChunkKind, MessageChunk};
use super::stop_reason::stop_reason;
use super::wire::ClientWriter;
use subagent::Subagent;

use crate::agents::{ChildSession, Event, Notifier, StatusUpdate, TurnEnd, active_events};
use crate::broker::ToolClaims;
use crate::conversation::{Content, Message, MessagePart, Role, ToolUse};
use crate::session::{Session, SessionViewer, TurnFailure};
use crate::tool::{Activity, WorkingFolder};

/// A notifier that sends the events of one session to its client.
pub(super) struct Updates {
    wire: ClientWriter,
    session_id: Arc<str>,
    /// Weak, so that a notifier does not keep the session open.
    session: Weak<Session>,
    folder: WorkingFolder,
    /// Files below these folders are shown as locations if a tool's result names them.
    roots: Vec<PathBuf>,
    features: ClientFeatures,
    turn: Mutex<TurnDisplay>,
    messages: Arc<MessageIds>,
}

/// Gives every message of a session a unique id, also for a client that knows the session from before it was opened
/// again.
#[derive(Debug)]
pub(super) struct MessageIds {
    opening: usize,
    next: AtomicU64,
}

impl MessageIds {
    /// Creates the ids for a session that has `events` events so far. The number keeps them apart from earlier ids.
    pub(super) fn after(events: usize) -> Self {
        Self { opening: events, next: AtomicU64::new(0) }
    }

    fn next(&self) -> Arc<str> {
        format!("m{}.{}", self.opening, self.next.fetch_add(1, Ordering::Relaxed)).into()
    }
}

/// Optional protocol features that the client supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ClientFeatures {
    pub(super) notices: bool,
    pub(super) compaction: bool,
    pub(super) subagents: bool,
    /// Elicitations with a form to fill in (`forms`) or a page to open (`pages`).
    pub(super) forms: bool,
    pub(super) pages: bool,
    /// The client shows every permission option with its name, so that an option may do more than its kind says.
    pub(super) option_names: bool,
}

/// Notifies a client of the end of a turn whose prompt it did not send.
pub(super) const TURN_ENDED: &str = "_skein/turn_ended";
/// Key in `_meta` of the response to `session/load`: whether a turn is running, or how the last one ended.
pub(super) const TURN_STATE: &str = "_skein/turn";
/// The window that is reported for a model whose window is unknown, in tokens.
const ASSUMED_WINDOW: u64 = 128_000;
/// Clients that are known to list all permission options by name. Others may show one button per kind.
const LISTS_OPTIONS: [&str; 2] = ["zed", "toad"];
/// Key in `_meta` of the client's capabilities by which a client announces the same.
const OPTION_NAMES: &str = "skein/option-names";

impl ClientFeatures {
    pub(super) fn of(client: &acp::ClientCapabilities, info: Option<&acp::Implementation>) -> Self {
        let announces = client.meta.as_ref().is_some_and(|meta| meta.get(OPTION_NAMES) == Some(&Value::Bool(true)));
        let known = info.is_some_and(|info| LISTS_OPTIONS.contains(&info.name.as_str()));
        let session = client.session.as_ref();
        let elicitation = client.elicitation.as_ref();
        Self {
            notices: session.is_some_and(|session| session.notices.is_some()),
            compaction: session.is_some_and(|session| session.compaction.is_some()),
            subagents: client.subagents.is_some(),
            forms: elicitation.is_some_and(|elicitation| elicitation.form.is_some()),
            pages: elicitation.is_some_and(|elicitation| elicitation.url.is_some()),
            option_names: announces || known,
        }
    }
}

#[derive(Default)]
struct TurnDisplay {
    /// Kind and id of the message that is being streamed.
    speaking: Option<(ChunkKind, Arc<str>)>,
    calls: HashMap<String, CallDisplay>,
}

impl Updates {
    pub(super) fn new(
        wire: ClientWriter,
        session: &Arc<Session>,
        features: ClientFeatures,
        messages: Arc<MessageIds>,
    ) -> Self {
        let context = session.context();
        let (session_id, folder) = (Arc::from(session.id()), context.working_folder());
        let roots = context.client_folders().map_or(&context.roots, |client| &client.roots).clone();
        let session = Arc::downgrade(session);
        Self { wire, session_id, session, folder, roots, features, turn: Mutex::default(), messages }
    }

    /// Returns the writer to the client and the session id of the updates.
    pub(super) fn target(&self) -> (ClientWriter, Arc<str>) {
        (self.wire.clone(), Arc::clone(&self.session_id))
    }

    pub(super) fn features(&self) -> ClientFeatures {
        self.features
    }

    /// Returns a notifier to the same client for a child session.
    pub(super) fn of_child(&self, session: &str) -> Self {
        let messages = Arc::new(MessageIds::after(0));
        Self {
            wire: self.wire.clone(),
            session_id: Arc::from(session),
            session: Weak::clone(&self.session),
            folder: self.folder.clone(),
            roots: self.roots.clone(),
            features: self.features,
            turn: Mutex::default(),
            messages,
        }
    }

    fn replay_all(&self, events: &[Event], is_running: bool) {
        for (_, event) in active_events(events) {
            match event {
                Event::Message { message } => self.replay_message(message),
                Event::ToolEnded { id, outcome, activity, .. } => {
                    let shown = self.turn().calls.remove(id).unwrap_or_default();
                    // The client's terminals no longer exist; their output is in the outcome.
                    let lasting = activity.iter().filter(|activity| !matches!(activity, Activity::Terminal { .. }));
                    self.send(shown.finish(id, outcome, &lasting.cloned().collect::<Vec<_>>(), self.folders()));
                    for activity in activity {
                        if let Activity::TodoList(steps) = activity {
                            self.send(calls::plan_update(steps));
                        }
                    }
                }
                Event::External { acp_update, .. } => self.forward_update(acp_update),
                Event::ToolStarted { .. }
                | Event::ExternalSessionOpened { .. }
                | Event::Compacted { .. }
                | Event::TurnEnded { .. }
                | Event::Undone { .. } => self.show(event, false),
            }
        }
        if is_running {
            return;
        }
        // A call that was running when the program ended has no end event: mark it as failed.
        let left: Vec<_> = self.turn().calls.drain().map(|(id, _)| id).collect();
        for id in left {
            let fields = acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::Failed);
            self.send(acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(acp::ToolCallId::new(id), fields)));
        }
    }

    fn replay_message(&self, message: &Message) {
        let id = acp::MessageId::new(self.next_message());
        let said = |content: &Content| acp::ContentChunk::new(content::block(content)).message_id(id.clone());
        for part in &message.parts {
            self.send(match (part, message.role) {
                // The user did not write this text.
                (MessagePart::Content(Content::Injected(_)), _) => continue,
                (MessagePart::Content(content), Role::User) => acp::SessionUpdate::UserMessageChunk(said(content)),
                (MessagePart::Content(content), Role::Assistant) => {
                    acp::SessionUpdate::AgentMessageChunk(said(content))
                }
                (MessagePart::Thought(text), _) => {
                    let id = acp::MessageId::new(self.next_message());
                    let chunk = acp::ContentChunk::new(content::block(&Content::text(text.as_str()))).message_id(id);
                    acp::SessionUpdate::AgentThoughtChunk(chunk)
                }
                // The events of the calls show these.
                (MessagePart::ToolUse(_) | MessagePart::ToolResult(_), _) => continue,
            });
        }
    }

    /// Sends an event, except for the parts that status updates have already sent. `live` is false in a replay.
    fn show(&self, event: &Event, live: bool) {
        let mut turn = self.turn();
        match event {
            // Further text belongs to a new message.
            Event::Message { .. } => turn.speaking = None,
            // The client sees the call in the child session that makes it.
            Event::ToolStarted { by: Some(by), .. } if live && self.features.subagents && by.contains('/') => {}
            Event::ToolEnded { id, .. } if live && !turn.calls.contains_key(id) => {}
            Event::ToolStarted { call, by } => {
                let Some(session) = self.session.upgrade() else { return };
                let (said, plan) = (claims(&session, call), session.plan());
                turn.calls.insert(call.id.clone(), CallDisplay::of(call, said.as_ref(), &plan));
                let started = calls::tool_call(call, by.as_deref(), said.as_ref(), &plan, &self.folder);
                self.send(acp::SessionUpdate::ToolCall(started));
            }
            Event::ToolEnded { id, outcome, activity, .. } => {
                let shown = turn.calls.remove(id).unwrap_or_default();
                self.send(shown.finish(id, outcome, activity, self.folders()));
            }
            Event::Compacted { summary, .. } if self.features.compaction => {
                let blocks: Vec<_> = [content::block(&Content::text(summary.text()))].into();
                let id = acp::CompactionId::new(self.next_message());
                let update = acp::CompactionUpdate::new(id, acp::CompactionStatus::Completed).summary(blocks);
                self.send(acp::SessionUpdate::CompactionUpdate(update));
            }
            Event::External { acp_update, streamed, .. } => {
                turn.speaking = None;
                if !(live && *streamed) {
                    self.forward_update(acp_update);
                }
            }
            // A turn may end in the middle of a message.
            Event::TurnEnded { .. } => *turn = TurnDisplay::default(),
            Event::Compacted { .. } | Event::ExternalSessionOpened { .. } | Event::Undone { .. } => {}
        }
    }

    /// Sends a notice to the user. A client without notices receives it as a thought.
    pub(super) fn notice(&self, severity: acp::NoticeSeverity, text: &str) {
        if self.features.notices {
            return self.send(acp::SessionUpdate::Notice(acp::Notice::new(severity, text)));
        }
        let message = self.next_message();
        let text = format!("{text}\n");
        self.wire.send_chunk(MessageChunk {
            session: Arc::clone(&self.session_id),
            message,
            kind: ChunkKind::Thought,
            text,
        });
    }

    /// Sends the text of an answer that Skein gives without a model, as a separate message: no event ends it.
    pub(super) fn show_answer(&self, text: String) {
        self.say(ChunkKind::Agent, text);
        self.turn().speaking = None;
    }

    /// Sends a non-text part of an answer that Skein gives without a model.
    pub(super) fn show_piece(&self, content: &Content) {
        let id = acp::MessageId::new(self.next_message());
        let chunk = acp::ContentChunk::new(content::block(content)).message_id(id);
        self.send(acp::SessionUpdate::AgentMessageChunk(chunk));
    }

    pub(super) fn send(&self, update: acp::SessionUpdate) {
        self.wire.send_update(&self.session_id, update);
    }

    fn folders(&self) -> (&Path, &[PathBuf]) {
        (&self.folder.path, &self.roots)
    }

    fn say(&self, voice: ChunkKind, text: String) {
        let message = {
            let mut turn = self.turn();
            match &turn.speaking {
                Some((speaking, message)) if *speaking == voice => Arc::clone(message),
                _ => {
                    let message = self.next_message();
                    turn.speaking = Some((voice, Arc::clone(&message)));
                    message
                }
            }
        };
        self.wire.send_chunk(MessageChunk { session: Arc::clone(&self.session_id), message, kind: voice, text });
    }

    fn next_message(&self) -> Arc<str> {
        self.messages.next()
    }

    fn turn(&self) -> MutexGuard<'_, TurnDisplay> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what the service says about the tool of a call.
fn claims(session: &Session, call: &ToolUse) -> Option<ToolClaims> {
    session.broker().tool_claims(session.context(), &call.name)
}

impl SessionViewer for Updates {
    fn replay(&self, events: &[Event], is_running: bool) {
        self.replay_all(events, is_running);
    }

    fn follow(&self, events: &[Event]) {
        let Some(session) = self.session.upgrade() else { return };
        let (mut turn, plan) = (self.turn(), session.plan());
        for (_, event) in active_events(events) {
            match event {
                Event::ToolStarted { call, .. } => {
                    let shown = CallDisplay::of(call, claims(&session, call).as_ref(), &plan);
                    turn.calls.insert(call.id.clone(), shown);
                }
                Event::ToolEnded { id, .. } => drop(turn.calls.remove(id)),
                Event::Message { .. }
                | Event::External { .. }
                | Event::ExternalSessionOpened { .. }
                | Event::Compacted { .. }
                | Event::TurnEnded { .. }
                | Event::Undone { .. } => {}
            }
        }
    }

    fn end_turn(&self, end: Result<&TurnEnd, &TurnFailure>) {
        let reason = end.map_err(TurnFailure::clone).and_then(|end| stop_reason(&end.ending));
        let mut params = json!({"sessionId": &*self.session_id});
        match reason {
            Ok(reason) => params["stopReason"] = json!(reason),
            Err(problem) => params["error"] = json!({"message": problem.0}),
        }
        if let Ok(TurnEnd { usage, .. }) = end {
            params["usage"] =
                json!({"inputTokens": usage.input, "outputTokens": usage.output, "cachedReadTokens": usage.cached});
        }
        self.wire.send_notification(TURN_ENDED, &params);
        let info = acp::SessionInfoUpdate::new().updated_at(crate::clock::iso(crate::clock::now()));
        self.send(acp::SessionUpdate::SessionInfoUpdate(info));
    }
}

impl Notifier for Updates {
    fn log(&self, event: Event) {
        self.show(&event, true);
    }

    fn backlog(&self) -> usize {
        self.wire.backlog()
    }

    fn child(&self, child: &ChildSession) -> Option<Arc<dyn Notifier>> {
        self.features.subagents.then(|| Subagent::start(self, child) as Arc<dyn Notifier>)
    }

    fn status(&self, status: StatusUpdate) {
        match status {
            StatusUpdate::Text(text) => self.say(ChunkKind::Agent, text),
            StatusUpdate::Thought(text) => self.say(ChunkKind::Thought, text),
            StatusUpdate::ExternalChunk { text, frame, .. } => {
                self.wire.send_external_chunk(&self.session_id, frame, text)
            }
            StatusUpdate::ToolActivity { id, activity } => {
                let mut turn = self.turn();
                // Activity after the end of a call is not sent.
                if let Some(update) = turn.calls.get_mut(&id).and_then(|shown| shown.active(&id, &activity)) {
                    self.send(update);
                }
            }
            StatusUpdate::Usage { turn, context } => {
                let Some(session) = self.session.upgrade().filter(|_| context > 0) else { return };
                // The protocol requires a size.
                let window = session.window().unwrap_or(ASSUMED_WINDOW).max(context);
                let cost = session.cost_with(&turn).map(|cost| acp::Cost::new(cost, "USD"));
                self.send(acp::SessionUpdate::UsageUpdate(acp::UsageUpdate::new(context, window).cost(cost)));
            }
            StatusUpdate::Notice(notice) => self.notice(acp::NoticeSeverity::Warning, &notice.text),
            StatusUpdate::Title(title) => {
                let info = acp::SessionInfoUpdate::new().title(title);
                self.send(acp::SessionUpdate::SessionInfoUpdate(info));
            }
        }
    }
}
