//! What was said in a session, and what of it the model is shown.
//!
//! Invariant: nothing is ever taken out. Compaction changes only what is shown.

use std::collections::HashSet;
use std::sync::Arc;

use super::Event;
use super::compaction::weight;
use crate::conversation::{Content, Message, Part, Role, ToolResult};

/// The messages of a session, from the first.
#[derive(Debug, Clone, Default)]
pub struct History {
    messages: Vec<Arc<Message>>,
    /// How many of the first messages are shown as this one.
    compacted: Option<(usize, Arc<Message>)>,
    /// How many tokens a model counted, and how many messages there were.
    measured: Option<(usize, u64)>,
}

impl History {
    /// As the record of a session tells it. A session that was cut off in the middle of a turn is mended, so that
    /// every tool use has its result.
    pub fn replayed<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut history = Self::default();
        for event in events {
            match event {
                Event::Message { message } => history.push(Arc::clone(message)),
                Event::Compacted { messages, summary } => history.compact(*messages, Arc::clone(summary)),
                Event::ToolStarted { .. } | Event::ToolEnded { .. } | Event::TurnEnded { .. } => {}
            }
        }
        history.mend();
        history
    }

    pub fn push(&mut self, message: Arc<Message>) {
        self.messages.push(message);
    }

    /// Everything that was said.
    pub fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// What the model is shown.
    pub fn shown(&self) -> Vec<Arc<Message>> {
        match &self.compacted {
            Some((count, summary)) => {
                let rest = self.messages.get(*count..).unwrap_or_default();
                std::iter::once(summary).chain(rest).cloned().collect()
            }
            None => self.messages.clone(),
        }
    }

    /// Shows `summary` in the place of the first `count` messages.
    pub fn compact(&mut self, count: usize, summary: Arc<Message>) {
        self.compacted = Some((count, summary));
        self.measured = None;
    }

    /// What is shown now was `tokens` long for the model.
    pub(super) fn measured(&mut self, tokens: u64) {
        self.measured = (tokens > 0).then_some((self.messages.len(), tokens));
    }

    /// About how many tokens the next request takes, with `fixed` for what stands before the messages.
    pub(super) fn tokens(&self, fixed: u64) -> u64 {
        match self.measured {
            Some((count, tokens)) => {
                let since = self.messages.get(count..).unwrap_or_default();
                tokens + since.iter().map(|message| weight(message)).sum::<u64>()
            }
            None => fixed + self.shown().iter().map(|message| weight(message)).sum::<u64>(),
        }
    }

    /// The ids of all tool uses.
    pub(super) fn ids(&self) -> HashSet<String> {
        self.messages.iter().flat_map(|message| uses(message)).map(|(id, _)| id.to_owned()).collect()
    }

    /// How many of the first messages are shown as a summary.
    pub fn compacted(&self) -> usize {
        self.compacted.as_ref().map_or(0, |(count, _)| *count)
    }

    /// Gives every tool use that has no result one that says so, where it is missing: providers refuse a talk
    /// without.
    fn mend(&mut self) {
        let mut at = 0;
        while let Some(message) = self.messages.get(at) {
            at += 1;
            let answered: HashSet<_> = self.messages.get(at).map(|next| results(next)).unwrap_or_default();
            let missing: Vec<_> = uses(message).filter(|(id, _)| !answered.contains(id)).collect();
            if missing.is_empty() {
                continue;
            }
            let made = missing.into_iter().map(|(id, name)| {
                let said =
                    "skein ended before this call was done; it may have taken effect: check before you try again";
                let content = vec![Content::text(said)];
                Part::ToolResult(ToolResult { id: id.to_owned(), name: name.to_owned(), content, is_error: true })
            });
            let mut parts: Vec<_> = made.collect();
            if answered.is_empty() {
                self.messages.insert(at, Arc::new(Message { role: Role::User, parts }));
            } else {
                parts.splice(0..0, self.messages[at].parts.iter().cloned());
                self.messages[at] = Arc::new(Message { role: self.messages[at].role, parts });
            }
        }
    }
}

fn uses(message: &Message) -> impl Iterator<Item = (&str, &str)> {
    message.parts.iter().filter_map(|part| match part {
        Part::ToolUse(call) => Some((call.id.as_str(), call.name.as_str())),
        Part::Content(_) | Part::Thought(_) | Part::ToolResult(_) => None,
    })
}

fn results(message: &Message) -> HashSet<&str> {
    let results = message.parts.iter().filter_map(|part| match part {
        Part::ToolResult(result) => Some(result.id.as_str()),
        Part::Content(_) | Part::Thought(_) | Part::ToolUse(_) => None,
    });
    results.collect()
}
