//! A running sandbox: its process, its proxy, its access to git, and the gate that decides about them. The commands of a
//! session share one; each process of a service or external agent has its own.
//!
//! Invariant: when the last holder drops the sandbox, all processes inside end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;

use super::command_env::{CERTIFICATE_VARIABLES, is_java};
use super::consent::ConsentRefusal;
use super::error::SandboxError;
use super::explain::{LineEnforcement, layer_help};
use super::gate::SandboxGate;
use super::git::{GitGate, GitListeners, GitRequest, GitServer, GitServerParts, GitSockets, git_variables};
use super::launcher::{HostResources, SandboxFolders, SandboxLauncher};
use super::profile::{OtherHosts, SandboxProfile};
use super::proxy::{
    CommandNetwork, CompanyProxyError, HostAnswer, HostGate, HostPolicy, HostQuestion, HostRecord, HostRuling,
    InsideNetwork, PortGate, Proxy, ProxyParts, java_options, limit_work, proxy_credentials, proxy_variables,
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
    #[error("{0} in Skein's environment; tell the user")]
    Company(#[from] CompanyProxyError),
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
    /// For a remote session: the only folders that the process sees, besides those of the system.
    pub visible: Option<Vec<PathBuf>>,
}

impl std::fmt::Debug for SandboxSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxSpec").field("profile", &self.profile).finish_non_exhaustive()
    }
}

/// What a sandbox is started with.
pub struct SandboxRequest {
    pub profile: Arc<SandboxProfile>,
    pub folders: SandboxFolders,
    pub gate: Arc<CurrentGate>,
    /// Servers of the session that the proxy leads to, for a browser. A sandbox with them has a proxy, also if its network
    /// is off.
    pub servers: Option<Arc<dyn InsideNetwork>>,
}

impl std::fmt::Debug for SandboxRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxRequest").field("profile", &self.profile).finish_non_exhaustive()
    }
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
    /// `None` if git gets no credentials.
    git: Option<GitServer>,
    /// The `skein` program, which git runs inside.
    program: PathBuf,
    /// Variables that name certificates.
    certificates: Vec<(OsString, OsString)>,
    /// The scratch folder of a sandbox that belongs to no session.
    _scratch: Option<TempDir>,
}

impl Drop for RunningSandbox {
    fn drop(&mut self) {
        if let Some(proxy) = &self.proxy {
            proxy.cancel();
        }
        if let Some(git) = &self.git {
            git.cancel();
        }
        // Tasks that end soon may still have handles.
        self.process.cancel();
    }
}

impl RunningSandbox {
    /// Starts a sandbox process, and serves its proxy and the sockets of git. Fails if the profile is required and this
    /// machine cannot enforce it.
    pub async fn start(launcher: &SandboxLauncher, request: SandboxRequest) -> Result<Arc<Self>, SandboxStartError> {
        let SandboxRequest { profile, mut folders, gate, servers } = request;
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
        let mut planned = (*profile).clone();
        if servers.is_some() && planned.network.otherwise == OtherHosts::Off {
            // The policy above refuses all hosts; the process only needs a way to the servers.
            planned.network.otherwise = OtherHosts::Ask;
        }
        let process = launcher.start(planned, folders).await?;
        let ports = process.take_ports();
        let proxy = match ports.proxy {
            None => None,
            Some(listener) => {
                let parts = ProxyParts {
                    policy,
                    gate: Arc::clone(&gate) as Arc<dyn HostGate>,
                    network: Arc::new(SystemNetwork),
                    company: launcher.host.company.clone()?,
                    servers,
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
        let git = match ports.git {
            Some(listeners) => Some(serve_git(listeners, &gate, proxy.as_ref(), &launcher.host)?),
            None => None,
        };
        let certificates = CERTIFICATE_VARIABLES.iter().filter_map(|name| {
            let value = launcher.host.environment.get(OsStr::new(name))?;
            Some((OsString::from(name), value.clone()))
        });
        let (program, certificates) = (launcher.program.clone(), certificates.collect());
        Ok(Arc::new(Self { profile, process, gate, proxy, git, program, certificates, _scratch: scratch }))
    }

    pub fn profile(&self) -> &Arc<SandboxProfile> {
        &self.profile
    }

    /// Returns the gate that decides about hosts. Its holder can replace the gate behind it.
    pub fn gate(&self) -> &CurrentGate {
        &self.gate
    }

    /// Returns the sandbox process.
    pub fn process(&self) -> &SandboxProcess {
        &self.process
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

    /// Registers a command with the proxy and with git, and leads its program there.
    pub fn begin_command(
        &self,
        launch: &mut Launch,
        line: &str,
        consented_hosts: &[RemoteHost],
    ) -> Option<CommandNetwork> {
        let network = self.proxy.as_ref().map(|proxy| proxy.begin_command(line, consented_hosts));
        let variables = self.variables(line, network.as_ref());
        launch.env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        launch.env.extend(self.certificates.iter().cloned());
        network
    }

    /// Registers work of a program that runs already, such as a page in a browser, so that questions and refusals name it.
    /// `None` if the network is off.
    pub fn begin_work(&self, line: &str, consented_hosts: &[RemoteHost]) -> Option<CommandNetwork> {
        self.proxy.as_ref().map(|proxy| proxy.begin_command(line, consented_hosts))
    }

    /// Returns the variables that lead a command to the proxy and to git's credentials.
    fn variables(&self, line: &str, network: Option<&CommandNetwork>) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        let credentials = proxy_credentials(network.map(CommandNetwork::id), self.process.proxy_token());
        let address = self.process.proxy_address();
        if let Some(address) = address {
            variables.extend(proxy_variables(address, &credentials));
            if line.split_whitespace().next().is_some_and(|program| is_java(OsStr::new(program))) {
                variables.push(("JAVA_TOOL_OPTIONS".to_owned(), java_options(address)));
            }
        }
        if let Some(git) = &self.git {
            git.set_command(line);
            let proxy = address.map(|address| (address, credentials.as_str()));
            variables.extend(git_variables(&self.program, &GitSockets::inside(), proxy));
        }
        variables
    }
}

/// Serves the sockets of git with the user's ssh-agent and credential helper.
fn serve_git(
    listeners: GitListeners,
    gate: &Arc<CurrentGate>,
    proxy: Option<&Proxy>,
    host: &HostResources,
) -> Result<GitServer, SandboxStartError> {
    let gate: Arc<dyn GitGate> = Arc::new(PausingGate { gate: Arc::clone(gate), proxy: proxy.cloned() });
    let parts = GitServerParts { gate, agent: host.ssh_agent.clone(), helper_environment: host.environment.clone() };
    let server = GitServer::new(parts);
    server.serve(listeners).map_err(SandboxStartError::Proxy)?;
    Ok(server)
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
    gate: Mutex<GateParts>,
    /// The number of open questions.
    asking: watch::Sender<usize>,
}

#[derive(Clone)]
struct GateParts {
    hosts: Arc<dyn HostGate>,
    /// `None` if no session can be asked about git and ports.
    session: Option<Arc<dyn SandboxGate>>,
}

impl std::fmt::Debug for CurrentGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CurrentGate").field("asking", &*self.asking.borrow()).finish_non_exhaustive()
    }
}

impl CurrentGate {
    /// A gate that decides about hosts, and refuses git's credentials and ports.
    pub fn new(gate: Arc<dyn HostGate>) -> Self {
        Self::with(GateParts { hosts: gate, session: None })
    }

    /// The gate of a session, which decides about everything.
    pub fn of_session(gate: Arc<dyn SandboxGate>) -> Self {
        let hosts = Arc::clone(&gate) as Arc<dyn HostGate>;
        Self::with(GateParts { hosts, session: Some(gate) })
    }

    fn with(parts: GateParts) -> Self {
        Self { gate: Mutex::new(parts), asking: watch::Sender::new(0) }
    }

    /// Replaces the gate. Questions that are open stay with the earlier one.
    pub fn set(&self, gate: Arc<dyn HostGate>) {
        *self.lock() = GateParts { hosts: gate, session: None };
    }

    /// Replaces the gate of a session. Questions that are open stay with the earlier one.
    pub fn set_session(&self, gate: Arc<dyn SandboxGate>) {
        let hosts = Arc::clone(&gate) as Arc<dyn HostGate>;
        *self.lock() = GateParts { hosts, session: Some(gate) };
    }

    /// Runs `work` with a time limit that stops while the user is asked, for at most five minutes in total. Returns
    /// `None` if the limit is over.
    pub async fn limit<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        limit_work(limit, self.asking.subscribe(), work).await
    }

    fn get(&self) -> Arc<dyn HostGate> {
        Arc::clone(&self.lock().hosts)
    }

    /// Returns the gate of the session. Fails if there is none.
    fn session(&self) -> Result<Arc<dyn SandboxGate>, ConsentRefusal> {
        let session = self.lock().session.clone();
        session.ok_or_else(|| ConsentRefusal { reason: "there is no session whose user could be asked".to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, GateParts> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostGate for CurrentGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        self.get().rule(host)
    }

    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer> {
        self.get().settle(host)
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

impl PortGate for CurrentGate {
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        Box::pin(async move {
            let gate = self.session()?;
            PortGate::ask(gate.as_ref(), port).await
        })
    }
}

/// Asks about credentials of git. The time limits of commands stop meanwhile.
struct PausingGate {
    gate: Arc<CurrentGate>,
    /// `None` if the network is off; then no time limit stops.
    proxy: Option<Proxy>,
}

impl GitGate for PausingGate {
    fn ask(&self, request: GitRequest) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        Box::pin(async move {
            let gate = self.gate.session()?;
            let _count = QuestionCount::new(&self.gate.asking);
            let _pause = self.proxy.as_ref().map(Proxy::pause_commands);
            GitGate::ask(gate.as_ref(), request).await
        })
    }
}
