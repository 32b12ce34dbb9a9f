//! Implements `shell`: runs one command to its end within a time limit.
//!
//! Invariant: when the call returns, no process of the command's group is left. A command in the editor's terminal
//! (`terminal`) belongs to the editor, which is asked to end it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::process::{Launch, Pipes, ProcessGroup, Reaper, Stdin};
use crate::sandbox::{Enforcement, SandboxLauncher, SandboxStartError};
use crate::services::sandboxes::SandboxedCommand;
use crate::tool::protected_check::{accept_unsandboxed, begin_unsandboxed};
use crate::tool::{CallContext, CallSandbox};

use super::client_shell::ClientShellRequest;
use super::command::StartedCommand;
use super::command_report::{CommandReport, MAX_TIMEOUT, SILENCED, code, status_text, timeout_text};
use super::output::{Capture, Keeps, Log};
use super::progress::LiveOutput;
use super::pump::{Pump, Stream};
use super::sandbox_remarks::{CommandChoice, SandboxRemarks};
use super::session_state::DeveloperState;
use super::terminal::TerminalRequest;
use super::{DeveloperOptions, background, client_shell, terminal};
use crate::services::builtin::answer::{ToolRefusal, ToolReply};

/// The time of a command without its own limit.
pub(in crate::services::builtin) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Time to wait for output after the shell has exited.
const LINGER: Duration = Duration::from_millis(300);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellCommand {
    /// Bash command
    #[schemars(length(min = 1))]
    command: String,
    /// Seconds, default 120
    #[schemars(range(min = 1, max = 600))]
    timeout: Option<u64>,
    /// Return an id at once
    #[serde(default)]
    background: bool,
    /// Change nothing, no network; runs without asking
    #[serde(default)]
    read_only: bool,
    /// Why it must run without the sandbox; asks the user
    #[schemars(length(max = 500))]
    unsandboxed: Option<String>,
}

impl ShellCommand {
    fn choice(&self) -> CommandChoice {
        if self.read_only { CommandChoice::ReadOnly } else { CommandChoice::OfMode }
    }

    fn program(&self) -> ProgramLine<'_> {
        ProgramLine {
            names: ["bash", "sh"],
            args: vec!["-c".into(), (&self.command).into()],
            line: &self.command,
            choice: self.choice(),
            for_longer: "`background: true`",
        }
    }
}

/// A program with its arguments.
#[derive(Debug)]
pub(in crate::services::builtin) struct ProgramLine<'a> {
    /// The second name counts if the machine has no program of the first.
    names: [&'a str; 2],
    args: Vec<OsString>,
    /// Shown in questions about hosts.
    line: &'a str,
    choice: CommandChoice,
    /// What to use for work that must run longer.
    for_longer: &'a str,
}

impl<'a> ProgramLine<'a> {
    /// Creates a program that runs in the sandbox of its mode.
    pub(in crate::services::builtin) fn new(names: [&'a str; 2], args: Vec<OsString>, line: &'a str) -> Self {
        Self { names, args, line, choice: CommandChoice::OfMode, for_longer: "`shell` with `background: true`" }
    }
}

/// Settings with which commands are started.
#[derive(Debug)]
pub(in crate::services::builtin) struct Shell {
    reaper: Option<Reaper>,
    environment: BTreeMap<OsString, OsString>,
    sandbox: Option<SandboxLauncher>,
}

impl Shell {
    pub(in crate::services::builtin) fn new(options: DeveloperOptions) -> Self {
        let DeveloperOptions { reaper, mut environment, sandbox } = options;
        environment.extend(SILENCED.map(|(name, value)| (name.into(), value.into())));
        Self { reaper, environment, sandbox }
    }

    /// Starts the program in the sandbox of the call, or in the session's process scope if the call has none.
    /// Processes that leave the command's process group run until the session ends.
    async fn start(
        &self,
        program: &ProgramLine<'_>,
        call: &CallContext,
        state: &DeveloperState,
    ) -> Result<StartedCommand, SandboxStartError> {
        let [first, second] = program.names;
        match self.spawn(self.launch(first, program, call), program.line, call, state).await {
            Err(error) if error.is_not_found() => {
                self.spawn(self.launch(second, program, call), program.line, call, state).await
            }
            result => result,
        }
    }

    fn launch(&self, name: &str, program: &ProgramLine<'_>, call: &CallContext) -> Launch {
        let mut env = self.environment.clone();
        if program.choice == CommandChoice::ReadOnly {
            // `git status` refreshes the index if it can; here it cannot.
            env.insert("GIT_OPTIONAL_LOCKS".into(), "0".into());
        }
        Launch {
            program: name.into(),
            args: program.args.clone(),
            env,
            cwd: Some(call.session.cwd.clone()),
            stdin: Stdin::Closed,
            launcher: None,
        }
    }

    /// Returns the sandbox of the call. `None` if its command runs without one. Fails if it must not.
    fn sandbox_of<'a>(
        &'a self,
        call: &'a CallContext,
    ) -> Result<Option<(&'a SandboxLauncher, &'a CallSandbox)>, SandboxStartError> {
        match (call.sandbox(), &self.sandbox) {
            (None, _) => Ok(None),
            (Some(sandbox), Some(launcher)) => Ok(Some((launcher, sandbox))),
            (Some(sandbox), None) if sandbox.profile.enforce == Enforcement::Required => {
                Err(SandboxStartError::NoLauncher)
            }
            (Some(_), None) => {
                tracing::warn!("this program cannot start a sandbox, so a command runs without one");
                Ok(None)
            }
        }
    }

    async fn spawn(
        &self,
        launch: Launch,
        line: &str,
        call: &CallContext,
        state: &DeveloperState,
    ) -> Result<StartedCommand, SandboxStartError> {
        let Some((launcher, sandbox)) = self.sandbox_of(call)? else {
            let (group, pipes) = ProcessGroup::spawn_in(&state.processes, &launch, self.reaper.as_ref())?;
            return Ok(StartedCommand { group, pipes, sandbox: None });
        };
        let request = SandboxedCommand { launch, line, scope: &state.processes };
        let (group, pipes, sandbox) = state.sandboxes.spawn(launcher, sandbox, &call.session, request).await?;
        Ok(StartedCommand { group, pipes, sandbox: Some(sandbox) })
    }
}

impl Shell {
    /// Runs the command in the editor's terminal. `None` if it must run here.
    async fn run_in_terminal(
        &self,
        command: &ShellCommand,
        limit: Duration,
        call: &CallContext,
        state: &DeveloperState,
    ) -> Result<Option<CallToolResult>, ToolRefusal> {
        let line = command.command.as_str();
        let Some(editor) = terminal::usable_editor(call, &state.editor_silent) else { return Ok(None) };
        let entry = match self.sandbox_of(call) {
            Ok(None) => None,
            // Starting the command here reports the error.
            Err(_) => return Ok(None),
            Ok(Some((launcher, sandbox))) => {
                let launch = self.launch("bash", &command.program(), call);
                let request = SandboxedCommand { launch, line, scope: &state.processes };
                match state.sandboxes.offer_entry(launcher, sandbox, &call.session, request).await {
                    Ok(entry) => Some(entry),
                    Err(error) => {
                        tracing::warn!(%error, "a command runs without the editor's terminal");
                        return Ok(None);
                    }
                }
            }
        };
        terminal::run(call, editor, TerminalRequest { line, limit, entry, choice: command.choice() }, state).await
    }
}

/// Fails for commands that no shell should be started for.
fn check(command: &str) -> Result<(), ToolRefusal> {
    if command.trim().is_empty() {
        return Err(ToolRefusal::new("the command is empty"));
    }
    if command.contains('\0') {
        return Err(ToolRefusal::new("a command cannot contain a NUL character"));
    }
    Ok(())
}

/// Fails if the working directory does not exist.
pub(in crate::services::builtin) fn check_folder(cwd: &Path) -> Result<(), ToolRefusal> {
    if !cwd.is_dir() {
        return Err(ToolRefusal::new(format!(
            "the working directory `{}` does not exist; tell the user",
            cwd.display()
        )));
    }
    Ok(())
}

pub(super) async fn shell(
    shell: &Shell,
    call: &CallContext,
    state: &DeveloperState,
    request: &ShellCommand,
) -> ToolReply {
    if request.timeout.is_some_and(|seconds| !(1..=MAX_TIMEOUT).contains(&seconds)) {
        return Err(ToolRefusal::new(format!(
            "`timeout` is between 1 and {MAX_TIMEOUT} seconds; use `background: true` for longer work"
        )));
    }
    check(&request.command)?;
    match &request.unsandboxed {
        Some(reason) if reason.trim().is_empty() => {
            return Err(ToolRefusal::new("`unsandboxed` is the reason why the command cannot run in the sandbox"));
        }
        Some(_) if request.read_only => {
            return Err(ToolRefusal::new("give either `read_only` or `unsandboxed`"));
        }
        Some(_) | None => {}
    }
    let limit = request.timeout.map(Duration::from_secs);
    if call.session.client_folders().is_some() {
        let (line, limit) = (request.command.as_str(), limit.unwrap_or(DEFAULT_TIMEOUT));
        let request = ClientShellRequest { line, limit, background: request.background };
        return client_shell::shell(call, &state.client_commands, request).await;
    }
    check_folder(&call.session.cwd)?;
    let refuse = |error: SandboxStartError| ToolRefusal::new(format!("the shell could not be started: {error}"));
    if request.background {
        background::check_room(&state.commands)?;
        let started = shell.start(&request.program(), call, state).await.map_err(refuse)?;
        return background::start(call, &state.commands, &request.command, started, request.choice(), limit);
    }
    let limit = limit.unwrap_or(DEFAULT_TIMEOUT);
    let before = begin_unsandboxed(call).await;
    let answer = match shell.run_in_terminal(request, limit, call, state).await? {
        Some(answer) => answer,
        None => run_program(shell, call, state, &request.program(), limit).await.map_err(refuse)?,
    };
    accept_unsandboxed(call, before).await;
    Ok(answer)
}

/// Runs a program to its end, or to the end of its time, and reports its output. Fails if it cannot be started.
pub(in crate::services::builtin) async fn run_program(
    shell: &Shell,
    call: &CallContext,
    state: &DeveloperState,
    program: &ProgramLine<'_>,
    limit: Duration,
) -> Result<CallToolResult, SandboxStartError> {
    let StartedCommand { group, pipes, sandbox } = shell.start(program, call, state).await?;
    let mut run = Run::new(group, pipes, &call.session.scratch);
    let followed = match sandbox.as_ref().and_then(|sandbox| sandbox.network.as_ref()) {
        // A question about a host does not use up the time of the command.
        Some(network) => network.limit(limit, run.follow(call)).await,
        None => timeout(limit, run.follow(call)).await.ok(),
    };
    let end = followed.unwrap_or_else(|| run.out_of_time());
    run.finish(&end).await;
    let remarks = match &sandbox {
        Some(sandbox) => {
            let errors = run.stderr.render().text;
            SandboxRemarks::of_command(sandbox, &errors, program.choice, call).await
        }
        None => SandboxRemarks::default(),
    };
    Ok(run.report(&end, limit, program.for_longer, remarks))
}

/// How a command ended.
#[derive(Debug)]
enum ShellEnd {
    Exited(ExitStatus),
    /// The shell exited, but a process that it started did not.
    LeftBehind(ExitStatus),
    TimedOut,
    Cancelled,
    Lost(std::io::Error),
}

struct Run {
    group: ProcessGroup,
    pump: Pump,
    both: Capture,
    stdout: Capture,
    stderr: Capture,
    started: Instant,
    /// The exit of the shell; processes that it started may still run.
    exited: Option<(ExitStatus, Instant)>,
}

impl Run {
    fn new(group: ProcessGroup, pipes: Pipes, scratch: &Path) -> Self {
        Self {
            group,
            pump: Pump::new(pipes),
            both: Capture::with_log(Log::new(scratch, Keeps::LongOutput)),
            stdout: Capture::default(),
            stderr: Capture::default(),
            started: Instant::now(),
            exited: None,
        }
    }

    /// Follows the command to its end or its cancellation. The caller limits the time.
    async fn follow(&mut self, call: &CallContext) -> ShellEnd {
        let mut live = LiveOutput::new(call);
        let mut piped = true;
        loop {
            if let Some((status, _)) = self.exited
                && !piped
            {
                return ShellEnd::Exited(status);
            }
            let linger = self.exited.map_or_else(Instant::now, |(_, at)| at + LINGER);
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => return ShellEnd::Cancelled,
                result = self.group.status(), if self.exited.is_none() => match result {
                    Ok(status) => self.exited = Some((status, Instant::now())),
                    Err(error) => return ShellEnd::Lost(error),
                },
                () = sleep_until(linger), if self.exited.is_some() => return self.out_of_time(),
                () = live.due() => live.report(self.both.bytes()),
                piece = self.pump.next(), if piped => match piece {
                    Some((stream, bytes)) => {
                        self.push(stream, &bytes);
                        live.push(&bytes, self.both.bytes());
                    }
                    None => piped = false,
                },
            }
        }
    }

    /// Returns how a command ended whose time is over.
    fn out_of_time(&self) -> ShellEnd {
        self.exited.map_or(ShellEnd::TimedOut, |(status, _)| ShellEnd::LeftBehind(status))
    }

    /// Kills the rest of the group and reads its remaining output.
    async fn finish(&mut self, end: &ShellEnd) {
        // Needed also after a normal exit: a child may have closed its pipes and still run.
        self.group.kill();
        let until = Instant::now() + LINGER;
        if !matches!(end, ShellEnd::Exited(_)) {
            while let Ok(Some((stream, bytes))) = timeout_at(until, self.pump.next()).await {
                self.push(stream, &bytes);
            }
            drop(timeout_at(until, self.group.status()).await);
        }
        for (stream, bytes) in self.pump.rest() {
            self.push(stream, &bytes);
        }
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        self.both.push(bytes);
        match stream {
            Stream::Out => self.stdout.push(bytes),
            Stream::Err => self.stderr.push(bytes),
        }
    }

    fn report(&self, end: &ShellEnd, limit: Duration, for_longer: &str, remarks: SandboxRemarks) -> CallToolResult {
        let seconds = self.started.elapsed().as_secs_f32();
        let (verdict, exit_code) = match end {
            ShellEnd::Exited(status) => (format!("{} in {seconds:.1} s", status_text(*status)), code(*status)),
            ShellEnd::LeftBehind(status) => (
                format!(
                    "{} in {seconds:.1} s; what it left running in its process group was ended: use {for_longer} for commands that must keep running",
                    status_text(*status)
                ),
                code(*status),
            ),
            ShellEnd::TimedOut => (timeout_text(limit, " with its process group", for_longer), None),
            ShellEnd::Cancelled => ("cancelled, and ended with its process group".to_owned(), None),
            ShellEnd::Lost(error) => (format!("how it ended is not known: {error}"), None),
        };
        let timed_out = matches!(end, ShellEnd::TimedOut);
        let streams = [&self.stdout, &self.stderr].map(|stream| stream.render().text);
        CommandReport { verdict, exit_code, timed_out, streams, remarks }.report(&self.both)
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
