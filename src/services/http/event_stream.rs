//! Reads the events of an answer, each up to a limit. rmcp's limit applies only to requests that rmcp itself sends.

use futures::{StreamExt as _, stream};
use reqwest::Response;
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::SseStream;

use super::Events;

/// Why the events of an answer end early.
#[derive(Debug, thiserror::Error)]
enum EventStreamError {
    #[error(transparent)]
    Read(#[from] reqwest::Error),
    #[error("an event has more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// Returns the events of an answer. They end with an error at the first one that is larger than the limit.
pub(super) fn read_events(response: Response, limit: usize) -> Events {
    let start = (response, EventSize::default());
    let chunks = stream::try_unfold(start, move |(mut response, mut size)| async move {
        let Some(chunk) = response.chunk().await? else { return Ok(None) };
        size.add(&chunk, limit)?;
        Ok::<_, EventStreamError>(Some((chunk, (response, size))))
    });
    SseStream::from_bytes_stream(chunks).boxed()
}

/// Returns whether the events ended because one is larger than the limit.
pub(super) fn is_too_large(error: &SseError) -> bool {
    let SseError::Body(cause) = error else { return false };
    matches!(cause.downcast_ref::<EventStreamError>(), Some(EventStreamError::TooLarge { .. }))
}

/// Counts the bytes of the event that has not ended. The parser keeps them, but no complete comments.
#[derive(Debug, Default)]
struct EventSize {
    /// Bytes of the complete lines.
    lines: usize,
    /// Bytes of the line that has not ended.
    line: usize,
    /// True if that line is a comment.
    is_comment: bool,
    /// True if the last byte was a carriage return, which may be the first half of a line end.
    after_return: bool,
}

impl EventSize {
    /// Counts bytes. Fails if an event is larger than the limit.
    fn add(&mut self, bytes: &[u8], limit: usize) -> Result<(), EventStreamError> {
        for byte in bytes {
            self.add_byte(*byte);
            if self.lines + self.line > limit {
                return Err(EventStreamError::TooLarge { limit });
            }
        }
        Ok(())
    }

    fn add_byte(&mut self, byte: u8) {
        let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
        match byte {
            b'\n' if after_return => {}
            b'\n' | b'\r' => self.end_line(),
            _ => {
                if self.line == 0 {
                    self.is_comment = byte == b':';
                }
                self.line += 1;
            }
        }
    }

    fn end_line(&mut self) {
        if self.line == 0 {
            self.lines = 0;
        } else if !self.is_comment {
            self.lines += self.line + 1;
        }
        self.line = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether an event of this text, which arrives in pieces of any size, is larger than 16 bytes.
    fn is_larger(text: &str) -> bool {
        let count = |size: usize| {
            let mut event = EventSize::default();
            text.as_bytes().chunks(size).any(|piece| event.add(piece, 16).is_err())
        };
        let counts: Vec<_> = (1..=text.len()).map(count).collect();
        assert!(counts.iter().all(|larger| *larger == counts[0]), "{counts:?}");
        counts[0]
    }

    #[test]
    fn the_lines_of_an_event_count_together() {
        for end in ["\n", "\r\n", "\r"] {
            let text = |lines: &[&str]| lines.join(end);
            assert!(!is_larger(&text(&["data: a", "", "data: b", "", "data: c", "", ""])), "three events");
            assert!(is_larger(&text(&["data: a", "data: b", "data: c", "", ""])), "one event");
            assert!(is_larger("data: 0123456789x"), "a line without an end");
            assert!(!is_larger(&text(&[": one", ": two", ": three", "data: a", "", ""])), "comments");
        }
    }

    fn response(body: String) -> Response {
        hyper::Response::new(body).into()
    }

    #[tokio::test]
    async fn events_end_at_one_that_is_too_large() {
        let mut events = read_events(response("data: a\n\ndata: b\n\n".to_owned()), 16);
        for data in ["a", "b"] {
            assert_eq!(events.next().await.unwrap().unwrap().data.as_deref(), Some(data));
        }
        assert!(events.next().await.is_none());

        let mut events = read_events(response(format!("data: {}\n\ndata: b\n\n", "x".repeat(16))), 16);
        assert!(matches!(events.next().await, Some(Err(error)) if is_too_large(&error)));
        assert!(events.next().await.is_none());
    }
}
