//! Provides files and terminals of this machine to external agents, where no editor lends its own.
//!
//! Invariant: makes no permission decision; callers have asked the binding before.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;

use futures::future::BoxFuture;

use super::agent_sandbox::TerminalSandbox;
use crate::process::{CapturedCommand, CommandExit, Launch, Pipes, ProcessGroup, ProcessScope, Reaper, Stdin};
use crate::root_files::RootedPath;
use crate::task::TaskScope;
use crate::tool::editor::{EditorError, Terminal, TerminalCommand, TerminalExit, TerminalOutput};

/// Maximum bytes of a file that is read.
const MAX_TEXT: u64 = 16 << 20;

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
    let done = crate::task::run_blocking(work).await;
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
    command: CapturedCommand,
}

impl LocalTerminal {
    fn watch(group: ProcessGroup, pipes: Pipes, limit: u64, tasks: &TaskScope) -> Self {
        let id = format!("{}{}", LocalEditor::PREFIX, group.id());
        let (command, follow) = CapturedCommand::new(group, pipes, limit, tasks.cancelled().clone());
        tasks.spawn(follow);
        Self { id, command }
    }
}

impl Terminal for LocalTerminal {
    fn id(&self) -> &str {
        &self.id
    }

    fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>> {
        let (text, truncated) = self.command.output();
        let exit = self.command.exit().map(terminal_exit);
        Box::pin(async move { Ok(TerminalOutput { text, truncated, exit }) })
    }

    fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>> {
        Box::pin(async move {
            let ended = self.command.wait().await.map(terminal_exit);
            ended.ok_or_else(|| EditorError::Failed("how it ended is not known".to_owned()))
        })
    }

    fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>> {
        self.command.kill();
        Box::pin(async { Ok(()) })
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        drop(self);
        Box::pin(std::future::ready(()))
    }
}

fn terminal_exit(CommandExit { code, signal }: CommandExit) -> TerminalExit {
    TerminalExit { code, signal: signal.map(|signal| format!("signal {signal}")) }
}
