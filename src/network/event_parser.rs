//! Splits the bytes of an event stream into the data of its events.
//!
//! Invariant: pure. Keeps at most one event.

/// Collects the data of server-sent events.
#[derive(Debug, Default)]
pub(super) struct EventParser {
    /// Bytes after the last complete line.
    rest: Vec<u8>,
    /// The data lines of the event that has not ended.
    data: Option<String>,
}

impl EventParser {
    /// Adds bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// Returns the number of bytes of the event that has not ended.
    pub(super) fn len(&self) -> usize {
        self.rest.len() + self.data.as_ref().map_or(0, String::len)
    }

    /// Returns the data of the next complete event. `None` if more bytes are needed.
    pub(super) fn next(&mut self) -> Option<String> {
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Some(data);
                }
            } else if let Some(text) = line.strip_prefix("data:") {
                let text = text.strip_prefix(' ').unwrap_or(text);
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(text);
                    }
                    None => self.data = Some(text.to_owned()),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a text that arrives in pieces of this size.
    fn events(text: &str, size: usize) -> Vec<String> {
        let mut parser = EventParser::default();
        let mut events = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            parser.push(piece);
            events.extend(std::iter::from_fn(|| parser.next()));
        }
        events
    }

    #[test]
    fn events_are_complete_however_they_arrive() {
        let text = ":\n\ndata: {\"a\":1}\r\n\r\nevent: error\ndata:x\ndata: ü\nid: 7\n\ndata: cut off";
        for size in 1..text.len() {
            assert_eq!(events(text, size), ["{\"a\":1}", "x\nü"], "{size}");
        }
    }
}
