//! What clients see of a run: its status, its messages and the log of its events.

use std::sync::Arc;

use super::parts::RunPart;
use super::questions::QuestionMessage;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum RunStatus {
    Created,
    InProgress,
    /// The run has an open question.
    Awaiting,
    Cancelling,
    Cancelled,
    Completed,
    Failed,
}

impl RunStatus {
    pub(in crate::serve) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::InProgress => "in-progress",
            Self::Awaiting => "awaiting",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    pub(in crate::serve) fn is_terminal(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed)
    }

    /// Returns whether the run waits for its client, or has ended.
    pub(super) fn is_stop(self) -> bool {
        self.is_terminal() || self == Self::Awaiting
    }
}

/// A message of the agent that has ended.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct RunMessage {
    pub(in crate::serve) parts: Vec<RunPart>,
    pub(in crate::serve) created_at: u64,
    pub(in crate::serve) completed_at: u64,
}

impl RunMessage {
    /// Returns the bytes of memory that the message takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.parts.iter().map(|part| size_of::<RunPart>() + part.size()).sum::<usize>()
    }
}

/// A change of a run. `index` is the place of a message in the output.
#[derive(Debug, Clone)]
pub(in crate::serve) enum RunEvent {
    /// The run has another status.
    Status(Box<RunSnapshot>),
    /// The agent begins a message.
    MessageCreated {
        created_at: u64,
    },
    Part {
        index: usize,
        part: RunPart,
    },
    MessageCompleted(Arc<RunMessage>),
    Notice(String),
}

/// A run at one moment.
#[derive(Debug, Clone)]
pub(in crate::serve) struct RunSnapshot {
    pub(in crate::serve) status: RunStatus,
    /// The question that clients see.
    pub(in crate::serve) question: Option<Arc<QuestionMessage>>,
    pub(in crate::serve) output: Vec<Arc<RunMessage>>,
    /// The text of the message that the agent writes now.
    pub(in crate::serve) draft: Option<String>,
    /// The reason why the run failed.
    pub(in crate::serve) error: Option<String>,
    pub(in crate::serve) changed_at: u64,
    pub(in crate::serve) finished_at: Option<u64>,
}

/// A place in the events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::serve) struct EventPosition {
    /// The number of events before it.
    pub(in crate::serve) event: usize,
    /// The bytes before it in the text of the next event, which may grow.
    text: usize,
}

/// The events of a run so far. Streamed text that nothing interrupts is one event, so that the log takes no more memory
/// than its text.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    events: Vec<RunEvent>,
    /// The last event is streamed text, which may grow.
    is_open: bool,
}

impl EventLog {
    pub(super) fn push(&mut self, event: RunEvent) {
        self.is_open = false;
        self.events.push(event);
    }

    /// Adds streamed text of the message at this place in the output.
    pub(super) fn push_text(&mut self, index: usize, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(RunEvent::Part { part: RunPart::Text(before), .. }) if self.is_open => before.push_str(text),
            _ => {
                self.events.push(RunEvent::Part { index, part: RunPart::Text(text.to_owned()) });
                self.is_open = true;
            }
        }
    }

    pub(super) fn all(&self) -> &[RunEvent] {
        &self.events
    }

    /// Returns the position after all events.
    pub(super) fn end(&self) -> EventPosition {
        match self.events.last() {
            Some(RunEvent::Part { part: RunPart::Text(text), .. }) if self.is_open => {
                EventPosition { event: self.events.len() - 1, text: text.len() }
            }
            _ => EventPosition { event: self.events.len(), text: 0 },
        }
    }

    /// Returns the event at this position, and the position after it. An event of text has only the text that is new.
    /// `None` if there is none yet.
    pub(super) fn next(&self, position: EventPosition) -> Option<(RunEvent, EventPosition)> {
        let after = EventPosition { event: position.event + 1, text: 0 };
        match self.events.get(position.event)? {
            RunEvent::Part { index, part: RunPart::Text(text) } => {
                let new = text.get(position.text..).unwrap_or_default();
                if new.is_empty() && position.text > 0 {
                    return self.next(after);
                }
                let is_last = after.event == self.events.len();
                let next = EventPosition { text: text.len(), ..position };
                let event = RunEvent::Part { index: *index, part: RunPart::Text(new.to_owned()) };
                Some((event, if is_last && self.is_open { next } else { after }))
            }
            event => Some((event.clone(), after)),
        }
    }

    /// Returns the bytes of memory that the events take, without the messages that they share with the output.
    pub(super) fn size(&self) -> usize {
        let size = |event: &RunEvent| match event {
            RunEvent::Status(state) => {
                let question = state.question.as_ref().map(|question| question.size());
                let messages = state.output.len() * size_of::<Arc<RunMessage>>();
                size_of::<RunSnapshot>() + messages + question.unwrap_or_default()
            }
            RunEvent::Part { part, .. } => part.size(),
            RunEvent::Notice(text) => text.len(),
            RunEvent::MessageCreated { .. } | RunEvent::MessageCompleted(_) => 0,
        };
        self.events.iter().map(|event| size_of::<RunEvent>() + size(event)).sum()
    }
}
