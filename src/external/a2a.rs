//! Drives remote agents that speak A2A 1.0, with Skein as their client. A context of the agent is an external session,
//! and a task is a turn.
//!
//! Invariant: a message is sent once. After a broken connection, Skein reads the task again and does not repeat the
//! message. Requests of the agent pass the binding of its mode, as those of a program do.

mod agent_request;
mod remote_card;
mod remote_error;
mod remote_turn;
mod task_update;

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client_context::SessionBinding;
use super::lock;
use crate::agents::{
    ExternalAgentError, ExternalOptionError, ExternalSession, ExternalSessionRequest, Notifier, RemoteAgentSpec,
    ResumePolicy, TurnEnd,
};
use crate::broker::Binding;
use crate::conversation::Content;
use crate::ids::random_uuid;
use crate::manifest::{HttpTransport, Transport};
use crate::network::{JsonClient, JsonClientError, JsonReply};
use crate::services::{Environment, SecretValues};
use crate::tool::ask::Asker;
use remote_card::RemoteCard;
use remote_error::RemoteError;
use remote_turn::RemoteTurn;

/// The version of the protocol that Skein speaks.
const VERSION: &str = "1.0";
/// The extension with which an agent calls the tools of its mode.
const CALL_EXTENSION: &str = "urn:skein:a2a:calls:1";

/// Opens a context of a remote agent for a session.
pub(super) async fn enter(
    who: RemoteAgentSpec,
    entering: ExternalSessionRequest,
    environment: &Environment,
) -> Result<Arc<dyn ExternalSession>, ExternalAgentError> {
    let ExternalSessionRequest { session, binding, asker, resume, .. } = entering;
    let bound = SessionBinding { binding, asker, session };
    let opened = RemoteSession::open(who, environment, Some(bound), &resume).await?;
    Ok(Arc::new(RemoteSessionHandle(opened)))
}

/// A context of a remote agent.
pub(super) struct RemoteSession {
    agent: RemoteAgentSpec,
    client: JsonClient,
    card: RemoteCard,
    secrets: SecretValues,
    /// The id under which the session is stored. Skein chooses it, and the agent usually takes it over.
    id: String,
    /// The id of the context, as the agent names it.
    context: Mutex<String>,
    remembers: bool,
    /// `None` if the agent is used as a model.
    binding: Option<Mutex<SessionBinding>>,
    /// Never changes: a remote agent has no options and no commands.
    changes: watch::Sender<u64>,
}

impl RemoteSession {
    /// Reads the card of the agent. Fails if the agent cannot be reached, refuses the headers or does not speak the
    /// protocol.
    pub(super) async fn open(
        agent: RemoteAgentSpec,
        environment: &Environment,
        binding: Option<SessionBinding>,
        resume: &ResumePolicy,
    ) -> Result<Arc<Self>, ExternalAgentError> {
        let transport = HttpTransport { url: agent.runtime.url.clone(), headers: agent.runtime.headers.clone() };
        let secrets = environment.transport_secrets(&Transport::Http(transport));
        let opening = connect(&agent, environment);
        let limit = agent.runtime.timeouts.start.duration();
        let opened = match tokio::time::timeout(limit, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(RemoteError::Timeout { limit }),
        };
        let (client, card) = opened.map_err(|error| {
            let (agent, reason) = (agent.name.clone(), secrets.hide(&error.to_string()));
            match error {
                RemoteError::Http(JsonClientError::Status { status: 401 | 403, .. }) => {
                    let how = format!("{reason}; set `headers` of `runtime.a2a` in its manifest");
                    ExternalAgentError::LoginNeeded { agent, how }
                }
                _ => ExternalAgentError::NotStarted { agent, reason },
            }
        })?;
        let (id, remembers) = match resume {
            ResumePolicy::Never => (random_uuid(), false),
            // The agent keeps its contexts. One that has lost it creates another one with the same id.
            ResumePolicy::IfSupported(id) | ResumePolicy::Required(id) => (id.clone(), true),
        };
        Ok(Arc::new(Self {
            agent,
            client,
            card,
            secrets,
            context: Mutex::new(id.clone()),
            id,
            remembers,
            binding: binding.map(Mutex::new),
            changes: watch::Sender::new(0),
        }))
    }

    /// Sends a request. Fails if the agent cannot be reached. The reply may still be an error.
    async fn send(&self, method: &str, mut params: Value) -> Result<JsonReply, RemoteError> {
        if let Some(tenant) = &self.card.tenant {
            params["tenant"] = json!(tenant);
        }
        let body = json!({"jsonrpc": "2.0", "id": random_uuid(), "method": method, "params": params});
        Ok(self.client.post(&self.card.url, &body).await?)
    }

    /// Sends a request whose answer is one value.
    async fn call(&self, method: &str, params: Value) -> Result<Value, RemoteError> {
        match self.send(method, params).await? {
            JsonReply::Value(reply) => result(reply),
            JsonReply::Events(_) => Err(RemoteError::Unexpected { problem: "it answered with a stream".to_owned() }),
        }
    }

    fn binding(&self) -> Option<SessionBinding> {
        self.binding.as_ref().map(|binding| lock(binding).clone())
    }

    /// Returns an error as the user sees it.
    fn failure(&self, error: &RemoteError) -> String {
        let reason = self.secrets.hide(&error.to_string());
        format!("the agent `{}` failed: {reason}", self.agent.name)
    }

    /// Runs one turn.
    pub(super) async fn run(
        &self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> TurnEnd {
        RemoteTurn::new(self, notifier, cancel).run(prompt).await
    }
}

/// Makes the client and reads the card.
async fn connect(agent: &RemoteAgentSpec, environment: &Environment) -> Result<(JsonClient, RemoteCard), RemoteError> {
    let mut headers =
        vec![("A2A-Version".to_owned(), VERSION.to_owned()), ("A2A-Extensions".to_owned(), CALL_EXTENSION.to_owned())];
    for (name, value) in &agent.runtime.headers {
        headers.push((name.clone(), environment.fill_in(value)?));
    }
    let address = environment.fill_in(&agent.runtime.url)?;
    let client = JsonClient::new(headers)?;
    let card = client.get(&remote_card::card_url(&address)).await?;
    let card = RemoteCard::read(&card, &address)?;
    tracing::info!(agent = %agent.name, streams = card.streams, "a remote agent answers");
    Ok((client, card))
}

/// Returns the result of a reply in JSON-RPC. Fails with the agent's error.
fn result(mut reply: Value) -> Result<Value, RemoteError> {
    if let Some(error) = reply.get("error").filter(|error| !error.is_null()) {
        let message = error["message"].as_str().unwrap_or("no reason given").to_owned();
        return Err(RemoteError::Refused { code: error["code"].as_i64().unwrap_or_default(), message });
    }
    match reply.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(RemoteError::Unexpected { problem: "its reply is not one of JSON-RPC".to_owned() }),
    }
}

/// The handle that a Skein session holds.
struct RemoteSessionHandle(Arc<RemoteSession>);

impl ExternalSession for RemoteSessionHandle {
    fn id(&self) -> String {
        self.0.id.clone()
    }

    fn remembers(&self) -> bool {
        self.0.remembers
    }

    fn rebind(&self, binding: Arc<Binding>, asker: Arc<dyn Asker>) {
        if let Some(bound) = &self.0.binding {
            let mut bound = lock(bound);
            (bound.binding, bound.asker) = (binding, asker);
        }
    }

    fn turn<'a>(
        &'a self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, TurnEnd> {
        Box::pin(self.0.run(prompt, notifier, cancel))
    }

    fn options(&self) -> Vec<Value> {
        Vec::new()
    }

    fn commands(&self) -> Vec<Value> {
        Vec::new()
    }

    fn has_command(&self, _: &str) -> bool {
        false
    }

    fn choose(&self, option: String, _: Value) -> BoxFuture<'_, Result<(), ExternalOptionError>> {
        let agent = self.0.agent.name.clone();
        Box::pin(std::future::ready(Err(ExternalOptionError::Unknown { agent, option })))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Each turn makes its own connections.
    fn is_alive(&self) -> bool {
        true
    }
}
