//! Reads from the event log what an undo removes: the prompts, the changes of files, and the other calls.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::agents::{Event, active_events, is_own};
use crate::conversation::ToolUse;
use crate::tool::Activity;

/// The turns that an undo removes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct UndoneEvents {
    /// The files that the turns changed, each once, with the content before and after the turns.
    pub(super) files: Vec<ChangedFile>,
    /// The other calls of the turns. Their effects are unknown.
    pub(super) calls: Vec<ToolUse>,
}

/// A file that a call reported as changed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChangedFile {
    pub(super) path: PathBuf,
    /// `None` if the file did not exist.
    pub(super) before: Option<String>,
    pub(super) after: String,
    /// The event log has only a part of `before`.
    pub(super) is_partial: bool,
}

/// A turn of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSummary {
    /// Starts at 1, and counts undone turns too, so that it never changes.
    pub number: usize,
    pub prompt: String,
    /// False if the turn was undone.
    pub is_active: bool,
    /// The index of the prompt among all events.
    pub(super) place: usize,
}

/// Returns all turns, in the order in which they began.
pub(super) fn list_turns(events: &[Event]) -> Vec<TurnSummary> {
    let active: HashSet<usize> = active_events(events).into_iter().map(|(place, _)| place).collect();
    let prompts = events.iter().enumerate().filter_map(|(place, event)| match event {
        Event::Message { message } if message.is_prompt() => Some((place, message.text())),
        _ => None,
    });
    let summary = |(index, (place, prompt)): (usize, (usize, String))| TurnSummary {
        number: index + 1,
        prompt,
        is_active: active.contains(&place),
        place,
    };
    prompts.enumerate().map(summary).collect()
}

/// Returns what an undo of all events from the index `place` on removes.
pub(super) fn find_undone(events: &[Event], place: usize) -> UndoneEvents {
    let mut standing = active_events(events);
    standing.retain(|(at, _)| *at >= place);
    let (mut undone, mut started) = (UndoneEvents::default(), Vec::new());
    for (theirs, event) in standing.iter().flat_map(|(_, event)| {
        let theirs = matches!(event, Event::External { .. });
        event.native_events().iter().map(move |event| (theirs, event))
    }) {
        match event {
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
    undone
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

impl UndoneEvents {
    fn note(&mut self, activity: &Activity) {
        let Activity::Changed { path, before, after } = activity else { return };
        let is_partial = before.as_deref().is_some_and(Activity::is_part);
        match self.files.iter_mut().find(|file| file.path == *path) {
            Some(file) => {
                file.after.clone_from(after);
                // Older events have no mark if the changed part of a large file is short, but a later one may.
                file.is_partial |= is_partial && file.before.is_some();
            }
            None => {
                let (path, before, after) = (path.clone(), before.clone(), after.clone());
                self.files.push(ChangedFile { path, before, after, is_partial });
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
        let call = ToolUse::new(id.to_owned(), name.to_owned(), arguments);
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
        let undone = find_undone(&events, 0);
        assert_eq!(undone.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["4", "5", "5.1"]);
    }

    #[test]
    fn a_part_of_the_first_text_is_known_as_such() {
        let changed = |before: Option<&str>, after: &str| Activity::Changed {
            path: PathBuf::from("/x"),
            before: before.map(str::to_owned),
            after: after.to_owned(),
        };
        let cut = format!("first\n{}", Activity::left_out_mark("66.7 kB"));
        for (first, is_partial) in [(Some(cut.as_str()), true), (Some("line 7\n"), true), (None, false)] {
            let mut undone = UndoneEvents::default();
            undone.note(&changed(first, "line 8\n"));
            undone.note(&changed(Some(&cut), "short\n"));
            assert_eq!(undone.files[0].is_partial, is_partial, "{first:?}");
        }
    }
}
