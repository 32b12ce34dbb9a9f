//! Reports the progress of a running turn to the client: tool calls, notices and the answer so far.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::agents::{Event, Notifier, StatusUpdate};
use crate::conversation::ToolUse;
use crate::tool::{strip_invisible, strip_to_line, truncate};

/// Messages that are buffered for a slow client; when the buffer is full, further ones are dropped.
const BUFFER: usize = 64;
/// How often the answer so far is sent.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum length of the arguments of a call in a message.
const ARGUMENTS: usize = 200;

pub(super) struct ProgressNotifier {
    sender: Sender<String>,
    text: Mutex<AnswerProgress>,
}

#[derive(Default)]
struct AnswerProgress {
    so_far: String,
    last_sent: Option<Instant>,
}

impl ProgressNotifier {
    pub(super) fn new() -> (Self, Receiver<String>) {
        let (sender, receiver) = channel(BUFFER);
        (Self { sender, text: Mutex::default() }, receiver)
    }

    fn tell(&self, message: String) {
        // If the buffer is full, the client is slow and this message is dropped.
        drop(self.sender.try_send(message));
    }

    fn text(&self) -> std::sync::MutexGuard<'_, AnswerProgress> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for ProgressNotifier {
    fn log(&self, event: Event) {
        for event in event.native_events() {
            if let Event::ToolStarted { call, by } = event {
                *self.text() = AnswerProgress::default();
                self.tell(call_text(call, by.as_deref()));
            }
        }
    }

    fn status(&self, status: StatusUpdate) {
        match status {
            StatusUpdate::Text(more) | StatusUpdate::ExternalChunk { text: more, thought: false, .. } => {
                let mut text = self.text();
                text.so_far.push_str(&more);
                if text.last_sent.is_none_or(|told| told.elapsed() >= PROGRESS_INTERVAL) {
                    text.last_sent = Some(Instant::now());
                    self.tell(strip_invisible(&text.so_far));
                }
            }
            StatusUpdate::Notice(notice) => self.tell(strip_invisible(&notice.text)),
            StatusUpdate::Thought(_)
            | StatusUpdate::ExternalChunk { .. }
            | StatusUpdate::ToolActivity { .. }
            | StatusUpdate::Usage { .. }
            | StatusUpdate::Title(_) => {}
        }
    }
}

fn call_text(call: &ToolUse, by: Option<&str>) -> String {
    let by = by.map(|by| format!("{by}: ")).unwrap_or_default();
    let arguments = strip_to_line(&call.arguments.to_string());
    let shown = truncate(&arguments, ARGUMENTS);
    let more = if shown.len() < arguments.len() { "…" } else { "" };
    format!("{by}{} {shown}{more}", call.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_a_turn_over_the_limit_is_dropped() {
        let (notifier, mut messages) = ProgressNotifier::new();
        let text = |number: usize| format!("notice {number}");
        (0..=BUFFER).for_each(|number| notifier.status(StatusUpdate::notice(text(number))));
        let buffered: Vec<_> = std::iter::from_fn(|| messages.try_recv().ok()).collect();
        assert_eq!(buffered, (0..BUFFER).map(text).collect::<Vec<_>>());
    }
}
