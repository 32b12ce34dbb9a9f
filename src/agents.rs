//! What makes an agent out of a mode, a binding and a model.
//!
//! Invariant: thinks and calls; names no protocol, no editor and no database. What happens is told to a
//! `Notifier`, which each front door implements.

mod ask;
mod code;
mod compaction;
mod context;
mod exchange;
mod history;
mod join;
mod judge;
mod models;
mod ask_once;
mod external;
mod shorten;

pub use ask::RetryPolicy;
pub use ask_once::ask_once;
pub use code::{Code, EXECUTE, is_own};
pub use compaction::RecoveryPolicy;
pub use context::{SystemPromptInputs, between, memories, system_prompt};
pub use exchange::{Exchange, StopReason, TurnEnd, TurnInput, TurnLimits, emit_completed_call};
pub use external::{
    ChunkTemplate, ExternalAgentError, ExternalAgentSpec, ExternalAgents, ExternalSession, ExternalSessionRequest,
    ResumePolicy, notify_native,
};
pub use history::{History, active_events};
pub use judge::ModelJudge;
pub use models::models;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conversation::{Message, ToolUse, Usage};
use crate::tool::{Activity, ToolOutcome};

/// The call by which it is told who works on a prompt. No model makes it, and it reaches no service.
pub const ROUTE: &str = "route";

/// Who hears of a turn. Neither call may block.
pub trait Notifier: Send + Sync {
    /// Something that lasts: it belongs to the session's record.
    fn log(&self, event: Event);

    /// Something for the moment: whoever misses it misses nothing that lasts.
    fn status(&self, status: StatusUpdate);

    /// Another session begins to work for this one. Whoever wants to hear of it apart gives a notifier for it; whoever
    /// does not hears of its calls as calls of this one.
    fn child(&self, _child: &ChildSession) -> Option<Arc<dyn Notifier>> {
        None
    }

    /// Bytes that wait to be written to the client or the store. A sender that can wait does so while there are many.
    fn backlog(&self) -> usize {
        0
    }
}

/// A session that works for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildSession {
    pub session: String,
    /// As `agent/mode`.
    pub mode: String,
    pub task: String,
}

/// What happened in a turn, in order. Every tool that starts ends, and nothing follows the end of the turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Message {
        message: Arc<Message>,
    },
    ToolStarted {
        call: ToolUse,
        /// Who makes it, as `agent/mode`, if not the model of this session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    ToolEnded {
        id: String,
        name: String,
        outcome: ToolOutcome,
        /// What it did to files and plans, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        activity: Vec<Activity>,
    },
    /// From here on the model is shown `summary` in the place of the first `messages` messages.
    Compacted {
        messages: usize,
        summary: Arc<Message>,
    },
    TurnEnded {
        end: TurnEnd,
    },
    /// An agent outside told this about the turn, in ACP's JSON as it came but for the session's id; and what that means
    /// in our words.
    #[serde(rename = "relayed")]
    External {
        told: Value,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        means: Vec<Event>,
        /// It was heard while it was said, as [`Status::Piece`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        heard: bool,
    },
    /// From here on an agent outside works on the session, which it calls by an id of its own.
    #[serde(rename = "seated")]
    ExternalSessionOpened {
        /// As `agent/mode`.
        mode: String,
        agent: String,
        id: String,
        /// Our own id of the session: a copy of it is another one.
        of: String,
    },
    /// The user takes back what happened since: from here on only the first `events` events of the record stand.
    Undone {
        events: usize,
    },
}

impl Event {
    /// The event in our words.
    pub fn native_events(&self) -> &[Event] {
        match self {
            Event::External { means, .. } => means,
            other => std::slice::from_ref(other),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum StatusUpdate {
    Text(String),
    Thought(String),
    /// A piece of what an agent outside says or thinks, with what it said around it.
    ExternalChunk {
        text: String,
        thought: bool,
        frame: Arc<ChunkTemplate>,
    },
    ToolActivity {
        id: String,
        activity: Activity,
    },
    Usage {
        /// Of the turn so far.
        turn: Usage,
        /// What the model was shown last, and has answered: how full its window is.
        context: u64,
    },
    /// Something is amiss that the turn may still get over.
    Notice(String),
    /// The session has a new title.
    Title(String),
}
