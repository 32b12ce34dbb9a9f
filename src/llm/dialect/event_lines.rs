//! Splits the bytes of an answer into server-sent events.
//!
//! Invariant: an event takes at most [`MAX_EVENT`] bytes, and so does a line.

use std::str::Utf8Error;

/// Maximum bytes of one event. Each event is a piece of an answer.
const MAX_EVENT: usize = 8 << 20;

/// Characters of a text without events that are kept for an error.
const MAX_FOREIGN: usize = 64 << 10;

/// Comments and fields that do not matter.
const OTHER_FIELDS: [&str; 3] = [":", "id:", "retry:"];

/// Why bytes are no events.
#[derive(Debug, thiserror::Error)]
pub(in crate::llm) enum EventError {
    #[error(transparent)]
    Text(#[from] Utf8Error),
    #[error("one event of its answer is longer than {} MiB", MAX_EVENT >> 20)]
    TooLong,
}

/// Splits bytes into lines, and collects the name and the data of each event.
#[derive(Default)]
pub(super) struct EventLines {
    /// The begin of a line whose end is missing.
    rest: Vec<u8>,
    /// The name of the event whose end is missing. Empty if it has none yet.
    name: String,
    /// The data of this event.
    data: String,
    /// The last byte was a carriage return, so that a line feed belongs to it.
    after_return: bool,
    /// The begin of the lines that no event has, as long as there is no event.
    foreign: String,
    has_data: bool,
}

impl EventLines {
    /// Takes the next bytes, which may end anywhere. Calls `on_event` with the name and the data of each event that
    /// ends in them. Events without data are left out.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(&str, &str)) -> Result<(), EventError> {
        if let Some((first, others)) = bytes.split_first() {
            if self.after_return && *first == b'\n' {
                bytes = others;
            }
            self.after_return = false;
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, end) = bytes.split_at(end);
            bytes = match end {
                [b'\r', b'\n', others @ ..] => others,
                [b'\r'] => {
                    self.after_return = true;
                    &[]
                }
                [_, others @ ..] => others,
                [] => &[],
            };
            if self.rest.is_empty() {
                self.line(line, &mut on_event)?;
            } else {
                let mut rest = std::mem::take(&mut self.rest);
                rest.extend_from_slice(line);
                self.line(&rest, &mut on_event)?;
                rest.clear();
                self.rest = rest;
            }
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > MAX_EVENT { Err(EventError::TooLong) } else { Ok(()) }
    }

    /// Takes the event that the end of the bytes ends.
    pub(super) fn finish(&mut self, mut on_event: impl FnMut(&str, &str)) -> Result<(), EventError> {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.line(&rest, &mut on_event)?;
        }
        self.line(b"", &mut on_event)
    }

    /// Returns the begin of a text that is not an event stream. `None` if there was an event, or no text.
    pub(super) fn foreign_text(&self) -> Option<&str> {
        (!self.has_data && !self.foreign.is_empty()).then_some(&self.foreign)
    }

    /// Takes one line. An empty line ends an event.
    fn line(&mut self, line: &[u8], on_event: &mut impl FnMut(&str, &str)) -> Result<(), EventError> {
        if line.is_empty() {
            if !self.data.is_empty() {
                on_event(&self.name, &self.data);
                self.data.clear();
            }
            self.name.clear();
            return Ok(());
        }
        let line = std::str::from_utf8(line)?.trim();
        if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.trim());
            self.has_data = true;
        } else if let Some(name) = line.strip_prefix("event:") {
            name.trim().clone_into(&mut self.name);
        } else if !self.has_data && !OTHER_FIELDS.iter().any(|field| line.starts_with(field)) {
            let room = MAX_FOREIGN.saturating_sub(self.foreign.len());
            self.foreign.extend(line.chars().chain(['\n']).take(room));
        }
        if self.data.len() + self.name.len() > MAX_EVENT { Err(EventError::TooLong) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_without_events_is_foreign() {
        let foreign = |text: &str| {
            let mut lines = EventLines::default();
            lines.feed(text.as_bytes(), |_, _| {}).unwrap();
            lines.finish(|_, _| {}).unwrap();
            lines.foreign_text().map(str::to_owned)
        };
        assert_eq!(foreign("{\n  \"error\": 1\n}").as_deref(), Some("{\n\"error\": 1\n}\n"));
        for events in ["", ": ping\n\n", "id: 1\nretry: 5\nevent: a\n\n", "<html>\ndata: 1\n\n"] {
            assert_eq!(foreign(events), None, "{events}");
        }
        assert_eq!(foreign(&"x\n".repeat(MAX_FOREIGN)).map(|text| text.len()), Some(MAX_FOREIGN));
    }

    #[test]
    fn an_event_has_the_name_of_its_own_lines() {
        let mut lines = EventLines::default();
        let mut events = Vec::new();
        let text = b"event: a\ndata: 1\n\nevent: left out\n\ndata: 2\ndata: 3\nevent: b\n\n: ping\ndata: 4";
        let mut on_event = |name: &str, data: &str| events.push(format!("{name}={data}"));
        lines.feed(text, &mut on_event).unwrap();
        lines.finish(&mut on_event).unwrap();
        assert_eq!(events, ["a=1", "b=2\n3", "=4"]);
    }
}
