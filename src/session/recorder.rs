//! Appends every event of a turn to the store, and forwards it to the front end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::metrics::SessionMetrics;
use super::sessions::{EMPTY_EVENT, Sessions};
use crate::agents::{ChildSession, Event, Notifier, StatusUpdate};
use crate::conversation::{Message, Role};
use crate::llm::offline::is_offline_help;
use crate::store::{self, NewEvent, SessionChange};
use crate::tool::strip_to_line;

/// A notifier that stores the events it forwards.
pub(super) struct SessionRecorder {
    store: store::SessionStore,
    session: String,
    /// Number of events in the session's event log.
    events: Arc<AtomicU64>,
    metrics: Arc<SessionMetrics>,
    notifier: Arc<dyn Notifier>,
}

impl SessionRecorder {
    pub(super) fn new(sessions: &Sessions, id: &str, events: &Arc<AtomicU64>, notifier: &Arc<dyn Notifier>) -> Self {
        Self {
            store: sessions.store().clone(),
            session: id.to_owned(),
            events: Arc::clone(events),
            metrics: Arc::clone(sessions.metrics()),
            notifier: Arc::clone(notifier),
        }
    }
}

impl Notifier for SessionRecorder {
    fn log(&self, event: Event) {
        self.store.append(&self.session, row(&event));
        self.events.fetch_add(1, Ordering::Relaxed);
        self.metrics.count_event(&event);
        if let Some(title) = title_of(&event) {
            self.store.change(&self.session, SessionChange { title: Some(title), ..SessionChange::default() });
        }
        // The session sends the end of the turn itself, once it is stored.
        if !matches!(event, Event::TurnEnded { .. }) {
            self.notifier.log(event);
        }
    }

    fn status(&self, status: StatusUpdate) {
        self.notifier.status(status);
    }

    fn child(&self, child: &ChildSession) -> Option<Arc<dyn Notifier>> {
        self.notifier.child(child)
    }

    fn backlog(&self) -> usize {
        self.notifier.backlog().max(self.store.backlog())
    }
}

pub(super) fn row(event: &Event) -> NewEvent {
    let (kind, text) = match event {
        Event::Message { message } => ("message", search_text(message)),
        Event::ToolStarted { .. } => ("tool_started", None),
        Event::ToolEnded { .. } => ("tool_ended", None),
        Event::Compacted { .. } => ("compacted", None),
        Event::TurnEnded { .. } => ("turn_ended", None),
        Event::External { events, .. } => ("relayed", events.iter().find_map(|event| row(event).text)),
        Event::ExternalSessionOpened { .. } => ("seated", None),
        Event::Undone { .. } => ("undone", None),
    };
    let body = serde_json::to_string(event).unwrap_or_else(|error| {
        tracing::error!(kind, %error, "an event cannot be written as JSON");
        EMPTY_EVENT.to_owned()
    });
    NewEvent { kind: kind.into(), body, text }
}

/// Returns the text by which searches and recall find a message. `None` if it says nothing.
fn search_text(message: &Message) -> Option<String> {
    let text = message.text();
    let is_help = message.role == Role::Assistant && is_offline_help(&text);
    (!is_help && !text.trim().is_empty()).then_some(text)
}

/// Returns the title that an external agent gives the session. `None` if the event sets no title.
fn title_of(event: &Event) -> Option<String> {
    let Event::External { title: Some(title), .. } = event else { return None };
    let title = strip_to_line(title);
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_event_without_content_can_be_read() {
        let empty = Event::External { acp_update: Value::Null, events: Vec::new(), streamed: false, title: None };
        assert_eq!(serde_json::from_str::<Event>(EMPTY_EVENT).unwrap(), empty);
    }
}
