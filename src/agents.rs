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

pub use ask::Patience;
pub use code::{Code, EXECUTE, is_own};
pub use compaction::Upkeep;
pub use context::{Setting, memories, system_prompt};
pub use exchange::{Ending, Exchange, Limits, TurnEnd};
pub use history::{History, standing};
pub use judge::ModelJudge;
pub use models::models;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, ToolUse, Usage};
use crate::tool::{Activity, ToolOutcome};

/// Who hears of a turn. Neither call may block.
pub trait Notifier: Send + Sync {
    /// Something that lasts: it belongs to the session's record.
    fn log(&self, event: Event);

    /// Something for the moment: whoever misses it misses nothing that lasts.
    fn status(&self, status: Status);
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
