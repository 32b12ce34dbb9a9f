//! Signals for the command of `skein sandbox`.

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use super::super::output::CommandError;

/// Signals that this process passes on to the command.
pub(super) struct ForwardedSignals {
    terminate: Listener,
    hang_up: Listener,
    interrupt: Listener,
    quit: Listener,
}

impl ForwardedSignals {
    pub(super) fn listen() -> Result<Self, CommandError> {
        let listen =
            |kind| signal(kind).map_err(|error| CommandError::work(error.to_string(), "check the limit of open files"));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
        })
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
        }
    }
}
