//! The requests to a sandbox process that wait for an answer, and the thread that reads the answers.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use tokio::sync::{oneshot, watch};

use super::wire::{self, Reply, StartPart};
use crate::process::HelperProcess;

/// Commands that are starting or running, and descriptors that Skein waits for, by id.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    pub(super) starting: HashMap<u64, StartSender>,
    pub(super) running: HashMap<u64, watch::Sender<CommandState>>,
    pub(super) opening: HashMap<u64, oneshot::Sender<io::Result<OwnedFd>>>,
    /// The number of commands so far.
    pub(super) started: u64,
    pub(super) has_ended: bool,
}

/// Receives the handle of the process that was started, if the machine has such handles.
type StartSender = mpsc::SyncSender<Result<Option<OwnedFd>, StartFailure>>;

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

/// Returns the exit status of a process that was killed with its sandbox.
pub(super) fn kill_status() -> ExitStatus {
    ExitStatus::from_raw(libc::SIGKILL)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives replies until the sandbox process ends.
pub(super) fn read_replies(socket: &UnixStream, commands: &Mutex<RequestTable>, mut helper: HelperProcess) {
    while let Ok((reply, descriptors)) = wire::receive::<Reply>(socket) {
        lock(commands).handle(reply, descriptors);
    }
    let mut commands = lock(commands);
    commands.has_ended = true;
    commands.starting.clear();
    commands.opening.clear();
    for (_, state) in commands.running.drain() {
        state.send_modify(|state| state.ended = Some(kill_status()));
    }
    drop(commands);
    helper.wait();
}

impl RequestTable {
    /// Adds a command before its start is requested, because the exit may arrive soon after.
    pub(super) fn add(&mut self, id: u64, started: StartSender, state: watch::Sender<CommandState>) {
        self.started += 1;
        self.starting.insert(id, started);
        self.running.insert(id, state);
    }

    /// Removes a command whose start could not be requested.
    pub(super) fn forget(&mut self, id: u64) {
        self.starting.remove(&id);
        self.running.remove(&id);
    }

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
            Reply::Ended { id, status, is_empty: _ } => {
                if let Some(state) = self.running.remove(&id) {
                    state.send_modify(|state| state.ended = Some(ExitStatus::from_raw(status)));
                }
            }
            Reply::Opened { id } => {
                let opened = descriptors.into_iter().next();
                self.end_opening(id, opened.ok_or_else(|| io::ErrorKind::InvalidData.into()));
            }
            Reply::OpenFailed { id, errno } => {
                let error = errno.map_or_else(|| io::ErrorKind::Other.into(), io::Error::from_raw_os_error);
                self.end_opening(id, Err(error));
            }
            Reply::Ready { .. } | Reply::Failed { .. } | Reply::Probed { .. } => {}
        }
    }

    fn end_opening(&mut self, id: u64, result: io::Result<OwnedFd>) {
        if let Some(opening) = self.opening.remove(&id) {
            // The caller may have stopped waiting.
            drop(opening.send(result));
        }
    }
}
