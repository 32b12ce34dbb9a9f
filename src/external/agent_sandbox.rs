//! The sandbox of an agent process: its folders, the way to Skein's MCP server, and which sessions share it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{AgentStartError, LaunchContext};
use crate::agents::{AgentSandbox, ExternalAgentSpec};
use crate::manifest::Handover;
use crate::process::{Launch, Pipes, ProcessGroup};
use crate::sandbox::{CurrentGate, RunningSandbox, SandboxFolders, SandboxLauncher, SandboxRequest, SandboxStartError};
use crate::services::ProgramSandbox;
use crate::tool::editor::EditorError;
use crate::tool::{Notice, SessionLifetime};

/// The part of a sandbox that sessions must have in common to share a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SandboxKey {
    profile: String,
    rules: String,
    visible: Option<Vec<PathBuf>>,
    /// The session that has its own process. `None` if the profile does not depend on the session.
    session: Option<String>,
}

impl SandboxKey {
    pub(super) fn of(AgentSandbox { spec, session }: &AgentSandbox) -> Self {
        Self {
            profile: json!(spec.profile).to_string(),
            rules: spec.rules.clone(),
            visible: spec.visible.clone(),
            session: spec.profile.is_per_root().then(|| session.id.clone()),
        }
    }
}

/// Returns the gate of an agent's process, which later sessions replace. `None` if it runs without a sandbox.
pub(super) fn gate(who: &ExternalAgentSpec) -> Option<Arc<CurrentGate>> {
    let sandbox = who.sandbox.as_ref()?;
    Some(Arc::new(CurrentGate::new(Arc::clone(&sandbox.spec.gate))))
}

/// Returns the end of the session that owns an agent's process. `None` if sessions share it.
pub(super) fn session_end(who: &ExternalAgentSpec) -> Option<SessionLifetime> {
    let sandbox = who.sandbox.as_ref().filter(|sandbox| sandbox.spec.profile.is_per_root())?;
    Some(sandbox.session.lifetime().clone())
}

/// Runs `work` with a time limit that stops while the user is asked about a host. Returns `None` if the limit is over.
pub(super) async fn limit_start<T>(
    gate: Option<&CurrentGate>,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    match gate {
        Some(gate) => gate.limit(limit, work).await,
        None => tokio::time::timeout(limit, work).await.ok(),
    }
}

/// Sends remarks about the sandbox to the user of the session that starts the process.
pub(super) fn report(who: &ExternalAgentSpec, notices: &[String]) {
    let Some(sandbox) = &who.sandbox else { return };
    for notice in notices {
        sandbox.session.notices.send(Notice::new(format!("Agent `{}`: {notice}", who.name)));
    }
}

/// The sandbox of the commands that an agent lets Skein run. Each has its own, with the profile of the agent.
#[derive(Clone)]
pub(super) struct TerminalSandbox {
    launcher: Option<SandboxLauncher>,
    agent: AgentSandbox,
}

impl TerminalSandbox {
    pub(super) async fn spawn(&self, launch: Launch) -> Result<(ProcessGroup, Pipes), EditorError> {
        let AgentSandbox { spec, session } = &self.agent;
        let line = launch.program.to_string_lossy().into_owned();
        let request = SandboxRequest {
            profile: Arc::clone(&spec.profile),
            folders: SandboxFolders {
                visible: spec.visible.clone(),
                ..SandboxFolders::new(&session.roots, &session.scratch)
            },
            gate: Arc::new(CurrentGate::new(Arc::clone(&spec.gate))),
            servers: None,
            watches: Some(session.path_watches().clone()),
        };
        let started = async {
            let launcher = self.launcher.as_ref().ok_or(SandboxStartError::NoLauncher)?;
            RunningSandbox::start(launcher, request).await?.spawn_alone(launch, &line).await
        };
        started.await.map_err(|error| match error {
            error if error.is_not_found() => EditorError::NotFound,
            error => EditorError::Failed(error.to_string()),
        })
    }
}

impl LaunchContext {
    pub(super) fn terminal_sandbox(&self, agent: &AgentSandbox) -> TerminalSandbox {
        TerminalSandbox { launcher: self.sandbox.clone(), agent: agent.clone() }
    }

    /// Returns the sandbox in which an agent's process starts. Skein's MCP server stays reachable: its socket is
    /// mounted, or its port is relayed. Fails if there can be no such server.
    pub(super) fn program_sandbox(
        &self,
        who: &ExternalAgentSpec,
        sandbox: &AgentSandbox,
        gate: Arc<CurrentGate>,
    ) -> Result<ProgramSandbox<'_>, AgentStartError> {
        let AgentSandbox { spec, session } = sandbox;
        let mut folders = if spec.profile.is_per_root() {
            SandboxFolders::new(&session.roots, &session.scratch)
        } else {
            SandboxFolders { scratch: Some(self.scratch.clone()), ..SandboxFolders::default() }
        };
        folders.visible.clone_from(&spec.visible);
        let mut profile = Arc::clone(&spec.profile);
        match who.runtime.mcp {
            Handover::Stdio => {
                folders.sockets.push(self.attachments.socket()?);
                folders.readable.push(self.program.clone());
            }
            Handover::Http => {
                let address = self.attachments.http_address()?;
                Arc::make_mut(&mut profile).network.allow.push(address.to_string());
            }
        }
        let watches = spec.profile.is_per_root().then(|| session.path_watches().clone());
        let request = SandboxRequest { profile, folders, gate, servers: None, watches };
        Ok(ProgramSandbox { launcher: self.sandbox.as_ref(), request, line: format!("agent `{}`", who.name) })
    }
}
