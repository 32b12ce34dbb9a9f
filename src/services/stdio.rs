//! Starts a child process that speaks MCP on its standard input and output.
//!
//! rmcp's framing silently drops a line that is too long, and the caller waits forever. Here such a line, or a
//! stream of garbage, ends the connection with a reason.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio_util::sync::CancellationToken;

use super::environment::{Environment, MissingVariableError, SecretValues};
use super::replies::PendingRequests;
use crate::ids::ServiceName;
use crate::manifest::{LOADERS, StdioTransport};
use crate::process::{
    DroppedOutput, Launch, OutputLimit, OutputVerdict, Pipes, ProcessGroup, Reaper, Stdin, minimal_environment,
};
use crate::sandbox::{RunningSandbox, SandboxLauncher, SandboxRequest, SandboxStartError};

/// Maximum bytes of a line; no useful answer is longer.
const MAX_LINE: usize = 16 * 1024 * 1024;
/// Maximum consecutive lines that are not JSON-RPC. Some servers print a greeting or an occasional line on stdout.
const MAX_GARBAGE: usize = 100;

/// Lines of stderr, and characters of each, that an error shows.
const LAST_STDERR_LINES: usize = 3;
const MAX_STDERR_LINE: usize = 200;
/// Time to read the stderr of a process that has ended.
const STDERR_TIME: Duration = Duration::from_millis(500);

/// Why a program could not be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Variable(#[from] MissingVariableError),
    #[error("`{variable}` may not be set in a manifest: it loads code that the manifest does not show")]
    Loader { variable: &'static str },
    #[error("there is no program `{program}` on the PATH")]
    NotFound { program: String },
    /// The file exists, but a process in the sandbox does not find it or what starts it.
    #[error(
        "its sandbox does not show `{}`, or the interpreter that the file names: `/tmp`, `/var/tmp` and `/run` are \
         empty there; move the file to another folder", .file.display()
    )]
    Hidden { file: PathBuf },
    #[error("`{program}` cannot be run: {source}")]
    Spawn { program: String, source: std::io::Error },
    #[error("its standard input is closed")]
    StdinClosed,
    #[error("its sandbox does not start: {0}")]
    Sandbox(#[source] SandboxStartError),
}

/// Why a line could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("it sent a line of more than {} MiB", .max / (1024 * 1024))]
    TooLong { max: usize },
}

/// The sandbox in which a program starts. The sandbox ends with the program.
#[derive(Debug)]
pub struct ProgramSandbox<'a> {
    /// `None`: this Skein cannot start a sandbox, and the program does not start.
    pub launcher: Option<&'a SandboxLauncher>,
    pub request: SandboxRequest,
    /// The owner of the program, shown in questions about hosts.
    pub line: String,
}

/// A program that was started.
#[derive(Debug)]
pub struct SpawnedProgram {
    pub group: ProcessGroup,
    pub pipes: Pipes,
    /// Remarks about the sandbox for the user.
    pub notices: Vec<String>,
    /// The program can connect to a Unix socket of Skein.
    pub has_unix_sockets: bool,
}

/// A program to start: the minimal environment, the variables of its manifest, and further ones.
pub(super) struct Program<'a> {
    pub(super) transport: &'a StdioTransport,
    pub(super) environment: &'a Environment,
    /// They have no placeholders and replace those of the manifest.
    pub(super) variables: BTreeMap<String, String>,
}

/// The program of a service that was started.
pub(super) struct StartedService {
    pub(super) wire: StdioWire,
    pub(super) stderr: ChildStderr,
    pub(super) group: ProcessGroup,
    /// Remarks about the sandbox for the user.
    pub(super) notices: Vec<String>,
    /// The program can connect to a Unix socket of Skein.
    pub(super) has_unix_sockets: bool,
}

/// Starts the program of a service.
pub(super) async fn start(
    program: Program<'_>,
    reaper: Option<&Reaper>,
    sandbox: Option<ProgramSandbox<'_>>,
) -> Result<StartedService, LaunchError> {
    let SpawnedProgram { group, pipes, notices, has_unix_sockets } = spawn_program(program, reaper, sandbox).await?;
    let Pipes { stdin: Some(stdin), stdout, stderr } = pipes else {
        return Err(LaunchError::StdinClosed);
    };
    Ok(StartedService { wire: StdioWire::new(stdin, stdout), stderr, group, notices, has_unix_sockets })
}

/// Starts a program with the minimal environment and the variables of its manifest.
pub async fn spawn(
    transport: &StdioTransport,
    environment: &Environment,
    reaper: Option<&Reaper>,
    sandbox: Option<ProgramSandbox<'_>>,
) -> Result<SpawnedProgram, LaunchError> {
    let program = Program { transport, environment, variables: BTreeMap::new() };
    spawn_program(program, reaper, sandbox).await
}

async fn spawn_program(
    Program { transport, environment, variables }: Program<'_>,
    reaper: Option<&Reaper>,
    sandbox: Option<ProgramSandbox<'_>>,
) -> Result<SpawnedProgram, LaunchError> {
    let mut env = minimal_environment(environment.variables());
    for (name, value) in &transport.env {
        env.insert(OsString::from(name), OsString::from(environment.fill_in(value)?));
    }
    env.extend(variables.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
    refuse_loaders(&env)?;
    let args = transport.args.iter().map(|argument| environment.fill_in(argument).map(OsString::from));
    let mut launch = Launch {
        program: OsString::from(environment.fill_in(&transport.command)?),
        args: args.collect::<Result<_, _>>()?,
        env,
        cwd: transport.cwd.as_deref().map(|cwd| environment.fill_in(cwd).map(Into::into)).transpose()?,
        stdin: Stdin::Piped,
        launcher: None,
    };
    let not_found = || LaunchError::NotFound { program: transport.command.clone() };
    let Some(sandbox) = sandbox else {
        let spawned = ProcessGroup::spawn(&launch, reaper);
        let (group, pipes) = spawned.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => not_found(),
            _ => LaunchError::Spawn { program: transport.command.clone(), source },
        })?;
        return Ok(SpawnedProgram { group, pipes, notices: Vec::new(), has_unix_sockets: true });
    };
    make_absolute(&mut launch, sandbox.request.folders.roots.first());
    let file = program_files(&launch).into_iter().next();
    spawn_sandboxed(launch, sandbox).await.map_err(|error| match error {
        error if error.is_not_found() => file.map_or_else(not_found, |file| LaunchError::Hidden { file }),
        SandboxStartError::Process(source) => LaunchError::Spawn { program: transport.command.clone(), source },
        error => LaunchError::Sandbox(error),
    })
}

async fn spawn_sandboxed(launch: Launch, sandbox: ProgramSandbox<'_>) -> Result<SpawnedProgram, SandboxStartError> {
    let ProgramSandbox { launcher, mut request, line } = sandbox;
    let launcher = launcher.ok_or(SandboxStartError::NoLauncher)?;
    request.folders.readable.extend(program_files(&launch));
    let running = RunningSandbox::start(launcher, request).await?;
    let (notices, has_unix_sockets) = (running.notices(), running.has_unix_sockets());
    let (group, pipes) = running.spawn_alone(launch, &line).await?;
    Ok(SpawnedProgram { group, pipes, notices, has_unix_sockets })
}

/// Resolves relative paths, which mean another folder inside a sandbox: at the root of the session, or in Skein's
/// working folder if sessions share the program.
fn make_absolute(launch: &mut Launch, root: Option<&PathBuf>) {
    let Some(base) = root.cloned().or_else(|| Path::new(".").canonicalize().ok()) else { return };
    launch.cwd = launch.cwd.take().map(|cwd| base.join(cwd));
    if Path::new(&launch.program).components().count() > 1 {
        launch.program = launch.cwd.as_ref().unwrap_or(&base).join(&launch.program).into();
    }
}

/// Returns the file of a program, as it is named and without links. A sandbox with `files: none` shows it.
fn program_files(launch: &Launch) -> Vec<PathBuf> {
    let program = Path::new(&launch.program);
    let path = launch.env.get(OsStr::new("PATH")).map(|path| path.as_bytes()).unwrap_or_default();
    let folders = path.split(|byte| *byte == b':').map(|folder| Path::new(OsStr::from_bytes(folder)));
    // An absolute path stays as it is.
    let named = folders.map(|folder| folder.join(program)).find(|file| file.is_absolute() && file.is_file());
    let real = named.as_ref().and_then(|named| named.canonicalize().ok().filter(|real| real != named));
    named.into_iter().chain(real).collect()
}

/// Fails if a variable makes the program load code that its manifest does not show.
fn refuse_loaders(env: &BTreeMap<OsString, OsString>) -> Result<(), LaunchError> {
    match LOADERS.iter().find(|loader| env.keys().any(|name| name == *loader)) {
        Some(variable) => Err(LaunchError::Loader { variable }),
        None => Ok(()),
    }
}

/// Logs the service's stderr without its secrets, at a limited rate. Keeps the last lines in `failure`.
pub(super) async fn log(service: ServiceName, stderr: ChildStderr, secrets: SecretValues, failure: WireFailure) {
    let _closed = failure.stderr_closed.clone().drop_guard();
    let mut lines = LineReader::new(BufReader::new(stderr), 64 * 1024);
    let mut limit = OutputLimit::default();
    let report = |dropped: Option<DroppedOutput>| {
        if let Some(dropped) = dropped {
            tracing::warn!(%service, "service stderr: {dropped}");
        }
    };
    loop {
        let line = tokio::select! {
            biased;
            () = limit.window_with_drops_ends() => {
                report(limit.take_dropped());
                continue;
            }
            line = lines.next() => match line {
                Ok(Some(line)) => line,
                Ok(None) => return report(limit.finish()),
                // A line without end is logged in pieces: closing stderr could kill the server.
                Err(LineError::TooLong { .. }) => lines.take_piece(&secrets),
                Err(LineError::Io(_)) => lines.take_partial(),
            },
        };
        if limit.admit(line.len()) == OutputVerdict::Keep {
            let line = secrets.hide(&String::from_utf8_lossy(&line)).to_string();
            tracing::info!(%service, stderr = %line, "service says");
            failure.note_stderr(&line);
        }
    }
}

/// A wire that carries one MCP message per line.
pub(super) struct StdioWire {
    /// Shared with sends in progress.
    stdin: Arc<tokio::sync::Mutex<Option<ChildStdin>>>,
    lines: LineReader<BufReader<ChildStdout>>,
    garbage: usize,
    failure: WireFailure,
    /// Shared with sends in progress.
    pending: Arc<Mutex<PendingRequests>>,
    /// Errors for requests whose answer could not be read.
    failed: VecDeque<RxJsonRpcMessage<RoleClient>>,
}

/// The reason why the wire broke; empty if it was closed normally. The connection reads it after the wire has
/// ended.
#[derive(Clone, Default)]
pub(super) struct WireFailure {
    reason: Arc<Mutex<Option<String>>>,
    /// The last lines that the process wrote to stderr, without secrets.
    stderr: Arc<Mutex<VecDeque<String>>>,
    /// Cancelled by the task that reads stderr, when it has read all of it.
    stderr_closed: CancellationToken,
}

impl WireFailure {
    pub(super) fn set(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    pub(super) fn take(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note_stderr(&self, line: &str) {
        let line: String = line.trim().chars().take(MAX_STDERR_LINE).collect();
        if !line.is_empty() {
            let mut lines = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push_back(line);
            if lines.len() > LAST_STDERR_LINES {
                lines.pop_front();
            }
        }
    }

    /// Returns the last lines of stderr of a process that has ended. Waits a moment until all of them are read.
    pub(super) async fn last_stderr(&self) -> Option<String> {
        // Another process may hold stderr open.
        drop(tokio::time::timeout(STDERR_TIME, self.stderr_closed.cancelled()).await);
        let lines: Vec<_> = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        (!lines.is_empty()).then(|| lines.join(" / "))
    }
}

impl StdioWire {
    fn new(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        Self {
            stdin: Arc::new(tokio::sync::Mutex::new(Some(stdin))),
            lines: LineReader::new(BufReader::new(stdout), MAX_LINE),
            garbage: 0,
            failure: WireFailure::default(),
            pending: Arc::default(),
            failed: VecDeque::new(),
        }
    }

    pub(super) fn failure(&self) -> WireFailure {
        self.failure.clone()
    }
}

impl Transport<RoleClient> for StdioWire {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let stdin = Arc::clone(&self.stdin);
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).note_request(&item);
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            let mut stdin = stdin.lock().await;
            let Some(pipe) = stdin.as_mut() else { return Err(std::io::ErrorKind::BrokenPipe.into()) };
            pipe.write_all(&line).await?;
            pipe.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(error) = self.failed.pop_front() {
                return Some(error);
            }
            let line = match self.lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => return None,
                Err(error) => {
                    self.failure.set(error.to_string());
                    return None;
                }
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            match serde_json::from_slice(&line) {
                Ok(message) => {
                    pending.note_answer(&message);
                    self.garbage = 0;
                    return Some(message);
                }
                Err(error) => {
                    self.garbage += 1;
                    self.failed = pending.fail_requests(&line, &error.to_string());
                    tracing::debug!(%error, failed = self.failed.len(), "a line that is not an MCP message");
                    if self.garbage > MAX_GARBAGE {
                        self.failure.set("it does not speak MCP: its output is not JSON-RPC".to_owned());
                        return None;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        // A server exits when its input closes. A blocked send must not keep `close` waiting.
        if let Ok(mut stdin) = tokio::time::timeout(Duration::from_millis(200), self.stdin.lock()).await {
            drop(stdin.take());
        }
        Ok(())
    }
}

/// Reads lines of limited length. Cancel-safe: dropping a read loses nothing.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: R,
    partial: Vec<u8>,
    max: usize,
    /// The part that [`LineReader::next`] rejected last is a whole line.
    is_whole: bool,
}

impl<R: AsyncBufRead + Unpin> LineReader<R> {
    pub fn new(reader: R, max: usize) -> Self {
        Self { reader, partial: Vec::new(), max, is_whole: false }
    }

    /// Takes the part of a line that [`LineReader::next`] rejected as too long. The rest of it starts a new line.
    pub fn take_partial(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }

    /// Takes the part of a line that [`LineReader::next`] rejected as too long, without the beginning of a secret whose
    /// rest may follow. The rest of the part starts a new line. Nothing follows a whole line, so all of it is taken.
    pub fn take_piece(&mut self, secrets: &SecretValues) -> Vec<u8> {
        if self.is_whole {
            return self.take_partial();
        }
        let rest = self.partial.split_off(secrets.split_point(&self.partial));
        std::mem::replace(&mut self.partial, rest)
    }

    /// Returns the next line without its end; `None` at the end of the stream. Fails if the line is too long.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok(if self.partial.is_empty() { None } else { Some(std::mem::take(&mut self.partial)) });
            }
            let (taken, complete) = match available.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (available.len(), false),
            };
            self.partial.extend_from_slice(&available[..taken - usize::from(complete)]);
            self.reader.consume(taken);
            if self.partial.len() > self.max {
                self.is_whole = complete;
                return Err(LineError::TooLong { max: self.max });
            }
            if complete {
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_load_code_are_refused_whoever_brings_them() {
        let with = |name: &str| BTreeMap::from([(OsString::from(name), OsString::from("x"))]);
        for loader in ["LD_PRELOAD", "BASH_ENV", "PERL5OPT", "RUBYOPT"] {
            assert!(refuse_loaders(&with(loader)).is_err(), "{loader}");
        }
        for needed in ["PATH", "PYTHONPATH", "ENV", "GIT_SSH_COMMAND"] {
            assert!(refuse_loaders(&with(needed)).is_ok(), "{needed}");
        }
    }

    #[tokio::test]
    async fn a_long_line_is_not_joined_with_the_next_one() {
        let key = (OsString::from("KEY"), OsString::from("sk-0123456789"));
        let secrets = Environment::new(BTreeMap::from([key])).secrets_in("${env:KEY}");
        let mut lines = LineReader::new(&b"a long line with sk-01\nthe next\nand another long line\n"[..], 10);
        for line in ["a long line with sk-01", "the next", "and another long line"] {
            let read = match lines.next().await {
                Ok(read) => read.unwrap(),
                Err(_) => lines.take_piece(&secrets),
            };
            assert_eq!(String::from_utf8_lossy(&read), line);
        }
        assert!(lines.next().await.unwrap().is_none());
    }
}
