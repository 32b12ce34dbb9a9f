//! Defines the port to the editor that shows a session and may lend files and terminals to tools.
//!
//! Invariant: a port only. The tool decides which files a call may touch; the editor only gives access to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::sandbox::SandboxProfile;

/// The services of an editor for tools. On an error the tool falls back to its own implementation, unless the files of
/// the session are at the client.
pub trait Editor: Send + Sync {
    fn abilities(&self) -> EditorCapabilities;

    /// Returns how long a tool waits for an answer before it falls back. Does not limit the runtime of a command.
    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// Returns the text of a file as the user sees it, unsaved changes included.
    fn read(&self, path: &Path) -> BoxFuture<'_, Result<String, EditorError>>;

    /// Replaces the content of the file, and creates the file if it is missing.
    fn write(&self, path: &Path, text: String) -> BoxFuture<'_, Result<(), EditorError>>;

    /// Starts a command in a terminal that the user sees. If the caller drops the future, the implementation releases a
    /// terminal that arrives later.
    fn run(&self, command: TerminalCommand) -> BoxFuture<'_, Result<Box<dyn Terminal>, EditorError>>;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EditorCapabilities {
    pub read: bool,
    pub write: bool,
    pub terminal: bool,
    /// Its terminals run commands in a sandbox with the profile that they receive.
    pub sandbox: bool,
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
    /// For an editor with the capability `sandbox`, which runs the command inside.
    pub sandbox: Option<Arc<TerminalSandboxRequest>>,
}

/// The sandbox of a command on another machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TerminalSandboxRequest {
    pub profile: SandboxProfile,
    /// The command changes nothing: it sees the folders of the session, independent of the profile.
    pub read_only: bool,
}

/// A command in the editor's terminal. Dropping it releases the terminal, which ends processes that still run in it.
pub trait Terminal: Send + Sync {
    fn id(&self) -> &str;

    fn output(&self) -> BoxFuture<'_, Result<TerminalOutput, EditorError>>;

    fn wait(&self) -> BoxFuture<'_, Result<TerminalExit, EditorError>>;

    /// Ends the command; its output can still be read.
    fn kill(&self) -> BoxFuture<'_, Result<(), EditorError>>;

    /// Releases the terminal and returns when the editor has confirmed it. Dropping the future early releases it too.
    fn release(self: Box<Self>) -> BoxFuture<'static, ()>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct TerminalOutput {
    pub text: String,
    /// True if the beginning is missing.
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
