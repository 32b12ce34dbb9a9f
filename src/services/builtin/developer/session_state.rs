//! Holds the state of a session in the `developer` service: its files, background commands and processes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::background::Commands;
use super::files::Files;
use crate::process::ProcessScope;
use crate::services::sandboxes::SessionSandboxes;
use crate::tool::{SessionContext, SessionStates};

/// The name under which the state is stored.
const OWNER: &str = "developer";

/// The state of one session. Dropping it ends the session's commands and the processes they left behind.
#[derive(Debug, Default)]
pub(in super::super) struct DeveloperState {
    pub(super) files: Files,
    pub(super) commands: Commands,
    /// The scope in which commands start. Processes that leave a command's group run until the session ends.
    pub(super) processes: ProcessScope,
    /// The sandboxes in which commands run. Processes that leave a command's group run until the session ends.
    pub(super) sandboxes: SessionSandboxes,
    /// Set once the session's editor did not confirm a command, or could not let it enter its sandbox.
    pub(super) editor_silent: AtomicBool,
}

impl DeveloperState {
    /// Returns the state of a session. On first use, reads the files, edits and commands that earlier openings of the
    /// session stored.
    pub(in super::super) fn of(states: &SessionStates<Self>, session: &SessionContext) -> Arc<Self> {
        states.of_or(session, || {
            let stored = session.state_entries(OWNER);
            let entries = stored.take();
            let (files, commands) = (Files::load(stored.clone(), &entries), Commands::load(stored, &entries));
            Self { files, commands, ..Self::default() }
        })
    }
}
