//! Holds the state of a session in the `developer` service: its files, background commands and processes.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use tokio::net::TcpStream;

use super::background::Commands;
use super::client_commands::ClientCommands;
use super::files::Files;
use crate::process::ProcessScope;
use crate::sandbox::proxy::InsideNetwork;
use crate::services::sandboxes::SessionSandboxes;
use crate::tool::{SessionContext, SessionStates};

/// The name under which the state is stored.
const OWNER: &str = "developer";

/// The state of one session. Dropping it ends the session's commands and the processes they left behind.
#[derive(Debug, Default)]
pub(in super::super) struct DeveloperState {
    pub(super) files: Files,
    pub(super) commands: Commands,
    /// Background commands at the client.
    pub(super) client_commands: ClientCommands,
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

/// The servers that the commands of a session have started.
pub(in super::super) struct SessionServers(Weak<DeveloperState>);

impl SessionServers {
    pub(in super::super) fn of(states: &SessionStates<DeveloperState>, session: &SessionContext) -> Self {
        Self(Arc::downgrade(&DeveloperState::of(states, session)))
    }
}

impl InsideNetwork for SessionServers {
    fn dial(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            let state = self.0.upgrade().ok_or(io::ErrorKind::NotFound)?;
            match state.sandboxes.dial(port).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => return found,
            }
            // A command without a sandbox has the network of this machine.
            let scope = state.processes.clone();
            drop(state);
            let is_own = tokio::task::spawn_blocking(move || scope.listens_at(port)).await.unwrap_or_default();
            if !is_own {
                return Err(io::ErrorKind::NotFound.into());
            }
            match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                // Some servers listen on `::1` only.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await
                }
                result => result,
            }
        })
    }
}
