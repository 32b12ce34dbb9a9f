//! Keeps the sandboxes of a session: one per sandbox profile, started on first use, each with its proxy.
//!
//! Invariant: a sandbox ends with its session, and so do all processes inside.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;

use crate::network::{HostPatternError, RemoteHost, SystemNetwork};
use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope};
use crate::sandbox::proxy::{
    CommandNetwork, CompanyProxy, HostAnswer, HostGate, HostPolicy, HostQuestion, HostRecord, HostRuling, Proxy,
    ProxyParts, proxy_variables,
};
use crate::sandbox::{Enforcement, SandboxError, SandboxFolders, SandboxLauncher, SandboxProcess, SandboxProfile};
use crate::tool::{CallSandbox, Notice, SessionContext};

/// Reasons why a command does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxStartError {
    #[error("this command must run in a sandbox, and this program cannot start one; tell the user")]
    NoLauncher,
    #[error("{error}; {}", error.help())]
    Sandbox { error: SandboxError },
    #[error("the sandbox profile is wrong: {0}")]
    Profile(#[from] HostPatternError),
    #[error("the proxy of the sandbox does not start: {0}")]
    Proxy(#[source] std::io::Error),
    #[error(transparent)]
    Process(#[from] std::io::Error),
}

impl SandboxStartError {
    /// Returns true if there is no such program.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Process(error) if error.kind() == std::io::ErrorKind::NotFound)
    }
}

impl From<SandboxError> for SandboxStartError {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox { error }
    }
}

/// A command to start in a sandbox.
pub(crate) struct SandboxedLaunch<'a> {
    pub(crate) launch: Launch,
    /// Shown in questions about hosts.
    pub(crate) line: &'a str,
    /// On a machine without PID namespaces, processes that leave the command's group end with it.
    pub(crate) scope: &'a ProcessScope,
}

/// The sandboxes of one session.
#[derive(Debug, Default)]
pub(crate) struct SessionSandboxes {
    running: tokio::sync::Mutex<Vec<Arc<SessionSandbox>>>,
}

/// A running sandbox and its proxy.
#[derive(Debug)]
struct SessionSandbox {
    profile: Arc<SandboxProfile>,
    process: SandboxProcess,
    gate: Arc<CurrentGate>,
    /// `None` if the network is off.
    proxy: Option<Proxy>,
}

impl Drop for SessionSandbox {
    fn drop(&mut self) {
        if let Some(proxy) = &self.proxy {
            proxy.cancel();
        }
    }
}

impl SessionSandboxes {
    /// Starts a command in the sandbox of its call. Returns also what the command reaches; `None` if the network is
    /// off.
    pub(crate) async fn spawn(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
        request: SandboxedLaunch<'_>,
    ) -> Result<(ProcessGroup, Pipes, Option<CommandNetwork>), SandboxStartError> {
        let SandboxedLaunch { mut launch, line, scope } = request;
        let running = self.ensure_running(launcher, sandbox, session).await?;
        // The level and the rules of the latest call count.
        running.gate.set(Arc::clone(&sandbox.gate));
        let network = running.proxy.as_ref().map(|proxy| proxy.begin_command(line, &sandbox.consented_hosts));
        if let (Some(network), Some(address)) = (&network, running.process.proxy_address()) {
            let variables = proxy_variables(address, network.id(), running.process.proxy_token());
            launch.env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        }
        launch.launcher = Some(Arc::new(running.process.clone()));
        let scope = scope.clone();
        // The sandbox process answers when the program runs, which takes a moment.
        let spawned = tokio::task::spawn_blocking(move || ProcessGroup::spawn_in(&scope, &launch, None)).await;
        let (group, pipes) = spawned.map_err(std::io::Error::other)??;
        Ok((group, pipes, network))
    }

    async fn ensure_running(
        &self,
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
    ) -> Result<Arc<SessionSandbox>, SandboxStartError> {
        let mut running = self.running.lock().await;
        running.retain(|sandbox| !sandbox.process.has_ended());
        if let Some(known) = running.iter().find(|known| known.profile == sandbox.profile) {
            return Ok(Arc::clone(known));
        }
        let is_first = running.is_empty();
        let started = Arc::new(SessionSandbox::start(launcher, sandbox, session).await?);
        if is_first {
            started.report(session);
        }
        running.push(Arc::clone(&started));
        Ok(started)
    }
}

impl SessionSandbox {
    async fn start(
        launcher: &SandboxLauncher,
        sandbox: &CallSandbox,
        session: &SessionContext,
    ) -> Result<Self, SandboxStartError> {
        let policy = HostPolicy::new(&sandbox.profile.network)?;
        let roots = session.roots.iter().filter(|root| **root != session.scratch).cloned().collect();
        let folders = SandboxFolders { roots, scratch: Some(session.scratch.clone()), readable: Vec::new() };
        let process = launcher.start((*sandbox.profile).clone(), folders).await?;
        let gate = Arc::new(CurrentGate(Mutex::new(Arc::clone(&sandbox.gate))));
        let ports = process.take_ports();
        let proxy = match ports.proxy {
            None => None,
            Some(listener) => {
                let parts = ProxyParts {
                    policy,
                    gate: Arc::clone(&gate) as Arc<dyn HostGate>,
                    network: Arc::new(SystemNetwork),
                    company: CompanyProxy::default(),
                    token: process.proxy_token().map(str::to_owned),
                };
                let proxy = Proxy::new(parts);
                proxy.serve(listener).map_err(SandboxStartError::Proxy)?;
                for (address, listener) in ports.relays {
                    proxy.relay(listener, address).map_err(SandboxStartError::Proxy)?;
                }
                Some(proxy)
            }
        };
        Ok(Self { profile: Arc::clone(&sandbox.profile), process, gate, proxy })
    }

    /// Sends remarks about the profile, and one notice about layers that this machine lacks.
    fn report(&self, session: &SessionContext) {
        for notice in self.process.notices() {
            session.notices.send(Notice::new(notice.clone()));
        }
        let unenforced: Vec<_> = self
            .process
            .lines()
            .iter()
            .filter(|line| line.is_unenforced())
            .map(|line| format!("{}: {}", line.field, line.value))
            .collect();
        if self.profile.enforce == Enforcement::Preferred && !unenforced.is_empty() {
            session.notices.send(Notice::new(format!(
                "This machine does not enforce these lines of the sandbox: {}. `skein sandbox --explain` shows which layer is missing.",
                unenforced.join(", ")
            )));
        }
    }
}

/// Passes questions to the gate of the latest call, because the approval level may change while a sandbox runs.
struct CurrentGate(Mutex<Arc<dyn HostGate>>);

impl std::fmt::Debug for CurrentGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CurrentGate")
    }
}

impl CurrentGate {
    fn set(&self, gate: Arc<dyn HostGate>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gate;
    }

    fn get(&self) -> Arc<dyn HostGate> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HostGate for CurrentGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        self.get().rule(host)
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        let gate = self.get();
        Box::pin(async move { gate.ask(question).await })
    }

    fn record(&self, record: &HostRecord) {
        self.get().record(record);
    }
}
