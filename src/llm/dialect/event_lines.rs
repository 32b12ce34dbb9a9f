//! Splits the bytes of an answer into server-sent events.
//!
//! Invariant: an event takes at most [`MAX_EVENT`] bytes, and so does a line.

use std::str::Utf8Error;

/// Maximum bytes of one event. Each event is a piece of an answer.
const MAX_EVENT: usize = 8 << 20;

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
        // Comments and other fields do not matter.
        let line = std::str::from_utf8(line)?.trim();
        if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.trim());
        } else if let Some(name) = line.strip_prefix("event:") {
            name.trim().clone_into(&mut self.name);
        }
        if self.data.len() + self.name.len() > MAX_EVENT { Err(EventError::TooLong) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
