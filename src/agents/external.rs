//! Agents outside: programs of their own that work on whole turns. The port to whoever runs them.
//!
//! Invariant: names no protocol. What such an agent tells in its own JSON is passed on as it came, and beside it in our
//! words.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Event, Notifier, StatusUpdate, TurnEnd};
use crate::broker::{Asker, Binding};
use crate::conversation::Content;
use crate::ids::AgentName;
use crate::llm::Provider;
use crate::manifest::AcpRuntime;
use crate::tool::SessionContext;

/// Runs agents outside.
pub trait ExternalAgents: Send + Sync {
    /// Starts the program unless it runs, and has it open a session of its own.
    fn enter(
        &self,
        entering: ExternalSessionRequest,
    ) -> BoxFuture<'_, Result<Arc<dyn ExternalSession>, ExternalAgentError>>;

    /// The program as a model that is asked single questions and has no tools.
    fn model(&self, who: ExternalAgentSpec) -> Arc<dyn Provider>;
}

/// An agent outside, as its manifest has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalAgentSpec {
    pub name: AgentName,
    pub title: String,
    pub runtime: AcpRuntime,
}

/// What a session brings along when it wants to be worked on.
#[derive(Clone)]
pub struct ExternalSessionRequest {
    pub agent: ExternalAgentSpec,
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

/// What the agent called the session before, if it knew it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumePolicy {
    Never,
    /// It is asked to go on with it, and begins anew if it cannot.
    IfSupported(String),
    /// It is asked to go on with it, and nothing else will do.
    Required(String),
}

/// A session's place at an agent outside.
pub trait ExternalSession: Send + Sync {
    /// What the agent calls the session.
    fn id(&self) -> String;

    /// Whether it knows what was said in the session before.
    fn remembers(&self) -> bool;

    /// From now on, what the agent asks for is judged by this binding and put to this asker.
    fn rebind(&self, binding: Arc<Binding>, asker: Arc<dyn Asker>);

    /// One turn. The end is returned, and not told to the notifier.
    fn turn<'a>(
        &'a self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, TurnEnd>;

    /// What can be chosen at the agent itself, in ACP's JSON, each under an id that begins with the agent's name.
    fn options(&self) -> Vec<Value>;

    /// Its own commands, in ACP's JSON.
    fn commands(&self) -> Vec<Value>;

    /// Chooses at the agent itself. `Err` says why not.
    fn choose(&self, option: String, value: Value) -> BoxFuture<'_, Result<(), String>>;

    /// Counts up when options or commands are different.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether its program still runs.
    fn is_alive(&self) -> bool;
}

/// What stands around a piece of text in ACP's JSON: pieces with the same frame are one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkTemplate {
    /// The update up to the text, and from behind it.
    pub before: String,
    pub after: String,
}

impl ChunkTemplate {
    /// The update with this text.
    pub fn around(&self, text: &str) -> String {
        format!("{}{}{}", self.before, Value::from(text), self.after)
    }
}

/// Tells in our words what an agent outside told in its own, for a notifier that does not pass those on. `heard` if it
/// was heard while it was said.
pub fn notify_native(notifier: &(impl Notifier + ?Sized), means: Vec<Event>, heard: bool) {
    for event in means {
        if let (Event::Message { message }, false) = (&event, heard) {
            notifier.status(StatusUpdate::Text(message.text()));
        }
        notifier.log(event);
    }
}

/// Why an agent outside does not work on a session.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExternalAgentError {
    #[error("the agent `{agent}` could not be started: {reason}")]
    NotStarted { agent: AgentName, reason: String },
    #[error("the agent `{agent}` wants you to log in first: {how}")]
    LoginNeeded { agent: AgentName, how: String },
    #[error(
        "the agent `{agent}` cannot go on with an earlier session: {reason}; start a new one, `skein sessions show` has \
         what was said"
    )]
    Forgotten { agent: AgentName, reason: String },
    #[error("the agent `{agent}` failed too often and is left alone for {} s: {reason}", .retry_in.as_secs())]
    LeftAlone { agent: AgentName, reason: String, retry_in: std::time::Duration },
    #[error("the agent `{agent}` refused to open a session: {reason}")]
    Refused { agent: AgentName, reason: String },
    #[error("this skein runs no agents outside")]
    Disabled,
}
