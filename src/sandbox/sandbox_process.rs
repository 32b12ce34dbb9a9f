//! Skein's side of a sandbox process: starts it, sends commands and receives their exits.
//!
//! A thread reads the socket, so that starting a command needs no runtime, like `std::process`.

mod activity;
mod command;
mod entry;
#[cfg(not(target_os = "linux"))]
mod no_single;
#[cfg(target_os = "linux")]
mod single;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{oneshot, watch};

use super::cgroup::ControlGroup;
use super::command_env::{is_java, random_token};
use super::error::{SandboxError, SpawnError};
use super::expand::{CacheFolder, ExpandedProfile, MountStamps, SandboxContext, expand, protected_paths};
use super::explain::{ExplainedLine, ProtectedState, explain};
use super::git::GitListeners;
use super::layer_probe::{broken, launch, likely_layers, probe_layers, recall_layers};
use super::layers::{LayerRestriction, Layers};
use super::path_refusals::{PathRefusal, PathRules};
use super::plan::{LandlockRules, ResourceLimits, SandboxPlan, SocketRules};
use super::profile::{Enforcement, FileAccess, SandboxProfile};
use super::proxy::{java_options, proxy_credentials, proxy_variables};
use super::request_table::{CommandState, RequestTable, kill_status, lock, read_replies};
use super::wire::{self, InsideTarget, Namespace, Reply, Request, TerminalUse};
use crate::process::{HelperProcess, Launch, LaunchedProcess, ProcessLauncher, read_proc};

pub(super) use activity::WeakSandbox;
pub use command::SandboxCommand;
use command::{add_variables, spawn_error};
pub use entry::{EnteredCommand, EntryError, SandboxEntry};
#[cfg(not(target_os = "linux"))]
pub use no_single::NoSingleSandbox as SingleSandbox;
#[cfg(target_os = "linux")]
pub use single::SingleSandbox;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A process that applies a sandbox profile and starts commands. Ends, with all processes inside, when the last clone
/// is dropped or Skein ends.
#[derive(Debug, Clone)]
pub struct SandboxProcess {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Also used by the reader thread, through a copy.
    socket: UnixStream,
    writes: Mutex<()>,
    commands: Arc<Mutex<RequestTable>>,
    last_id: AtomicU64,
    /// Whether a command of another program has run inside.
    was_entered: AtomicBool,
    /// The process outside the sandbox whose child is PID 1.
    helper: u32,
    /// Ends when the sandbox process has ended.
    reader: Mutex<Option<JoinHandle<()>>>,
    env: BTreeMap<OsString, Option<OsString>>,
    namespaces: Vec<(Namespace, OwnedFd)>,
    ports: Mutex<SandboxPorts>,
    proxy_address: Option<SocketAddr>,
    proxy_token: Option<String>,
    /// The working folder of commands that name none.
    root: PathBuf,
    notices: Vec<String>,
    path_rules: PathRules,
    stamps: MountStamps,
    lines: Vec<ExplainedLine>,
    entry_rules: EntryRules,
    /// The reader thread owns the group, because the group ends after the process.
    group: Weak<ControlGroup>,
    _cache: Option<CacheFolder>,
}

/// What a process that enters the sandbox applies to itself, as the sandbox process did.
#[derive(Debug)]
struct EntryRules {
    landlock: Option<LandlockRules>,
    sockets: SocketRules,
    limits: ResourceLimits,
}

/// Listeners inside the sandbox that Skein serves.
#[derive(Debug, Default)]
pub struct SandboxPorts {
    /// For the proxy. `None` if the network is off.
    pub proxy: Option<TcpListener>,
    /// For addresses that are relayed to the host.
    pub relays: Vec<(SocketAddr, TcpListener)>,
    /// `None` if git inside gets no credentials.
    pub git: Option<GitListeners>,
}

impl SandboxProcess {
    /// Starts a sandbox process. Blocks for some milliseconds. Fails if the profile is required and this machine
    /// cannot enforce it.
    pub fn start(
        profile: &SandboxProfile,
        context: &SandboxContext,
        restriction: &LayerRestriction,
    ) -> Result<Self, SandboxError> {
        // Usually the machine has every layer, and probing would take longer than the start.
        match recall_layers() {
            Some(layers) => Self::start_with(profile, context, &layers.restricted(restriction)),
            None => match Self::start_with(profile, context, &likely_layers().restricted(restriction)) {
                Err(SandboxError::SetUp { layer, step, error }) => {
                    tracing::debug!(%layer, step, error, "a layer is missing");
                    let layers = probe_layers(&context.program, &context.caches)?;
                    Self::start_with(profile, context, &layers.restricted(restriction))
                }
                result => result,
            },
        }
    }

    /// Starts a sandbox process on a machine with these layers.
    fn start_with(profile: &SandboxProfile, context: &SandboxContext, layers: &Layers) -> Result<Self, SandboxError> {
        let namespaces_missing = !layers.namespaces.is_available();
        let lines = check_enforcement(profile, layers, protected_state(profile, context, layers))?;
        let ExpandedProfile { mut plan, mut env, notices, path_rules, stamps, cache } =
            expand(profile, context, layers)?;
        let (socket, helper) = launch(&context.program)?;
        let group = join_group(&mut plan, &helper).map(Arc::new);
        let helper_id = helper.id();
        let mut entry_rules =
            EntryRules { landlock: plan.landlock.clone(), sockets: plan.sockets, limits: plan.limits };
        let (reply, descriptors) = set_up(&socket, plan)?;
        let (namespaces, proxy, relays, git) = match reply {
            Reply::Ready { namespaces, proxy, relays, git } => (namespaces, proxy, relays, git),
            Reply::Failed { layer, step, error, .. } => return Err(SandboxError::SetUp { layer, step, error }),
            Reply::Probed { .. }
            | Reply::Started { .. }
            | Reply::StartFailed { .. }
            | Reply::Paused { .. }
            | Reply::Opened { .. }
            | Reply::OpenFailed { .. }
            | Reply::Ended { .. } => return Err(broken("an unexpected answer")),
        };
        let mut descriptors = descriptors.into_iter();
        let namespaces = namespaces.into_iter().zip(descriptors.by_ref()).collect();
        let ports = SandboxPorts {
            proxy: proxy.and_then(|_| descriptors.next()).map(TcpListener::from),
            relays: relays.into_iter().zip(descriptors.by_ref().map(TcpListener::from)).collect(),
            git: git.then(|| GitListeners::take(&mut descriptors)).flatten(),
        };
        if let Some(rules) = entry_rules.landlock.as_mut().filter(|_| namespaces_missing) {
            rules.connect_ports = Some(proxy.iter().map(SocketAddr::port).collect());
        }
        // In the host's network, other processes reach the proxy too.
        let token = match proxy {
            Some(_) if namespaces_missing => Some(random_token()?),
            Some(_) | None => None,
        };
        if let Some(address) = proxy {
            let variables = proxy_variables(address, &proxy_credentials(None, token.as_deref()));
            env.extend(variables.into_iter().map(|(name, value)| (name.into(), Some(value.into()))));
        }
        let commands = Arc::new(Mutex::new(RequestTable::default()));
        let reader = socket.try_clone().map_err(|source| SandboxError::Process { source })?;
        let table = Arc::clone(&commands);
        let known_group = group.as_ref().map(Arc::downgrade).unwrap_or_default();
        let reader = std::thread::Builder::new()
            .name("sandbox-reader".to_owned())
            .spawn(move || {
                read_replies(&reader, &table, helper);
                drop(group);
            })
            .map_err(|source| SandboxError::Process { source })?;
        let shared = Shared {
            socket,
            writes: Mutex::default(),
            commands,
            last_id: AtomicU64::new(0),
            was_entered: AtomicBool::new(false),
            helper: helper_id,
            reader: Mutex::new(Some(reader)),
            env,
            namespaces,
            ports: Mutex::new(ports),
            proxy_address: proxy,
            proxy_token: token,
            root: visible_root(profile, context),
            notices,
            path_rules,
            stamps,
            lines,
            entry_rules,
            group: known_group,
            _cache: cache,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Ends the sandbox with all its processes, also if it has other handles. Blocks until they are gone.
    pub fn stop(&self) {
        self.cancel();
        let reader = lock(&self.shared.reader).take();
        if let Some(reader) = reader {
            // A panic of the reader has been reported.
            drop(reader.join());
        }
    }

    /// Ends the sandbox with all its processes, also if it has other handles, without waiting.
    pub fn cancel(&self) {
        drop(self.shared.socket.shutdown(Shutdown::Both));
    }

    /// Returns the listeners that Skein serves. They can be taken once.
    pub fn take_ports(&self) -> SandboxPorts {
        std::mem::take(&mut lock(&self.shared.ports))
    }

    /// Returns whether the sandbox process has ended, and all commands with it.
    pub fn has_ended(&self) -> bool {
        lock(&self.shared.commands).has_ended
    }

    /// Returns whether the mounts still hide and protect what they did at the start. A file that is replaced outside has
    /// lost its mount; a new sandbox process has it again.
    pub fn is_intact(&self) -> bool {
        self.shared.stamps.are_current()
    }

    /// Returns the proxy's address inside the sandbox. `None` if the network is off.
    pub fn proxy_address(&self) -> Option<SocketAddr> {
        self.shared.proxy_address
    }

    /// Returns the password that clients of the proxy must send. `None` if only the sandbox reaches the proxy.
    pub fn proxy_token(&self) -> Option<&str> {
        self.shared.proxy_token.as_deref()
    }

    /// Returns remarks about the expansion of the profile.
    pub fn notices(&self) -> &[String] {
        &self.shared.notices
    }

    /// Returns the folders that commands may write, and the scratch folder. `None`: all but protected and hidden paths.
    pub fn writable_folders(&self) -> Option<&[PathBuf]> {
        self.shared.path_rules.writable.as_deref()
    }

    /// Returns the paths in the error output of a command in `cwd` that the sandbox probably refused.
    pub fn path_refusals(&self, errors: &str, cwd: &Path) -> Vec<PathRefusal> {
        self.shared.path_rules.find(errors, cwd)
    }

    /// Returns the layer that enforces each line of the profile.
    pub fn lines(&self) -> &[ExplainedLine] {
        &self.shared.lines
    }

    /// Returns the namespaces of the sandbox. Empty if the machine has none.
    pub fn namespaces(&self) -> &[(Namespace, OwnedFd)] {
        &self.shared.namespaces
    }

    /// Starts a command. Returns when its program runs.
    pub fn spawn(&self, command: SandboxCommand) -> Result<SandboxChild, SpawnError> {
        let mut env = command.env.clone();
        self.add_variables(&mut env);
        if let Some(address) = self.shared.proxy_address.filter(|_| is_java(&command.program)) {
            env.insert("JAVA_TOOL_OPTIONS".into(), java_options(address).into());
        }
        let id = self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (started, answer) = mpsc::sync_channel(1);
        let (state, changes) = watch::channel(CommandState::default());
        {
            let mut commands = lock(&self.shared.commands);
            if commands.has_ended {
                return Err(SpawnError::Ended { source: None });
            }
            commands.add(id, started, state);
        }
        let request = Request::Start { id, command: Box::new(command.spec(&env)) };
        let files = [command.stdin.as_fd(), command.stdout.as_fd(), command.stderr.as_fd()];
        if let Err(source) = self.send(&request, &files) {
            lock(&self.shared.commands).forget(id);
            return Err(SpawnError::Ended { source: Some(source) });
        }
        match answer.recv_timeout(START_TIMEOUT) {
            Ok(Ok(handle)) => {
                let pid = handle.as_ref().and_then(outer_pid);
                Ok(SandboxChild { id, pid, process: self.clone(), state: changes })
            }
            Ok(Err(failure)) => Err(spawn_error(failure, &command)),
            Err(_) => Err(SpawnError::Ended { source: None }),
        }
    }

    /// Adds the variables of the sandbox to those of a command.
    fn add_variables(&self, env: &mut BTreeMap<OsString, OsString>) {
        add_variables(&self.shared.env, env);
    }

    /// Asks for a descriptor of something inside. The reader thread sends it.
    pub(super) fn request_descriptor(
        &self,
        target: InsideTarget,
        opened: oneshot::Sender<io::Result<OwnedFd>>,
    ) -> io::Result<()> {
        let id = self.shared.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        {
            let mut commands = lock(&self.shared.commands);
            if commands.has_ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            commands.opening.insert(id, opened);
        }
        self.send(&Request::Open { id, target }, &[])
    }

    fn send(&self, request: &Request, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
        let _write = lock(&self.shared.writes);
        wire::send(&self.shared.socket, request, descriptors)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // PID 1 ends when the socket closes, and the kernel ends all processes with it. The reader thread has a copy.
        drop(self.socket.shutdown(Shutdown::Both));
    }
}

/// A command that runs in a sandbox. Its process group ends with it.
#[derive(Debug)]
pub struct SandboxChild {
    id: u64,
    pid: Option<u32>,
    process: SandboxProcess,
    /// The reader thread has the other end.
    state: watch::Receiver<CommandState>,
}

impl SandboxChild {
    /// Returns the process id outside the sandbox. `None` if the kernel does not report it.
    pub fn id(&self) -> Option<u32> {
        self.pid
    }

    /// Waits until the command has ended.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            let state = *self.state.borrow_and_update();
            if let Some(status) = state.ended {
                return Ok(status);
            }
            if self.state.changed().await.is_err() {
                return Ok(self.state.borrow().ended.unwrap_or_else(kill_status));
            }
        }
    }

    /// Waits until the state changes: the command is stopped by a signal or ends.
    pub async fn changed(&mut self) -> CommandState {
        let current = *self.state.borrow_and_update();
        if current.ended.is_none() && self.state.changed().await.is_err() {
            return CommandState { ended: Some(kill_status()), ..current };
        }
        *self.state.borrow_and_update()
    }

    /// Returns the exit status if the command has ended.
    pub fn try_wait(&self) -> Option<ExitStatus> {
        self.state.borrow().ended
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        // A sandbox that has ended has no processes.
        drop(self.process.send(&Request::Signal { id: self.id, signal }, &[]));
    }

    /// Kills the command's process group.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }
}

impl ProcessLauncher for SandboxProcess {
    fn launch(&self, launch: &Launch, stdio: [OwnedFd; 3]) -> io::Result<Box<dyn LaunchedProcess>> {
        let [stdin, stdout, stderr] = stdio;
        let command = SandboxCommand {
            program: launch.program.clone(),
            args: launch.args.clone(),
            env: launch.env.clone(),
            cwd: launch.cwd.clone().unwrap_or_else(|| self.shared.root.clone()),
            stdin,
            stdout,
            stderr,
            terminal: TerminalUse::None,
        };
        Ok(Box::new(self.spawn(command)?))
    }
}

impl LaunchedProcess for SandboxChild {
    fn id(&self) -> Option<u32> {
        self.pid
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = io::Result<ExitStatus>> + Send + '_>> {
        Box::pin(SandboxChild::wait(self))
    }

    fn has_ended(&self) -> bool {
        self.try_wait().is_some()
    }

    fn signal(&self, signal: Signal) {
        SandboxChild::signal(self, signal.as_raw());
    }
}

/// Puts the sandbox process into a control group if its memory is limited. Without one, each process limits its data
/// segment.
fn join_group(plan: &mut SandboxPlan, helper: &HelperProcess) -> Option<ControlGroup> {
    let joined = ControlGroup::create(plan.limits.data?).and_then(|group| {
        group.add_process(helper.id())?;
        Ok(group)
    });
    match joined {
        Ok(group) => {
            plan.limits.data = None;
            Some(group)
        }
        Err(error) => {
            tracing::debug!(%error, "there is no control group for the sandbox");
            None
        }
    }
}

fn set_up(socket: &UnixStream, plan: SandboxPlan) -> Result<(Reply, Vec<OwnedFd>), SandboxError> {
    let exchange = || {
        wire::send(socket, &Request::SetUp(Box::new(plan)), &[])?;
        let answer = wire::receive(socket)?;
        socket.set_read_timeout(None)?;
        Ok(answer)
    };
    exchange().map_err(|source| SandboxError::Process { source })
}

/// Returns the first root of the session, or `/` if the profile does not show it.
fn visible_root(profile: &SandboxProfile, context: &SandboxContext) -> PathBuf {
    let is_visible = |root: &&PathBuf| {
        profile.files != FileAccess::None || !profile.write.is_empty() || context.readable.contains(root)
    };
    context.roots.first().filter(is_visible).cloned().unwrap_or_else(|| PathBuf::from("/"))
}

/// Reads the process id in Skein's namespace from a descriptor of the process.
fn outer_pid(handle: &OwnedFd) -> Option<u32> {
    let info = read_proc(&format!("self/fdinfo/{}", handle.as_raw_fd())).ok()?;
    let line = std::str::from_utf8(&info).ok()?.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok()
}

/// Returns the layer that enforces each line of the profile. Fails if the profile is required and a line has none.
fn check_enforcement(
    profile: &SandboxProfile,
    layers: &Layers,
    protected: ProtectedState,
) -> Result<Vec<ExplainedLine>, SandboxError> {
    let lines = explain(profile, layers, protected);
    let unenforced: Vec<ExplainedLine> = lines.iter().filter(|line| line.is_unenforced()).cloned().collect();
    if profile.enforce == Enforcement::Required && !unenforced.is_empty() {
        return Err(SandboxError::Refused { lines: unenforced });
    }
    Ok(lines)
}

/// Searches for protected paths if the machine cannot mount them read-only.
fn protected_state(profile: &SandboxProfile, context: &SandboxContext, layers: &Layers) -> ProtectedState {
    let matters = profile.files >= FileAccess::Workspace && !layers.namespaces.is_available();
    if matters && !protected_paths(&context.roots).is_empty() { ProtectedState::Exist } else { ProtectedState::Absent }
}
