//! Reads, writes and supervises the process of an external agent.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::ids::AgentName;
use crate::process::{OutputLimit, OutputVerdict, ProcessGroup};
use crate::services::{LineError, LineReader, SecretValues};
use crate::tool::{strip_to_line, truncate};

/// Maximum bytes of a line; a longer one ends the connection.
const MAX_LINE: u64 = 64 << 20;
/// Invalid lines in a row after which the agent counts as not speaking ACP.
const MAX_GARBAGE: usize = 100;
/// Bytes of a stderr line after which the line is read in pieces.
const MAX_PIECE: usize = 64 << 10;
/// Bytes of a stderr line that are logged.
const MAX_LOGGED: usize = 4 << 10;
/// How long the process may take to end after its input is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

/// A line to write, and the permit that it holds until it is written.
pub(super) type OutgoingLine = (String, Option<OwnedSemaphorePermit>);

/// The result of handling a line of the process's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineVerdict {
    Message,
    /// The line is not a message.
    Garbage,
    /// No further line is needed.
    Stop,
}

/// Reads stdout on a separate thread, which costs far less than the async runtime for a stream of small chunks. Calls
/// `handle` for each line. The receiver gets the reason when reading ends; `None` at the end of the output.
pub(super) fn reading(
    agent: AgentName,
    stdout: ChildStdout,
    handle: impl FnMut(&[u8]) -> LineVerdict + Send + 'static,
) -> std::io::Result<oneshot::Receiver<Option<String>>> {
    let (tell, told) = oneshot::channel();
    let pipe = stdout.into_owned_fd()?;
    let flags = rustix::fs::fcntl_getfl(&pipe)?;
    rustix::fs::fcntl_setfl(&pipe, flags - rustix::fs::OFlags::NONBLOCK)?;
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new().name("agent-reader".to_owned()).spawn(move || {
        // Handling a line spawns tasks, which needs the runtime.
        let _runtime = runtime.enter();
        // The receiver may already be dropped.
        drop(tell.send(read(&agent, BufReader::with_capacity(64 << 10, File::from(pipe)), handle)));
    })?;
    Ok(told)
}

fn read(agent: &AgentName, mut reader: impl BufRead, mut handle: impl FnMut(&[u8]) -> LineVerdict) -> Option<String> {
    let (mut line, mut garbage) = (Vec::new(), 0);
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(error.to_string()),
        }
        if line.len() as u64 == MAX_LINE {
            return Some(format!("it sent a line of more than {} MiB", MAX_LINE >> 20));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match handle(&line) {
            LineVerdict::Message => garbage = 0,
            LineVerdict::Stop => return None,
            LineVerdict::Garbage => {
                garbage += 1;
                tracing::debug!(%agent, "a line that is no message");
                if garbage > MAX_GARBAGE {
                    return Some("it does not speak ACP: its output is not JSON-RPC".to_owned());
                }
            }
        }
    }
}

pub(super) async fn write(
    stdin: Option<ChildStdin>,
    mut lines: mpsc::UnboundedReceiver<OutgoingLine>,
    stop: CancellationToken,
) {
    let Some(mut stdin) = stdin else { return };
    loop {
        let line = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            line = lines.recv() => line,
        };
        let Some((mut line, _room)) = line else { return };
        line.push('\n');
        let written = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            written = stdin.write_all(line.as_bytes()) => written,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Waits until the process ends, or stops it on cancellation. Returns the reason, with the last line of stderr.
pub(super) async fn supervise(
    mut group: ProcessGroup,
    mut reading: oneshot::Receiver<Option<String>>,
    stop: &CancellationToken,
    ending: &CancellationToken,
    mut last_words: watch::Receiver<String>,
) -> String {
    let (why, read) = tokio::select! {
        biased;
        () = stop.cancelled() => ("it was stopped".to_owned(), None),
        () = ending.cancelled() => ("skein ends".to_owned(), None),
        reason = &mut reading => (reason.ok().flatten().unwrap_or_default(), Some(())),
        status = group.wait() => (status, None),
    };
    // This closes stdin, so the process can end by itself while its last output is read. The rest of its group is
    // stopped after that.
    stop.cancel();
    let status = tokio::time::timeout(GRACE, group.wait()).await.ok();
    if read.is_none() && !ending.is_cancelled() {
        drop(tokio::time::timeout(GRACE / 4, &mut reading).await);
    }
    group.stop(GRACE).await;
    let why = if why.is_empty() { status.unwrap_or_else(|| "it closed its output".to_owned()) } else { why };
    // The stderr task drops its sender at the end of the stream.
    drop(tokio::time::timeout(GRACE, async { while last_words.changed().await.is_ok() {} }).await);
    let last = last_words.borrow().clone();
    if last.is_empty() { why } else { format!("{why}; its last words: {last}") }
}

/// Logs stderr without the secrets of the process, and publishes the last line.
pub(super) async fn log(agent: AgentName, stderr: ChildStderr, secrets: SecretValues, last: watch::Sender<String>) {
    let mut lines = LineReader::new(tokio::io::BufReader::new(stderr), MAX_PIECE);
    let mut limit = OutputLimit::default();
    loop {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            // Logs an endless line in pieces: closing stderr could kill the process.
            Err(LineError::TooLong { .. }) => lines.take_piece(&secrets),
            Err(LineError::Io(_)) => lines.take_partial(),
        };
        // Truncates after hiding the secrets, because a truncated secret would not be recognized.
        let line = secrets.hide(String::from_utf8_lossy(&line).trim());
        let line = truncate(&line, MAX_LOGGED);
        if !line.is_empty() {
            if let Some(dropped) = limit.take_dropped() {
                tracing::warn!(%agent, "agent stderr: {dropped}");
            }
            if limit.admit(line.len()) == OutputVerdict::Keep {
                tracing::info!(%agent, stderr = %line, "agent says");
            }
            last.send_replace(truncate(&strip_to_line(line), 300).to_owned());
        }
    }
    if let Some(dropped) = limit.finish() {
        tracing::warn!(%agent, "agent stderr: {dropped}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    use super::*;
    use crate::process::{Launch, Stdin};
    use crate::services::Environment;

    /// Runs a shell script with the key in its environment. Returns its last words, without the key.
    async fn last_words_of(script: &str, key: &str) -> String {
        let launch = Launch {
            program: "sh".into(),
            args: ["-c", script].map(OsString::from).into(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into()), ("KEY".into(), key.into())]),
            cwd: None,
            stdin: Stdin::Closed,
            launcher: None,
        };
        let secrets = Environment::new(launch.env.clone()).secrets_in("${env:KEY}");
        let (group, pipes) = ProcessGroup::spawn(&launch, None).unwrap();
        let (last, words) = watch::channel(String::new());
        log(AgentName::new("helper"), pipes.stderr, secrets, last).await;
        drop(group);
        words.borrow().clone()
    }

    #[tokio::test]
    async fn a_key_in_two_parts_is_hidden() {
        let key = "sk-0123456789abcdef0123456789";
        let in_line = "printf 'the key %.12s' \"$KEY\" >&2; sleep 0.2; printf '%s\\n' \"${KEY#????????????}\" >&2";
        assert_eq!(last_words_of(in_line, key).await, "the key ${env:KEY}");
        // The line is read in pieces, and the key begins at the end of the first one.
        let filler = MAX_PIECE - 8;
        let in_pieces = format!(
            "printf '%{filler}s' '' >&2; printf '%.12s' \"$KEY\" >&2; sleep 0.2; printf '%s end\\n' \
             \"${{KEY#????????????}}\" >&2"
        );
        assert_eq!(last_words_of(&in_pieces, key).await, "${env:KEY} end");
    }

    /// Reads the output of an agent. Returns why reading ended, or `None` at the end of the output.
    fn end_of(output: impl std::io::Read, verdict: LineVerdict) -> Option<String> {
        read(&AgentName::new("helper"), BufReader::new(output), move |_: &[u8]| verdict)
    }

    #[test]
    fn a_line_of_an_agent_that_is_too_long_ends_its_connection() {
        let output = std::io::repeat(b'x').take(MAX_LINE + 1);
        let end = end_of(output, LineVerdict::Message);
        assert_eq!(end, Some("it sent a line of more than 64 MiB".to_owned()));
    }

    #[test]
    fn an_agent_that_sends_too_much_garbage_does_not_speak_acp() {
        let end_after = |lines: usize| end_of("x\n".repeat(lines).as_bytes(), LineVerdict::Garbage);
        assert_eq!(end_after(MAX_GARBAGE), None);
        assert_eq!(end_after(MAX_GARBAGE + 1), Some("it does not speak ACP: its output is not JSON-RPC".to_owned()));
    }
}
