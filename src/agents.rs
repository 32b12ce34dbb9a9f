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
mod once;
mod shorten;

pub use ask::Patience;
pub use code::{Code, EXECUTE, is_own};
pub use compaction::Upkeep;
pub use context::{Setting, between, memories, system_prompt};
pub use exchange::{Ending, Exchange, Limits, Opening, TurnEnd};
pub use history::{History, standing};
pub use judge::ModelJudge;
pub use models::models;
pub use once::asked_once;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, ToolUse, Usage};
use crate::tool::{Activity, ToolOutcome};

/// The call by which it is told who works on a prompt. No model makes it, and it reaches no service.
pub const ROUTE: &str = "route";

/// Who hears of a turn. Neither call may block.
pub trait Notifier: Send + Sync {
    /// Something that lasts: it belongs to the session's record.
    fn log(&self, event: Event);

    /// Something for the moment: whoever misses it misses nothing that lasts.
    fn status(&self, status: Status);

    /// Another session begins to work for this one. Whoever wants to hear of it apart gives a notifier for it; whoever
    /// does not hears of its calls as calls of this one.
    fn child(&self, _child: &Child) -> Option<Arc<dyn Notifier>> {
        None
    }
}

/// A session that works for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
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
    /// The user takes back what happened since: from here on only the first `events` events of the record stand.
    Undone {
        events: usize,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    Text(String),
    Thought(String),
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
}
