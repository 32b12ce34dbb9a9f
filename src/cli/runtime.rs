//! Runs the work of a command: starts the async runtime, the services and a session, and shuts them down in every case:
//! success, error or interrupt.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::attention::UserAttention;
use super::audit_sink::CommandAuditLog;
use super::folders::Folders;
use super::logins::Logins;
use super::managed_files::ADMINISTRATOR;
use super::output::{CommandError, CommandOutput, display_line};
use super::store_failure::store_failure;
use super::{Global, audit_sink, sandbox, top_of_mind};
use crate::agents::TurnLimits;
use crate::broker::BindError;
use crate::checkpoint::CheckpointError;
use crate::graph::Plan;
use crate::ids::random_id;
use crate::orchestrator::Orchestrator;
use crate::principal::GrantError;
use crate::process::{self, Reaper};
use crate::runtime::{Runtime, RuntimePaths};
use crate::sandbox::{HiddenPaths, SandboxLauncher};
use crate::services::{Cassette, Environment, PoolOptions};
use crate::session::{AttentionSink, SessionError, SessionOptions, Sessions};
use crate::store;
use crate::tool::{SessionContext, SessionContextPorts};
use crate::worktree::TaskWorktrees;

/// Time for work that watches for interrupts to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// The running services and the session of a command.
pub(super) struct CommandRuntime {
    pub(super) runtime: Runtime,
    pub(super) session: Arc<SessionContext>,
    /// The paths that no tool reads or writes. Finding out which of them exist takes about a hundred system calls.
    pub(super) hidden: HiddenPaths,
    interrupt: OnceLock<CancellationToken>,
    /// How long the work may take after the signal, if not [`GRACE`].
    grace: OnceLock<Duration>,
}

impl CommandRuntime {
    /// Returns the token that a stop signal cancels, for work that shuts down by itself. Work that never calls this is
    /// dropped at the signal.
    pub(super) fn interrupt(&self) -> CancellationToken {
        self.interrupt.get_or_init(CancellationToken::new).clone()
    }

    /// Returns the same token, for work that may take `grace` to shut down.
    pub(super) fn interrupt_for(&self, grace: Duration) -> CancellationToken {
        self.grace.get_or_init(|| grace);
        self.interrupt()
    }
}

/// The signals that end a command early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum StopSignals {
    /// SIGTERM, SIGHUP and Ctrl-C.
    Anything,
    /// SIGTERM, Ctrl-C, and SIGHUP if the terminal is gone. Otherwise SIGHUP makes the command reload its files.
    Terminal,
    /// Like `Terminal`, but the command handles Ctrl-C itself.
    TerminalOnly,
}

/// The number of threads that run tasks, in addition to the main thread. Work that blocks has other threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum WorkerThreads {
    /// The main thread runs all tasks, so the command itself must not block. With more threads, the tasks of one model
    /// stream wake each other on different threads, which doubles the CPU time of the stream.
    None,
    /// For other commands with one client.
    One,
    /// As many as there are processors, for many clients.
    All,
}

/// Runs `work` with services available, and stops them all before it returns.
pub(super) fn block_on<T>(
    plan: Plan,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
    work: impl AsyncFnOnce(&CommandRuntime, &mut CommandOutput) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    block_on_until(StopSignals::Anything, WorkerThreads::One, plan, global, folders, output, work)
}

/// Not inlined: the frame of `cli::run` would hold the work of every command, and the start touches all of it.
#[inline(never)]
pub(super) fn block_on_until<T>(
    ended_by: StopSignals,
    workers: WorkerThreads,
    plan: Plan,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
    work: impl AsyncFnOnce(&CommandRuntime, &mut CommandOutput) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let cassette = cassette(global)?;
    let recording = cassette.clone();
    process::adopt_orphans().map_err(|error| {
        CommandError::work(
            format!("skein cannot watch the processes that it starts: {error}"),
            "use Linux 3.4 or newer",
        )
    })?;
    let scratch = folders.state.join("scratch").join(std::process::id().to_string());
    let id = format!("cli-{}", std::process::id());
    let hidden = folders.paths_to_hide();
    let ports = SessionContextPorts {
        hidden: hidden.clone(),
        audit: Arc::new(CommandAuditLog::new(folders, random_id("cli"))),
        ..SessionContextPorts::default()
    };
    audit_sink::record_flags(&*ports.audit, global, plan.manifests());
    let session = SessionContext::with_ports(id, folders.cwd.clone(), Vec::new(), scratch.clone(), ports);
    let mut builder = match workers {
        WorkerThreads::None => tokio::runtime::Builder::new_current_thread(),
        WorkerThreads::One | WorkerThreads::All => tokio::runtime::Builder::new_multi_thread(),
    };
    if workers == WorkerThreads::One {
        builder.worker_threads(1);
    }
    let tokio = builder
        .enable_all()
        .build()
        .map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits on threads"))?;
    let result = tokio.block_on(async {
        let interrupted = wait_for_signal(ended_by);
        let options = PoolOptions {
            environment: Environment::new(folders.environment()),
            reaper: Some(reaper()?),
            sandbox: Some(sandbox_launcher(folders, hidden.clone())?),
            data: folders.data.clone(),
            store: Some(folders.store.clone()),
            user: folders.user(),
            cassette,
            logins: Some(Arc::new(Logins::of(folders))),
        };
        let home = RuntimePaths { sockets: sockets(folders), program: own_program()?, scratch: scratch.join("agents") };
        let runtime = Runtime::start(Arc::new(plan), global.built_in.registry.clone(), options, Some(home));
        let started = CommandRuntime { runtime, session, hidden, interrupt: OnceLock::new(), grace: OnceLock::new() };
        let ended = async {
            let failure = interrupted.await;
            if let Some(interrupt) = started.interrupt.get() {
                interrupt.cancel();
                tokio::time::sleep(started.grace.get().copied().unwrap_or(GRACE)).await;
            }
            failure
        };
        let result = tokio::select! {
            biased;
            result = work(&started, output) => result,
            failure = ended => Err(failure),
        };
        started.runtime.stop().await;
        result
    });
    // A pending read of stdin must not keep the program alive.
    tokio.shutdown_timeout(Duration::from_millis(100));
    process::end_all_scopes();
    if std::fs::remove_dir_all(&scratch).is_err() && scratch.exists() {
        tracing::warn!(folder = %scratch.display(), "scratch files are left behind");
    }
    match (recording_failure(recording.as_ref(), global), result) {
        (Some(failure), Ok(_)) => Err(failure),
        (Some(failure), Err(error)) => {
            failure.print(output);
            Err(error)
        }
        (None, result) => result,
    }
}

/// Returns an error if the file of `--record` does not have all requests.
fn recording_failure(cassette: Option<&Cassette>, global: &Global) -> Option<CommandError> {
    let reason = cassette?.failure()?;
    let file = display_line(&global.record.as_ref()?.to_string_lossy());
    let problem = format!("the recording {file} is not complete: {reason}");
    Some(CommandError::work(problem, "make room for it, or name another file, and record again"))
}

/// Returns what all sandboxes of this command have in common.
fn sandbox_launcher(folders: &Folders, hidden: HiddenPaths) -> Result<SandboxLauncher, CommandError> {
    Ok(SandboxLauncher {
        program: own_program()?,
        home: folders.home.clone(),
        hidden,
        caches: folders.sandbox_caches(),
        runtime_folder: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()),
        sockets: sockets(folders),
        quarantine: folders.quarantine(),
        restriction: sandbox::test_settings()?.0,
        host: sandbox::host_resources(folders),
    })
}

/// Returns the folder with the sockets of running Skein processes.
pub(super) fn sockets(folders: &Folders) -> PathBuf {
    folders.state.join("run")
}

/// Opens sessions over the store, with scratch files in the state folder.
pub(super) fn sessions(store: store::SessionStore, limits: TurnLimits, folders: &Folders) -> Sessions {
    let hidden = folders.paths_to_hide();
    let scratch = folders.shared.as_ref().unwrap_or(&folders.state).join("scratch");
    let attention: Option<Arc<dyn AttentionSink>> = Some(Arc::new(UserAttention));
    let checkpoints = Some(folders.shared.as_ref().unwrap_or(&folders.data).join("checkpoints"));
    let options = SessionOptions { limits, scratch, hidden, os: std::env::consts::OS, attention, checkpoints };
    Sessions::new(store, options)
}

/// Returns the orchestrator of this command, whose tasks can have worktrees in the data folder.
pub(super) fn orchestrator(folders: &Folders, hidden: HiddenPaths) -> Orchestrator {
    let environment = process::minimal_environment(folders.environment());
    let folder = folders.data.join("worktrees");
    let worktrees = TaskWorktrees::new(folder, folders.home.clone(), hidden, environment);
    Orchestrator::new(folders.store.clone(), top_of_mind::from_environment(folders)).with_worktrees(worktrees)
}

/// Returns the helper that ends the processes of this command, however it ends.
pub(super) fn reaper() -> Result<Reaper, CommandError> {
    Ok(Reaper::new(own_program()?, &["reaper".into()]))
}

pub(super) fn own_program() -> Result<PathBuf, CommandError> {
    std::env::current_exe().map_err(|error| {
        CommandError::work(
            format!("skein does not know its own program: {error}"),
            "check that skein itself can be run",
        )
    })
}

fn cassette(global: &Global) -> Result<Option<Cassette>, CommandError> {
    let opened = match (&global.record, &global.replay) {
        (Some(file), _) => Cassette::to_file(file).map(Some),
        (None, Some(file)) => Cassette::from_file(file).map(Some),
        (None, None) => Ok(None),
    };
    opened.map_err(|error| CommandError::usage(error.to_string(), "name a file that --record can write or has written"))
}

/// Waits for a signal of `ended_by`. Listens from the call on, not from the first poll, so that signals during startup
/// also cause an orderly shutdown.
pub(super) fn wait_for_signal(ended_by: StopSignals) -> impl Future<Output = CommandError> {
    let mut kinds = vec![SignalKind::terminate()];
    if ended_by != StopSignals::TerminalOnly {
        kinds.push(SignalKind::interrupt());
    }
    if ended_by == StopSignals::Anything {
        kinds.push(SignalKind::hangup());
    }
    let signals: Vec<_> = kinds.into_iter().map(signal).collect();
    let mut hangups = (ended_by != StopSignals::Anything).then(Hangups::listen);
    async move {
        let mut listening: Vec<_> = signals.into_iter().filter_map(Result::ok).collect();
        let any = async {
            if listening.is_empty() {
                return std::future::pending().await;
            }
            drop(futures::future::select_all(listening.iter_mut().map(|signal| Box::pin(signal.recv()))).await);
        };
        let gone = async {
            match &mut hangups {
                Some(hangups) => while hangups.recv().await != Hangup::TerminalGone {},
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = any => {}
            () = gone => {}
        }
        CommandError::Interrupted
    }
}

/// What a SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hangup {
    /// The terminal that the command was started in is gone.
    TerminalGone,
    /// A user or a program asks the command to reload its files.
    Reload,
}

/// Receives SIGHUP, which has two meanings.
pub(super) struct Hangups {
    /// `None` if the system refuses to report it.
    signal: Option<Signal>,
    had_terminal: bool,
}

impl Hangups {
    /// Listens from now on.
    pub(super) fn listen() -> Self {
        Self { signal: signal(SignalKind::hangup()).ok(), had_terminal: has_terminal() }
    }

    /// Waits for the next one.
    pub(super) async fn recv(&mut self) -> Hangup {
        let received = match &mut self.signal {
            Some(signal) => signal.recv().await,
            None => None,
        };
        match received {
            Some(()) if self.had_terminal && !has_terminal() => Hangup::TerminalGone,
            Some(()) => Hangup::Reload,
            None => std::future::pending().await,
        }
    }
}

/// Returns whether the process has a controlling terminal. The kernel takes it away before it sends SIGHUP.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

pub(super) fn bind_failure(error: &BindError) -> CommandError {
    let help = match error {
        BindError::UnknownMode(_) => "see `skein agents`",
        BindError::Managed { .. } => ADMINISTRATOR,
        BindError::Planned { .. } => "choose another mode, or make the dependency optional in the mode's manifest",
        BindError::Service { .. } => {
            "correct the service's manifest, or make its dependency optional; the log has its own words"
        }
    };
    CommandError::work(error.to_string(), help)
}

/// Help for an unknown session id.
pub(super) const LISTED: &str = "`skein sessions list` shows those that there are";

pub(super) fn session_failure(error: &SessionError) -> CommandError {
    match error {
        SessionError::Unknown(id) => CommandError::no_session(id, LISTED),
        SessionError::Store(error) => store_failure(error),
        SessionError::Bind(error) => bind_failure(error),
        SessionError::Model(_) => CommandError::usage(error.to_string(), "choose another --model or SKEIN_MODEL"),
        SessionError::External(_) => {
            CommandError::work(error.to_string(), "the log has what the agent itself said; see docs/external-agents.md")
        }
        SessionError::Grant(GrantError::Managed(_)) => CommandError::usage(error.to_string(), ADMINISTRATOR),
        SessionError::Grant(_) => CommandError::usage(error.to_string(), "use a token with other limits"),
        SessionError::Checkpoint(error) => checkpoint_failure(error),
        SessionError::Folder(_) => CommandError::work(error.to_string(), "check the folder for state of Skein"),
        SessionError::Record { .. } => CommandError::work(error.to_string(), "start a new session"),
    }
}

fn checkpoint_failure(error: &CheckpointError) -> CommandError {
    let problem = display_line(&error.to_string());
    match error {
        CheckpointError::NoTurn { .. } | CheckpointError::Removed { .. } | CheckpointError::NoWayForward => {
            CommandError::usage(problem, "`skein sessions restore ID --list` shows the turns")
        }
        CheckpointError::Outdated | CheckpointError::Interrupted(_) => CommandError::work(problem, "try again"),
        CheckpointError::Running => CommandError::work(problem, "wait until it ends, or cancel the turn"),
        CheckpointError::Store { .. } | CheckpointError::Format { .. } | CheckpointError::Damaged { .. } => {
            CommandError::work(problem, "checkpoints are in the folder that SKEIN_DATA_DIR or XDG_DATA_HOME names")
        }
    }
}
