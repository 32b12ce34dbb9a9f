//! Lets a process that Skein did not start enter a sandbox, such as a command in an editor's terminal.
//!
//! Skein listens on a socket of the user and offers it for one command. The process connects, enters and reports; only
//! then does Skein let it run the command.
//!
//! Invariant: a command whose entry failed has not run and will not run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::UnixListener;

use super::{SandboxProcess, outer_pid};
use crate::sandbox::command_env::random_token;
use crate::sandbox::os_text::OsText;
use crate::sandbox::wire::{self, EntryPlan, EntryReply, EntryRequest};
use crate::socket;

/// Reasons why no process entered a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    #[error("no process entered the sandbox within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the process cannot enter the sandbox: {0}")]
    Failed(String),
    #[error("the process that enters the sandbox broke off")]
    Connection(#[source] io::Error),
}

/// An offer to one process to enter a sandbox. Dropping it withdraws the offer.
#[derive(Debug)]
pub struct SandboxEntry {
    listener: UnixListener,
    path: PathBuf,
    plan: EntryPlan,
    process: SandboxProcess,
}

impl SandboxProcess {
    /// Offers an entry for one command. The socket is created in `folder`. Needs a runtime.
    pub fn offer_entry(
        &self,
        folder: &Path,
        mut env: BTreeMap<OsString, OsString>,
        cwd: &Path,
    ) -> io::Result<SandboxEntry> {
        self.add_variables(&mut env);
        let rules = &self.shared.entry_rules;
        let plan = EntryPlan {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            namespaces: self.shared.namespaces.iter().map(|(kind, _)| *kind).collect(),
            landlock: rules.landlock.clone(),
            sockets: rules.sockets,
            limits: rules.limits,
            env: env.iter().map(|(name, value)| (OsText::from(name), OsText::from(value))).collect(),
            cwd: OsText::from(cwd),
        };
        let token = random_token().map_err(io::Error::other)?;
        let path = folder.join(format!("{token}.entry"));
        let listener = socket::listen(&path)?;
        Ok(SandboxEntry { listener, path, plan, process: self.clone() })
    }
}

impl SandboxEntry {
    /// Returns the id that the process names.
    pub fn id(&self) -> &Path {
        &self.path
    }

    /// Waits until a process has entered, then lets it run its command. Fails if none reports within `limit`.
    pub async fn accept(self, limit: Duration) -> Result<EnteredCommand, EntryError> {
        let deadline = Instant::now() + limit;
        let silent = || EntryError::Silent(limit);
        let accepted = tokio::time::timeout(limit, self.listener.accept()).await.map_err(|_| silent())?;
        let (stream, _) = accepted.map_err(EntryError::Connection)?;
        let stream = stream.into_std().map_err(EntryError::Connection)?;
        // Sockets with descriptors have no async form. The thread ends by the deadline.
        let entered = tokio::task::spawn_blocking(move || self.admit(stream, deadline)).await;
        match entered.map_err(|error| EntryError::Connection(io::Error::other(error)))? {
            Err(EntryError::Connection(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err(silent())
            }
            result => result,
        }
    }

    fn admit(&self, stream: UnixStream, deadline: Instant) -> Result<EnteredCommand, EntryError> {
        let exchange = || {
            stream.set_nonblocking(false)?;
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left))?;
            stream.set_write_timeout(Some(left))?;
            #[cfg(target_os = "linux")]
            {
                if let Some(group) = self.process.shared.group.upgrade() {
                    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
                    group.add_process(peer.pid.as_raw_nonzero().get().cast_unsigned())?;
                }
            }
            let namespaces: Vec<BorrowedFd<'_>> =
                self.process.shared.namespaces.iter().map(|(_, fd)| fd.as_fd()).collect();
            wire::send(&stream, &EntryRequest::Enter(Box::new(self.plan.clone())), &namespaces)?;
            wire::receive(&stream)
        };
        let (reply, descriptors): (EntryReply, Vec<OwnedFd>) = exchange().map_err(EntryError::Connection)?;
        match reply {
            EntryReply::Entered if Instant::now() < deadline => {}
            EntryReply::Entered => return Err(EntryError::Connection(io::ErrorKind::TimedOut.into())),
            EntryReply::Failed { error } => return Err(EntryError::Failed(error)),
            EntryReply::Ended => return Err(EntryError::Connection(io::ErrorKind::InvalidData.into())),
        }
        let pid = descriptors.first().and_then(outer_pid);
        let group = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        self.process.shared.was_entered.store(true, Ordering::Release);
        let command = EnteredCommand { socket: stream, group, _process: self.process.clone() };
        wire::send(&command.socket, &EntryRequest::Run, &[]).map_err(EntryError::Connection)?;
        Ok(command)
    }
}

impl Drop for SandboxEntry {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

/// A command that runs in a sandbox, started by another program. Dropping it ends its process group.
#[derive(Debug)]
pub struct EnteredCommand {
    socket: UnixStream,
    /// `None` if the kernel does not report it.
    group: Option<Pid>,
    /// The sandbox lives as long as the command.
    _process: SandboxProcess,
}

impl EnteredCommand {
    /// Returns true if the process that waits for the command has reported its end.
    fn has_ended(&self) -> bool {
        self.socket.set_nonblocking(true).is_ok() && matches!(wire::receive(&self.socket), Ok((EntryReply::Ended, _)))
    }
}

impl Drop for EnteredCommand {
    fn drop(&mut self) {
        if let Some(group) = self.group.filter(|_| !self.has_ended()) {
            // ESRCH means that no process of the group is left.
            _ = kill_process_group(group, Signal::KILL);
        }
    }
}
