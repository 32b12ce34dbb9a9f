//! Runs the commands of a session whose files are at its client, in terminals of the client.
//!
//! Invariant: the client runs each command in a sandbox with the profile of the call. No command runs here instead.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::tool::editor::{Editor, Terminal, TerminalCommand, TerminalOutput, TerminalSandboxRequest};
use crate::tool::{CallContext, SandboxView};

use super::ask::{NoAnswer, ask};
use super::client_commands::{ClientCommand, ClientCommands};
use super::command_report::{CommandReport, SILENCED, with_verdict};
use super::output::Capture;
use super::sandbox_remarks::SandboxRemarks;
use super::terminal::{self, OUTPUT_LIMIT, TerminalEnd};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, size, with_data};

/// A command for a terminal of the client.
pub(super) struct ClientShellRequest<'a> {
    pub(super) line: &'a str,
    /// For a command in the foreground.
    pub(super) limit: Duration,
    pub(super) background: bool,
}

/// Runs a command at the client. Fails if no client can run it in a sandbox now.
pub(super) async fn shell(call: &CallContext, commands: &ClientCommands, request: ClientShellRequest<'_>) -> ToolReply {
    let ClientShellRequest { line, limit, background } = request;
    if background {
        commands.check_room()?;
    }
    let editor = sandbox_editor(call)?;
    let command = terminal_command(call, line)?;
    let started = Instant::now();
    let terminal = ask(call, editor, |editor| editor.run(command)).await.map_err(|reason| match reason {
        NoAnswer::Cancelled => {
            ToolRefusal::new("the call was cancelled while the client was asked to start the command")
        }
        NoAnswer::Failed(error) => ToolRefusal::new(format!("the client did not start the command: {error}")),
        NoAnswer::Silent(_) => ToolRefusal::new(format!("{reason}; it may have run: check before you repeat it")),
    })?;
    if background {
        let id = commands.add(line, terminal);
        let text =
            format!("started in the background with id {id}; read it with `shell_output`, end it with `shell_stop`");
        return Ok(with_data(text, json!({"id": id})));
    }
    let end = terminal::follow(call, terminal.as_ref(), limit, None, editor.patience()).await;
    let report = report(terminal.as_ref(), &end, limit, started, editor.patience()).await;
    terminal::release(editor, terminal).await;
    let (report, output) = report;
    Ok(report.report(&output))
}

/// Returns the new output of a background command. Waits for its end, at most for this time.
pub(super) async fn output(call: &CallContext, commands: &ClientCommands, id: u32, wait: Duration) -> ToolReply {
    let command = commands.find(id)?;
    if !wait.is_zero() {
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => {
                return Err(ToolRefusal::new("the call was cancelled; the command keeps running"));
            }
            _ = timeout(wait, command.terminal.wait()) => {}
        }
    }
    command.report(id, call).await
}

/// Ends a background command and returns the rest of its output.
pub(super) async fn stop(call: &CallContext, commands: &ClientCommands, id: u32) -> ToolReply {
    let command = commands.find(id)?;
    let patience = sandbox_editor(call)?.patience();
    match timeout(patience, command.terminal.kill()).await {
        Ok(Ok(())) => drop(timeout(patience, command.terminal.wait()).await),
        Ok(Err(error)) => return Err(ToolRefusal::new(format!("the client did not end command {id}: {error}"))),
        Err(_) => return Err(ToolRefusal::new(format!("the client did not confirm the end of command {id}"))),
    }
    command.report(id, call).await
}

impl ClientCommand {
    async fn report(&self, id: u32, call: &CallContext) -> ToolReply {
        let patience = sandbox_editor(call)?.patience();
        let lost = |reason: String| {
            self.has_ended.store(true, Ordering::Relaxed);
            ToolRefusal::new(format!("the output of command {id} (`{}`) cannot be read: {reason}", self.line))
        };
        let TerminalOutput { text, truncated, exit } = match timeout(patience, self.terminal.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(lost(error.to_string())),
            Err(_) => return Err(lost("the client gave no answer".to_owned())),
        };
        let new = {
            let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            let new = if truncated { None } else { text.get(*shown..) };
            let new = new.map_or_else(|| format!("[the beginning is lost]\n{text}"), str::to_owned);
            *shown = text.len();
            new
        };
        if exit.is_some() {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        let verdict = match &exit {
            Some(exit) => format!("command {id}: {}", terminal::exit_text(exit)),
            None => format!("command {id} runs since {} s", self.started.elapsed().as_secs()),
        };
        let mut capture = Capture::default();
        capture.push(new.as_bytes());
        let excerpt = capture.render();
        let data = json!({
            "id": id,
            "command": self.line,
            "output": excerpt.text,
            "running": exit.is_none(),
            "exit_code": exit.as_ref().and_then(terminal::code),
            "truncated": excerpt.truncated,
            "log_path": null,
        });
        let text = if excerpt.text.is_empty() { "(no new output)".to_owned() } else { excerpt.text };
        Ok(with_data(with_verdict(text, &verdict), data))
    }
}

/// Returns the client that runs commands of the session. Fails if none does so now.
fn sandbox_editor(call: &CallContext) -> Result<&dyn Editor, ToolRefusal> {
    let editor = call.session.editor.as_deref().filter(|editor| {
        let abilities = editor.abilities();
        abilities.terminal && abilities.sandbox
    });
    editor.ok_or_else(|| {
        ToolRefusal::new("commands of this session run at the client, and no client that can do so shows it now")
    })
}

/// Returns what the client starts. Fails if the call has no sandbox.
fn terminal_command(call: &CallContext, line: &str) -> Result<TerminalCommand, ToolRefusal> {
    let Some((sandbox, client)) = call.sandbox().zip(call.session.client_folders()) else {
        return Err(ToolRefusal::new("commands at a client run only in a sandbox, and this mode has none"));
    };
    let read_only = sandbox.view == SandboxView::Roots;
    let mut env: Vec<_> = SILENCED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    if read_only {
        env.push(("GIT_OPTIONAL_LOCKS".to_owned(), "0".to_owned()));
    }
    Ok(TerminalCommand {
        program: "bash".to_owned(),
        args: vec!["-c".to_owned(), line.to_owned()],
        env,
        cwd: client.cwd.clone(),
        output_limit: OUTPUT_LIMIT,
        sandbox: Some(Arc::new(TerminalSandboxRequest { profile: (*sandbox.profile).clone(), read_only })),
    })
}

/// Reports a command that has ended. Its output stays in the result: the model reads no files of this machine.
async fn report(
    terminal: &dyn Terminal,
    end: &TerminalEnd,
    limit: Duration,
    started: Instant,
    patience: Duration,
) -> (CommandReport, Capture) {
    let mut output = Capture::default();
    match timeout(patience, terminal.output()).await {
        Ok(Ok(TerminalOutput { text, truncated, .. })) => {
            if truncated {
                output.push(format!("[the beginning is lost: {} are kept]\n", size(OUTPUT_LIMIT)).as_bytes());
            }
            output.push(text.as_bytes());
        }
        Ok(Err(reason)) => output.push(format!("[the output could not be read: {reason}]\n").as_bytes()),
        Err(_) => output.push(b"[the output could not be read: the client gave no answer]\n"),
    }
    let (verdict, exit_code) = terminal::verdict(end, limit, started);
    let streams = [output.render().text, String::new()];
    let timed_out = matches!(end, TerminalEnd::TimedOut);
    (CommandReport { verdict, exit_code, timed_out, streams, remarks: SandboxRemarks::default() }, output)
}
