//! Lets git inside a sandbox use the user's credentials, one permission request per use.
//!
//! Two Unix sockets lead from the sandbox to Skein: one for the credential helper, one that speaks the protocol of an
//! ssh-agent. Skein asks, and then uses the user's own helper or agent.
//!
//! Invariant: no key leaves the agent, and no credential is sent without consent to this use.

mod agent;
mod context;
mod credential;
mod clients;
mod variables;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Semaphore};
use tracing::debug;

use crate::sandbox::ConsentRefusal;
use crate::sandbox::accept::serve_clients;
use crate::task::TaskScope;
pub use agent::SignPurpose;
pub use clients::{GIT_CREDENTIAL_ARGUMENT, PROXY_CONNECT_ARGUMENT, run_inside};
pub use context::{GitContext, GitDirection};
pub use credential::CredentialTarget;
use credential::UserHelper;
pub use variables::{GitSockets, git_variables};

/// Maximum number of clients at a time, of each socket.
const MAX_CLIENTS: usize = 32;

/// Asks the user, provided by the broker.
pub trait GitGate: Send + Sync {
    /// Fails if the user declines.
    fn ask(&self, request: GitRequest) -> BoxFuture<'_, Result<(), ConsentRefusal>>;
}

/// One use of the user's credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRequest {
    pub credential: GitCredential,
    /// What is known of the use from the running command line.
    pub context: GitContext,
    /// The command line of the last command that started.
    pub command: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitCredential {
    /// A user name and password for a server.
    Password(CredentialTarget),
    /// A signature with a key of the ssh-agent.
    Signature {
        purpose: SignPurpose,
        /// The comment of the key, or its type.
        key: String,
    },
}

/// `push main to origin: password for https://example.com/x.git`
impl std::fmt::Display for GitRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let context = self.context.to_string();
        if !context.is_empty() {
            write!(f, "{context}: ")?;
        }
        match &self.credential {
            GitCredential::Password(target) => write!(f, "password for {target}"),
            GitCredential::Signature { purpose, key } => {
                write!(f, "{purpose} with the ssh key `{}`", key.escape_debug())
            }
        }
    }
}

/// The listeners of [`GitSockets`], from inside a sandbox.
#[derive(Debug)]
pub struct GitListeners {
    pub credentials: std::os::unix::net::UnixListener,
    pub agent: std::os::unix::net::UnixListener,
}

impl GitListeners {
    /// Takes two descriptors. `None` if there are fewer.
    pub(super) fn take(descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let credentials = descriptors.next()?.into();
        let agent = descriptors.next()?.into();
        Some(Self { credentials, agent })
    }
}

/// The parts of a [`GitServer`].
pub struct GitServerParts {
    pub gate: Arc<dyn GitGate>,
    /// The socket of the user's ssh-agent. Without one, the list of keys is empty.
    pub agent: Option<PathBuf>,
    /// The environment of the user's credential helper.
    pub helper_environment: std::collections::BTreeMap<std::ffi::OsString, std::ffi::OsString>,
}

impl std::fmt::Debug for GitServerParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GitServerParts").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// Serves the sockets of one sandbox.
#[derive(Clone)]
pub struct GitServer {
    inner: Arc<GitServerInner>,
    tasks: TaskScope,
}

struct GitServerInner {
    gate: Arc<dyn GitGate>,
    agent: Option<PathBuf>,
    helper: UserHelper,
    /// The line of the command that runs, for the questions.
    command: std::sync::Mutex<String>,
    /// Held while a question is open, so that the user sees one at a time.
    turn: Mutex<()>,
}

impl std::fmt::Debug for GitServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GitServer").field("agent", &self.inner.agent).finish_non_exhaustive()
    }
}

impl GitServer {
    pub fn new(parts: GitServerParts) -> Self {
        let inner = GitServerInner {
            gate: parts.gate,
            agent: parts.agent,
            helper: UserHelper::new(parts.helper_environment),
            command: std::sync::Mutex::default(),
            turn: Mutex::default(),
        };
        Self { inner: Arc::new(inner), tasks: TaskScope::new() }
    }

    /// Sets the command line that questions refer to.
    pub fn set_command(&self, line: &str) {
        line.clone_into(&mut self.inner.command.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Serves both sockets of a sandbox. Needs the context of a runtime. Fails if a listener cannot be used.
    pub fn serve(&self, listeners: GitListeners) -> io::Result<()> {
        let GitListeners { credentials, agent } = listeners;
        for listener in [&credentials, &agent] {
            listener.set_nonblocking(true)?;
        }
        self.serve_credentials(UnixListener::from_std(credentials)?);
        self.serve_agent(UnixListener::from_std(agent)?);
        Ok(())
    }

    /// Serves the credential helper inside the sandbox.
    fn serve_credentials(&self, listener: UnixListener) {
        self.accept(listener, |inner, stream| async move { credential::serve(&inner, stream).await });
    }

    /// Serves the protocol of an ssh-agent.
    fn serve_agent(&self, listener: UnixListener) {
        self.accept(listener, |inner, stream| async move { agent::serve(&inner, stream).await });
    }

    /// Ends all connections and questions without waiting.
    pub fn cancel(&self) {
        self.tasks.cancel();
    }

    /// Ends all connections and questions.
    pub async fn stop(&self) {
        self.tasks.stop().await;
    }

    fn accept<F, Fut>(&self, listener: UnixListener, serve: F)
    where
        F: Fn(Arc<GitServerInner>, UnixStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<()>> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let limit = Arc::new(Semaphore::new(MAX_CLIENTS));
        serve_clients(&self.tasks, listener, limit, move |stream| {
            let client = serve(Arc::clone(&inner), stream);
            async move {
                if let Err(error) = client.await {
                    debug!(%error, "client of git credentials ended");
                }
            }
        });
    }
}

impl GitServerInner {
    /// Asks about one use. Fails with the reason if the user declines.
    async fn ask(&self, credential: GitCredential) -> Result<(), ConsentRefusal> {
        let _turn = self.turn.lock().await;
        let line = self.command.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let context = GitContext::of_command(&line);
        self.gate.ask(GitRequest { credential, context, command: line }).await
    }
}

#[cfg(test)]
#[path = "git/git_tests.rs"]
mod tests;
