//! The front door for editors: the Agent Client Protocol, version 1, over two streams of lines. One file for each
//! family of methods.
//!
//! Invariant: the dispatch loop never waits. A handler takes a request in, and a task of its own answers it.

mod ask;
mod calls;
mod commands;
mod connection;
mod content;
mod dispatch;
mod editor;
mod errors;
mod initialize;
mod options;
mod prompt;
mod sessions;
mod subagent;
mod updates;
mod wire;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::Lines;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, RuleStore};
use crate::diagnostic::Diagnostic;
use crate::manifest::Approval;
use crate::orchestrator::Orchestrator;
use crate::session::{ModelSource, Sessions};
use connection::Connection;
use wire::Wire;

/// How long a client that has closed its side may take to read what it was told.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What the door opens to.
pub struct Front {
    /// Opens the store of sessions, or says why it cannot be used.
    pub sessions: Box<dyn Fn() -> BoxFuture<'static, Result<Sessions, String>> + Send + Sync>,
    pub projects: Arc<dyn Projects>,
    pub orchestrator: Orchestrator,
    pub version: &'static str,
    /// Where the program was started.
    pub cwd: PathBuf,
    pub approval: Option<Approval>,
    /// Offers `session/fork`, which the protocol does not have for good yet.
    pub fork: bool,
}

/// What holds in a folder: its manifests, as far as they are trusted.
pub trait Projects: Send + Sync {
    fn open(&self, cwd: &Path) -> Result<Project, Broken>;
}

/// A folder whose manifests are right.
#[derive(Clone)]
pub struct Project {
    pub broker: Broker,
    pub models: Arc<dyn ModelSource>,
    /// The agent and the mode new sessions begin in, if somebody has chosen.
    pub agent: Option<String>,
    pub mode: Option<String>,
    /// The model new sessions begin with, and those that can be chosen beside it.
    pub model: String,
    pub others: Vec<String>,
    /// Where a user's rules are kept.
    pub rules: Arc<dyn RuleStore>,
    /// What the user should know about it.
    pub notes: Vec<String>,
}

/// A folder whose manifests are wrong, or whose settings are.
#[derive(Debug, Clone)]
pub struct Broken {
    pub problem: String,
    pub diagnostics: Vec<Diagnostic>,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Project").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Serves one client until it closes its side, or `stop` does. When this returns, no turn runs, and all that was
/// said is written.
pub async fn serve(
    front: Front,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let (wire, writer) = Wire::start(output)?;
    let transport = Lines::new(wire.sink(), wire::lines(input)?.take_until(stop.cancelled_owned()));
    let connection = Connection::new(front, wire);
    let served = dispatch::speak(&connection, transport).await;
    connection.end().await;
    drop(connection);
    let written = tokio::task::spawn_blocking(move || drop(writer.join()));
    // A client that has gone without reading what it was told keeps nobody here.
    drop(tokio::time::timeout(LAST_WORDS, written).await);
    served.map_err(|error| std::io::Error::other(error.to_string()))
}
