//! Shows a turn while it runs: the answer on stdout; a spinner, the tool calls and the final usage on stderr.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anstyle::AnsiColor;
use serde::Serialize;
use serde_json::Value;

use super::consent::ScreenLock;
use super::output::{QUIET, can_redraw, cut, display_line};
use crate::agents::{Event, Notifier, ROUTE, StatusUpdate, notify_native};
use crate::conversation::{ToolUse, Usage};
use crate::diagnostic::printable;
use crate::text::escape_json;
use crate::tool::{Activity, StepStatus, TodoStep, ToolOutcome};

pub(super) const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
pub(super) const FRAME: Duration = Duration::from_millis(100);

/// The output of a turn on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressStyle {
    /// The answer as it arrives.
    Text,
    /// Nothing: the caller prints the result at the end.
    Nothing,
    /// Every event as one line of JSON.
    Events,
}

/// A tool call that Skein or the user refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RefusedCall {
    pub(super) tool: String,
    pub(super) arguments: Value,
    /// The mode that made the call, as `agent/mode`. `None` if the session itself did.
    pub(super) by: Option<String>,
}

/// Writes the call on one line: who made it, the tool, and its shortened arguments.
impl std::fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = self.by.as_ref().map(|by| format!("{}: ", display_line(by))).unwrap_or_default();
        write!(f, "{by}{} {}", display_line(&self.tool), display_line(&brief(&self.arguments)))
    }
}

/// The last call that the session itself made, delegated tasks excluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum LastCall {
    #[default]
    Missing,
    Answered,
    /// `reason` is the first line of the result, after the exit code of a command.
    Failed {
        tool: String,
        reason: String,
    },
    /// An external agent makes the calls.
    External,
}

impl LastCall {
    fn new(tool: &str, outcome: &ToolOutcome) -> Self {
        if !outcome.is_error || outcome.refused {
            return Self::Answered;
        }
        let line = outcome.all_text().lines().next().unwrap_or_default().to_owned();
        let exit_code = outcome.structured.as_ref().and_then(|data| data["exit_code"].as_i64());
        let reason = exit_code.map_or_else(|| line.clone(), |code| format!("exit {code}: {line}"));
        Self::Failed { tool: tool.to_owned(), reason }
    }
}

/// Shows the progress of a turn on the terminal.
pub(super) struct TerminalNotifier {
    shows: ProgressStyle,
    began: Instant,
    unheard: AtomicBool,
    /// Locked while the user is asked.
    floor: Arc<ScreenLock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last output on the screen did not end a line.
    mid_line: bool,
    /// The last output on stdout did not end a line.
    is_answer_open: bool,
    /// The last output on stdout was the line break after a message.
    is_message_ended: bool,
    /// A spinner is on the last line of the terminal.
    spinning: bool,
    /// Label of the spinner; `None` while the answer arrives.
    waits_for: Option<String>,
    /// Names of running calls, by id.
    calls: HashMap<String, String>,
    /// Calls that have not ended, by id.
    open_calls: HashMap<String, RefusedCall>,
    refused: Vec<RefusedCall>,
    last_call: LastCall,
    /// The to-do list as last shown.
    plan: Vec<TodoStep>,
    usage: Usage,
}

impl TerminalNotifier {
    pub(super) fn new(shows: ProgressStyle, floor: Arc<ScreenLock>) -> Arc<Self> {
        let waits_for = Some("thinking".to_owned());
        let state = Mutex::new(State { waits_for, ..State::default() });
        let progress = Arc::new(Self { shows, began: Instant::now(), unheard: AtomicBool::new(false), floor, state });
        if shows != ProgressStyle::Events && std::io::stderr().is_terminal() && can_redraw() {
            let watched = Arc::downgrade(&progress);
            // A separate thread, because the spinner must move while everything else is busy. It ends when the notifier
            // is dropped.
            drop(std::thread::Builder::new().name("spinner".to_owned()).spawn(move || spin(&watched)));
        }
        progress
    }

    /// Returns true if stdout carries events.
    pub(super) fn shows_events(&self) -> bool {
        self.shows == ProgressStyle::Events
    }

    /// Takes the calls that were refused so far, in order, those of delegated tasks included.
    pub(super) fn take_refusals(&self) -> Vec<RefusedCall> {
        std::mem::take(&mut self.state().refused)
    }

    pub(super) fn last_call(&self) -> LastCall {
        self.state().last_call.clone()
    }

    /// Remembers the call that the event is part of, if it is refused or the last one.
    pub(super) fn note_call(&self, event: &Event) {
        let mut state = self.state();
        for event in event.native_events() {
            match event {
                Event::ToolStarted { call, by } => {
                    let ToolUse { id, name, arguments, .. } = call.clone();
                    state.open_calls.insert(id, RefusedCall { tool: name, arguments, by: by.clone() });
                }
                Event::ToolEnded { id, outcome, .. } => {
                    let call = state.open_calls.remove(id);
                    let own = call.as_ref().filter(|call| call.by.is_none());
                    if let Some(call) = own.filter(|_| state.last_call != LastCall::External) {
                        state.last_call = LastCall::new(&call.tool, outcome);
                    }
                    state.refused.extend(call.filter(|_| outcome.refused));
                }
                Event::Message { .. }
                | Event::Compacted { .. }
                | Event::TurnEnded { .. }
                | Event::External { .. }
                | Event::ExternalSessionOpened { .. }
                | Event::Undone { .. } => {}
            }
        }
    }

    /// Prints tokens, cost and time of the turn. `usage` includes delegated work; `None` if the turn did not end, so
    /// that only the tokens so far are known.
    pub(super) fn finish(&self, usage: Option<Usage>, cost: Option<f64>) {
        let mut state = self.state();
        state.waits_for = None;
        clear(&mut state);
        let Usage { input, output, cached } = usage.unwrap_or(state.usage);
        if self.shows == ProgressStyle::Events || input + output == 0 {
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
        // On a terminal, the gap also ends the line of the answer.
        state.is_answer_open &= !std::io::stdout().is_terminal();
        // A failed write of progress must not end the turn.
        drop(writeln!(anstream::stderr(), "{gap}{line}"));
    }

    fn print_text(&self, text: &str) {
        let mut state = self.state();
        state.waits_for = None;
        clear(&mut state);
        // Text from files and pages must not control the terminal.
        let text = text.split_inclusive('\n').map(sanitize_chunk).collect::<String>();
        state.mid_line = !text.ends_with('\n');
        (state.is_answer_open, state.is_message_ended) = (state.mid_line, false);
        self.write_stdout(&text);
    }

    /// Ends the line of a message, so that the next one begins a line also if stdout is a file.
    fn end_message(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.is_answer_open) {
            clear(&mut state);
            (state.mid_line, state.is_message_ended) = (false, true);
            self.write_stdout("\n");
        }
    }

    /// Returns true if the line break after the last message is already on stdout.
    pub(super) fn is_message_ended(&self) -> bool {
        self.state().is_message_ended
    }

    fn write_stdout(&self, text: &str) {
        let mut stdout = anstream::stdout();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        self.note_write(written);
    }

    /// Returns false if the answer could not be printed. A closed pipe does not count: the reader had enough.
    pub(super) fn is_heard(&self) -> bool {
        !self.unheard.load(Ordering::Relaxed)
    }

    fn note_write(&self, written: std::io::Result<()>) {
        if written.is_err_and(|error| error.kind() != std::io::ErrorKind::BrokenPipe) {
            self.unheard.store(true, Ordering::Relaxed);
        }
    }

    fn wait_for(&self, what: &str) {
        self.state().waits_for = Some(what.to_owned());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clears the spinner before other output.
fn clear(state: &mut State) {
    if std::mem::take(&mut state.spinning) {
        drop(write!(std::io::stderr(), "\r\x1b[2K"));
    }
}

fn spin(watched: &Weak<TerminalNotifier>) {
    for frame in FRAMES.iter().cycle() {
        std::thread::sleep(FRAME);
        let Some(progress) = watched.upgrade() else { return };
        let mut state = progress.state();
        // Do not overwrite a line of the answer that has begun.
        if let (Some(what), false) = (&state.waits_for, state.mid_line) {
            let sign = render_sign(frame, what, progress.began.elapsed().as_secs(), columns());
            let drawn = progress.floor.if_free(|| {
                // Without colours, the stream would drop this sequence.
                drop(write!(std::io::stderr(), "\r\x1b[2K"));
                drop(write!(anstream::stderr(), "{QUIET}{sign}{QUIET:#}"));
            });
            state.spinning |= drawn.is_some();
        }
    }
}

/// Returns the width of the terminal on stderr; stdout may be a pipe.
fn columns() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}

/// Returns the spinner as one row: a second row would stay on the screen.
fn render_sign(frame: &str, what: &str, seconds: u64, columns: usize) -> String {
    let time = format!(" {seconds} s");
    // The frame, a space, and a free column at the end.
    let what = cut(what, columns.saturating_sub(time.len() + 3));
    format!("{frame} {what}{time}")
}

impl Notifier for TerminalNotifier {
    fn log(&self, event: Event) {
        let is_external = matches!(event, Event::External { .. });
        if is_external {
            self.state().last_call = LastCall::External;
        }
        // The events inside an external one follow by themselves when they are shown.
        if self.shows == ProgressStyle::Events || !is_external {
            self.note_call(&event);
        }
        if self.shows == ProgressStyle::Events {
            match serde_json::to_value(&event) {
                // After the reader closes the pipe, events are dropped, and the turn still ends normally.
                Ok(event) => self.note_write(writeln!(anstream::stdout(), "{}", escape_json(&event.to_string()))),
                Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
            }
            return;
        }
        match event {
            Event::External { events, streamed, .. } => notify_native(self, events, streamed),
            // The end of the call shows the route.
            Event::ToolStarted { call, .. } if call.name == ROUTE => {}
            // Several routes are already shown as a to-do list.
            Event::ToolEnded { name, activity, .. } if name == ROUTE && !activity.is_empty() => {}
            Event::ToolEnded { name, outcome, .. } if name == ROUTE => {
                self.aside(&format!("{QUIET}→ {}{QUIET:#}", display_line(&outcome.all_text())));
            }
            Event::ToolStarted { call, by } => {
                let name = display_line(&call.name);
                let by = by.map(|by| format!("{}: ", display_line(&by))).unwrap_or_default();
                self.aside(&format!("{QUIET}→ {by}{name} {}{QUIET:#}", display_line(&brief(&call.arguments))));
                let mut state = self.state();
                // The user may be asked before the call runs, and the spinner must not overwrite the question.
                state.waits_for = None;
                state.calls.insert(call.id, format!("{by}{name}"));
            }
            Event::ToolEnded { id, name, outcome, .. } => {
                let name = self.state().calls.remove(&id).unwrap_or_else(|| display_line(&name));
                if outcome.is_error {
                    let red = AnsiColor::Red.on_default();
                    let said = display_line(outcome.all_text().lines().next().unwrap_or_default());
                    self.aside(&format!("{red}✗ {name}{red:#} {}", cut(&said, 160)));
                }
                self.wait_for("thinking");
            }
            // Its text was shown as it streamed.
            Event::Message { .. } => self.end_message(),
            // Not shown: a notice reports compaction.
            Event::Compacted { .. }
            | Event::TurnEnded { .. }
            | Event::ExternalSessionOpened { .. }
            | Event::Undone { .. } => {}
        }
    }

    fn status(&self, status: StatusUpdate) {
        match status {
            StatusUpdate::Text(text) | StatusUpdate::ExternalChunk { text, thought: false, .. }
                if self.shows == ProgressStyle::Text =>
            {
                self.print_text(&text)
            }
            StatusUpdate::Usage { turn, .. } => self.state().usage = turn,
            StatusUpdate::Notice(notice) => self.aside(&format!("{QUIET}{}{QUIET:#}", display_line(&notice.text))),
            // The call no longer waits for consent.
            StatusUpdate::ToolActivity { id, activity: Activity::Running } => {
                let mut state = self.state();
                state.waits_for = state.calls.get(&id).cloned();
            }
            StatusUpdate::ToolActivity { activity: Activity::TodoList(steps), .. }
                if self.shows != ProgressStyle::Events =>
            {
                let before = std::mem::replace(&mut self.state().plan, steps.clone());
                // Show only the steps that have changed.
                for step in steps.into_iter().filter(|step| !before.contains(step)) {
                    let mark = match step.status {
                        StepStatus::Pending => "[ ]",
                        StepStatus::InProgress => "[>]",
                        StepStatus::Completed => "[x]",
                    };
                    self.aside(&format!("  {mark} {}", display_line(&step.text)));
                }
            }
            StatusUpdate::Text(_)
            | StatusUpdate::Thought(_)
            | StatusUpdate::ExternalChunk { .. }
            | StatusUpdate::ToolActivity { .. }
            | StatusUpdate::Title(_) => {}
        }
    }
}

/// Escapes control characters in a chunk of text; keeps its line end and its tabs.
fn sanitize_chunk(piece: &str) -> String {
    let tame = |text: &str| text.split('\t').map(printable).collect::<Vec<_>>().join("\t");
    match piece.strip_suffix('\n') {
        Some(line) => tame(line.trim_end_matches('\r')) + "\n",
        None => tame(piece),
    }
}

fn brief(arguments: &Value) -> String {
    let text = arguments.to_string();
    if text.chars().count() > 120 { format!("{}…", text.chars().take(120).collect::<String>()) } else { text }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn the_spinner_is_one_row() {
        for (columns, seconds) in [(20, 0), (20, 4000), (80, 12)] {
            let sign = render_sign(FRAMES[0], "coding/backend: developer__shell 日本語", seconds, columns);
            assert!(sign.width() < columns && sign.ends_with(&format!(" {seconds} s")), "{sign}");
        }
        assert_eq!(render_sign("+", "thinking", 3, 20), "+ thinking 3 s");
    }
}
