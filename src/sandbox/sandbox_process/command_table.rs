//! The commands of a sandbox process: what its replies change, and the thread that reads them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Mutex, mpsc};

use tokio::sync::watch;

use super::lock;
use crate::process::HelperProcess;
use crate::sandbox::wire::{self, Reply, StartPart};

/// Commands that are starting or running, by id.
#[derive(Debug, Default)]
pub(super) struct SandboxCommands {
    pub(super) starting: HashMap<u64, mpsc::SyncSender<Result<Option<OwnedFd>, StartFailure>>>,
    pub(super) running: HashMap<u64, watch::Sender<CommandState>>,
    pub(super) has_ended: bool,
}

#[derive(Debug)]
pub(super) struct StartFailure {
    pub(super) part: StartPart,
    pub(super) errno: Option<i32>,
    pub(super) error: String,
}

/// The state of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommandState {
    /// How often a signal has stopped the command.
    pub pauses: u32,
    pub ended: Option<ExitStatus>,
}

/// Receives replies until the sandbox process ends.
pub(super) fn read_replies(socket: &UnixStream, commands: &Mutex<SandboxCommands>, mut helper: HelperProcess) {
    while let Ok((reply, descriptors)) = wire::receive::<Reply>(socket) {
        lock(commands).handle(reply, descriptors);
    }
    let mut commands = lock(commands);
    commands.has_ended = true;
    commands.starting.clear();
    for (_, state) in commands.running.drain() {
        state.send_modify(|state| state.ended = Some(kill_status()));
    }
    drop(commands);
    helper.wait();
}

impl SandboxCommands {
    fn handle(&mut self, reply: Reply, descriptors: Vec<OwnedFd>) {
        match reply {
            Reply::Started { id } => {
                if let Some(started) = self.starting.remove(&id) {
                    // The caller may have stopped waiting.
                    drop(started.send(Ok(descriptors.into_iter().next())));
                }
            }
            Reply::StartFailed { id, part, errno, error } => {
                self.running.remove(&id);
                if let Some(started) = self.starting.remove(&id) {
                    drop(started.send(Err(StartFailure { part, errno, error })));
                }
            }
            Reply::Paused { id } => {
                if let Some(state) = self.running.get(&id) {
                    state.send_modify(|state| state.pauses += 1);
                }
            }
            Reply::Ended { id, status } => {
                if let Some(state) = self.running.remove(&id) {
                    state.send_modify(|state| state.ended = Some(ExitStatus::from_raw(status)));
                }
            }
            Reply::Ready { .. } | Reply::Failed { .. } | Reply::Probed { .. } => {}
        }
    }
}

/// Returns the exit status of a process that was killed with its sandbox.
pub(super) fn kill_status() -> ExitStatus {
    ExitStatus::from_raw(libc::SIGKILL)
}
