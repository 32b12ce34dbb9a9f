//! What a person sees of a turn while it runs: the answer on stdout; on stderr a sign of life, the tools, and in the
//! end what it took.

use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anstyle::AnsiColor;
use serde_json::{Value, json};

use super::output::{QUIET, shown};
use crate::agents::{Event, Notifier, Status};
use crate::conversation::Usage;
use crate::tool::{Activity, StepStatus};

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const FRAME: Duration = Duration::from_millis(100);

/// What is printed where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// The answer as it comes.
    Text,
    /// Nothing of it: it is printed as one object in the end.
    Nothing,
    /// Every event, one a line.
    Events,
}

/// Tells of a turn while it runs.
pub(super) struct Progress {
    shows: Shows,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The answer stands in the middle of a line.
    mid_line: bool,
    /// A spinner stands on the last line of the terminal.
    spinning: bool,
    /// What the spinner waits for; nothing while the answer comes.
    waits_for: Option<String>,
    usage: Usage,
}

impl Progress {
    pub(super) fn new(shows: Shows) -> Arc<Self> {
        let waits_for = Some("thinking".to_owned());
        let state = Mutex::new(State { waits_for, ..State::default() });
        let progress = Arc::new(Self { shows, began: Instant::now(), state });
        if shows != Shows::Events && std::io::stderr().is_terminal() {
            let watched = Arc::downgrade(&progress);
            // A thread of its own: it must turn while everything else is busy. It ends with what it watches.
            drop(std::thread::Builder::new().name("spinner".to_owned()).spawn(move || spin(&watched)));
        }
        progress
    }

    /// The last word: what it took.
    pub(super) fn finish(&self, cost: Option<f64>) {
        let mut state = self.state();
        state.waits_for = None;
        clear(&mut state);
        let Usage { input, output, cached } = state.usage;
        if self.shows == Shows::Events || input + output == 0 {
            return;
        }
        let cached = if cached > 0 { format!(" ({cached} cached)") } else { String::new() };
        let cost = cost.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
        let seconds = self.began.elapsed().as_secs_f64();
        drop(state);
        self.aside(&format!("{QUIET}{input} tokens in{cached}, {output} out{cost}, {seconds:.1} s{QUIET:#}"));
    }

    fn aside(&self, line: &str) {
        let mut state = self.state();
        clear(&mut state);
        let gap = if std::mem::take(&mut state.mid_line) { "\n" } else { "" };
        // Progress that cannot be shown must not end the work.
        drop(writeln!(anstream::stderr(), "{gap}{line}"));
    }

    fn say(&self, text: &str) {
        let mut state = self.state();
        state.waits_for = None;
        clear(&mut state);
        // What files and pages hold must not steer the terminal.
        let text: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        state.mid_line = !text.ends_with('\n');
        let mut stdout = anstream::stdout();
        drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
    }

    fn wait_for(&self, what: &str) {
        self.state().waits_for = Some(what.to_owned());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the spinner off the screen, before anything else is printed.
fn clear(state: &mut State) {
    if std::mem::take(&mut state.spinning) {
        drop(write!(std::io::stderr(), "\r\x1b[2K"));
    }
}

fn spin(watched: &Weak<Progress>) {
    for frame in FRAMES.iter().cycle() {
        std::thread::sleep(FRAME);
        let Some(progress) = watched.upgrade() else { return };
        let mut state = progress.state();
        // A line of the answer that has begun must not be drawn over.
        if let (Some(what), false) = (&state.waits_for, state.mid_line) {
            let seconds = progress.began.elapsed().as_secs();
            drop(write!(anstream::stderr(), "\r\x1b[2K{QUIET}{frame} {what} {seconds} s{QUIET:#}"));
            state.spinning = true;
        }
    }
}

impl Notifier for Progress {
    fn log(&self, event: Event) {
        if self.shows == Shows::Events {
            // A reader that went away is told nothing more; the turn still ends in order.
            drop(writeln!(anstream::stdout(), "{}", json!(event)));
            return;
        }
        match event {
            Event::ToolStarted { call } => {
                self.aside(&format!("{QUIET}→ {} {}{QUIET:#}", call.name, shown(&brief(&call.arguments))));
                self.wait_for(&call.name);
            }
            Event::ToolEnded { name, outcome, .. } => {
                if outcome.is_error {
                    let red = AnsiColor::Red.on_default();
                    let said: String =
                        outcome.all_text().lines().next().unwrap_or_default().chars().take(160).collect();
                    self.aside(&format!("{red}✗ {name}{red:#} {}", shown(&said)));
                }
                self.wait_for("thinking");
            }
            Event::Compacted { messages, .. } => {
                self.aside(&format!("{QUIET}the first {messages} messages are now a summary to the model{QUIET:#}"));
            }
            Event::Message { .. } | Event::TurnEnded { .. } => {}
        }
    }

    fn status(&self, status: Status) {
        match status {
            Status::Text(text) if self.shows == Shows::Text => self.say(&text),
            Status::Usage { turn, .. } => self.state().usage = turn,
            Status::Notice(text) if self.shows != Shows::Events => {
                self.aside(&format!("{QUIET}{}{QUIET:#}", shown(&text)))
            }
            Status::ToolActivity { activity: Activity::Plan(steps), .. } if self.shows != Shows::Events => {
                for step in steps {
                    let mark = match step.status {
                        StepStatus::Pending => "[ ]",
                        StepStatus::InProgress => "[>]",
                        StepStatus::Completed => "[x]",
                    };
                    self.aside(&format!("  {mark} {}", shown(&step.text)));
                }
            }
            Status::Text(_) | Status::Thought(_) | Status::Notice(_) | Status::ToolActivity { .. } => {}
        }
    }
}

fn brief(arguments: &Value) -> String {
    let text = arguments.to_string();
    if text.chars().count() > 120 { format!("{}…", text.chars().take(120).collect::<String>()) } else { text }
}
