//! Gives the terminal to the command of `skein sandbox`, and then to Skein again.

use std::io::{self, IsTerminal as _};

use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal of this process, whose foreground group the command becomes. Dropping it takes the terminal back.
pub(super) struct Foreground {
    settings: Option<Termios>,
}

impl Foreground {
    /// Returns `None` if this process is not in the foreground of a terminal.
    pub(super) fn take() -> Option<Self> {
        let stdin = io::stdin();
        let is_foreground = stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp());
        is_foreground.then(|| Self { settings: tcgetattr(&stdin).ok() })
    }

    fn take_back(&self) {
        let mut blocked = nix::sys::signal::SigSet::empty();
        blocked.add(nix::sys::signal::Signal::SIGTTOU);
        // A process in the background that changes the terminal is stopped, unless it blocks this signal.
        let is_blocked = blocked.thread_block().is_ok();
        _ = tcsetpgrp(io::stdin(), getpgrp());
        if let Some(settings) = &self.settings {
            _ = tcsetattr(io::stdin(), rustix::termios::OptionalActions::Drain, settings);
        }
        if is_blocked {
            _ = blocked.thread_unblock();
        }
    }

    /// Stops this process like the command, until the shell continues it.
    pub(super) fn pause(&self) {
        let group = tcgetpgrp(io::stdin());
        self.take_back();
        _ = kill_process(getpid(), Signal::STOP);
        if let Ok(group) = group {
            _ = tcsetpgrp(io::stdin(), group);
        }
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.take_back();
    }
}
