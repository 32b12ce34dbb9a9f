//! Keeps the sandboxes of a session: one per sandbox profile, started on first use, each with its forwarded ports.
//!
//! Invariant: a sandbox ends with its session, and so do all processes inside.

mod command_sandbox;
mod ports;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope};
use crate::sandbox::proxy::InsideNetwork;
use crate::sandbox::{
    CurrentGate, InstructionStamps, RunningSandbox, SandboxEntry, SandboxFolders, SandboxLauncher, SandboxRequest,
    SandboxStartError, SandboxedLaunch,
};
use crate::tool::{CallSandbox, Notice, SandboxView, SessionContext};
pub(crate) use command_sandbox::CommandSandbox;
use ports::PortWatch;

/// A shell command to start in the sandbox of its call.
pub(crate) struct SandboxedCommand<'a> {
    pub(crate) launch: Launch,
    /// Shown in questions about hosts.
    pub(crate) line: &'a str,
    /// On a machine without PID namespaces, processes that leave the command's group end with it.
    pub(crate) scope: &'a ProcessScope,
}

/// An offer to a process that the editor starts: it may enter a sandbox and run one command there.
#[derive(Debug)]
pub(crate) struct OfferedEntry {
    pub(crate) entry: SandboxEntry,
    /// The `skein` program, which enters the sandbox.
    pub(crate) program: PathBuf,
    pub(crate) sandbox: CommandSandbox,
}

/// The sandboxes of one session.
#[derive(Debug, Default)]
pub(crate) struct SessionSandboxes {
    state: tokio::sync::Mutex<SandboxesState>,
}

#[derive(Debug, Default)]
struct SandboxesState {
    running: Vec<Arc<SessionSandbox>>,
    /// The remarks that the user has seen.
    sent: HashSet<String>,
    /// The user knows that this machine lacks layers.
    lack_sent: bool,
}

/// A running sandbox of a session.
#[derive(Debug)]
struct SessionSandbox {
    running: Arc<RunningSandbox>,
    view: SandboxView,
    /// `None` if no port is forwarded.
    ports: Option<PortWatch>,
}

impl SessionSandboxes {
    /// Starts a command in the sandbox of its call.
    pub(crate) async fn spawn(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
        command: SandboxedCommand<'_>,
    ) -> Result<(ProcessGroup, Pipes, CommandSandbox), SandboxStartError> {
        let SandboxedCommand { launch, line, scope } = command;
        let started = self.ensure_running(launcher, sandbox, session).await?;
        let stamps = started.stamps(session);
        let launch = SandboxedLaunch { launch, line, consented_hosts: &sandbox.consented_hosts, scope };
        let (group, pipes, network) = started.running.spawn(launch).await?;
        Ok((group, pipes, CommandSandbox { sandbox: started, network, stamps }))
    }

    /// Offers an entry to the sandbox of a call, for a command that another program starts.
    pub(crate) async fn offer_entry(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
        command: SandboxedCommand<'_>,
    ) -> Result<OfferedEntry, SandboxStartError> {
        let SandboxedCommand { mut launch, line, .. } = command;
        let started = self.ensure_running(launcher, sandbox, session).await?;
        let stamps = started.stamps(session);
        let network = started.running.begin_command(&mut launch, line, &sandbox.consented_hosts);
        let cwd = launch.cwd.as_ref().unwrap_or(&session.cwd);
        let entry = started.running.process().offer_entry(&launcher.sockets, launch.env, cwd)?;
        let sandbox = CommandSandbox { sandbox: started, network, stamps };
        Ok(OfferedEntry { entry, program: launcher.program.clone(), sandbox })
    }

    /// Connects to a server that listens in one of the sandboxes. Fails with `NotFound` if none has this port.
    pub(crate) async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        let running = self.state.lock().await.running.clone();
        for sandbox in running.iter().filter(|sandbox| !sandbox.running.has_ended()) {
            let process = sandbox.running.process();
            // In the host's network, the port may belong to another program.
            if process.namespaces().is_empty() || sandbox.leads_outside(port) {
                continue;
            }
            if process.listening_ports().await?.contains(&port) {
                return InsideNetwork::dial(process, port).await;
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    async fn ensure_running(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
    ) -> Result<Arc<SessionSandbox>, SandboxStartError> {
        let mut state = self.state.lock().await;
        // A sandbox with lost mounts, or without one for a new protected path, serves no further command. It ends with
        // its last one.
        state.running.retain(|sandbox| {
            let running = &sandbox.running;
            !running.has_ended() && running.process().is_intact() && running.covers_protected()
        });
        let known = state.running.iter().find(|known| known.fits(sandbox)).cloned();
        let found = match known {
            Some(known) => known,
            None => {
                let started = Arc::new(SessionSandbox::start(launcher, sandbox, session).await?);
                state.report(&started.running, session);
                state.running.push(Arc::clone(&started));
                started
            }
        };
        // The level and the rules of the latest call count.
        found.running.gate().set_session(Arc::clone(&sandbox.gate));
        if let Some(ports) = &found.ports {
            ports.expect_change();
        }
        Ok(found)
    }
}

impl SessionSandbox {
    async fn start(
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
    ) -> Result<Self, SandboxStartError> {
        let mut folders = SandboxFolders::new(&session.roots, &session.scratch);
        folders.visible = session.grant.visible_folders().map(<[PathBuf]>::to_vec);
        if sandbox.view == SandboxView::Roots {
            // A session without a folder of the user works in its scratch folder.
            let own = folders.scratch.take().filter(|_| folders.roots.is_empty());
            folders.readable = folders.roots.iter().cloned().chain(own).collect();
        }
        let request = SandboxRequest {
            profile: Arc::clone(&sandbox.profile),
            folders,
            gate: Arc::new(CurrentGate::of_session(Arc::clone(&sandbox.gate))),
            servers: None,
            watches: Some(session.path_watches().clone()),
        };
        let gate = Arc::clone(&request.gate);
        let running = RunningSandbox::start(launcher, request).await?;
        let ports = PortWatch::start(&running, gate, session);
        Ok(Self { running, view: sandbox.view, ports })
    }

    /// Returns whether Skein listens at this port inside: the proxy or a relay.
    fn leads_outside(&self, port: u16) -> bool {
        let proxy = self.running.process().proxy_address();
        let relays = self.running.profile().network.allow.iter().filter_map(|entry| entry.parse::<SocketAddr>().ok());
        proxy.into_iter().chain(relays).any(|address| address.port() == port)
    }

    /// Returns whether the commands of a call run in this sandbox.
    fn fits(&self, sandbox: &CallSandbox) -> bool {
        *self.running.profile() == sandbox.profile && self.view == sandbox.view
    }

    /// Returns the versions of instructions before a command.
    fn stamps(&self, session: &SessionContext) -> InstructionStamps {
        self.running.watch().map(|_| InstructionStamps::take(&session.roots)).unwrap_or_default()
    }
}

impl SandboxesState {
    /// Sends new remarks about a sandbox, and one notice per session about layers that this machine lacks.
    fn report(&mut self, started: &RunningSandbox, session: &SessionContext) {
        for notice in started.process().notices() {
            if self.sent.insert(notice.clone()) {
                session.notices.send(Notice::new(notice.clone()));
            }
        }
        if let Some(notice) = started.lack_notice().filter(|_| !self.lack_sent) {
            self.lack_sent = true;
            session.notices.send(Notice::new(notice));
        }
    }
}
