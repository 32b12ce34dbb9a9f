//! The keyboard of the terminal: single keys, and peace while an answer is printed.
//!
//! Invariant: the terminal is as it was found when a guard or a call is over, and only one reads at a time. Words that
//! are typed or pasted while a question comes up are no answer to it.

use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

/// Nobody may have pressed a key for so long before a question takes one.
const PAUSE: Duration = Duration::from_millis(400);

/// In the place of a key, it says that no key does this.
const DISABLED: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };

/// A key, as far as questions care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Letter(char),
    Enter,
    Escape,
}

/// The one who reads from the terminal.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    /// Held by whoever reads.
    reading: Mutex<()>,
    /// What was typed while a question came up, and was no answer to it.
    ahead: Mutex<Vec<u8>>,
}

/// While it is there, what is typed is not shown, and waits for whoever reads next. Ctrl-C still interrupts;
/// Ctrl-Z does not stop.
#[derive(Debug)]
pub(super) struct EchoGuard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Nothing if stdin is no terminal.
    pub(super) fn from_stdin() -> Option<Arc<Self>> {
        stdin().is_terminal().then(Arc::default)
    }

    /// Nobody else reads while the guard lives.
    pub(super) fn lock_reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a key that means something. `offer` says what can be pressed; it is called whenever the question is
    /// ready for a key, so that nobody is invited to press one that would not count. Nothing if it is given up.
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

    /// One line, shown behind `prompt` as it is typed. Nothing if it is given up, or Escape is pressed.
    pub(super) fn line(&self, given_up: &AtomicBool, prompt: &str) -> std::io::Result<Option<String>> {
        let _reads = self.lock_reading();
        let _quiet = EchoGuard::new(true);
        let mut typed = Vec::new();
        let mut stderr = anstream::stderr();
        write!(stderr, "{prompt}").and_then(|()| stderr.flush())?;
        loop {
            let mut bytes = [0; 256];
            let read = rustix::io::read(stdin(), &mut bytes)?;
            if given_up.load(Ordering::Relaxed) || bytes[..read] == [0x1b] {
                writeln!(stderr)?;
                return Ok(None);
            }
            if read == 0 {
                continue;
            }
            typed.extend_from_slice(&bytes[..read]);
            let text = words(&typed);
            let line = text.lines().next().unwrap_or_default();
            write!(stderr, "\r\x1b[2K{prompt}{}", super::output::display_line(line)).and_then(|()| stderr.flush())?;
            if bytes[..read].iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
                writeln!(stderr)?;
                return Ok(Some(line.to_owned()));
            }
        }
    }

    /// What was typed while questions came up. It is given back once.
    pub(super) fn take_typed_ahead(&self) -> String {
        words(&std::mem::take(&mut *self.ahead()))
    }

    /// Whoever is in the middle of a sentence goes on typing for a moment when a question comes up.
    fn wait_for_pause(&self, given_up: &AtomicBool) -> std::io::Result<()> {
        let mut since = Instant::now();
        while since.elapsed() < PAUSE && !given_up.load(Ordering::Relaxed) {
            if self.read_ahead()? {
                since = Instant::now();
            }
        }
        Ok(())
    }

    /// One key that stands alone. Nothing if it was none, or is given up meanwhile.
    fn key(&self, given_up: &AtomicBool) -> std::io::Result<Option<Key>> {
        let mut byte = [0; 1];
        // It waits no longer than a tenth of a second, and has nothing then.
        while rustix::io::read(stdin(), &mut byte)? == 0 {
            if given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        let before = self.ahead().len();
        self.ahead().push(byte[0]);
        // More follows at once behind an arrow, and in what is pasted.
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

    /// Keeps what comes within a tenth of a second, and says whether anything did.
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

    /// Puts the terminal back when it is dropped, whoever has changed it and did not come to the end.
    pub(super) fn guard_terminal(&self) -> TerminalGuard {
        TerminalGuard(tcgetattr(stdin()).ok())
    }
}

impl EchoGuard {
    fn new(impatient: bool) -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
            // The line editor tells Enter, which sends, from Ctrl-J, which does not.
            quiet.input_modes -= InputModes::ICRNL;
            // Whoever comes back to a program that was stopped finds the terminal as the shell wants it.
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

/// The terminal as it was found.
#[derive(Debug)]
pub(super) struct TerminalGuard(Option<Termios>);

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        let Some(found) = &self.0 else { return };
        // A line editor that was cut off has left its mark: whoever pastes next would see it.
        if tcgetattr(stdin()).is_ok_and(|now| now.local_modes != found.local_modes) {
            drop(stdout().write_all(b"\x1b[?2004l\n"));
        }
        set(found);
    }
}

fn set(modes: &Termios) {
    // A terminal that went away needs nothing any more.
    if let Err(error) = tcsetattr(stdin(), OptionalActions::Drain, modes) {
        tracing::debug!(%error, "the terminal cannot be set");
    }
}

/// What was typed, as a line editor would have it: without the keys that only steer.
fn words(typed: &[u8]) -> String {
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
    use super::words;

    #[test]
    fn what_was_typed_ahead_is_given_back_as_words() {
        assert_eq!(words("plaese\u{7f}\u{7f}\u{7f}\u{7f}ease ä".as_bytes()), "please ä");
        assert_eq!(words(b"one\rtwo\r"), "one\ntwo");
        assert_eq!(words(b"a\x1b[A\x1b[1;5Cb\x1bOPc\x1b\x01"), "abc");
        assert_eq!(words(b"\x1b[200~pasted\x1b[201~"), "pasted");
    }
}
