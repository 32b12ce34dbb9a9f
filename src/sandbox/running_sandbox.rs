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
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::Signal;
use tempfile::TempDir;

use super::command_env::{CERTIFICATE_VARIABLES, is_java};
use super::current_gate::{CurrentGate, PausingGate};
use super::error::SandboxError;
use super::explain::{LineEnforcement, layer_help};
use super::git::{GitGate, GitListeners, GitServer, GitServerParts, GitSockets, git_variables};
use super::launcher::{HostResources, SandboxFolders, SandboxLauncher};
use super::new_protected::ProtectedSnapshot;
use super::profile::{OtherHosts, SandboxProfile};
use super::protected_watch::{ProtectedWatch, ProtectedWatches};
use super::proxy::{
    CommandNetwork, CompanyProxyError, HostGate, HostPolicy, InsideNetwork, Proxy, ProxyParts, java_options,
    proxy_credentials, proxy_variables,
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
    /// The session that looks for new protected paths. `None` if there is none, or if processes can create none.
    pub watches: Option<ProtectedWatches>,
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
    /// `None` if nothing looks for new protected paths.
    watched: Option<WatchedPaths>,
    /// The scratch folder of a sandbox that belongs to no session.
    _scratch: Option<TempDir>,
}

#[derive(Debug)]
struct WatchedPaths {
    watch: Arc<ProtectedWatch>,
    /// The protected paths at the start, which mounts cover.
    covered: ProtectedSnapshot,
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
        let SandboxRequest { profile, mut folders, gate, servers, watches } = request;
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
        let roots = folders.roots.clone();
        let process = launcher.start(planned, folders).await?;
        let writable = process.writable_folders().unwrap_or(&roots);
        // Nothing has run since the mounts were made.
        let watched = watches.filter(|_| !writable.is_empty()).map(|watches| {
            let watch = watches.of(writable, &launcher.quarantine);
            watches.add_sandbox(process.downgrade());
            WatchedPaths { covered: watch.snapshot(), watch }
        });
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
        Ok(Arc::new(Self { profile, process, gate, proxy, git, program, certificates, watched, _scratch: scratch }))
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

    /// Returns what looks for new protected paths. `None` if processes can create none.
    pub fn watch(&self) -> Option<&Arc<ProtectedWatch>> {
        self.watched.as_ref().map(|watched| &watched.watch)
    }

    /// Returns whether mounts cover all protected paths that are there now, before a command. They do not cover those that were created
    /// since the start, also if the user has accepted them.
    pub fn covers_protected(&self) -> bool {
        let is_covered = |WatchedPaths { watch, covered }: &WatchedPaths| {
            let now = watch.snapshot();
            watch.forget_missing(&now);
            covered.find_created(&now).is_empty()
        };
        self.watched.as_ref().is_none_or(is_covered)
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
