//! The sandbox process on systems other than Linux. It has no layer and starts no command.
//!
//! Skein refuses a profile that must be enforced, with its lines. Every other sandbox fails with the same reason.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::Pid;

use super::entry_end::{EntryEnd, EntryFailure};
use super::layers::{Layer, Layers};
use super::plan::EarlyPlan;
use super::wire::{self, Reply, Request};

const REASON: &str = "the sandbox needs Linux";

/// Fails: there is no sandbox to enter.
pub fn enter_sandbox(_socket: &Path, _program: &OsStr, _args: &[OsString]) -> Result<EntryEnd, EntryFailure> {
    Err(EntryFailure { step: "enter a sandbox", source: no_sandbox() })
}

/// Fails: Landlock is a part of Linux.
pub(super) fn landlock_version() -> io::Result<u8> {
    Err(no_sandbox())
}

/// Fails: a process cannot be copied into namespaces here.
pub(super) fn copy_into_sandbox(_control: UnixStream, _early: &EarlyPlan) -> io::Result<Pid> {
    Err(no_sandbox())
}

/// Runs a sandbox process, which answers one request. Its stdin must be the socket to Skein.
pub fn run_sandbox_process() -> ExitCode {
    if answer().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn answer() -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (request, _) = wire::receive::<Request>(&control)?;
    let reply = match request {
        Request::Probe { .. } => Reply::Probed { layers: Box::new(Layers::none(REASON)) },
        Request::SetUp(_) | Request::Start { .. } | Request::Signal { .. } | Request::Open { .. } => Reply::Failed {
            layer: Layer::UserNamespace,
            step: "set up the sandbox".to_owned(),
            error: REASON.to_owned(),
            errno: None,
        },
    };
    wire::send(&control, &reply, &[])
}

fn no_sandbox() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, REASON)
}
