//! Runs an agent: a mode, a binding and a model.
//!
//! Invariant: asks models and calls tools; names no protocol, no editor and no database. Reports what happens to a
//! `Notifier`, which each front end implements.

mod ask;
mod budget;
mod code;
mod compaction;
mod context;
mod exchange;
mod history;
mod inner_calls;
mod join;
mod judge;
mod metered_provider;
mod models;
mod offered_tools;
mod recovery;
mod request_span;
mod ask_once;
mod external;
mod shorten;
mod turn_types;
mod usage_estimate;

pub use ask::RetryPolicy;
pub use ask_once::ask_once;
pub use budget::{BudgetAccount, BudgetMeter, BudgetTally, BudgetUsage, TurnBudgets, UsageSink};
pub use code::{AbandonedThreads, Code, EXECUTE, is_own};
pub use compaction::CompactionError;
pub use context::{SystemPromptInputs, between, memories, system_prompt};
pub use exchange::{Exchange, emit_completed_call};
pub use external::{
    AgentSandbox, ChunkTemplate, ExternalAgent, ExternalAgentError, ExternalAgentSpec, ExternalAgents,
    ExternalOptionError, ExternalSession, ExternalSessionRequest, RemoteAgentSpec, ResumePolicy, notify_native,
};
pub use history::{History, active_events, active_places};
pub use judge::ModelJudge;
pub use metered_provider::MeteredProvider;
pub use models::models;
pub use recovery::RecoveryPolicy;
pub use request_span::{finish_reason, provider_name, record_answer, record_external_agent, record_prompt};
pub use turn_types::{StopReason, TurnEnd, TurnInput, TurnLimits};

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conversation::{Message, ToolUse, Usage};
use crate::tool::{Activity, Notice, ToolOutcome};

/// Name of the call that records which mode handles a prompt. No model makes it, and no service receives it.
pub const ROUTE: &str = "route";

/// Bytes that may wait for the client or the store before the turn of an external agent pauses.
pub const MAX_BACKLOG: usize = 4 << 20;

/// Receives the events and status updates of a turn. No method may block.
pub trait Notifier: Send + Sync {
    /// Receives an event that the session stores.
    fn log(&self, event: Event);

    /// Receives a transient update, which is shown but not stored.
    fn status(&self, status: StatusUpdate);

    /// Called when a child session starts to work for this one. Returns a notifier if the child is shown separately.
    /// `None` if its calls are shown as calls of this session.
    fn child(&self, _child: &ChildSession) -> Option<Arc<dyn Notifier>> {
        None
    }

    /// Returns the number of bytes that wait to be written to the client or the store. A sender that can pause does so
    /// while they are more than [`MAX_BACKLOG`].
    fn backlog(&self) -> usize {
        0
    }
}

/// A session that works for another session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildSession {
    pub session: String,
    /// As `agent/mode`.
    pub mode: String,
    pub task: String,
}

/// Something that happened in a turn, in order. Every tool that starts also ends, and nothing follows the end of the
/// turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Message {
        message: Arc<Message>,
    },
    ToolStarted {
        call: ToolUse,
        /// The caller, if it is not the model of this session: the mode of a delegated task as `agent/mode`, or the
        /// services that call a service that they require.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    ToolEnded {
        id: String,
        name: String,
        outcome: ToolOutcome,
        /// Changes to files and to-do lists, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        activity: Vec<Activity>,
    },
    /// From this event on, the model sees `summary` instead of the first `messages` messages.
    Compacted {
        messages: usize,
        summary: Arc<Message>,
    },
    TurnEnded {
        end: TurnEnd,
    },
    /// An update from an external agent.
    #[serde(rename = "relayed")]
    External {
        /// The update in ACP's JSON, unchanged except for the session id. Only `acp` opens it, to pass it to its client.
        #[serde(rename = "told")]
        acp_update: Value,
        /// The same update in Skein's events.
        #[serde(rename = "means", default, skip_serializing_if = "Vec::is_empty")]
        events: Vec<Event>,
        /// Whether its text was already sent as [`StatusUpdate::ExternalChunk`].
        #[serde(rename = "heard", default, skip_serializing_if = "std::ops::Not::not")]
        streamed: bool,
        /// The title that the agent gives the session. Not part of the stored event: the store has a field for it.
        #[serde(skip)]
        title: Option<String>,
    },
    /// From this event on, an external agent works on the session, under the session id `id`.
    #[serde(rename = "seated")]
    ExternalSessionOpened {
        /// As `agent/mode`.
        mode: String,
        agent: String,
        id: String,
        /// Skein's id of the session. A copy of the session has another id and ignores this event.
        of: String,
    },
    /// The user restored the state after the first `events` stored events: from this event on, exactly those events count
    /// that counted then.
    Undone {
        events: usize,
    },
}

impl Event {
    /// Returns the event in Skein's types: the events an external update means, otherwise the event itself.
    pub fn native_events(&self) -> &[Event] {
        match self {
            Event::External { events, .. } => events,
            other => std::slice::from_ref(other),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum StatusUpdate {
    Text(String),
    Thought(String),
    /// A chunk of an external agent's text or thoughts, with the JSON around it.
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
        /// Tokens of the turn so far.
        turn: Usage,
        /// Tokens of the last request and its answer: how full the model's window is.
        context: u64,
    },
    /// A warning or hint for the user.
    Notice(Notice),
    /// The session has a new title.
    Title(String),
}

impl StatusUpdate {
    /// Returns a notice for the user.
    pub fn notice(text: impl Into<String>) -> Self {
        Self::Notice(Notice::new(text))
    }
}
