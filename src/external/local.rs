//! Provides files and terminals of this machine to external agents, where no editor lends its own.
//!
//! Invariant: makes no permission decision; callers have asked the binding before.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::agent_sandbox::TerminalSandbox;
use super::lock;
use crate::process::{Launch, Pipes, ProcessGroup, ProcessScope, Reaper, Stdin};
use crate::root_files::RootedPath;
use crate::task::TaskScope;
use crate::tool::editor::{EditorError, Terminal, TerminalCommand, TerminalExit, TerminalOutput};

/// Maximum bytes of a file that is read.
const MAX_TEXT: u64 = 16 << 20;
/// Output bytes kept beyond the limit before the buffer is trimmed.
const SLACK: usize = 256 << 10;

#[derive(Clone)]
pub(super) struct LocalEditor {
    pub(super) reaper: Option<Reaper>,
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) tasks: TaskScope,
    /// Ends the processes that commands leave behind outside their process groups.
    pub(super) processes: ProcessScope,
    /// The sandbox of commands, which is that of the agent. `None` if the agent has none.
    pub(super) sandbox: Option<TerminalSandbox>,
}

impl LocalEditor {
    /// Prefix of its terminal ids.
    pub(super) const PREFIX: &str = "skein-terminal-";

    /// Reads a text file below one of `roots`. All paths must be resolved, because no link is followed. Fails if the
    /// file is longer than [`MAX_TEXT`].
    pub(super) async fn read_below(&self, roots: Vec<PathBuf>, path: PathBuf) -> Result<String, EditorError> {
        let reading = move || {
            let mut text = String::new();
            let file = RootedPath::open(&roots, &path)?.read()?;
            let length = file.take(MAX_TEXT + 1).read_to_string(&mut text)?;
            if length as u64 > MAX_TEXT { Err(std::io::Error::other("it is too long")) } else { Ok(text) }
        };
        in_background(reading).await
    }

    /// Writes a text file below one of `roots`, whose folder must exist. Fails if the path leads over a link, or to a
    /// file that is read-only or not regular.
    pub(super) async fn write_below(
        &self,
        roots: Vec<PathBuf>,
        path: PathBuf,
        text: String,
    ) -> Result<(), EditorError> {
        let writing = move || {
            let file = RootedPath::open(&roots, &path)?;
            // `read` rejects pipes and devices, because writing to them could block forever.
            match file.read() {
                Ok(old) => {
                    let permissions = old.metadata()?.permissions();
                    if permissions.readonly() {
                        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "the file is read-only"));
                    }
                    file.replace(text.as_bytes(), &permissions)
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => file.create(text.as_bytes()),
                Err(error) => Err(error),
            }
        };
        in_background(writing).await
    }

    pub(super) async fn run(&self, command: TerminalCommand) -> Result<Box<dyn Terminal>, EditorError> {
        let mut env = self.environment.clone();
        env.extend(command.env.into_iter().map(|(name, value)| (name.into(), value.into())));
        let launch = Launch {
            program: command.program.into(),
            args: command.args.into_iter().map(Into::into).collect(),
            env,
            cwd: Some(command.cwd),
            stdin: Stdin::Closed,
            launcher: None,
        };
        let (group, pipes) = match &self.sandbox {
            Some(sandbox) => sandbox.spawn(launch).await?,
            None => ProcessGroup::spawn_in(&self.processes, &launch, self.reaper.as_ref())
                .map_err(|error| editor_error(&error))?,
        };
        Ok(Box::new(LocalTerminal::watch(group, pipes, command.output_limit, &self.tasks)))
    }
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, EditorError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| EditorError::Failed(error.to_string()))?.map_err(|error| editor_error(&error))
}

fn editor_error(error: &std::io::Error) -> EditorError {
    match error.kind() {
        std::io::ErrorKind::NotFound => EditorError::NotFound,
        _ => EditorError::Failed(error.to_string()),
    }
}

/// A command that runs or has ended.
struct LocalTerminal {
    id: String,
    output: Arc<Mutex<OutputTail>>,
    exit: watch::Receiver<Option<TerminalExit>>,
    kill: CancellationToken,
}

/// The last part of a command's output.
#[derive(Default)]
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

impl LocalTerminal {
    fn watch(mut group: ProcessGroup, pipes: Pipes, limit: u64, tasks: &TaskScope) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let output = Arc::new(Mutex::new(OutputTail { limit, ..OutputTail::default() }));
        let (ended, exit) = watch::channel(None);
        let kill = CancellationToken::new();
        let id = format!("{}{}", LocalEditor::PREFIX, group.id());
        let (tail, killed, ending) = (Arc::clone(&output), kill.clone(), tasks.cancelled().clone());
        tasks.spawn(async move {
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
                // Reads the rest of the output. The timeout is for pipes that another process holds open.
                drop(tokio::time::timeout(std::time::Duration::from_millis(200), &mut reading).await);
            }
            use std::os::unix::process::ExitStatusExt as _;
            let code = status.and_then(|status| status.code()).and_then(|code| u32::try_from(code).ok());
            let signal = status.and_then(|status| status.signal()).map(|signal| format!("signal {signal}"));
            drop(ended.send(Some(TerminalExit { code, signal })));
        });
        Self { id, output, exit, kill }
    }
}

async fn pump(mut pipe: impl AsyncRead + Unpin, tail: &Mutex<OutputTail>) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        lock(tail).push(&buffer[..count]);
    }
}

impl Terminal for LocalTerminal {
    fn id(&self) -> &str {
        &self.id
    }

    fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>> {
        let (text, truncated) = lock(&self.output).snapshot();
        let exit = self.exit.borrow().clone();
        Box::pin(async move { Ok(TerminalOutput { text, truncated, exit }) })
    }

    fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
            ended.ok_or_else(|| EditorError::Failed("how it ended is not known".to_owned()))
        })
    }

    fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>> {
        self.kill.cancel();
        Box::pin(async { Ok(()) })
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        drop(self);
        Box::pin(std::future::ready(()))
    }
}

impl Drop for LocalTerminal {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}
