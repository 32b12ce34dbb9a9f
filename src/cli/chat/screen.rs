//! Shows a turn while it runs: the answer as it arrives, a line for each call, a spinner.
//!
//! Invariant: only the spinner is ever overwritten. Everything else is printed once, below the existing text, so that
//! users can scroll, select and copy it.

use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anstyle::AnsiColor;

use super::super::consent::ScreenLock;
use super::super::output::{QUIET, can_redraw, cut, display_line};
use super::super::progress::{FRAME, FRAMES};
use super::super::wrap::{Margin, Wrap, paragraph, screen_width as width};
use super::calls::{FinishedCall, title};
use super::markdown::Markdown;
use crate::agents::{Event, Notifier, StatusUpdate, notify_native};
use crate::conversation::{ToolUse, Usage};
use crate::tool::Activity;

/// Maximum width of the spinner line, so that it does not wrap when the screen shrinks.
const LONGEST_SIGN: usize = 38;

pub(super) struct Screen {
    floor: Arc<ScreenLock>,
    cwd: PathBuf,
    state: Mutex<State>,
}

struct State {
    markdown: Markdown,
    /// Output held back while a question is shown.
    held: String,
    /// The spinner is on the last line.
    signed: bool,
    /// Label of the spinner; `None` outside turns and while text arrives.
    waits_for: Option<&'static str>,
    began: Instant,
    /// Calls that have not ended.
    running: Vec<RunningCall>,
    ended: Vec<FinishedCall>,
    usage: Usage,
    context: u64,
    above: BlockKind,
}

struct RunningCall {
    call: ToolUse,
    /// The caller, if it is not the session's model.
    by: Option<String>,
    /// `None` while the call waits for consent.
    began: Option<Instant>,
}

/// The kind of the last output. An empty line separates text from calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BlockKind {
    Text,
    Calls,
    Else,
}

/// The tokens and time that a turn took.
pub(super) struct TurnUsage {
    pub(super) usage: Usage,
    /// Tokens in the model's context window.
    pub(super) context: u64,
    pub(super) time: Duration,
}

impl Screen {
    pub(super) fn new(floor: Arc<ScreenLock>, cwd: PathBuf) -> Arc<Self> {
        let state = State {
            markdown: Markdown::default(),
            held: String::new(),
            signed: false,
            waits_for: None,
            began: Instant::now(),
            running: Vec::new(),
            ended: Vec::new(),
            usage: Usage::default(),
            context: 0,
            above: BlockKind::Else,
        };
        let screen = Arc::new(Self { floor, cwd, state: Mutex::new(state) });
        if can_redraw() {
            let watched = Arc::downgrade(&screen);
            // A separate thread, because the spinner must move while everything else is busy. It ends when the screen
            // is dropped.
            drop(std::thread::Builder::new().name("spinner".to_owned()).spawn(move || turn(&watched)));
        }
        screen
    }

    pub(super) fn begin(&self) {
        let mut state = self.state();
        (state.began, state.usage, state.context) = (Instant::now(), Usage::default(), 0);
        state.waits_for = Some("thinking");
    }

    /// Waits until no question is shown.
    pub(super) fn settle(&self) {
        self.floor.wait();
    }

    /// Ends the turn and returns its usage.
    pub(super) fn end(&self) -> TurnUsage {
        let mut state = self.state();
        state.waits_for = None;
        state.running.clear();
        self.end_answer(&mut state);
        self.print(&mut state, "");
        TurnUsage { usage: state.usage, context: state.context, time: state.began.elapsed() }
    }

    /// Prints Skein's own text, with styles.
    pub(super) fn print_text(&self, text: &str) {
        let mut state = self.state();
        self.end_answer(&mut state);
        state.above = BlockKind::Else;
        self.print(&mut state, text);
    }

    /// Prints a remark that is not part of the answer.
    pub(super) fn remark(&self, text: &str) {
        self.print_text(&paragraph(&display_line(text), 0, QUIET, width()));
    }

    /// Prints complete Markdown.
    pub(super) fn markdown(&self, text: &str) {
        let mut markdown = Markdown::default();
        let set = markdown.push(text, width()) + &markdown.end(width());
        self.print_text(&set);
    }

    /// Renders call `number`, or the last one, unfolded. `None` if it does not exist.
    pub(super) fn render_unfolded(&self, number: Option<usize>) -> Option<String> {
        let state = self.state();
        let number = number.unwrap_or(state.ended.len());
        state.ended.get(number.checked_sub(1)?).map(FinishedCall::render_unfolded)
    }

    fn answer(&self, text: &str) {
        let mut state = self.state();
        let set = state.markdown.push(text, width());
        if !set.is_empty() {
            self.part(&mut state, BlockKind::Text);
        }
        state.waits_for = (state.markdown.is_at_margin() && state.markdown.has_pending()).then_some("writing");
        self.print(&mut state, &set);
    }

    /// Prints an empty line if the next output is of another kind than the last.
    fn part(&self, state: &mut State, comes: BlockKind) {
        let above = std::mem::replace(&mut state.above, comes);
        if above != comes && above != BlockKind::Else {
            self.print(state, "\n");
        }
    }

    fn end_answer(&self, state: &mut State) {
        let set = state.markdown.end(width());
        if !set.is_empty() {
            self.part(state, BlockKind::Text);
        }
        self.print(state, &set);
    }

    /// Prints below everything else, or holds the text until the current question is answered.
    fn print(&self, state: &mut State, text: &str) {
        state.held.push_str(text);
        let printed = self.floor.if_free(|| {
            let mut out = anstream::stdout();
            clear(&mut state.signed);
            // A failed write must not end the turn; the session has the text.
            drop(out.write_all(state.held.as_bytes()).and_then(|()| out.flush()));
        });
        if printed.is_some() {
            state.held.clear();
        } else {
            // The question has already cleared the spinner.
            state.signed = false;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for Screen {
    fn log(&self, event: Event) {
        match event {
            Event::ToolStarted { call, by } => {
                let mut state = self.state();
                self.end_answer(&mut state);
                state.waits_for = Some("working");
                state.running.push(RunningCall { call, by, began: None });
            }
            Event::ToolEnded { id, outcome, activity, .. } => {
                let mut state = self.state();
                self.end_answer(&mut state);
                let Some(at) = state.running.iter().position(|running| running.call.id == id) else { return };
                let RunningCall { call, by, began } = state.running.remove(at);
                let ended = FinishedCall { call, by, outcome, activity, took: began.map(|began| began.elapsed()) };
                let folded = ended.render_folded(state.ended.len() + 1, width(), &self.cwd);
                state.ended.push(ended);
                if state.running.is_empty() {
                    state.waits_for = Some("thinking");
                }
                self.part(&mut state, BlockKind::Calls);
                self.print(&mut state, &folded);
            }
            // A message ends the answer, even if tool calls follow.
            Event::Message { .. } => self.end_answer(&mut self.state()),
            Event::External { events, streamed, .. } => notify_native(self, events, streamed),
            // The end counts delegated work too.
            Event::TurnEnded { end } => self.state().usage = end.usage,
            Event::Compacted { .. } | Event::ExternalSessionOpened { .. } | Event::Undone { .. } => {}
        }
    }

    fn status(&self, status: StatusUpdate) {
        match status {
            StatusUpdate::Text(text) | StatusUpdate::ExternalChunk { text, thought: false, .. } => self.answer(&text),
            StatusUpdate::Usage { turn, context } => {
                let mut state = self.state();
                (state.usage, state.context) = (turn, context);
            }
            StatusUpdate::Notice(notice) => {
                // An interrupted answer continues below the notice.
                let yellow = AnsiColor::Yellow.on_default();
                let mut state = self.state();
                let mut wrap = Wrap::default();
                let first = format!("{}{yellow}!{yellow:#} ", state.markdown.interrupt());
                wrap.begin(Margin { first, next: "  ".to_owned(), width: 2 });
                wrap.push(&display_line(&notice.text), QUIET, width());
                wrap.end(width());
                state.waits_for = Some("waiting");
                self.print(&mut state, &wrap.take());
            }
            // The call has consent and starts now, so its time starts too.
            StatusUpdate::ToolActivity { id, activity: Activity::Running } => {
                let mut state = self.state();
                let found = state.running.iter_mut().filter(|running| running.call.id == id);
                found.for_each(|running| running.began = Some(Instant::now()));
            }
            StatusUpdate::Thought(_)
            | StatusUpdate::ExternalChunk { .. }
            | StatusUpdate::ToolActivity { .. }
            | StatusUpdate::Title(_) => {}
        }
    }
}

fn clear(signed: &mut bool) {
    if std::mem::take(signed) {
        drop(write!(stdout(), "\r\x1b[2K"));
    }
}

fn turn(watched: &Weak<Screen>) {
    for frame in FRAMES.iter().cycle() {
        std::thread::sleep(FRAME);
        let Some(screen) = watched.upgrade() else { return };
        let mut state = screen.state();
        if !state.held.is_empty() {
            screen.print(&mut state, "");
        }
        // Do not overwrite a line of the answer that has begun.
        let (Some(what), true) = (state.waits_for, state.markdown.is_at_margin()) else { continue };
        let seconds = state.began.elapsed().as_secs();
        let what = match state.running.as_slice() {
            [] => what.to_owned(),
            [only] => title(&only.call),
            [first, more @ ..] => format!("{} and {} more", display_line(&first.call.name), more.len()),
        };
        let sign = format!("{} {seconds} s", cut(&what, LONGEST_SIGN.min(width()) - 12));
        let drawn = screen.floor.if_free(|| {
            let mut out = anstream::stdout().lock();
            drop(write!(stdout(), "\r\x1b[2K"));
            drop(write!(out, "{QUIET}{frame} {sign}{QUIET:#}").and_then(|()| out.flush()));
        });
        state.signed |= drawn.is_some();
    }
}
