//! The port to external agents: separate programs and remote agents that work on whole turns.
//!
//! Invariant: names no protocol. Passes on an agent's JSON unchanged, together with the same information in Skein's
//! types.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Event, Notifier, StatusUpdate, TurnEnd};
use crate::broker::Binding;
use crate::conversation::Content;
use crate::ids::AgentName;
use crate::llm::Provider;
use crate::manifest::{A2aRuntime, AcpRuntime};
use crate::principal::Principal;
use crate::sandbox::SandboxSpec;
use crate::tool::SessionContext;
use crate::tool::ask::Asker;

/// Runs external agents.
pub trait ExternalAgents: Send + Sync {
    /// Opens an external session. Starts the program of the agent if it is not running.
    fn enter(
        &self,
        entering: ExternalSessionRequest,
    ) -> BoxFuture<'_, Result<Arc<dyn ExternalSession>, ExternalAgentError>>;

    /// Returns the agent as a model without tools, for single questions.
    fn model(&self, who: ExternalAgent) -> Arc<dyn Provider>;
}

/// An external agent.
#[derive(Debug, Clone)]
pub enum ExternalAgent {
    Program(Box<ExternalAgentSpec>),
    Remote(RemoteAgentSpec),
}

impl ExternalAgent {
    pub fn name(&self) -> &AgentName {
        match self {
            Self::Program(spec) => &spec.name,
            Self::Remote(spec) => &spec.name,
        }
    }
}

/// A remote agent, as its manifest describes it.
#[derive(Debug, Clone)]
pub struct RemoteAgentSpec {
    pub name: AgentName,
    pub title: String,
    pub runtime: A2aRuntime,
}

/// An external agent that is a program, as its manifest describes it.
#[derive(Debug, Clone)]
pub struct ExternalAgentSpec {
    pub name: AgentName,
    /// The owner of the sessions that use the process.
    pub principal: Principal,
    pub title: String,
    pub runtime: AcpRuntime,
    /// `None` if its process runs without a sandbox.
    pub sandbox: Option<AgentSandbox>,
}

/// The sandbox of an external agent's process.
#[derive(Debug, Clone)]
pub struct AgentSandbox {
    pub spec: SandboxSpec,
    /// The session that uses the process.
    pub session: Arc<SessionContext>,
}

/// A request to open an external session for a Skein session.
#[derive(Clone)]
pub struct ExternalSessionRequest {
    pub agent: ExternalAgent,
    pub session: Arc<SessionContext>,
    pub binding: Arc<Binding>,
    pub asker: Arc<dyn Asker>,
    pub resume: ResumePolicy,
}

impl std::fmt::Debug for ExternalSessionRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalSessionRequest")
            .field("who", &self.agent)
            .field("before", &self.resume)
            .finish_non_exhaustive()
    }
}

/// Whether to resume an earlier external session, with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumePolicy {
    Never,
    /// Resumes the session with this id, or opens a new one if the agent cannot.
    IfSupported(String),
    /// Resumes the session with this id, or fails if the agent cannot.
    Required(String),
}

/// The session that an external agent keeps for a Skein session.
pub trait ExternalSession: Send + Sync {
    /// Returns the agent's id of the session.
    fn id(&self) -> String;

    /// Returns whether the agent knows the earlier messages of the session.
    fn remembers(&self) -> bool;

    /// Replaces the binding that limits the agent's requests and the asker that receives its questions.
    fn rebind(&self, binding: Arc<Binding>, asker: Arc<dyn Asker>);

    /// Runs one turn. Returns its end and does not report it to the notifier.
    fn turn<'a>(
        &'a self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, TurnEnd>;

    /// Logs what the agent sent after its last turn, and ends the calls that it left open. An agent without a connection
    /// between turns sends nothing.
    fn finish_last_turn(&self) {}

    /// Returns the agent's own options, in ACP's JSON. Every id begins with the agent's name.
    fn options(&self) -> Vec<Value>;

    /// Returns the agent's own commands, in ACP's JSON.
    fn commands(&self) -> Vec<Value>;

    /// Returns whether the agent has a command of this name.
    fn has_command(&self, name: &str) -> bool;

    /// Sets an option of the agent. Fails if the option is unknown, or if the agent refuses or does not answer.
    fn choose(&self, option: String, value: Value) -> BoxFuture<'_, Result<(), ExternalOptionError>>;

    /// Returns a counter that increases when the options or commands change.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Returns whether the program still runs.
    fn is_alive(&self) -> bool;
}

/// The JSON around a text chunk in an ACP update. Chunks with equal templates belong to one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkTemplate {
    /// The update before the text; `after` is the rest behind it.
    pub before: String,
    pub after: String,
}

impl ChunkTemplate {
    /// Returns the update with this text.
    pub fn around(&self, text: &str) -> String {
        format!("{}{}{}", self.before, Value::from(text), self.after)
    }
}

/// Reports the events of an external update to a notifier that does not forward the agent's JSON. `streamed` is true if
/// the text was already sent in chunks.
pub fn notify_native(notifier: &(impl Notifier + ?Sized), events: Vec<Event>, streamed: bool) {
    for event in events {
        if let (Event::Message { message }, false) = (&event, streamed) {
            notifier.status(StatusUpdate::Text(message.text()));
        }
        notifier.log(event);
    }
}

/// Why an option of an external agent was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExternalOptionError {
    #[error("no external agent works on the session")]
    NoAgent,
    #[error("the agent does not run; it is started with the next prompt")]
    NotRunning,
    #[error("`{agent}` has no option `{option}`")]
    Unknown { agent: AgentName, option: String },
    #[error("`{agent}` did not answer")]
    Timeout { agent: AgentName },
    #[error("`{agent}` refused it: {reason}")]
    Refused { agent: AgentName, reason: String },
}

/// The reason why an external agent cannot work on a session.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExternalAgentError {
    #[error("the agent `{agent}` could not be started: {reason}")]
    NotStarted { agent: AgentName, reason: String },
    #[error("the agent `{agent}` wants you to log in first: {how}")]
    LoginNeeded { agent: AgentName, how: String },
    #[error(
        "the agent `{agent}` cannot resume an earlier session: {reason}; start a new one, `skein sessions show` has \
         the conversation"
    )]
    Forgotten { agent: AgentName, reason: String },
    #[error("the agent `{agent}` failed too often and is left alone for {} s: {reason}", .retry_in.as_secs())]
    LeftAlone { agent: AgentName, reason: String, retry_in: std::time::Duration },
    #[error("the agent `{agent}` refused to open a session: {reason}")]
    Refused { agent: AgentName, reason: String },
    #[error("this skein runs no external agents")]
    Disabled,
}
