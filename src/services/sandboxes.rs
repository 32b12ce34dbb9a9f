//! Keeps the sandboxes of a session: one per sandbox profile, started on first use, each with its proxy.
//!
//! Invariant: a sandbox ends with its session, and so do all processes inside.

use std::sync::Arc;

use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope};
use crate::sandbox::proxy::CommandNetwork;
use crate::sandbox::{
    CurrentGate, RunningSandbox, SandboxFolders, SandboxLauncher, SandboxRequest, SandboxStartError, SandboxedLaunch,
};
use crate::tool::{CallSandbox, Notice, SessionContext};

/// A shell command to start in the sandbox of its call.
pub(crate) struct SandboxedCommand<'a> {
    pub(crate) launch: Launch,
    /// Shown in questions about hosts.
    pub(crate) line: &'a str,
    /// On a machine without PID namespaces, processes that leave the command's group end with it.
    pub(crate) scope: &'a ProcessScope,
}

/// The sandboxes of one session.
#[derive(Debug, Default)]
pub(crate) struct SessionSandboxes {
    running: tokio::sync::Mutex<Vec<Arc<RunningSandbox>>>,
}

impl SessionSandboxes {
    /// Starts a command in the sandbox of its call. Returns also what the command reaches; `None` if the network is
    /// off.
    pub(crate) async fn spawn(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
        command: SandboxedCommand<'_>,
    ) -> Result<(ProcessGroup, Pipes, Option<CommandNetwork>), SandboxStartError> {
        let SandboxedCommand { launch, line, scope } = command;
        let running = self.ensure_running(launcher, sandbox, session).await?;
        // The level and the rules of the latest call count.
        running.gate().set(Arc::clone(&sandbox.gate));
        running.spawn(SandboxedLaunch { launch, line, consented_hosts: &sandbox.consented_hosts, scope }).await
    }

    async fn ensure_running(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
    ) -> Result<Arc<RunningSandbox>, SandboxStartError> {
        let mut running = self.running.lock().await;
        running.retain(|sandbox| !sandbox.has_ended());
        if let Some(known) = running.iter().find(|known| *known.profile() == sandbox.profile) {
            return Ok(Arc::clone(known));
        }
        let is_first = running.is_empty();
        let request = SandboxRequest {
            profile: Arc::clone(&sandbox.profile),
            folders: SandboxFolders::new(&session.roots, &session.scratch),
            gate: Arc::new(CurrentGate::new(Arc::clone(&sandbox.gate))),
        };
        let started = RunningSandbox::start(launcher, request).await?;
        if is_first {
            started.notices().into_iter().for_each(|notice| session.notices.send(Notice::new(notice)));
        }
        running.push(Arc::clone(&started));
        Ok(started)
    }
}
