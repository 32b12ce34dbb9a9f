//! How the attempt to enter a sandbox ends, on every system.

use std::io;
use std::process::ExitStatus;

/// How a process ends that entered a sandbox.
#[derive(Debug)]
pub enum EntryEnd {
    /// The command has ended.
    Status(ExitStatus),
    /// The command cannot run. Only the inner process returns this.
    NoProgram(io::Error),
}

/// A step that failed before the command ran.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {source}")]
pub struct EntryFailure {
    pub(super) step: &'static str,
    pub(super) source: io::Error,
}
