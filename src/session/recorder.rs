//! Puts every event of a turn into the store on its way to whoever shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::agents::{Child, Event, Notifier, Status};
use crate::store::{self, Change, NewEvent};
use crate::tool::plain_line;

/// A notifier that remembers.
pub(super) struct Recorder {
    pub(super) store: store::Sessions,
    pub(super) session: String,
    /// How many events the session has had.
    pub(super) events: Arc<AtomicU64>,
    pub(super) front: Arc<dyn Notifier>,
}

impl Notifier for Recorder {
    fn log(&self, event: Event) {
        self.store.append(&self.session, row(&event));
        self.events.fetch_add(1, Ordering::Relaxed);
        if let Some(title) = title_of(&event) {
            self.store.change(&self.session, Change { title: Some(title), ..Change::default() });
        }
        // Nobody hears of the end before it is stored; the session tells it then.
        if !matches!(event, Event::TurnEnded { .. }) {
            self.front.log(event);
        }
    }

    fn status(&self, status: Status) {
        self.front.status(status);
    }

    fn child(&self, child: &Child) -> Option<Arc<dyn Notifier>> {
        self.front.child(child)
    }

    fn backlog(&self) -> usize {
        self.front.backlog().max(self.store.backlog())
    }
}

pub(super) fn row(event: &Event) -> NewEvent {
    let (kind, text) = match event {
        Event::Message { message } => ("message", Some(message.text()).filter(|text| !text.trim().is_empty())),
        Event::ToolStarted { .. } => ("tool_started", None),
        Event::ToolEnded { .. } => ("tool_ended", None),
        Event::Compacted { .. } => ("compacted", None),
        Event::TurnEnded { .. } => ("turn_ended", None),
        Event::Relayed { means, .. } => ("relayed", means.iter().find_map(|event| row(event).text)),
        Event::Seated { .. } => ("seated", None),
        Event::Undone { .. } => ("undone", None),
    };
    // Events hold values that JSON can hold.
    let body = serde_json::to_string(event).unwrap_or_default();
    NewEvent { kind: kind.into(), body, text }
}

/// What an agent outside calls the session from now on.
fn title_of(event: &Event) -> Option<String> {
    let Event::Relayed { told, .. } = event else { return None };
    let update = told.get("update").filter(|update| update["sessionUpdate"] == "session_info_update")?;
    let title = plain_line(update["title"].as_str()?);
    (!title.is_empty()).then_some(title)
}
