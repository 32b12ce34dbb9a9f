//! The editor a session is shown in, as far as it lends its files and terminals to tools.
//!
//! Invariant: a port only. Who decides which files a call may touch is the tool; the editor is a way to reach them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;

/// What the editor can do for a tool. An error means that the tool has to help itself.
pub trait Editor: Send + Sync {
    fn abilities(&self) -> EditorCapabilities;

    /// How long a tool waits for an answer before it helps itself; the end of a command takes as long as it takes.
    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// The text of a file as the user sees it, unsaved changes included.
    fn read(&self, path: &Path) -> BoxFuture<'_, Result<String, EditorError>>;

    /// Puts `text` in the place of the file, which is made if it is missing.
    fn write(&self, path: &Path, text: String) -> BoxFuture<'_, Result<(), EditorError>>;

    /// Starts a command in a terminal that the user sees. Whoever drops the future before it is done gets no
    /// terminal: one that comes after that is released by the implementation.
    fn run(&self, command: TerminalCommand) -> BoxFuture<'_, Result<Box<dyn Terminal>, EditorError>>;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EditorCapabilities {
    pub read: bool,
    pub write: bool,
    pub terminal: bool,
}

/// A program for the editor to start.
#[derive(Debug, Clone, PartialEq)]
pub struct TerminalCommand {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// Output beyond this many bytes loses its beginning.
    pub output_limit: u64,
}

/// A command in the editor's terminal. Dropping it releases the terminal, which ends what still runs in it.
pub trait Terminal: Send + Sync {
    fn id(&self) -> &str;

    fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>>;

    fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>>;

    /// Ends the command; its output can still be read.
    fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>>;

    /// Gives the terminal back, and returns when the editor has heard so. It hears so also if the future is
    /// dropped before it is done.
    fn release(self: Box<Self>) -> BoxFuture<'static, ()>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct TerminalOutput {
    pub text: String,
    /// Its beginning is missing.
    pub truncated: bool,
    /// Present once the command has ended.
    pub exit: Option<TerminalExit>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalExit {
    pub code: Option<u32>,
    pub signal: Option<String>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EditorError {
    #[error("the editor has no such file")]
    NotFound,
    #[error("the editor could not do it: {0}")]
    Failed(String),
}
