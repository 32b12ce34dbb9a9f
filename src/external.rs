//! Runs external agents, with Skein as their client: programs that speak the Agent Client Protocol (ACP), and remote
//! agents that speak A2A.
//!
//! Invariant: an agent process gets a minimal environment, one scoped MCP server and only the client methods that its
//! mode admits. It ends when Skein ends, however Skein ends. What the process does by itself, only its sandbox limits.

mod a2a;
mod agent_sandbox;
mod call_ids;
mod client_context;
mod process;
mod advertised_options;
mod health;
mod client_methods;
mod local;
mod login;
mod model;
mod no_agents;
mod connection;
mod session;
mod prompt;
mod rpc;
mod terminal_command;
mod updates;
mod services;
mod valid;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
pub use health::AgentHealth;
pub use no_agents::NoExternalAgents;
use serde::Serialize;
use serde_json::{Value, json};
#[cfg(any(test, fuzzing))]
pub use valid::read_update;

use crate::adapter::attach::{Attachments, OfferError};
use crate::agents::{
    ExternalAgent, ExternalAgentError, ExternalAgentSpec, ExternalAgents, ExternalSession, ExternalSessionRequest,
    ResumePolicy,
};
use crate::ids::AgentName;
use crate::llm::Provider;
use crate::manifest::{StdioTransport, Transport};
use crate::process::{ProcessScope, Reaper, minimal_environment};
use crate::sandbox::{CurrentGate, SandboxLauncher};
use crate::services::{Circuit, Environment, LaunchError, SecretValues, StartPermit, spawn};
use crate::task::TaskScope;
use crate::tool::SessionLifetime;
use agent_sandbox::SandboxKey;
use client_context::{ClientContext, SessionBinding};
use client_methods::GrantedCapabilities;
use connection::AgentConnection;
use local::LocalEditor;
use rpc::RpcError;
use session::{AcpSession, AcpSessionHandle};

/// How long an agent process runs after its last use.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// How long an agent may take to open a session.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);

/// The parts of this program that agent processes need.
#[derive(Debug)]
pub struct LaunchContext {
    pub environment: Environment,
    pub reaper: Option<Reaper>,
    /// Where agents attach to the MCP servers that Skein offers them.
    pub attachments: Attachments,
    /// This executable, which agents start to attach to an offered MCP server.
    pub program: PathBuf,
    /// Working directory of agents that are used as models.
    pub scratch: PathBuf,
    /// Starts the sandboxes of agent processes. `None`: an agent with a sandbox profile does not start.
    pub sandbox: Option<SandboxLauncher>,
}

/// All running external agents. Cheap to clone.
#[derive(Clone)]
pub struct ExternalAgentPool {
    inner: Arc<Inner>,
}

struct Inner {
    launch: LaunchContext,
    slots: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<AgentSlot>>>>,
    scope: TaskScope,
}

/// Identifies an agent process. Sessions with equal keys share one process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    agent: AgentName,
    /// The principal and the runtime section of the manifest, as JSON. No process serves two principals.
    runtime: String,
    granted: GrantedCapabilities,
    sandbox: Option<SandboxKey>,
}

struct AgentSlot {
    connection: Option<Arc<AgentConnection>>,
    circuit: Circuit,
    /// Reason of the last failure; empty if there was none.
    last: String,
    used: Instant,
    stale: Duration,
    /// Decides about the hosts that the process reaches. `None` if it runs without a sandbox.
    gate: Option<Arc<CurrentGate>>,
    /// The end of the session that owns the process. `None` if sessions share it.
    session_end: Option<SessionLifetime>,
}

/// The state of an agent process, as users see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentStatus {
    pub name: String,
    pub health: AgentHealth,
    pub pid: Option<u32>,
    pub last_error: Option<String>,
}

impl ExternalAgentPool {
    pub fn new(around: LaunchContext) -> Self {
        let inner = Arc::new(Inner { launch: around, slots: Mutex::default(), scope: TaskScope::new() });
        let (watched, ending) = (Arc::downgrade(&inner), inner.scope.cancelled().clone());
        inner.scope.spawn(async move {
            loop {
                tokio::select! {
                    () = ending.cancelled() => return,
                    () = tokio::time::sleep(SWEEP_INTERVAL) => {}
                }
                let Some(inner) = Weak::upgrade(&watched) else { return };
                inner.sweep().await;
            }
        });
        Self { inner }
    }

    /// Returns the state of every process that runs or has failed, sorted by name.
    pub fn status(&self) -> Vec<AgentStatus> {
        let slots: Vec<_> = lock(&self.inner.slots).iter().map(|(key, slot)| (key.clone(), Arc::clone(slot))).collect();
        let mut all = Vec::new();
        for (key, slot) in slots {
            // A locked slot is being started or stopped by another task.
            let Ok(slot) = slot.try_lock() else { continue };
            let ended = slot.connection.as_ref().and_then(|connection| connection.closed());
            let running = slot.connection.as_ref().filter(|_| ended.is_none());
            let last = ended.unwrap_or_else(|| slot.last.clone());
            if running.is_none() && last.is_empty() {
                continue;
            }
            let health =
                running.map_or(AgentHealth::Dead, |connection| connection.health().health(Instant::now(), slot.stale));
            all.push(AgentStatus {
                name: key.agent.to_string(),
                health,
                pid: running.map(|connection| connection.pid()),
                last_error: Some(last).filter(|last| !last.is_empty()),
            });
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Stops every agent process.
    pub async fn stop(&self) {
        let slots: Vec<_> = lock(&self.inner.slots).drain().map(|(_, slot)| slot).collect();
        drop(slots);
        self.inner.scope.stop().await;
    }
}

/// Why the process of an external agent could not be used.
#[derive(Debug, thiserror::Error)]
enum AgentStartError {
    #[error("{source}; {help}")]
    NotInstalled { source: LaunchError, help: String },
    #[error(transparent)]
    Launch(LaunchError),
    #[error(transparent)]
    Offer(#[from] OfferError),
    #[error("it cannot be watched: {0}")]
    Watch(#[source] std::io::Error),
    #[error("it speaks version {version} of ACP, and skein speaks 1")]
    Version { version: Value },
    #[error("it ended before it answered: {reason}")]
    Exited { reason: String },
    #[error("{reason}")]
    Refused { reason: String },
    #[error("it did not answer the handshake within {} s", .limit.as_secs())]
    Timeout { limit: Duration },
}

impl Inner {
    /// Stops processes that no session holds and that were last requested [`IDLE_TIMEOUT`] ago.
    async fn sweep(&self) {
        let has_ended = |slot: &Arc<tokio::sync::Mutex<AgentSlot>>| {
            let slot = slot.try_lock().ok();
            slot.and_then(|slot| slot.session_end.clone()).is_some_and(|end| end.has_ended())
        };
        // Dropping a connection ends its process.
        lock(&self.slots).retain(|_, slot| !has_ended(slot));
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            let Ok(mut slot) = slot.try_lock() else { continue };
            let idle = slot.used.elapsed() >= IDLE_TIMEOUT
                && slot.connection.as_ref().is_some_and(|connection| Arc::strong_count(connection) == 1);
            if idle && let Some(connection) = slot.connection.take() {
                connection.stop_and_wait().await;
            }
        }
    }

    /// Returns the connection to the agent process, and starts the process unless it runs. Fails if the start fails or
    /// the circuit is open after earlier failures.
    async fn connection(
        &self,
        who: &ExternalAgentSpec,
        admitted: GrantedCapabilities,
    ) -> Result<Arc<AgentConnection>, ExternalAgentError> {
        let runtime = json!([who.principal.name(), who.runtime]).to_string();
        let sandbox = who.sandbox.as_ref().map(SandboxKey::of);
        let key = Key { agent: who.name.clone(), runtime, granted: admitted, sandbox };
        let new = || {
            Arc::new(tokio::sync::Mutex::new(AgentSlot {
                connection: None,
                circuit: Circuit::new(&who.runtime.restart),
                last: String::new(),
                used: Instant::now(),
                stale: who.runtime.timeouts.stale.duration(),
                gate: agent_sandbox::gate(who),
                session_end: agent_sandbox::session_end(who),
            }))
        };
        let slot = Arc::clone(lock(&self.slots).entry(key).or_insert_with(new));
        // Concurrent callers wait here until the first one has started the process.
        let mut slot = slot.lock().await;
        slot.used = Instant::now();
        // The session that uses the process now decides about hosts.
        if let (Some(gate), Some(sandbox)) = (&slot.gate, &who.sandbox) {
            gate.set(Arc::clone(&sandbox.spec.gate));
        }
        if let Some(connection) = slot.connection.take() {
            // A process that other sessions wait for is not replaced, even if it counts as dead.
            let dead = {
                let pulse = connection.health();
                pulse.health(Instant::now(), slot.stale) == AgentHealth::Dead && !pulse.is_busy()
            };
            match connection.closed() {
                None if !dead && !connection.is_stopping() => {
                    slot.connection = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                None => {
                    connection.stop_and_wait().await;
                    let reason = if dead { None } else { connection.closed() };
                    slot.last = reason.unwrap_or_else(|| "it failed again and again".to_owned());
                }
                Some(reason) => slot.last = reason,
            }
            slot.circuit.record_failure(Instant::now());
        }
        match slot.circuit.may_start(Instant::now()) {
            StartPermit::After(pause) => tokio::time::sleep(pause).await,
            StartPermit::NotFor(retry_in) => {
                return Err(ExternalAgentError::LeftAlone {
                    agent: who.name.clone(),
                    reason: slot.last.clone(),
                    retry_in,
                });
            }
        }
        let gate = slot.gate.clone();
        match self.start(who, admitted, gate).await {
            Ok(connection) => {
                slot.circuit.record_start();
                slot.connection = Some(Arc::clone(&connection));
                if let Some(session_end) = agent_sandbox::session_end(who) {
                    slot.session_end = Some(session_end.clone());
                    connection.stop_with(session_end);
                }
                Ok(connection)
            }
            Err(error) => {
                let reason = error.to_string();
                slot.circuit.record_failure(Instant::now());
                slot.last.clone_from(&reason);
                Err(ExternalAgentError::NotStarted { agent: who.name.clone(), reason })
            }
        }
    }

    /// Starts the process and sends `initialize`. Fails if the process does not start, does not answer in time or does
    /// not speak version 1 of ACP.
    async fn start(
        &self,
        who: &ExternalAgentSpec,
        admitted: GrantedCapabilities,
        gate: Option<Arc<CurrentGate>>,
    ) -> Result<Arc<AgentConnection>, AgentStartError> {
        let program = who.runtime.program();
        let environment = &self.launch.environment;
        let mut env = program.env;
        for name in environment.variables().filter_map(|(name, _)| name.into_string().ok()) {
            if who.runtime.inherit.iter().any(|inherited| inherited.0 == name) {
                // `spawn` fills in the placeholder, and its value is hidden like every other secret.
                let placeholder = format!("${{env:{name}}}");
                env.entry(name).or_insert(placeholder);
            }
        }
        let transport =
            StdioTransport { command: program.command, args: program.args, env, cwd: who.runtime.cwd.clone() };
        let secrets = self.secrets(&transport);
        let sandbox = match (&who.sandbox, &gate) {
            (Some(sandbox), Some(gate)) => Some(self.launch.program_sandbox(who, sandbox, Arc::clone(gate))?),
            _ => None,
        };
        let spawned = spawn(&transport, environment, self.launch.reaper.as_ref(), sandbox).await;
        let spawned = spawned.map_err(|source| match source {
            LaunchError::NotFound { .. } => AgentStartError::NotInstalled { source, help: who.runtime.missing_help() },
            _ => AgentStartError::Launch(source),
        })?;
        agent_sandbox::report(who, &spawned.notices);
        let connection = AgentConnection::start(who.name.clone(), spawned, secrets, &self.scope);
        let connection = connection.map_err(AgentStartError::Watch)?;
        let limit = who.runtime.timeouts.start.duration();
        let greeting = connection.initialize(greeting(admitted));
        let greeted = agent_sandbox::limit_start(gate.as_deref(), limit, greeting).await;
        let problem = match greeted {
            Some(Ok(about)) if about["protocolVersion"] == 1 => {
                tracing::info!(agent = %who.name, pid = connection.pid(), info = %about["agentInfo"], "an external agent runs");
                drop(connection.about.set(about));
                return Ok(connection);
            }
            Some(Ok(about)) => AgentStartError::Version { version: about["protocolVersion"].clone() },
            Some(Err(error)) if error.is_process_exit() => AgentStartError::Exited { reason: error.message },
            Some(Err(error)) => AgentStartError::Refused { reason: error.message },
            None => AgentStartError::Timeout { limit },
        };
        connection.stop_and_wait().await;
        Err(problem)
    }

    fn secrets(&self, transport: &StdioTransport) -> SecretValues {
        self.launch.environment.transport_secrets(&Transport::Stdio(transport.clone()))
    }

    fn local(&self, who: &ExternalAgentSpec) -> LocalEditor {
        let environment = minimal_environment(self.launch.environment.variables());
        let processes = ProcessScope::default();
        let sandbox = who.sandbox.as_ref().map(|agent| self.launch.terminal_sandbox(agent));
        LocalEditor { reaper: self.launch.reaper.clone(), environment, tasks: self.scope.clone(), processes, sandbox }
    }

    /// Opens a session of an agent that is a program.
    async fn enter(
        &self,
        who: ExternalAgentSpec,
        entering: ExternalSessionRequest,
    ) -> Result<Arc<dyn ExternalSession>, ExternalAgentError> {
        let ExternalSessionRequest { session, binding, asker, resume: before, .. } = entering;
        let connection = self.connection(&who, GrantedCapabilities::of(&binding)).await?;
        let about = connection.about.get().cloned().unwrap_or_default();
        let bound = SessionBinding { binding, asker, session };
        let client = ClientContext::new(who.clone(), self.local(&who), Some(bound.clone()));
        let session = AcpSession::new(Arc::clone(&connection), client);
        let handed = services::offer_server(&self.launch, &session.client, &bound, &connection);
        let not_handed = |error: services::HandoverError| ExternalAgentError::NotStarted {
            agent: who.name.clone(),
            reason: error.to_string(),
        };
        let (handed, servers) = handed.map_err(not_handed)?;
        session.keep(handed);
        let mut params = json!({"cwd": bound.session.cwd, "mcpServers": servers});
        if can(&about, "additionalDirectories") {
            // The first two roots are the session's working directory and its scratch folder.
            params["additionalDirectories"] = json!(bound.session.roots.iter().skip(2).collect::<Vec<_>>());
        }
        if let Some(reopened) = try_reopen(&who, &session, &before, &about, &params).await? {
            return Ok(reopened);
        }
        let opening = connection.begin_opening();
        let answer = tokio::time::timeout(OPEN_TIMEOUT, connection.request("session/new", params)).await;
        let answer = answer.unwrap_or_else(|_| Err(RpcError::new(-32603, "it did not answer")));
        let answer = answer.map_err(|error| not_opened(&who, error, &about))?;
        let id = answer["sessionId"].as_str().filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| refusal(&who, "it gave the session no id".to_owned()))?;
        session.complete_opening(id, &answer, false).map_err(|error| refusal(&who, error.to_string()))?;
        drop(opening);
        Ok(Arc::new(AcpSessionHandle(session)))
    }
}

/// Resumes or loads the agent's earlier session. Returns `None` if the caller must open a new one. Fails if the policy
/// is [`ResumePolicy::Required`] and the agent cannot reopen the session.
async fn try_reopen(
    who: &ExternalAgentSpec,
    session: &Arc<AcpSession>,
    before: &ResumePolicy,
    about: &Value,
    params: &Value,
) -> Result<Option<Arc<dyn ExternalSession>>, ExternalAgentError> {
    let (ResumePolicy::IfSupported(id) | ResumePolicy::Required(id)) = before else { return Ok(None) };
    let method = if can(about, "resume") {
        Some("session/resume")
    } else {
        (about["agentCapabilities"]["loadSession"] == true).then_some("session/load")
    };
    let reason = match method {
        None => "it says that it neither loads nor resumes sessions".to_owned(),
        Some(method) => {
            let mut params = params.clone();
            params["sessionId"] = json!(id);
            let answer = tokio::time::timeout(OPEN_TIMEOUT, session.reopen(method, id, params)).await;
            match answer {
                Ok(Ok(answer)) => {
                    session.complete_opening(id, &answer, true).map_err(|error| refusal(who, error.to_string()))?;
                    return Ok(Some(Arc::new(AcpSessionHandle(Arc::clone(session)))));
                }
                Ok(Err(error)) => error.message,
                Err(_) => "it did not answer".to_owned(),
            }
        }
    };
    if matches!(before, ResumePolicy::Required(_)) {
        return Err(ExternalAgentError::Forgotten { agent: who.name.clone(), reason });
    }
    tracing::info!(agent = %who.name, reason, "it starts a new session");
    Ok(None)
}

/// Returns true if the agent advertises the session capability `what`.
fn can(about: &Value, what: &str) -> bool {
    let said = &about["agentCapabilities"]["sessionCapabilities"][what];
    !said.is_null() && *said != false
}

fn refusal(who: &ExternalAgentSpec, reason: String) -> ExternalAgentError {
    ExternalAgentError::Refused { agent: who.name.clone(), reason }
}

fn not_opened(who: &ExternalAgentSpec, error: RpcError, about: &Value) -> ExternalAgentError {
    if login::is_needed(&error) {
        return login::login_error(&who.name, error, about);
    }
    refusal(who, error.message)
}

fn greeting(admitted: GrantedCapabilities) -> Value {
    json!({
        "protocolVersion": 1,
        "clientInfo": {"name": "skein", "title": "Skein", "version": env!("CARGO_PKG_VERSION")},
        "clientCapabilities": {
            "fs": {"readTextFile": admitted.read, "writeTextFile": admitted.write},
            "terminal": admitted.terminal,
            "elicitation": {"form": {}, "url": {}},
            "session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}},
        },
    })
}

impl ExternalAgents for ExternalAgentPool {
    fn enter(
        &self,
        entering: ExternalSessionRequest,
    ) -> BoxFuture<'_, Result<Arc<dyn ExternalSession>, ExternalAgentError>> {
        match entering.agent.clone() {
            ExternalAgent::Program(who) => Box::pin(self.inner.enter(*who, entering)),
            ExternalAgent::Remote(who) => Box::pin(a2a::enter(who, entering, &self.inner.launch.environment)),
        }
    }

    fn model(&self, who: ExternalAgent) -> Arc<dyn Provider> {
        Arc::new(model::ExternalModel::new(Arc::clone(&self.inner), who))
    }
}

impl std::fmt::Debug for ExternalAgentPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalAgentPool").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
