//! What makes an agent out of a mode, a binding and a model.
//!
//! Invariant: thinks and calls; names no protocol, no editor and no database. What happens is told to a
//! `Notifier`, which each front door implements.

mod context;
mod exchange;

pub use context::{Setting, memories, system_prompt};
pub use exchange::{Ending, Exchange, Limits, TurnEnd};

use serde::Serialize;

use crate::conversation::{Message, ToolUse, Usage};
use crate::tool::{Progress, ToolOutcome};

/// Who hears of a turn. Neither call may block.
pub trait Notifier: Send + Sync {
    /// Something that lasts: it belongs to the session's record.
    fn log(&self, event: Event);

    /// Something for the moment: whoever misses it misses nothing that lasts.
    fn status(&self, status: Status);
}

/// What happened in a turn, in order. Every tool that starts ends, and nothing follows the end of the turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Message { message: Message },
    ToolStarted { call: ToolUse },
    ToolEnded { id: String, name: String, outcome: ToolOutcome },
    TurnEnded { end: TurnEnd },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    Text(String),
    Thought(String),
    ToolProgress { id: String, progress: Progress },
    Usage(Usage),
}
