//! Keeps the messages of a session, and decides which of them the model sees.
//!
//! Invariant: no event is ever removed. Compaction changes only what the model sees, and an undone turn stays stored as
//! undone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Event;
use crate::conversation::{Content, Message, MessagePart, Role, ToolResult};
use crate::llm::EarlierThoughts;

/// The messages of a session, oldest first.
#[derive(Debug, Clone, Default)]
pub struct History {
    messages: Vec<Arc<Message>>,
    /// How many of the first messages this summary replaces.
    compacted: Option<(usize, Arc<Message>)>,
    /// The number of messages at the last count, and the tokens that the model counted for them.
    measured: Option<(usize, u64)>,
}

impl History {
    /// Restores the history from the stored events of a session. If a turn was interrupted, adds the missing results,
    /// so that every tool use has one.
    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut history = Self::default();
        for event in active_events(events).into_iter().flat_map(|(_, event)| event.native_events()) {
            match event {
                Event::Message { message } => history.push(Arc::clone(message)),
                Event::Compacted { messages, summary } => history.compact(*messages, Arc::clone(summary)),
                Event::ToolStarted { .. }
                | Event::ToolEnded { .. }
                | Event::TurnEnded { .. }
                | Event::External { .. }
                | Event::ExternalSessionOpened { .. }
                | Event::Undone { .. } => {}
            }
        }
        history.mend();
        history
    }

    pub fn push(&mut self, message: Arc<Message>) {
        self.messages.push(message);
    }

    /// Returns all messages, including those behind a summary.
    pub fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// Returns the messages that the model sees.
    pub fn visible_messages(&self) -> Vec<Arc<Message>> {
        match &self.compacted {
            Some((count, summary)) => {
                let rest = self.messages.get(*count..).unwrap_or_default();
                std::iter::once(summary).chain(rest).cloned().collect()
            }
            None => self.messages.clone(),
        }
    }

    /// Shows `summary` to the model instead of the first `count` messages.
    pub fn compact(&mut self, count: usize, summary: Arc<Message>) {
        self.compacted = Some((count, summary));
        self.measured = None;
    }

    /// Records that the model counted `tokens` for the messages it sees now. Zero means that it did not count.
    pub(super) fn set_token_count(&mut self, tokens: u64) {
        self.measured = (tokens > 0).then_some((self.messages.len(), tokens));
    }

    /// Estimates the tokens of the next request. `fixed` returns the share of the system prompt and the tools. It is not
    /// called if the model has counted an earlier request.
    pub(super) fn tokens(&self, fixed: impl FnOnce() -> u64, thoughts: EarlierThoughts) -> u64 {
        match self.measured {
            Some((count, tokens)) => tokens + total_weight(self.messages.get(count..).unwrap_or_default(), thoughts),
            None => fixed() + total_weight(&self.visible_messages(), thoughts),
        }
    }

    /// Returns the ids of all tool uses.
    pub(super) fn ids(&self) -> HashSet<String> {
        self.messages.iter().flat_map(|message| uses(message)).map(|(id, _)| id.to_owned()).collect()
    }

    /// Returns how many of the first messages a summary replaces.
    pub fn messages_in_summary(&self) -> usize {
        self.compacted.as_ref().map_or(0, |(count, _)| *count)
    }

    /// Moves the result of every tool use directly after it, and adds an error result where one is missing. Providers
    /// reject a conversation without them. Results are missing or misplaced if Skein was killed, or if two processes
    /// worked on the session.
    fn mend(&mut self) {
        if self.is_sound() {
            return;
        }
        let mut results: HashMap<String, MessagePart> = HashMap::new();
        for part in self.messages.iter().flat_map(|message| &message.parts) {
            if let MessagePart::ToolResult(result) = part {
                results.entry(result.id.clone()).or_insert_with(|| part.clone());
            }
        }
        let before = self.messages.len();
        let mut mended = Vec::with_capacity(before);
        for message in &self.messages {
            let said: Vec<_> =
                message.parts.iter().filter(|part| !matches!(part, MessagePart::ToolResult(_))).cloned().collect();
            if !said.is_empty() {
                mended.push(Arc::new(Message { role: message.role, parts: said }));
            }
            let answers: Vec<_> = uses(message)
                .map(|(id, name)| results.remove(id).unwrap_or_else(|| missing_result(id, name)))
                .collect();
            if !answers.is_empty() {
                mended.push(Arc::new(Message { role: Role::User, parts: answers }));
            }
        }
        self.messages = mended;
        if self.messages.len() != before {
            // The count refers to positions that have changed. A history that is now too long is compacted again.
            self.compacted = None;
        }
    }

    /// Returns whether every message with tool uses is followed by exactly their results, and no result is elsewhere.
    fn is_sound(&self) -> bool {
        let mut asked: HashSet<&str> = HashSet::new();
        for message in &self.messages {
            if results(message) != asked {
                return false;
            }
            asked = uses(message).map(|(id, _)| id).collect();
        }
        asked.is_empty()
    }
}

/// Returns the events that were not undone, each with its index among all stored events. An undo that was itself undone
/// has no effect.
pub fn active_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<(usize, &'a Event)> {
    let all: Vec<&Event> = events.into_iter().collect();
    active_places(all.iter().copied().map(Some)).into_iter().map(|place| (place, all[place])).collect()
}

/// Returns the indices of the events that were not undone. `None` is an event that this Skein cannot read.
pub fn active_places<'a>(events: impl IntoIterator<Item = Option<&'a Event>>) -> Vec<usize> {
    // For each event, the last one that counted before it; then the last one that counts after each number of events.
    let mut earlier: Vec<Option<usize>> = Vec::new();
    let mut last_after: Vec<Option<usize>> = vec![None];
    for (at, event) in events.into_iter().enumerate() {
        let last = last_after[at];
        earlier.push(last);
        last_after.push(match event {
            Some(Event::Undone { events }) => last_after.get(*events).copied().unwrap_or(last),
            _ => Some(at),
        });
    }
    let last = last_after.last().copied().flatten();
    let mut standing: Vec<_> = std::iter::successors(last, |at| earlier[*at]).collect();
    standing.reverse();
    standing
}

fn missing_result(id: &str, name: &str) -> MessagePart {
    let said = "skein ended before this call was done; it may have taken effect: check before you try again";
    let content = vec![Content::text(said)];
    MessagePart::ToolResult(ToolResult { id: id.to_owned(), name: name.to_owned(), content, is_error: true })
}

fn uses(message: &Message) -> impl Iterator<Item = (&str, &str)> {
    message.parts.iter().filter_map(|part| match part {
        MessagePart::ToolUse(call) => Some((call.id.as_str(), call.name.as_str())),
        MessagePart::Content(_) | MessagePart::Thought(_) | MessagePart::ToolResult(_) => None,
    })
}

fn results(message: &Message) -> HashSet<&str> {
    let results = message.parts.iter().filter_map(|part| match part {
        MessagePart::ToolResult(result) => Some(result.id.as_str()),
        MessagePart::Content(_) | MessagePart::Thought(_) | MessagePart::ToolUse(_) => None,
    });
    results.collect()
}

/// Estimates the tokens of text that no model has counted.
pub(super) fn tokens_of(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

/// Estimates the tokens of messages in a request.
pub(super) fn total_weight(messages: &[Arc<Message>], thoughts: EarlierThoughts) -> u64 {
    messages.iter().map(|message| weight(message, thoughts)).sum()
}

/// Estimates the tokens of a message in a request.
pub(super) fn weight(message: &Message, thoughts: EarlierThoughts) -> u64 {
    /// About what providers count for an image or a minute of audio.
    const MEDIUM: u64 = 1_500;
    let content = |content: &Content| match content {
        Content::Text(text) | Content::Injected(text) => tokens_of(text.len()),
        Content::Image { .. } | Content::Audio { .. } => MEDIUM,
        Content::Resource(value) | Content::Link(value) => tokens_of(value.to_string().len()),
    };
    let parts = message.parts.iter().map(|part| match part {
        MessagePart::Content(piece) => content(piece),
        MessagePart::Thought(text) => match thoughts {
            EarlierThoughts::LeftOut => 0,
            EarlierThoughts::Repeated => tokens_of(text.len()),
        },
        MessagePart::ToolUse(call) => tokens_of(call.name.len() + call.arguments.to_string().len()),
        MessagePart::ToolResult(result) => result.content.iter().map(content).sum(),
    });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::ToolUse;

    fn said(text: &str) -> Message {
        Message::user(vec![Content::text(text)])
    }

    fn calls(ids: &[&str]) -> Message {
        let call = |id: &&str| MessagePart::ToolUse(ToolUse::new((*id).to_owned(), "t".into(), json!({})));
        Message { role: Role::Assistant, parts: ids.iter().map(call).collect() }
    }

    fn answers(ids: &[&str]) -> Message {
        let answer = |id: &&str| {
            let content = vec![Content::text(format!("of {id}"))];
            MessagePart::ToolResult(ToolResult { id: (*id).to_owned(), name: "t".into(), content, is_error: false })
        };
        Message { role: Role::User, parts: ids.iter().map(answer).collect() }
    }

    fn replayed(messages: &[Message]) -> Vec<Message> {
        let events: Vec<_> =
            messages.iter().map(|message| Event::Message { message: Arc::new(message.clone()) }).collect();
        History::from_events(&events).messages().iter().map(|message| message.as_ref().clone()).collect()
    }

    #[test]
    fn a_record_that_is_whole_stays_as_it_is() {
        let whole = [said("a"), calls(&["1", "2"]), answers(&["1", "2"]), said("b")];
        assert_eq!(replayed(&whole), whole);
    }

    #[test]
    fn what_was_taken_back_does_not_stand_any_more() {
        let message = |text: &str| Event::Message { message: Arc::new(said(text)) };
        let undone = |events| Event::Undone { events };
        let record =
            [message("a"), message("b"), undone(1), message("c"), message("d"), undone(4), undone(3), message("e")];
        let left = History::from_events(&record);
        assert_eq!(left.messages().iter().map(|message| message.text()).collect::<Vec<_>>(), ["a", "e"]);
        let places: Vec<_> = active_events(&record).iter().map(|(at, _)| *at).collect();
        assert_eq!(places, [0, 7]);
    }

    #[test]
    fn an_undo_can_be_undone() {
        let message = |text: &str| Event::Message { message: Arc::new(said(text)) };
        let undone = |events| Event::Undone { events };
        let places = |record: &[Event]| active_events(record).iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let mut record = vec![message("a"), message("b"), message("c"), undone(1)];
        assert_eq!(places(&record), [0]);
        record.push(undone(3));
        assert_eq!(places(&record), [0, 1, 2]);
        record.extend([undone(2), message("d")]);
        assert_eq!(places(&record), [0, 1, 6]);
        record.push(undone(4));
        assert_eq!(places(&record), [0], "the state after the first undo");
        record.push(undone(99));
        assert_eq!(places(&record), [0], "an event that is not there yet changes nothing");
    }

    #[test]
    fn thoughts_count_for_a_model_that_gets_them_again() {
        let thought = MessagePart::Thought("x".repeat(400));
        let answer =
            Message { role: Role::Assistant, parts: vec![thought, MessagePart::Content(Content::text("four"))] };
        let history = History::from_events(&[Event::Message { message: Arc::new(answer) }]);
        assert_eq!(history.tokens(|| 10, EarlierThoughts::LeftOut), 11);
        assert_eq!(history.tokens(|| 10, EarlierThoughts::Repeated), 111);
    }

    #[test]
    fn results_are_reordered_and_missing_ones_added() {
        let torn = [said("a"), calls(&["1", "2"]), said("b"), calls(&["3"]), answers(&["2"]), answers(&["3", "9"])];
        let mended = replayed(&torn);
        let made =
            Message { role: Role::User, parts: vec![missing_result("1", "t"), answers(&["2"]).parts[0].clone()] };
        assert_eq!(mended, [said("a"), calls(&["1", "2"]), made, said("b"), calls(&["3"]), answers(&["3"])]);
    }
}
