//! Serves editors over the Agent Client Protocol, version 1: on stdio, or over a transport of the caller. Each family of
//! methods has its own file.
//!
//! Invariant: the dispatch loop never waits. A handler decodes a request and spawns a task that answers it.

mod ask;
mod calls;
mod commands;
mod connection;
mod content;
mod dispatch;
mod editor;
mod elicit;
mod errors;
mod forwards;
mod tool_output;
mod initialize;
mod limited_client;
mod limits;
mod lines;
mod message_routes;
mod options;
mod output_item;
mod external;
mod shared_session;
mod prompt;
mod relay;
mod remote;
#[cfg(any(test, fuzzing))]
mod request_params;
mod request_limit;
mod restore;
mod sessions;
mod stdio;
mod stop_reason;
mod updates;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

use crate::lesson::CheckVariables;
use crate::manifest::ApprovalLevel;
use crate::orchestrator::Orchestrator;
use crate::principal::SessionGrant;
use crate::project::{Project, ProjectLoader};
use crate::session::Sessions;
use crate::task::TaskScope;
use connection::ClientConnection;
#[cfg(any(test, fuzzing))]
pub use lines::read_lines;
use remote::StallLimits;
#[cfg(any(test, fuzzing))]
pub use request_params::read_request;
pub use shared_session::{RunningTurn, SessionObserver, SharedPorts, SharedSession, SharedSessions, next_viewer_id};
use wire::{ClientWriter, QueueReader};

pub use forwards::{ClientRoute, ForwardLink, SessionForwards};
pub use limits::{UsageError, check_usage};
pub use message_routes::{IncomingMessage, MessageStream, OutgoingMessage, Response, StreamRoutes};
pub use relay::{
    EditorRelay, RelayOutput, TerminalCall, TerminalCallRequest, TerminalCallRequestError, TerminalCreation,
    TerminalReply,
};
pub use remote::{ClientInput, ClientOutput, OutputMeter, connect};

/// When the connection of an editor on stdio ends. It may pause for longer than a remote client, such as in a debugger. A
/// session that it loads may be of any size.
const EDITOR_STALL: StallLimits = StallLimits { time: Duration::from_secs(30), unsent: usize::MAX };
/// How long a client that has closed its side may take to read the remaining output.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Why the session store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SessionsError(pub Box<dyn std::error::Error + Send + Sync>);

/// The ACP front end: the session store, projects and orchestrator it serves.
pub struct AcpServer {
    /// Opens the session store. Returns an error if the store cannot be used.
    pub sessions: Box<dyn Fn() -> BoxFuture<'static, Result<Sessions, SessionsError>> + Send + Sync>,
    /// The owner of all sessions of this client, and their limits.
    pub grant: SessionGrant,
    pub projects: Arc<dyn ProjectLoader>,
    pub orchestrator: Orchestrator,
    pub version: &'static str,
    /// Notices for the user, sent with the first session.
    pub notices: Mutex<Vec<String>>,
    /// The program file of Skein, for a client that runs its set-up.
    pub program: PathBuf,
    /// The folder in which the program was started.
    pub cwd: PathBuf,
    pub approval: Option<ApprovalLevel>,
    /// The environment of the checks that `/tutorial` runs.
    pub checks: CheckVariables,
    /// The open sessions, which the connections of a process share.
    pub open_sessions: Arc<SharedSessions>,
    /// Offers the unstable `session/fork` method.
    pub fork: bool,
    /// Cancelled when the server shuts down: no new turn starts.
    pub draining: CancellationToken,
}

impl std::fmt::Debug for AcpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcpServer").field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// Returns the lines of an editor on stdin. A line that is too long or not UTF-8 is replaced by a text that is no message.
pub fn editor_lines() -> impl futures::Stream<Item = std::io::Result<String>> + Send {
    lines::lines(stdio::input())
}

/// Serves the client on stdio until it closes its side or `stop` is cancelled. When this returns, no turn is running and
/// all output is written, unless the client did not read it within three seconds. Fails if the client leaves too many
/// bytes unread.
pub async fn serve(front: AcpServer, stop: CancellationToken) -> std::io::Result<()> {
    let (direct, output) = stdio::output();
    serve_lines(front, stop, editor_lines(), ClientWriter::with_reader(direct), output).await
}

/// Serves a client that sends these lines and reads this output.
async fn serve_lines(
    front: AcpServer,
    stop: CancellationToken,
    lines: impl futures::Stream<Item = std::io::Result<String>> + Send + 'static,
    (wire, queue): (ClientWriter, QueueReader),
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> std::io::Result<()> {
    let meter = OutputMeter::of(&queue);
    let writer = TaskScope::new();
    writer.spawn(wire::write_queue(queue, output));
    let transport = request_limit::transport(&wire, lines.take_until(stop.cancelled_owned()));
    let connection = ClientConnection::new(front, wire);
    let served = tokio::select! {
        served = dispatch::speak(&connection, transport) => {
            served.map_err(|error| std::io::Error::other(error.to_string()))
        }
        () = meter.stall_over(&EDITOR_STALL, |_| 0) => {
            meter.close();
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "the editor leaves too many bytes unread"))
        }
    };
    connection.end().await;
    // The last handle to the store waits until everything is written.
    drop(tokio::task::spawn_blocking(move || drop(connection)).await);
    // The queue is closed, so the writer ends by itself. A client that disconnected without reading its output must not
    // block the shutdown.
    drop(tokio::time::timeout(FLUSH_TIMEOUT, writer.stop()).await);
    served
}
