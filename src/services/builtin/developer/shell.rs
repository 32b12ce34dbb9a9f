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
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope, Reaper, Stdin};
use crate::tool::{CallContext, SessionContext};

use super::command_report::{CommandReport, MAX_TIMEOUT, SILENCED, code, status_text, timeout_text};
use super::output::{Capture, Keeps, Log};
use super::progress::LiveOutput;
use super::pump::{Pump, Stream};
use super::session_state::DeveloperState;
use super::{background, terminal};
use crate::services::builtin::answer::{ToolRefusal, ToolReply};

const DEFAULT_TIMEOUT: u64 = 120;
/// Time to wait for output after the shell has exited.
const LINGER: Duration = Duration::from_millis(300);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellCommand {
    /// For bash
    #[schemars(length(min = 1))]
    command: String,
    /// Seconds, default 120
    #[schemars(range(min = 1, max = 600))]
    timeout: Option<u64>,
    /// Return an id at once
    #[serde(default)]
    background: bool,
}

/// Settings with which commands are started.
#[derive(Debug)]
pub(super) struct Shell {
    pub(super) reaper: Option<Reaper>,
    pub(super) environment: BTreeMap<OsString, OsString>,
}

impl Shell {
    pub(super) fn new(reaper: Option<Reaper>, mut environment: BTreeMap<OsString, OsString>) -> Self {
        environment.extend(SILENCED.map(|(name, value)| (name.into(), value.into())));
        Self { reaper, environment }
    }

    /// Starts the command in the session's process scope. Processes that leave the command's process group run
    /// until the session ends.
    fn start(
        &self,
        command: &str,
        session: &SessionContext,
        scope: &ProcessScope,
    ) -> Result<(ProcessGroup, Pipes), ToolRefusal> {
        let launch = |program: &str| Launch {
            program: program.into(),
            args: vec!["-c".into(), command.into()],
            env: self.environment.clone(),
            cwd: Some(session.cwd.clone()),
            stdin: Stdin::Closed,
            launcher: None,
        };
        match ProcessGroup::spawn_in(scope, &launch("bash"), self.reaper.as_ref()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                ProcessGroup::spawn_in(scope, &launch("sh"), self.reaper.as_ref())
            }
            result => result,
        }
        .map_err(|error| ToolRefusal::new(format!("the shell could not be started: {error}")))
    }
}

/// Fails for commands that no shell should be started for.
fn check(command: &str, cwd: &Path) -> Result<(), ToolRefusal> {
    if command.trim().is_empty() {
        return Err(ToolRefusal::new("the command is empty"));
    }
    if command.contains('\0') {
        return Err(ToolRefusal::new("a command cannot contain a NUL character"));
    }
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
    check(&request.command, &call.session.cwd)?;
    let limit = request.timeout.map(Duration::from_secs);
    if request.background {
        background::check_room(&state.commands)?;
        let (group, pipes) = shell.start(&request.command, &call.session, &state.processes)?;
        return background::start(call, &state.commands, &request.command, group, pipes, limit);
    }
    let limit = limit.unwrap_or(Duration::from_secs(DEFAULT_TIMEOUT));
    if let Some(answer) = terminal::run(call, &state.editor_silent, &request.command, limit).await? {
        return Ok(answer);
    }
    let (group, pipes) = shell.start(&request.command, &call.session, &state.processes)?;
    let mut run = Run::new(group, pipes, &call.session.scratch);
    let end = run.follow(call, limit).await;
    Ok(run.report(&end, limit))
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
        }
    }

    async fn follow(&mut self, call: &CallContext, limit: Duration) -> ShellEnd {
        let deadline = self.started + limit;
        let mut live = LiveOutput::new(call);
        let mut exited: Option<(ExitStatus, Instant)> = None;
        let mut piped = true;
        let end = loop {
            if let Some((status, _)) = exited
                && !piped
            {
                break ShellEnd::Exited(status);
            }
            let linger = exited.map_or(deadline, |(_, at)| at + LINGER);
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => break ShellEnd::Cancelled,
                () = sleep_until(deadline), if exited.is_none() => break ShellEnd::TimedOut,
                result = self.group.status(), if exited.is_none() => match result {
                    Ok(status) => exited = Some((status, Instant::now())),
                    Err(error) => break ShellEnd::Lost(error),
                },
                () = sleep_until(linger), if exited.is_some() => match exited {
                    Some((status, _)) => break ShellEnd::LeftBehind(status),
                    None => break ShellEnd::TimedOut,
                },
                () = live.due() => live.report(self.both.bytes()),
                piece = self.pump.next(), if piped => match piece {
                    Some((stream, bytes)) => {
                        self.push(stream, &bytes);
                        live.push(&bytes, self.both.bytes());
                    }
                    None => piped = false,
                },
            }
        };
        self.finish(&end).await;
        end
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

    fn report(&self, end: &ShellEnd, limit: Duration) -> CallToolResult {
        let seconds = self.started.elapsed().as_secs_f32();
        let (verdict, exit_code) = match end {
            ShellEnd::Exited(status) => (format!("{} in {seconds:.1} s", status_text(*status)), code(*status)),
            ShellEnd::LeftBehind(status) => (
                format!(
                    "{} in {seconds:.1} s; what it left running in its process group was ended: use `background: true` for commands that must keep running",
                    status_text(*status)
                ),
                code(*status),
            ),
            ShellEnd::TimedOut => (timeout_text(limit, " with its process group"), None),
            ShellEnd::Cancelled => ("cancelled, and ended with its process group".to_owned(), None),
            ShellEnd::Lost(error) => (format!("how it ended is not known: {error}"), None),
        };
        let timed_out = matches!(end, ShellEnd::TimedOut);
        let streams = [&self.stdout, &self.stderr].map(|stream| stream.render().text);
        CommandReport { verdict, exit_code, timed_out, streams }.report(&self.both)
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
