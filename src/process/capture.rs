//! Follows a command to its end and keeps the last part of its output.

use std::future::Future;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Pipes, ProcessGroup};

/// Output bytes kept beyond the limit before the buffer is trimmed.
const SLACK: usize = 256 << 10;
/// Time to read the rest of the output. Another process may hold the pipes open.
const LINGER: Duration = Duration::from_millis(200);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandExit {
    pub code: Option<u32>,
    pub signal: Option<i32>,
}

/// A command that runs or has ended. Dropping it ends the command.
#[derive(Debug)]
pub struct CapturedCommand {
    output: Arc<Mutex<OutputTail>>,
    exit: watch::Receiver<Option<CommandExit>>,
    /// Cancelled by [`Self::kill`]; the future that follows the command watches it.
    kill: CancellationToken,
}

impl CapturedCommand {
    /// Returns the command, and the future that follows it, which the caller must run. Cancelling `ending` ends the
    /// command, too. Output beyond `limit` bytes loses its beginning.
    pub fn new(
        mut group: ProcessGroup,
        pipes: Pipes,
        limit: u64,
        ending: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let output = Arc::new(Mutex::new(OutputTail { limit, ..OutputTail::default() }));
        let (ended, exit) = watch::channel(None);
        let kill = CancellationToken::new();
        let (tail, killed) = (Arc::clone(&output), kill.clone());
        let follow = async move {
            let reading = async { tokio::join!(pump(pipes.stdout, &tail), pump(pipes.stderr, &tail)) };
            tokio::pin!(reading);
            let mut read = false;
            let status = loop {
                tokio::select! {
                    biased;
                    () = killed.cancelled() => break None,
                    () = ending.cancelled() => break None,
                    _ = &mut reading, if !read => read = true,
                    status = group.status() => break status.ok(),
                }
            };
            group.kill();
            let status = match status {
                Some(status) => Some(status),
                None => group.status().await.ok(),
            };
            if !read {
                drop(tokio::time::timeout(LINGER, &mut reading).await);
            }
            let code = status.and_then(|status| status.code()).and_then(|code| u32::try_from(code).ok());
            let signal = status.and_then(|status| status.signal());
            _ = ended.send(Some(CommandExit { code, signal }));
        };
        (Self { output, exit, kill }, follow)
    }

    /// Returns the output so far, and whether its beginning is lost.
    pub fn output(&self) -> (String, bool) {
        lock(&self.output).snapshot()
    }

    /// Returns how the command ended. `None` while it runs.
    pub fn exit(&self) -> Option<CommandExit> {
        *self.exit.borrow()
    }

    /// Waits for the end of the command. `None` if nothing follows it.
    pub async fn wait(&self) -> Option<CommandExit> {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.ok()?;
        *ended
    }

    /// Ends the command; its output can still be read.
    pub fn kill(&self) {
        self.kill.cancel();
    }
}

impl Drop for CapturedCommand {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// The last part of a command's output.
#[derive(Debug, Default)]
struct OutputTail {
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl OutputTail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Trims only beyond the slack, because trimming moves the remaining bytes.
        if self.bytes.len() > self.limit.saturating_add(SLACK) {
            let cut = self.cut();
            self.truncated = true;
            self.bytes.drain(..cut);
        }
    }

    /// Returns where the kept output starts, which is never inside a UTF-8 character.
    fn cut(&self) -> usize {
        let mut cut = self.bytes.len().saturating_sub(self.limit);
        while cut > 0 && self.bytes.get(cut).is_some_and(|byte| byte & 0xC0 == 0x80) {
            cut += 1;
        }
        cut
    }

    fn snapshot(&self) -> (String, bool) {
        let cut = self.cut();
        (String::from_utf8_lossy(&self.bytes[cut..]).into_owned(), self.truncated || cut > 0)
    }
}

async fn pump(mut pipe: impl AsyncRead + Unpin, tail: &Mutex<OutputTail>) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        lock(tail).push(&buffer[..count]);
    }
}

fn lock(tail: &Mutex<OutputTail>) -> MutexGuard<'_, OutputTail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}
