//! A running sandbox: its process, its proxy, and the gate that decides about hosts. The commands of a session share one;
//! each process of a service or external agent has its own.
//!
//! Invariant: when the last holder drops the sandbox, all processes inside end.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;

use super::error::SandboxError;
use super::explain::{LineEnforcement, layer_help};
use super::launcher::{SandboxFolders, SandboxLauncher};
use super::profile::SandboxProfile;
use super::proxy::{
    CommandNetwork, CompanyProxy, HostAnswer, HostGate, HostPolicy, HostQuestion, HostRecord, HostRuling, Proxy,
    ProxyParts, limit_work, proxy_variables,
};
use super::sandbox_process::SandboxProcess;
use crate::network::{HostPatternError, RemoteHost, SystemNetwork};
use crate::process::{Launch, LaunchedProcess, Pipes, ProcessGroup, ProcessLauncher, ProcessScope};

/// Reasons why a process does not start in its sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxStartError {
    #[error("this process must run in a sandbox, and this program cannot start one; tell the user")]
    NoLauncher,
    #[error("{error}; {}", error.help())]
    Sandbox { error: SandboxError },
    #[error("the sandbox profile is wrong: {0}")]
    Profile(#[from] HostPatternError),
    #[error("the proxy of the sandbox does not start: {0}")]
    Proxy(#[source] io::Error),
    #[error(transparent)]
    Process(#[from] io::Error),
}

impl SandboxStartError {
    /// Returns true if there is no such program.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Process(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<SandboxError> for SandboxStartError {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox { error }
    }
}

/// The sandbox of a service or external agent, as the session that uses it sees it.
#[derive(Clone)]
pub struct SandboxSpec {
    pub profile: Arc<SandboxProfile>,
    /// Decides about hosts for the session.
    pub gate: Arc<dyn HostGate>,
    /// The host rules of the session as text. Sessions with different rules do not share a process.
    pub rules: String,
}

impl std::fmt::Debug for SandboxSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxSpec").field("profile", &self.profile).finish_non_exhaustive()
    }
}

/// What a sandbox is started with.
#[derive(Debug)]
pub struct SandboxRequest {
    pub profile: Arc<SandboxProfile>,
    pub folders: SandboxFolders,
    pub gate: Arc<CurrentGate>,
}

/// A program to start in a running sandbox.
#[derive(Debug)]
pub struct SandboxedLaunch<'a> {
    pub launch: Launch,
    /// Shown in questions about hosts: the command line, or the name of the program's owner.
    pub line: &'a str,
    /// The hosts in a command line that the user consented to.
    pub consented_hosts: &'a [RemoteHost],
    /// On a machine without PID namespaces, processes that leave the command's group end with it.
    pub scope: &'a ProcessScope,
}

/// A sandbox process and its proxy.
#[derive(Debug)]
pub struct RunningSandbox {
    profile: Arc<SandboxProfile>,
    process: SandboxProcess,
    gate: Arc<CurrentGate>,
    /// `None` if the network is off.
    proxy: Option<Proxy>,
    /// The scratch folder of a sandbox that belongs to no session.
    _scratch: Option<TempDir>,
}

impl Drop for RunningSandbox {
    fn drop(&mut self) {
        if let Some(proxy) = &self.proxy {
            proxy.cancel();
        }
    }
}

impl RunningSandbox {
    /// Starts a sandbox process and serves its proxy. Fails if the profile is required and this machine cannot enforce
    /// it.
    pub async fn start(launcher: &SandboxLauncher, request: SandboxRequest) -> Result<Arc<Self>, SandboxStartError> {
        let SandboxRequest { profile, mut folders, gate } = request;
        let scratch = match &folders.scratch {
            Some(folder) => {
                // A folder that does not exist cannot be mounted.
                tokio::fs::create_dir_all(folder).await?;
                None
            }
            None => Some(tempfile::tempdir()?),
        };
        folders.scratch = scratch.as_ref().map(|folder| folder.path().to_owned()).or(folders.scratch);
        let policy = HostPolicy::new(&profile.network)?;
        let process = launcher.start((*profile).clone(), folders).await?;
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
        Ok(Arc::new(Self { profile, process, gate, proxy, _scratch: scratch }))
    }

    pub fn profile(&self) -> &Arc<SandboxProfile> {
        &self.profile
    }

    /// Returns the gate that decides about hosts. Its holder can replace the gate behind it.
    pub fn gate(&self) -> &CurrentGate {
        &self.gate
    }

    /// Returns true if the sandbox process has ended, and all commands with it.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Returns true if processes inside can connect to the Unix sockets that are open to them. Without a mount namespace
    /// they cannot.
    pub fn has_unix_sockets(&self) -> bool {
        !self.process.namespaces().is_empty()
    }

    pub fn process(&self) -> &SandboxProcess {
        &self.process
    }

    /// Returns remarks about the profile, and one about the lines that this machine does not enforce.
    pub fn notices(&self) -> Vec<String> {
        self.process.notices().iter().cloned().chain(self.lack_notice()).collect()
    }

    /// Returns a notice about the lines of the profile that this machine does not enforce, and how to change that. `None`
    /// if it enforces all.
    pub fn lack_notice(&self) -> Option<String> {
        let mut unenforced = Vec::new();
        let mut first = None;
        for line in self.process.lines() {
            if let LineEnforcement::Missing { layer, reason } = &line.enforcement {
                unenforced.push(format!("{}: {}", line.field, line.value));
                first.get_or_insert((*layer, reason));
            }
        }
        let (layer, reason) = first?;
        Some(format!(
            "The sandbox is incomplete, because this machine has no {layer}: {reason}. Not enforced: {}. To change that, \
             {}.",
            unenforced.join("; "),
            layer_help(layer)
        ))
    }

    /// Starts a program. Returns also what it reaches; `None` if the network is off.
    pub async fn spawn(
        &self,
        request: SandboxedLaunch<'_>,
    ) -> Result<(ProcessGroup, Pipes, Option<CommandNetwork>), SandboxStartError> {
        let SandboxedLaunch { mut launch, line, consented_hosts, scope } = request;
        let network = self.begin_command(&mut launch, line, consented_hosts);
        launch.launcher = Some(Arc::new(self.process.clone()));
        let (group, pipes) = spawn_blocking(launch, scope.clone()).await?;
        Ok((group, pipes, network))
    }

    /// Starts the only program of a sandbox. The sandbox ends with the process group. `line` is shown in questions about
    /// hosts.
    pub async fn spawn_alone(
        self: Arc<Self>,
        mut launch: Launch,
        line: &str,
    ) -> Result<(ProcessGroup, Pipes), SandboxStartError> {
        let network = self.begin_command(&mut launch, line, &[]);
        launch.launcher = Some(Arc::new(SandboxOwner(Mutex::new(Some((self, network))))));
        spawn_blocking(launch, ProcessScope::default()).await
    }

    /// Registers a command with the proxy, and leads its program there.
    pub fn begin_command(
        &self,
        launch: &mut Launch,
        line: &str,
        consented_hosts: &[RemoteHost],
    ) -> Option<CommandNetwork> {
        let network = self.proxy.as_ref().map(|proxy| proxy.begin_command(line, consented_hosts))?;
        if let Some(address) = self.process.proxy_address() {
            let variables = proxy_variables(address, network.id(), self.process.proxy_token());
            launch.env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        }
        Some(network)
    }
}

/// The sandbox process answers when the program runs, which takes a moment.
async fn spawn_blocking(launch: Launch, scope: ProcessScope) -> Result<(ProcessGroup, Pipes), SandboxStartError> {
    let spawned = tokio::task::spawn_blocking(move || ProcessGroup::spawn_in(&scope, &launch, None)).await;
    Ok(spawned.map_err(io::Error::other)??)
}

/// Starts one program, and gives it the sandbox and its registration with the proxy.
#[derive(Debug)]
struct SandboxOwner(Mutex<Option<(Arc<RunningSandbox>, Option<CommandNetwork>)>>);

impl ProcessLauncher for SandboxOwner {
    fn launch(&self, launch: &Launch, stdio: [OwnedFd; 3]) -> io::Result<Box<dyn LaunchedProcess>> {
        let owned = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (sandbox, network) = owned.ok_or_else(|| io::Error::other("this sandbox has its program"))?;
        let process = sandbox.process.launch(launch, stdio)?;
        Ok(Box::new(OwningProcess { process, _network: network, _sandbox: sandbox }))
    }
}

/// A program that holds its sandbox, so that both end together.
#[derive(Debug)]
struct OwningProcess {
    process: Box<dyn LaunchedProcess>,
    _network: Option<CommandNetwork>,
    _sandbox: Arc<RunningSandbox>,
}

impl LaunchedProcess for OwningProcess {
    fn id(&self) -> Option<u32> {
        self.process.id()
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = io::Result<ExitStatus>> + Send + '_>> {
        self.process.wait()
    }

    fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

/// Passes questions to the gate of the latest call, because the approval level may change while a sandbox runs.
pub struct CurrentGate {
    gate: Mutex<Arc<dyn HostGate>>,
    /// The number of open questions.
    asking: watch::Sender<usize>,
}

impl std::fmt::Debug for CurrentGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CurrentGate").field("asking", &*self.asking.borrow()).finish_non_exhaustive()
    }
}

impl CurrentGate {
    pub fn new(gate: Arc<dyn HostGate>) -> Self {
        Self { gate: Mutex::new(gate), asking: watch::Sender::new(0) }
    }

    /// Replaces the gate. Questions that are open stay with the earlier one.
    pub fn set(&self, gate: Arc<dyn HostGate>) {
        *self.lock() = gate;
    }

    /// Runs `work` with a time limit that stops while the user is asked, for at most five minutes in total. Returns
    /// `None` if the limit is over.
    pub async fn limit<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        limit_work(limit, self.asking.subscribe(), work).await
    }

    fn get(&self) -> Arc<dyn HostGate> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<dyn HostGate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostGate for CurrentGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        self.get().rule(host)
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        let gate = self.get();
        Box::pin(async move {
            let _question = QuestionCount::new(&self.asking);
            gate.ask(question).await
        })
    }

    fn record(&self, record: &HostRecord) {
        self.get().record(record);
    }
}

/// Counts a question until it is dropped.
struct QuestionCount<'a>(&'a watch::Sender<usize>);

impl<'a> QuestionCount<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for QuestionCount<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
