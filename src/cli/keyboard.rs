//! The keyboard of the terminal: single keys, and peace while an answer is printed.
//!
//! Invariant: the terminal is as it was found when a guard or a call is over, and only one reads at a time.

use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

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
}

/// While it is there, what is typed is not shown, and waits for whoever reads next. Ctrl-C still interrupts.
#[derive(Debug)]
pub(super) struct Quiet {
    before: Option<Termios>,
}

impl Keyboard {
    /// Nothing if stdin is no terminal.
    pub(super) fn of_stdin() -> Option<Arc<Self>> {
        stdin().is_terminal().then(Arc::default)
    }

    /// Nobody else reads while the guard lives.
    pub(super) fn reads(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was typed before a question is no answer to it.
    pub(super) fn forget(&self) {
        let _reads = self.reads();
        if let Err(error) = tcflush(stdin(), QueueSelector::IFlush) {
            tracing::debug!(%error, "the terminal cannot be emptied");
        }
    }

    /// One key. Nothing if it is given up meanwhile.
    pub(super) fn key(&self, given_up: &AtomicBool) -> std::io::Result<Option<Key>> {
        let _reads = self.reads();
        let _quiet = Quiet::new(true);
        let mut byte = [0; 1];
        while !given_up.load(Ordering::Relaxed) {
            // It waits no longer than a tenth of a second, and has nothing then.
            let read = rustix::io::read(stdin(), &mut byte)?;
            match byte[0] {
                _ if read == 0 => {}
                // Behind an arrow or the like more follows at once.
                0x1b if rustix::io::read(stdin(), &mut [0; 15])? == 0 => return Ok(Some(Key::Escape)),
                b'\r' | b'\n' => return Ok(Some(Key::Enter)),
                letter if letter.is_ascii_graphic() => return Ok(Some(Key::Letter(char::from(letter)))),
                _ => {}
            }
        }
        Ok(None)
    }

    pub(super) fn quiet(&self) -> Quiet {
        Quiet::new(false)
    }

    /// Puts the terminal back when it is dropped, whoever has changed it and did not come to the end.
    pub(super) fn as_found(&self) -> AsFound {
        AsFound(tcgetattr(stdin()).ok())
    }
}

impl Quiet {
    fn new(impatient: bool) -> Self {
        let before = tcgetattr(stdin()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
            // The line editor tells Enter, which sends, from Ctrl-J, which does not.
            quiet.input_modes -= InputModes::ICRNL;
            quiet.special_codes[SpecialCodeIndex::VMIN] = u8::from(!impatient);
            quiet.special_codes[SpecialCodeIndex::VTIME] = u8::from(impatient);
            set(&quiet);
        }
        Self { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set(before);
        }
    }
}

/// The terminal as it was found.
#[derive(Debug)]
pub(super) struct AsFound(Option<Termios>);

impl Drop for AsFound {
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
