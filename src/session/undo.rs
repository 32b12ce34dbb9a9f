//! Undoes the last prompt and everything after it. The event log keeps the events, marked as undone.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::recorder::row;
use super::{PromptError, Session};
use crate::agents::{Event, History, active_events, is_own};
use crate::conversation::ToolUse;
use crate::tool::Activity;

/// An undone turn, and its effects that remain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UndoneTurn {
    /// The text of the prompt.
    pub prompt: String,
    /// The files that the turn changed, each once, with the content before and after the turn.
    pub files: Vec<ChangedFile>,
    /// The other calls of the turn. Their effects are unknown and remain.
    pub calls: Vec<ToolUse>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChangedFile {
    pub path: PathBuf,
    /// `None` if the file did not exist.
    pub before: Option<String>,
    pub after: String,
}

impl Session {
    /// Undoes the last prompt and everything after it, in the history and in the event log. Returns `None` if there is
    /// no prompt left. Fails if a turn runs.
    pub async fn undo(&self) -> Result<Option<UndoneTurn>, PromptError> {
        let mut history = self.history.try_lock().map_err(|_| PromptError::Busy)?;
        let mut events = self.sessions.events(self.id()).await?;
        let Some((place, undone)) = last_exchange(&events) else { return Ok(None) };
        let event = Event::Undone { events: place };
        self.sessions.store.append(self.id(), row(&event));
        self.sessions.store.flush(self.id()).await?;
        events.push(event);
        *history = History::from_events(&events);
        self.events.store(events.len() as u64, Ordering::Relaxed);
        self.setup().external_sessions().forget();
        Ok(Some(undone))
    }
}

/// Returns the index of the last prompt in `events`, and the turn to undo. `None` if there is no prompt left.
fn last_exchange(events: &[Event]) -> Option<(usize, UndoneTurn)> {
    let standing = active_events(events);
    let is_prompt = |event: &Event| matches!(event, Event::Message { message } if message.is_prompt());
    let from = standing.iter().rposition(|(_, event)| is_prompt(event))?;
    let (place, _) = standing[from];
    let (mut undone, mut started) = (UndoneTurn::default(), Vec::new());
    for (theirs, event) in standing[from..].iter().flat_map(|(_, event)| {
        let theirs = matches!(event, Event::External { .. });
        event.native_events().iter().map(move |event| (theirs, event))
    }) {
        match event {
            Event::Message { message } if undone.prompt.is_empty() => undone.prompt = message.text(),
            Event::ToolStarted { call, by } => started.push((call, is_of_service(by.as_deref()))),
            Event::ToolEnded { id, outcome, activity, .. } => {
                // Skein has not observed the changes that an external agent reports.
                activity.iter().filter(|_| !theirs).for_each(|activity| undone.note(activity));
                let call = started.iter().find(|(call, _)| call.id == *id);
                let is_left = |call: &ToolUse, of_service: bool| of_service || !reports_changes(call);
                let left = call.filter(|(call, of_service)| !outcome.refused && is_left(call, *of_service));
                undone.calls.extend(left.map(|(call, _)| (*call).clone()));
            }
            _ => {}
        }
    }
    Some((place, undone))
}

/// Returns true if a call reports all its changes. The `developer` service reports every change to a file, even if the
/// call fails; only its commands do not. Code reports through the calls that it makes.
fn reports_changes(call: &ToolUse) -> bool {
    is_own(&call.name) || call.name.starts_with("developer__") && call.arguments.get("command").is_none()
}

/// Returns true if a service made the call on one that it requires. Such a call reports no changes.
fn is_of_service(by: Option<&str>) -> bool {
    // A caller is `agent/mode`, `service`, or `agent/mode: service`.
    by.is_some_and(|by| !by.contains('/') || by.contains(": "))
}

impl UndoneTurn {
    fn note(&mut self, activity: &Activity) {
        let Activity::Changed { path, before, after } = activity else { return };
        match self.files.iter_mut().find(|file| file.path == *path) {
            Some(file) => file.after.clone_from(after),
            None => {
                let (path, before, after) = (path.clone(), before.clone(), after.clone());
                self.files.push(ChangedFile { path, before, after });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::conversation::{Content, Message};
    use crate::tool::ToolOutcome;

    fn called(id: &str, name: &str, arguments: Value, outcome: ToolOutcome) -> [Event; 2] {
        let call = ToolUse { id: id.to_owned(), name: name.to_owned(), arguments };
        let (id, name) = (id.to_owned(), name.to_owned());
        [Event::ToolStarted { call, by: None }, Event::ToolEnded { id, name, outcome, activity: Vec::new() }]
    }

    #[test]
    fn only_calls_that_may_have_done_something_untold_stay_done() {
        let refused = ToolOutcome { refused: true, ..ToolOutcome::error("the user refused") };
        let mut events = vec![Event::Message { message: Arc::new(Message::user(vec![Content::text("go")])) }];
        events.extend(called("1", "developer__shell", json!({"command": "rm x"}), refused));
        events.extend(called("2", "developer__edit_file", json!({"path": "x"}), ToolOutcome::error("no such text")));
        events.extend(called("3", "developer__read_file", json!({"path": "x"}), ToolOutcome::text("x")));
        // A command that failed may have done a part of its work.
        events.extend(called("4", "developer__shell", json!({"command": "make"}), ToolOutcome::error("exit 2")));
        events.extend(called("5", "mail__send", json!({"to": "ann"}), ToolOutcome::text("sent")));
        let [started, ended] = called("5.1", "developer__write_file", json!({"path": "y"}), ToolOutcome::text("done"));
        let Event::ToolStarted { call, .. } = started else { panic!("a start") };
        events.extend([Event::ToolStarted { call, by: Some("mail".to_owned()) }, ended]);
        let (_, undone) = last_exchange(&events).unwrap();
        assert_eq!(undone.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["4", "5", "5.1"]);
    }
}
