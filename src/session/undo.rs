//! Taking back the last prompt and everything that followed it. The record keeps it, marked as taken back.

use std::path::PathBuf;

use crate::agents::{Event, standing};
use crate::tool::Activity;

/// What was taken back, and what of it is still there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Undone {
    /// The words of the prompt.
    pub prompt: String,
    /// The files that the turn changed, each once: what was in it before, and what the turn left in it.
    pub files: Vec<Changed>,
    /// The other calls that the turn made, by the names of their tools. What they did stays done.
    pub calls: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    pub path: PathBuf,
    /// Missing if there was no such file.
    pub before: Option<String>,
    pub after: String,
}

/// Where the last prompt stands in the record, and what taking it back means; nothing if there is none left.
pub(super) fn last_exchange(events: &[Event]) -> Option<(usize, Undone)> {
    let standing = standing(events);
    let is_prompt = |event: &Event| matches!(event, Event::Message { message } if message.is_prompt());
    let from = standing.iter().rposition(|(_, event)| is_prompt(event))?;
    let (place, _) = standing[from];
    let mut undone = Undone::default();
    for (_, event) in &standing[from..] {
        match event {
            Event::Message { message } if undone.prompt.is_empty() => undone.prompt = message.text(),
            Event::ToolEnded { name, activity, .. } => {
                activity.iter().for_each(|activity| undone.note(activity));
                if !activity.iter().any(|activity| matches!(activity, Activity::Changed { .. })) {
                    undone.calls.push(name.clone());
                }
            }
            _ => {}
        }
    }
    Some((place, undone))
}

impl Undone {
    fn note(&mut self, activity: &Activity) {
        let Activity::Changed { path, before, after } = activity else { return };
        match self.files.iter_mut().find(|file| file.path == *path) {
            Some(file) => file.after.clone_from(after),
            None => {
                let (path, before, after) = (path.clone(), before.clone(), after.clone());
                self.files.push(Changed { path, before, after });
            }
        }
    }
}
