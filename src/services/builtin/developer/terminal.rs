//! Runs `shell` commands in a terminal of the editor, where the user sees them.
//!
//! Invariant: every terminal that was created is released, however the call ends. If the editor did not confirm
//! whether it started a command, Skein does not start the command again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::CallToolResult;
use tokio::time::{Instant, sleep, timeout};

use crate::tool::editor::{EditorError, Terminal, TerminalCommand, TerminalExit};
use crate::tool::{Activity, CallContext};

use super::ask::{NoAnswer, ask};
use super::command_report::{CommandReport, SILENCED, timeout_text};
use super::output::{Capture, Keeps, Log};
use crate::services::builtin::answer::{ToolRefusal, size};

/// Bytes of output that the editor is asked to keep, from the end.
const OUTPUT_LIMIT: u64 = 1 << 20;
/// Time to wait for a killed command, so that its last output is read.
const LINGER: Duration = Duration::from_millis(300);

/// How a command ended.
#[derive(Debug)]
enum TerminalEnd {
    Exited(TerminalExit),
    TimedOut,
    Cancelled,
    Lost(EditorError),
}

/// Runs a command in the editor's terminal. `None` if the editor offers no terminal, could not start the command, or
/// failed to confirm an earlier start, which `silent` records.
pub(super) async fn run(
    call: &CallContext,
    silent: &AtomicBool,
    command: &str,
    limit: Duration,
) -> Result<Option<CallToolResult>, ToolRefusal> {
    let editor = call.session.editor.as_deref().filter(|editor| editor.abilities().terminal);
    let Some(editor) = editor.filter(|_| !silent.load(Ordering::Relaxed)) else { return Ok(None) };
    let command = TerminalCommand {
        program: "bash".to_owned(),
        args: vec!["-c".to_owned(), command.to_owned()],
        env: SILENCED.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        cwd: call.session.cwd.clone(),
        output_limit: OUTPUT_LIMIT,
    };
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
        Err(reason @ NoAnswer::Silent(_)) => {
            silent.store(true, Ordering::Relaxed);
            return Err(ToolRefusal::new(format!(
                "{reason} to the command, which may have run in its terminal: check before you repeat it. Later commands \
                 of this session run without the editor"
            )));
        }
    };
    call.report(Activity::Terminal { id: terminal.id().to_owned() });
    let end = follow(call, terminal.as_ref(), limit, editor.patience()).await;
    let result = report(call, terminal.as_ref(), &end, limit, started, editor.patience()).await;
    // Dropping the terminal would release it too; this way the editor confirms before the call returns.
    if timeout(editor.patience(), terminal.release()).await.is_err() {
        tracing::warn!("the editor did not confirm that a terminal was released");
    }
    Ok(Some(result))
}

async fn follow(call: &CallContext, terminal: &dyn Terminal, limit: Duration, patience: Duration) -> TerminalEnd {
    let end = tokio::select! {
        biased;
        () = call.cancel.cancelled() => TerminalEnd::Cancelled,
        exit = terminal.wait() => match exit {
            Ok(exit) => return TerminalEnd::Exited(exit),
            Err(error) => TerminalEnd::Lost(error),
        },
        () = sleep(limit) => TerminalEnd::TimedOut,
    };
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
) -> CallToolResult {
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
    let seconds = started.elapsed().as_secs_f32();
    let (verdict, exit_code) = match end {
        TerminalEnd::Exited(exit) => (format!("{} in {seconds:.1} s", exit_text(exit)), code(exit)),
        TerminalEnd::TimedOut => (timeout_text(limit, ""), None),
        TerminalEnd::Cancelled => ("cancelled, and ended".to_owned(), None),
        TerminalEnd::Lost(error) => (format!("how it ended is not known: {error}"), None),
    };
    // A terminal has one stream for both.
    let streams = [output.render().text, String::new()];
    let timed_out = matches!(end, TerminalEnd::TimedOut);
    CommandReport { verdict, exit_code, timed_out, streams, refusals: Vec::new() }.report(&output)
}

fn exit_text(exit: &TerminalExit) -> String {
    match (exit.code, &exit.signal) {
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (Some(code), None) => format!("exit {code}"),
        (None, None) => "ended, the editor does not say how,".to_owned(),
    }
}

/// Returns the exit code, as shells count: 128 plus the signal's number. `None` if the signal has no number.
fn code(exit: &TerminalExit) -> Option<i32> {
    let signal = exit.signal.as_ref().and_then(|signal| signal.parse::<i32>().ok());
    exit.code.and_then(|code| i32::try_from(code).ok()).or(signal.map(|signal| 128 + signal))
}

#[cfg(test)]
#[path = "terminal_tests.rs"]
mod tests;
