//! What happens in a session, told to its client as updates: while it happens, and again when a session is loaded.
//!
//! Invariant: nothing is sent that the client did not say it understands.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use agent_client_protocol::v1::schema as acp;

use super::calls::{self, Shown};
use super::content;
use super::subagent::Subagent;
use super::wire::{Chunk, Voice, Wire};
use crate::agents::{Child, Event, Notifier, Status, standing};
use crate::broker::said_of_tool;
use crate::conversation::{Content, Message, Part, Role};
use crate::graph::Plan;
use crate::session::Live;
use crate::tool::Activity;

/// Tells one session's client what happens.
pub(super) struct Updates {
    wire: Wire,
    session: Arc<str>,
    /// Not kept: a session ends though somebody still tells of it.
    live: Weak<Live>,
    cwd: PathBuf,
    /// Below these a tool's answer may name files.
    roots: Vec<PathBuf>,
    plan: Arc<Plan>,
    abilities: Abilities,
    turn: Mutex<Turn>,
    messages: Arc<MessageIds>,
}

/// Gives every message of a session an id of its own, also in the eyes of a client that knows the session from
/// before it was opened again.
#[derive(Debug)]
pub(super) struct MessageIds {
    opening: usize,
    next: AtomicU64,
}

impl MessageIds {
    /// For a session that has had so many events.
    pub(super) fn after(events: usize) -> Self {
        Self { opening: events, next: AtomicU64::new(0) }
    }

    fn next(&self) -> Arc<str> {
        format!("m{}.{}", self.opening, self.next.fetch_add(1, Ordering::Relaxed)).into()
    }
}

/// What the client understands beyond the basics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) notices: bool,
    pub(super) compaction: bool,
    pub(super) subagents: bool,
    /// Questions with fields to fill in, and with a page to open.
    pub(super) forms: bool,
    pub(super) pages: bool,
}

impl Abilities {
    pub(super) fn of(client: &acp::ClientCapabilities) -> Self {
        let session = client.session.as_ref();
        let elicitation = client.elicitation.as_ref();
        Self {
            notices: session.is_some_and(|session| session.notices.is_some()),
            compaction: session.is_some_and(|session| session.compaction.is_some()),
            subagents: client.subagents.is_some(),
            forms: elicitation.is_some_and(|elicitation| elicitation.form.is_some()),
            pages: elicitation.is_some_and(|elicitation| elicitation.url.is_some()),
        }
    }
}

#[derive(Default)]
struct Turn {
    /// The message that is being said, by voice.
    speaking: Option<(Voice, Arc<str>)>,
    calls: HashMap<String, Shown>,
}

impl Updates {
    pub(super) fn new(
        wire: Wire,
        live: &Arc<Live>,
        plan: Arc<Plan>,
        abilities: Abilities,
        messages: Arc<MessageIds>,
    ) -> Self {
        let (session, cwd, roots) = (Arc::from(live.id()), live.session().cwd.clone(), live.session().roots.clone());
        let live = Arc::downgrade(live);
        Self { wire, session, live, cwd, roots, plan, abilities, turn: Mutex::default(), messages }
    }

    /// The way to the client, and the session it is told about.
    pub(super) fn whom(&self) -> (Wire, Arc<str>) {
        (self.wire.clone(), Arc::clone(&self.session))
    }

    pub(super) fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// The same client, for a session that works for this one.
    pub(super) fn of_child(&self, session: &str) -> Self {
        let messages = Arc::new(MessageIds::after(0));
        Self {
            wire: self.wire.clone(),
            session: Arc::from(session),
            live: Weak::clone(&self.live),
            cwd: self.cwd.clone(),
            roots: self.roots.clone(),
            plan: Arc::clone(&self.plan),
            abilities: self.abilities,
            turn: Mutex::default(),
            messages,
        }
    }

    /// Everything that happened so far, for a client that does not know it.
    pub(super) fn replay(&self, events: &[Event]) {
        for (_, event) in standing(events) {
            match event {
                Event::Message { message } => self.replay_message(message),
                Event::ToolEnded { id, outcome, activity, .. } => {
                    let shown = self.turn().calls.remove(id).unwrap_or_default();
                    // The client's terminals of those days are gone; what was said in them is in the outcome.
                    let lasting = activity.iter().filter(|activity| !matches!(activity, Activity::Terminal { .. }));
                    self.send(shown.ended(id, outcome, &lasting.cloned().collect::<Vec<_>>(), self.folders()));
                    for activity in activity {
                        if let Activity::Plan(steps) = activity {
                            self.send(calls::plan_update(steps));
                        }
                    }
                }
                Event::Relayed { told, .. } => self.pass_on(told),
                Event::ToolStarted { .. }
                | Event::Seated { .. }
                | Event::Compacted { .. }
                | Event::TurnEnded { .. }
                | Event::Undone { .. } => self.show(event, false),
            }
        }
        // A call that was cut off by the end of the program will not end any more.
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
                // Not what the user said.
                (Part::Content(Content::Aside(_)), _) => continue,
                (Part::Content(content), Role::User) => acp::SessionUpdate::UserMessageChunk(said(content)),
                (Part::Content(content), Role::Assistant) => acp::SessionUpdate::AgentMessageChunk(said(content)),
                (Part::Thought(text), _) => {
                    let id = acp::MessageId::new(self.next_message());
                    let chunk = acp::ContentChunk::new(content::block(&Content::text(text.as_str()))).message_id(id);
                    acp::SessionUpdate::AgentThoughtChunk(chunk)
                }
                // Told by the events of the calls themselves.
                (Part::ToolUse(_) | Part::ToolResult(_), _) => continue,
            });
        }
    }

    /// What lasts, as far as it was not told while it grew; `live` if it happens now.
    fn show(&self, event: &Event, live: bool) {
        let mut turn = self.turn();
        match event {
            // The next words are a new message.
            Event::Message { .. } => turn.speaking = None,
            // The client sees it in the session of whoever makes it.
            Event::ToolStarted { by: Some(_), .. } if live && self.abilities.subagents => {}
            Event::ToolEnded { id, .. } if live && !turn.calls.contains_key(id) => {}
            Event::ToolStarted { call, by } => {
                let said = self.live.upgrade().and_then(|live| said_of_tool(live.session(), &call.name));
                turn.calls.insert(call.id.clone(), Shown::of(call, said.as_ref(), &self.plan));
                let begun = calls::begun(call, by.as_deref(), said.as_ref(), &self.plan, &self.cwd);
                self.send(acp::SessionUpdate::ToolCall(begun));
            }
            Event::ToolEnded { id, outcome, activity, .. } => {
                let shown = turn.calls.remove(id).unwrap_or_default();
                self.send(shown.ended(id, outcome, activity, self.folders()));
            }
            Event::Compacted { summary, .. } if self.abilities.compaction => {
                let blocks: Vec<_> = [content::block(&Content::text(summary.text()))].into();
                let id = acp::CompactionId::new(self.next_message());
                let update = acp::CompactionUpdate::new(id, acp::CompactionStatus::Completed).summary(blocks);
                self.send(acp::SessionUpdate::CompactionUpdate(update));
            }
            Event::Relayed { told, heard, .. } => {
                turn.speaking = None;
                if !(live && *heard) {
                    self.pass_on(told);
                }
            }
            Event::Compacted { .. } | Event::TurnEnded { .. } | Event::Seated { .. } | Event::Undone { .. } => {}
        }
    }

    /// Something the user should know. A client without notices hears it as a thought.
    pub(super) fn notice(&self, severity: acp::NoticeSeverity, text: &str) {
        if self.abilities.notices {
            return self.send(acp::SessionUpdate::Notice(acp::Notice::new(severity, text)));
        }
        let message = self.next_message();
        let text = format!("{text}\n");
        self.wire.chunk(Chunk { session: Arc::clone(&self.session), message, voice: Voice::Thought, text });
    }

    /// A piece of an answer of our own that is not text.
    pub(super) fn show_piece(&self, content: &Content) {
        let id = acp::MessageId::new(self.next_message());
        let chunk = acp::ContentChunk::new(content::block(content)).message_id(id);
        self.send(acp::SessionUpdate::AgentMessageChunk(chunk));
    }

    pub(super) fn send(&self, update: acp::SessionUpdate) {
        self.wire.update(&self.session, update);
    }

    fn folders(&self) -> (&Path, &[PathBuf]) {
        (&self.cwd, &self.roots)
    }

    fn say(&self, voice: Voice, text: String) {
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
        self.wire.chunk(Chunk { session: Arc::clone(&self.session), message, voice, text });
    }

    fn next_message(&self) -> Arc<str> {
        self.messages.next()
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for Updates {
    fn log(&self, event: Event) {
        self.show(&event, true);
    }

    fn backlog(&self) -> usize {
        self.wire.backlog()
    }

    fn child(&self, child: &Child) -> Option<Arc<dyn Notifier>> {
        self.abilities.subagents.then(|| Subagent::begun(self, child) as Arc<dyn Notifier>)
    }

    fn status(&self, status: Status) {
        match status {
            Status::Text(text) => self.say(Voice::Agent, text),
            Status::Thought(text) => self.say(Voice::Thought, text),
            Status::Piece { text, frame, .. } => self.wire.framed(&self.session, frame, text),
            Status::ToolActivity { id, activity } => {
                let mut turn = self.turn();
                // What comes after the end of a call is not told.
                if let Some(update) = turn.calls.get_mut(&id).and_then(|shown| shown.active(&id, &activity)) {
                    self.send(update);
                }
            }
            Status::Usage { turn, context } => {
                // Without the size of the window there is nothing to show it in.
                let Some(live) = self.live.upgrade() else { return };
                if let Some(window) = live.window() {
                    let cost = live.cost_with(&turn).map(|cost| acp::Cost::new(cost, "USD"));
                    self.send(acp::SessionUpdate::UsageUpdate(acp::UsageUpdate::new(context, window).cost(cost)));
                }
            }
            Status::Notice(text) => self.notice(acp::NoticeSeverity::Warning, &text),
            Status::Title(title) => {
                let info = acp::SessionInfoUpdate::new().title(title);
                self.send(acp::SessionUpdate::SessionInfoUpdate(info));
            }
        }
    }
}
