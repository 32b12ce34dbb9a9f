//! Runs `shell` commands in a terminal of the editor, where the user sees them.
//!
//! Invariant: every terminal that was created is released, however the call ends. If a command may have run in the
//! editor's terminal, Skein does not start the command again. A command of a sandbox runs only after it has entered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::CallToolResult;
use tokio::time::{Instant, timeout};

use crate::sandbox::proxy::CommandNetwork;
use crate::sandbox::{EnteredCommand, EntryError, SandboxEntry};
use crate::services::sandboxes::OfferedEntry;
use crate::tool::editor::{Editor, EditorError, Terminal, TerminalCommand, TerminalExit};
use crate::tool::{Activity, CallContext, Notice};

use super::ask::{NoAnswer, ask};
use super::command_report::{CommandReport, SILENCED, timeout_text};
use super::output::{Capture, Keeps, Log};
use super::sandbox_remarks::{CommandChoice, SandboxRemarks};
use super::session_state::DeveloperState;
use crate::services::builtin::answer::{ToolRefusal, size};

/// Bytes of output that the editor is asked to keep, from the end.
pub(super) const OUTPUT_LIMIT: u64 = 1 << 20;
/// Time to wait for a killed command, so that its last output is read.
const LINGER: Duration = Duration::from_millis(300);
/// Time for a command to enter its sandbox.
const ENTRY_LIMIT: Duration = Duration::from_secs(5);

/// A command for the editor's terminal.
pub(super) struct TerminalRequest<'a> {
    pub(super) line: &'a str,
    pub(super) limit: Duration,
    /// The sandbox of the command. `None`: it runs without one.
    pub(super) entry: Option<OfferedEntry>,
    pub(super) choice: CommandChoice,
}

/// How a command ended.
#[derive(Debug)]
pub(super) enum TerminalEnd {
    Exited(TerminalExit),
    TimedOut,
    Cancelled,
    Lost(EditorError),
}

/// Returns the editor of the call if commands can run in its terminals. `silent` records an editor that failed before.
pub(super) fn usable_editor<'a>(call: &'a CallContext, silent: &AtomicBool) -> Option<&'a dyn Editor> {
    let editor = call.session.editor.as_deref().filter(|editor| editor.abilities().terminal);
    editor.filter(|_| !silent.load(Ordering::Relaxed))
}

/// Runs a command in the editor's terminal. `None` if the editor could not start the command or let it enter its
/// sandbox. The session then records that later commands need not be tried.
pub(super) async fn run(
    call: &CallContext,
    editor: &dyn Editor,
    request: TerminalRequest<'_>,
    state: &DeveloperState,
) -> Result<Option<CallToolResult>, ToolRefusal> {
    let TerminalRequest { line, limit, entry, choice } = request;
    let silent = &state.editor_silent;
    let Some(command) = terminal_command(call, line, entry.as_ref()) else { return Ok(None) };
    let started = Instant::now();
    let terminal = match ask(call, editor, |editor| editor.run(command)).await {
        Ok(terminal) => terminal,
        Err(NoAnswer::Failed(reason)) => {
            tracing::warn!(%reason, "a command runs without the editor's terminal");
            return Ok(None);
        }
        Err(NoAnswer::Cancelled) => {
            return Err(ToolRefusal::new("the call was cancelled while the editor was asked to start the command"));
        }
        // Nothing enters the sandbox any more, so the command cannot run there later.
        Err(reason @ NoAnswer::Silent(_)) if entry.is_some() => {
            give_up(call, silent, &reason);
            return Ok(None);
        }
        Err(reason @ NoAnswer::Silent(_)) => {
            silent.store(true, Ordering::Relaxed);
            return Err(ToolRefusal::new(format!(
                "{reason} to the command, which may have run in its terminal: check before you repeat it. Later commands \
                 of this session run without the editor"
            )));
        }
    };
    let (entered, sandbox) = match entry {
        None => (None, None),
        Some(OfferedEntry { entry, sandbox, .. }) => match enter(call, terminal.as_ref(), entry).await? {
            Ok(entered) => (Some(entered), Some(sandbox)),
            Err(reason) => {
                give_up(call, silent, &reason);
                release(editor, terminal).await;
                return Ok(None);
            }
        },
    };
    call.report(Activity::Terminal { id: terminal.id().to_owned() });
    let network = sandbox.as_ref().and_then(|sandbox| sandbox.network.as_ref());
    let end = follow(call, terminal.as_ref(), limit, network, editor.patience()).await;
    drop(entered);
    let (mut report, output) = report(call, terminal.as_ref(), &end, limit, started, editor.patience()).await;
    if let Some(sandbox) = &sandbox {
        let [text, _] = &report.streams;
        report.remarks = SandboxRemarks::of_command(sandbox, text, choice, call).await;
    }
    let result = report.report(&output);
    release(editor, terminal).await;
    Ok(Some(result))
}

/// Returns what the editor starts. `None` if a part of it is not UTF-8, which ACP requires.
fn terminal_command(call: &CallContext, line: &str, entry: Option<&OfferedEntry>) -> Option<TerminalCommand> {
    let bash = ["bash", "-c", line].map(str::to_owned);
    let (program, args, env) = match entry {
        None => {
            let [program, args @ ..] = bash;
            (program, args.to_vec(), SILENCED.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
        }
        // The process clears its environment when it enters.
        Some(OfferedEntry { entry, program, .. }) => {
            let mut args = ["sandbox", "--enter", entry.id().to_str()?, "--"].map(str::to_owned).to_vec();
            args.extend(bash);
            (program.to_str()?.to_owned(), args, Vec::new())
        }
    };
    Some(TerminalCommand {
        program,
        args,
        env,
        cwd: call.session.cwd.clone(),
        output_limit: OUTPUT_LIMIT,
        sandbox: None,
    })
}

/// Waits until the command has entered its sandbox. The inner error is the reason why it did not run.
async fn enter(
    call: &CallContext,
    terminal: &dyn Terminal,
    entry: SandboxEntry,
) -> Result<Result<EnteredCommand, EntryError>, ToolRefusal> {
    let mut accepted = std::pin::pin!(entry.accept(ENTRY_LIMIT));
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => Err(ToolRefusal::new("the call was cancelled before the command ran")),
        entered = &mut accepted => Ok(entered),
        // A short command may end before its report is read.
        _ = terminal.wait() => Ok(timeout(LINGER, accepted).await.unwrap_or_else(|_| {
            Err(EntryError::Failed("it ended at once".to_owned()))
        })),
    }
}

/// Records that commands of this session run without the editor, and notifies the user once.
fn give_up(call: &CallContext, silent: &AtomicBool, reason: &(dyn std::error::Error + Send + Sync)) {
    tracing::warn!(%reason, "commands run without the editor's terminal");
    if !silent.swap(true, Ordering::Relaxed) {
        call.session.notices.send(Notice::new(format!(
            "Commands of this session run without the terminal of your editor, because it cannot enter their sandbox: \
             {reason}."
        )));
    }
}

pub(super) async fn release(editor: &dyn Editor, terminal: Box<dyn Terminal>) {
    // Dropping the terminal would release it too; this way the editor confirms before the call returns.
    if timeout(editor.patience(), terminal.release()).await.is_err() {
        tracing::warn!("the editor did not confirm that a terminal was released");
    }
}

pub(super) async fn follow(
    call: &CallContext,
    terminal: &dyn Terminal,
    limit: Duration,
    network: Option<&CommandNetwork>,
    patience: Duration,
) -> TerminalEnd {
    let ended = async {
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => TerminalEnd::Cancelled,
            exit = terminal.wait() => exit.map_or_else(TerminalEnd::Lost, TerminalEnd::Exited),
        }
    };
    let end = match network {
        // A question about a host does not use up the time of the command.
        Some(network) => network.limit(limit, ended).await,
        None => timeout(limit, ended).await.ok(),
    };
    let end = end.unwrap_or(TerminalEnd::TimedOut);
    if matches!(end, TerminalEnd::Exited(_)) {
        return end;
    }
    match timeout(patience, terminal.kill()).await {
        Ok(Ok(())) => drop(timeout(LINGER, terminal.wait()).await),
        Ok(Err(reason)) => tracing::warn!(%reason, "the editor did not end a command; releasing its terminal does"),
        Err(_) => tracing::warn!("the editor did not confirm the end of a command; releasing its terminal ends it"),
    }
    end
}

async fn report(
    call: &CallContext,
    terminal: &dyn Terminal,
    end: &TerminalEnd,
    limit: Duration,
    started: Instant,
    patience: Duration,
) -> (CommandReport, Capture) {
    let mut output = Capture::with_log(Log::new(&call.session.scratch, Keeps::LongOutput));
    match timeout(patience, terminal.output()).await {
        Ok(Ok(kept)) => {
            if kept.truncated {
                output.push(format!("[the beginning is lost: {} are kept]\n", size(OUTPUT_LIMIT)).as_bytes());
            }
            output.push(kept.text.as_bytes());
        }
        Ok(Err(reason)) => output.push(format!("[the output could not be read: {reason}]\n").as_bytes()),
        Err(_) => output.push(b"[the output could not be read: the editor gave no answer]\n"),
    }
    let (verdict, exit_code) = verdict(end, limit, started);
    // A terminal has one stream for both.
    let streams = [output.render().text, String::new()];
    let timed_out = matches!(end, TerminalEnd::TimedOut);
    (CommandReport { verdict, exit_code, timed_out, streams, remarks: SandboxRemarks::default() }, output)
}

/// Describes the end of a command, and returns its exit code.
pub(super) fn verdict(end: &TerminalEnd, limit: Duration, started: Instant) -> (String, Option<i32>) {
    let seconds = started.elapsed().as_secs_f32();
    match end {
        TerminalEnd::Exited(exit) => (format!("{} in {seconds:.1} s", exit_text(exit)), code(exit)),
        TerminalEnd::TimedOut => (timeout_text(limit, "", "`background: true`"), None),
        TerminalEnd::Cancelled => ("cancelled, and ended".to_owned(), None),
        TerminalEnd::Lost(error) => (format!("how it ended is not known: {error}"), None),
    }
}

pub(super) fn exit_text(exit: &TerminalExit) -> String {
    match (exit.code, &exit.signal) {
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (Some(code), None) => format!("exit {code}"),
        (None, None) => "ended, the editor does not say how,".to_owned(),
    }
}

/// Returns the exit code, as shells count: 128 plus the signal's number. `None` if the signal has no number.
pub(super) fn code(exit: &TerminalExit) -> Option<i32> {
    let signal = exit.signal.as_ref().and_then(|signal| signal.parse::<i32>().ok());
    exit.code.and_then(|code| i32::try_from(code).ok()).or(signal.map(|signal| 128 + signal))
}

#[cfg(test)]
#[path = "terminal_tests.rs"]
mod tests;
