//! Holds the state of a session in the `developer` service: its files, background commands and processes.

use std::sync::atomic::AtomicBool;

use super::background::Commands;
use super::files::Files;
use crate::process::ProcessScope;
use crate::services::sandboxes::SessionSandboxes;

/// The state of one session. Dropping it ends the session's commands and the processes they left behind.
#[derive(Debug, Default)]
pub(in super::super) struct DeveloperState {
    pub(super) files: Files,
    pub(super) commands: Commands,
    /// The scope in which commands start. Processes that leave a command's group run until the session ends.
    pub(super) processes: ProcessScope,
    /// The sandboxes in which commands run. Processes that leave a command's group run until the session ends.
    pub(super) sandboxes: SessionSandboxes,
    /// Set once the session's editor did not confirm whether it started a command.
    pub(super) editor_silent: AtomicBool,
}
