//! What a client hears of a turn while it runs: calls, notices, and how far the answer has got.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::agents::{Event, Notifier, Status};
use crate::conversation::ToolUse;
use crate::tool::{head, plain, plain_line};

/// What a slow client has not taken yet; more is dropped.
const BUFFER: usize = 64;
/// How often it is told how far the answer has got.
const EVERY: Duration = Duration::from_millis(250);
/// The longest that is told of the arguments of a call.
const ARGUMENTS: usize = 200;

pub(super) struct Told {
    sender: Sender<String>,
    text: Mutex<Text>,
}

#[derive(Default)]
struct Text {
    so_far: String,
    told: Option<Instant>,
}

impl Told {
    pub(super) fn new() -> (Self, Receiver<String>) {
        let (sender, receiver) = channel(BUFFER);
        (Self { sender, text: Mutex::default() }, receiver)
    }

    fn tell(&self, message: String) {
        // Full means that the client is slow: it misses some, and hears the next.
        drop(self.sender.try_send(message));
    }

    fn text(&self) -> std::sync::MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for Told {
    fn log(&self, event: Event) {
        for event in event.in_our_words() {
            if let Event::ToolStarted { call, by } = event {
                *self.text() = Text::default();
                self.tell(in_words(call, by.as_deref()));
            }
        }
    }

    fn status(&self, status: Status) {
        match status {
            Status::Text(more) | Status::Piece { text: more, thought: false, .. } => {
                let mut text = self.text();
                text.so_far.push_str(&more);
                if text.told.is_none_or(|told| told.elapsed() >= EVERY) {
                    text.told = Some(Instant::now());
                    self.tell(plain(&text.so_far));
                }
            }
            Status::Notice(notice) => self.tell(plain(&notice)),
            Status::Thought(_)
            | Status::Piece { .. }
            | Status::ToolActivity { .. }
            | Status::Usage { .. }
            | Status::Title(_) => {}
        }
    }
}

fn in_words(call: &ToolUse, by: Option<&str>) -> String {
    let by = by.map(|by| format!("{by}: ")).unwrap_or_default();
    let arguments = plain_line(&call.arguments.to_string());
    let shown = head(&arguments, ARGUMENTS);
    let more = if shown.len() < arguments.len() { "…" } else { "" };
    format!("{by}{} {shown}{more}", call.name)
}
