//! Reads the terminal's keyboard: single keys and lines. Suppresses echo while an answer is printed.
//!
//! Invariant: when a guard or a call ends, the terminal is restored, and only one reader is active at a time. Text
//! typed or pasted while a question appears does not answer it.

use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use unicode_width::UnicodeWidthChar as _;

use super::output::{QUIET, can_redraw, verbatim};

/// Time without a key press before a question accepts a key.
const PAUSE: Duration = Duration::from_millis(400);

/// Special code that disables a terminal function.
const DISABLED: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };

/// A key that a question can handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Letter(char),
    Enter,
    Escape,
}

/// The reader of the terminal.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    /// Held by the active reader.
    reading: Mutex<()>,
    /// Text typed while a question appeared, which is not an answer to it.
    ahead: Mutex<Vec<u8>>,
}

/// Suppresses echo until dropped; typed text waits for the next reader. Ctrl-C still interrupts; Ctrl-Z does not
/// suspend.
#[derive(Debug)]
pub(super) struct EchoGuard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Returns `None` if stdin is not a terminal.
    pub(super) fn from_stdin() -> Option<Arc<Self>> {
        stdin().is_terminal().then(Arc::default)
    }

    /// Locks the keyboard: no other task reads while the guard lives.
    pub(super) fn lock_reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a key for which `meaning` returns a value. Calls `offer` to show the valid keys each time a key can be
    /// accepted, so that it never offers a key that would be ignored. `None` if cancelled.
    pub(super) fn ask<T>(
        &self,
        given_up: &AtomicBool,
        mut offer: impl FnMut() -> std::io::Result<()>,
        mut meaning: impl FnMut(Key) -> std::io::Result<Option<T>>,
    ) -> std::io::Result<Option<T>> {
        let _reads = self.lock_reading();
        let _quiet = EchoGuard::new(true);
        loop {
            self.wait_for_pause(given_up)?;
            if given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
            offer()?;
            if let Some(key) = self.key(given_up)?
                && let Some(meant) = meaning(key)?
            {
                return Ok(Some(meant));
            }
        }
    }

    /// Reads one line and shows it after `prompt` while it is typed. `None` if cancelled, or closed with Escape.
    ///
    /// Takes none of several lines that come at once, as in a paste: the others would be lost, or answer the next
    /// question unseen.
    pub(super) fn line(&self, given_up: &AtomicBool, prompt: &str) -> std::io::Result<Option<String>> {
        let _reads = self.lock_reading();
        let _quiet = EchoGuard::new(true);
        let mut typed = Vec::new();
        let mut field = Field::print(prompt)?;
        loop {
            let mut bytes = [0; 256];
            let read = rustix::io::read(stdin(), &mut bytes)?;
            if given_up.load(Ordering::Relaxed) || bytes[..read] == [0x1b] {
                writeln!(anstream::stderr())?;
                return Ok(None);
            }
            typed.extend_from_slice(&bytes[..read]);
            let text = words(&typed);
            let line = text.lines().next().unwrap_or_default();
            field.update(line)?;
            // The rest of a paste follows within a tenth of a second, after which a read returns nothing.
            if read > 0 || !typed.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
                continue;
            }
            writeln!(anstream::stderr())?;
            if text.lines().nth(1).is_none() {
                return Ok(Some(line.to_owned()));
            }
            let refusal = "this takes one line, and several came; write or paste one line";
            writeln!(anstream::stderr(), "  {QUIET}{refusal}{QUIET:#}")?;
            typed.clear();
            field = Field::print(prompt)?;
        }
    }

    /// Returns the text typed while questions appeared, and clears it.
    pub(super) fn take_typed_ahead(&self) -> String {
        words(&std::mem::take(&mut *self.ahead()))
    }

    /// Waits until typing pauses: a user in the middle of a sentence keeps typing when a question appears.
    fn wait_for_pause(&self, given_up: &AtomicBool) -> std::io::Result<()> {
        let mut since = Instant::now();
        while since.elapsed() < PAUSE && !given_up.load(Ordering::Relaxed) {
            if self.read_ahead()? {
                since = Instant::now();
            }
        }
        Ok(())
    }

    /// Reads one single key. `None` if more bytes follow at once, the key is not a [`Key`], or the question is
    /// cancelled.
    fn key(&self, given_up: &AtomicBool) -> std::io::Result<Option<Key>> {
        let mut byte = [0; 1];
        // With VTIME set, a read returns nothing after a tenth of a second.
        while rustix::io::read(stdin(), &mut byte)? == 0 {
            if given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        let before = self.ahead().len();
        self.ahead().push(byte[0]);
        // Arrow keys and pasted text send more bytes at once.
        if self.read_ahead()? {
            return Ok(None);
        }
        self.ahead().truncate(before);
        Ok(match byte[0] {
            0x1b => Some(Key::Escape),
            b'\r' | b'\n' => Some(Key::Enter),
            letter if letter.is_ascii_graphic() => Some(Key::Letter(char::from(letter))),
            _ => None,
        })
    }

    /// Stores the bytes that arrive within a tenth of a second. Returns whether any did.
    fn read_ahead(&self) -> std::io::Result<bool> {
        let mut bytes = [0; 256];
        let read = rustix::io::read(stdin(), &mut bytes)?;
        self.ahead().extend_from_slice(&bytes[..read]);
        Ok(read > 0)
    }

    fn ahead(&self) -> MutexGuard<'_, Vec<u8>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn quiet(&self) -> EchoGuard {
        EchoGuard::new(false)
    }

    /// Returns a guard that restores the terminal when dropped, even if another reader was cut off.
    pub(super) fn guard_terminal(&self) -> TerminalGuard {
        TerminalGuard(tcgetattr(stdin()).ok())
    }
}

/// A prompt on the screen with the text that is typed after it.
struct Field<'a> {
    prompt: &'a str,
    shown: String,
}

impl<'a> Field<'a> {
    fn print(prompt: &'a str) -> std::io::Result<Self> {
        let mut stderr = anstream::stderr();
        write!(stderr, "{prompt}").and_then(|()| stderr.flush())?;
        Ok(Self { prompt, shown: String::new() })
    }

    /// Shows `line` after the prompt. Draws all again only if the text does not just become longer.
    fn update(&mut self, line: &str) -> std::io::Result<()> {
        let (line, prompt) = (verbatim(line), self.prompt);
        let mut stderr = anstream::stderr();
        match line.strip_prefix(&self.shown) {
            Some(more) => write!(stderr, "{more}")?,
            None if can_redraw() => {
                let drawn = format!("{}{}", anstream::adapter::strip_str(prompt), self.shown);
                // Without colours, the stream would drop these sequences.
                let mut plain = std::io::stderr();
                match rows_above(&drawn, columns()) {
                    0 => {}
                    rows => write!(plain, "\x1b[{rows}A")?,
                }
                write!(plain, "\r\x1b[J")?;
                write!(stderr, "{prompt}{line}")?;
            }
            None => write!(stderr, "\n{prompt}{line}")?,
        }
        self.shown = line;
        stderr.flush()
    }
}

fn columns() -> usize {
    let columns = tcgetwinsize(stdin()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}

/// Returns how many rows of the text are above the row of its end.
fn rows_above(text: &str, columns: usize) -> usize {
    let (mut rows, mut used) = (0, 0);
    for width in text.chars().map(|c| c.width().unwrap_or(0)) {
        // A wide character that does not fit begins the next row.
        if used + width > columns {
            (rows, used) = (rows + 1, 0);
        }
        used += width;
    }
    rows
}

impl EchoGuard {
    fn new(impatient: bool) -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
            // Keep CR and LF apart: the line editor sends on Enter, but not on Ctrl-J.
            quiet.input_modes -= InputModes::ICRNL;
            // Ctrl-Z would return to the shell with the terminal in the wrong mode, so it is disabled.
            quiet.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
            quiet.special_codes[SpecialCodeIndex::VMIN] = u8::from(!impatient);
            quiet.special_codes[SpecialCodeIndex::VTIME] = u8::from(impatient);
            set(&quiet);
        }
        Self { before }
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set(before);
        }
    }
}

/// Restores the terminal's original modes when dropped.
#[derive(Debug)]
pub(super) struct TerminalGuard(Option<Termios>);

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        let Some(found) = &self.0 else { return };
        // A line editor that was cut off leaves bracketed paste on, and the next paste in the shell would show its
        // marks.
        if tcgetattr(stdin()).is_ok_and(|now| now.local_modes != found.local_modes) {
            drop(stdout().write_all(b"\x1b[?2004l\n"));
        }
        set(found);
    }
}

fn set(modes: &Termios) {
    // A closed terminal needs no restoring.
    if let Err(error) = tcsetattr(stdin(), OptionalActions::Drain, modes) {
        tracing::debug!(%error, "the terminal cannot be set");
    }
}

/// Converts the typed bytes to text as a line editor would: applies backspace and drops control keys.
pub(super) fn words(typed: &[u8]) -> String {
    let typed = String::from_utf8_lossy(typed);
    let mut chars = typed.chars().peekable();
    let mut words = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next_if(|c| matches!(c, '[' | 'O')).is_some() {
                    while chars.next().is_some_and(|c| !matches!(c, '@'..='~')) {}
                }
            }
            '\r' | '\n' => words.push('\n'),
            '\u{7f}' | '\u{8}' => drop(words.pop()),
            c if c.is_control() => {}
            c => words.push(c),
        }
    }
    words.trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{rows_above, words};

    #[test]
    fn rows_are_counted_by_columns() {
        assert_eq!([0, 1, 10, 11, 20, 21].map(|length| rows_above(&"x".repeat(length), 10)), [0, 0, 0, 1, 1, 2]);
        assert_eq!(rows_above("123456789日本", 10), 1);
        assert_eq!(rows_above("日本語日本e\u{301}", 10), 1);
    }

    #[test]
    fn what_was_typed_ahead_is_given_back_as_words() {
        assert_eq!(words("plaese\u{7f}\u{7f}\u{7f}\u{7f}ease ä".as_bytes()), "please ä");
        assert_eq!(words(b"one\rtwo\r"), "one\ntwo");
        assert_eq!(words(b"a\x1b[A\x1b[1;5Cb\x1bOPc\x1b\x01"), "abc");
        assert_eq!(words(b"\x1b[200~pasted\x1b[201~"), "pasted");
    }
}
