//! MCP over streamable HTTP: the tools of a mode, one service, or the agents themselves. Each token has its own endpoints.
//!
//! Invariant: what the token does not reach is answered like what does not exist. Tools, sessions and files of an
//! endpoint belong to the principal of its token.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{self, StatusCode};
use axum::response::Response;
use http_body_util::Full;
use tokio::sync::OnceCell;

use super::ServerState;
use super::agents::project;
use super::authenticator::ActiveToken;
use super::checks::{Refusal, read_body};
use crate::adapter::export::{BindingServer, BindingSource, SESSION_SERVICES, ToolNaming, about_mode, about_service};
use crate::adapter::http_endpoint::{HttpEndpoint, asks_for_work};
use crate::broker::{BindRequest, Broker};
use crate::ids::ModeId;
use crate::manifest::ApprovalLevel;
use crate::mcp_server::{AgentMcpServer, McpServerConfig};
use crate::orchestrator::Orchestrator;
use crate::principal::{Principal, SessionGrant, TokenLimits, UsagePermit};
use crate::project::{Project, ProjectError};
use crate::session::Sessions;
use crate::tool::SessionContext;
use crate::tool::ask::NoAsker;

/// The answer for an endpoint that does not exist, or that the token does not reach.
const NO_ENDPOINT: &str = "there is nothing here\n";
/// Seconds after which a client may try again if a limit is reached or a service does not start.
const RETRY_AFTER: u64 = 30;

/// Loads the project of a folder with one whole service as a mode, and returns that mode. `None` if there is no such
/// service, or it cannot stand alone.
pub type ServiceLoader =
    dyn Fn(&Path, &Principal, &str) -> Result<Option<(Project, ModeId)>, ProjectError> + Send + Sync;

/// What the MCP endpoints are made from.
pub struct McpParts {
    /// Creates the sessions of agents, and the contexts of tool calls.
    pub sessions: Sessions,
    pub orchestrator: Orchestrator,
    pub services: Arc<ServiceLoader>,
    /// The level from the command line.
    pub approval: Option<ApprovalLevel>,
}

/// The path of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum EndpointName {
    Mode(ModeId),
    Service(String),
    Agents,
}

impl EndpointName {
    /// Reads a path. `None` if no endpoint has it.
    fn parse(path: &str) -> Option<Self> {
        let path = path.strip_prefix("/mcp/")?;
        if path == "agents" {
            return Some(Self::Agents);
        }
        if let Some(service) = path.strip_prefix("services/") {
            return Some(Self::Service(service.to_owned()));
        }
        path.parse().ok().map(Self::Mode)
    }
}

/// An endpoint of one token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct EndpointKey {
    token: String,
    name: EndpointName,
}

/// An endpoint, which is empty until its services have started.
type EndpointCell = Arc<OnceCell<Arc<McpEndpoint>>>;

/// The endpoints in use.
#[derive(Default)]
pub(super) struct McpEndpoints {
    all: Mutex<HashMap<EndpointKey, EndpointCell>>,
}

/// An MCP server for the clients of one token.
struct McpEndpoint {
    http: HttpEndpoint,
    token: Arc<ActiveToken>,
    served: ServedParts,
}

/// What an endpoint serves.
enum ServedParts {
    /// Tools, which the client calls itself.
    Tools {
        context: Arc<SessionContext>,
        _counted: UsagePermit,
    },
    Agents(AgentMcpServer),
}

/// What an endpoint is opened with.
enum EndpointSource {
    Tools { project: Project, mode: ModeId, naming: ToolNaming, about: String },
    Agents(Project),
}

/// Answers all requests below `/mcp/`.
pub(super) async fn answer(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    request: Request,
) -> Result<Response, Refusal> {
    let name = EndpointName::parse(request.uri().path()).ok_or_else(not_found)?;
    let key = EndpointKey { token: token.id.clone(), name };
    let endpoint = find_or_open(&state, &token, &key).await?;
    let (parts, body) = request.into_parts();
    let body = read_body(body).await?;
    if state.draining.is_cancelled() && asks_for_work(&body) {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down\n");
        return Err(refusal.retry_after(RETRY_AFTER));
    }
    // An endpoint may close while the body is read.
    let (endpoint, entered) = match endpoint.http.enter() {
        Some(entered) => (endpoint, entered),
        None => {
            let again = find_or_open(&state, &token, &key).await?;
            let entered = again.http.enter().ok_or_else(not_found)?;
            (again, entered)
        }
    };
    let request = http::Request::from_parts(parts, Full::from(body));
    Ok(endpoint.http.handle(request, entered).await.map(Body::new))
}

/// Returns the endpoint, and opens it if it is not open. Fails if the token does not reach it, or it cannot be opened.
async fn find_or_open(
    state: &Arc<ServerState>,
    token: &Arc<ActiveToken>,
    key: &EndpointKey,
) -> Result<Arc<McpEndpoint>, Refusal> {
    if let Some(endpoint) = state.mcp.find(key) {
        return Ok(endpoint);
    }
    let source = source(state, &token.grant, &key.name).await?;
    let cell = state.mcp.cell(key);
    let opened = cell.get_or_try_init(|| async move {
        let endpoint = Arc::new(McpEndpoint::open(state, token, source).await?);
        let (watched, server) = (Arc::clone(&endpoint), Arc::clone(state));
        state.scope.spawn(async move { watched.watch(&server).await });
        Ok::<_, Refusal>(endpoint)
    });
    opened.await.cloned()
}

/// Loads what an endpoint serves. Fails if the token does not reach it.
async fn source(state: &ServerState, grant: &SessionGrant, name: &EndpointName) -> Result<EndpointSource, Refusal> {
    match name {
        EndpointName::Agents => {
            Ok(EndpointSource::Agents(project(state, grant).await.map_err(|error| manifest_refusal(&error))?))
        }
        EndpointName::Mode(mode) => {
            let project = project(state, grant).await.map_err(|error| manifest_refusal(&error))?;
            let plan = project.broker.plan();
            let entry = plan.mode(mode).map(|(entry, _)| entry).filter(|_| plan.is_selectable(mode));
            let about = about_mode(mode, &entry.ok_or_else(not_found)?.mode.description);
            Ok(EndpointSource::Tools { project, mode: mode.clone(), naming: ToolNaming::Qualified, about })
        }
        EndpointName::Service(service) => {
            if !grant.limits().admits_service(service) {
                return Err(not_found());
            }
            let folder = grant.limits().roots.first().unwrap_or(&state.parts.empty_folder).clone();
            let (load, principal) = (Arc::clone(&state.parts.mcp.services), grant.principal().clone());
            let name = service.clone();
            let loaded = tokio::task::spawn_blocking(move || load(&folder, &principal, &name)).await;
            let stopped = |problem: String| ProjectError { problem, diagnostics: Vec::new() };
            let loaded = loaded.unwrap_or_else(|error| Err(stopped(error.to_string())));
            let (project, mode) = loaded.map_err(|error| manifest_refusal(&error))?.ok_or_else(not_found)?;
            Ok(EndpointSource::Tools { project, mode, naming: ToolNaming::Bare, about: about_service(service) })
        }
    }
}

impl McpEndpoints {
    /// Returns an endpoint that is open.
    fn find(&self, key: &EndpointKey) -> Option<Arc<McpEndpoint>> {
        let endpoint = self.all().get(key).and_then(|cell| cell.get().cloned())?;
        (!endpoint.http.is_closed()).then_some(endpoint)
    }

    /// Returns the place of an endpoint that is to be opened.
    fn cell(&self, key: &EndpointKey) -> EndpointCell {
        let mut all = self.all();
        let cell = all.entry(key.clone()).or_default();
        if cell.get().is_some_and(|endpoint| endpoint.http.is_closed()) {
            *cell = EndpointCell::default();
        }
        Arc::clone(cell)
    }

    fn remove(&self, endpoint: &Arc<McpEndpoint>) {
        self.all().retain(|_, cell| cell.get().is_none_or(|known| !Arc::ptr_eq(known, endpoint)));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<EndpointKey, EndpointCell>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl McpEndpoint {
    /// Opens an endpoint. Fails if the token has too many sessions, or a service does not start.
    async fn open(state: &ServerState, token: &Arc<ActiveToken>, source: EndpointSource) -> Result<Self, Refusal> {
        let (parts, grant) = (&state.parts.mcp, &token.grant);
        let sessions = parts.sessions.with_grant(grant.clone());
        let (project, mode, naming, about) = match source {
            EndpointSource::Tools { project, mode, naming, about } => (project, mode, naming, about),
            EndpointSource::Agents(project) => {
                let config = McpServerConfig {
                    sessions,
                    projects: Arc::clone(&state.parts.projects),
                    orchestrator: parts.orchestrator.clone(),
                    cwd: grant.limits().roots.first().unwrap_or(&state.parts.empty_folder).clone(),
                    roots: grant.limits().roots.clone(),
                    approval: parts.approval,
                };
                let agents = AgentMcpServer::new(config, project.broker.plan(), |_| true);
                let http = HttpEndpoint::new(agents.clone());
                return Ok(Self { http, token: Arc::clone(token), served: ServedParts::Agents(agents) });
            }
        };
        let counted = grant.open_session().map_err(|error| {
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, format!("{error}\n")).retry_after(RETRY_AFTER)
        })?;
        let context = sessions.tool_context().map_err(|error| {
            tracing::error!(%error, "a scratch folder cannot be created");
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server has no place for temporary files\n")
        })?;
        let broker = asking_broker(&project.broker, grant, naming);
        let request = BindRequest {
            session: Arc::clone(&context),
            approval: Some(approval(&broker, &mode, parts.approval, grant.limits())),
            asker: Arc::new(NoAsker),
            client_services: Vec::new(),
        };
        let binding = broker.bind(&mode, request).await.map_err(|error| {
            tracing::warn!(%error, "an MCP endpoint cannot be opened");
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).retry_after(RETRY_AFTER)
        })?;
        let ended = token.ended.clone();
        // The end of the token ends its calls.
        let source = BindingSource::from(Arc::new(binding)).in_turns(move || ended.clone());
        let server = BindingServer::new(source, Arc::clone(&context), naming, about);
        let http = HttpEndpoint::new(server.without_services(&SESSION_SERVICES));
        let served = ServedParts::Tools { context, _counted: counted };
        Ok(Self { http, token: Arc::clone(token), served })
    }

    /// Ends sessions that are idle, until nothing uses the endpoint, its token ends or the server closes. Then closes
    /// it.
    async fn watch(self: Arc<Self>, state: &ServerState) {
        let interval = (state.idle / 10).clamp(Duration::from_millis(50), Duration::from_secs(10));
        loop {
            tokio::select! {
                biased;
                () = self.token.ended.cancelled() => break,
                () = state.closing.cancelled() => break,
                () = tokio::time::sleep(interval) => {}
            }
            self.http.expire_sessions(state.idle).await;
            let waits = matches!(&self.served, ServedParts::Agents(agents) if agents.has_suspended());
            if !waits && self.http.close_if_unused(state.idle) {
                break;
            }
        }
        state.mcp.remove(&self);
        match &self.served {
            ServedParts::Agents(agents) => agents.stop().await,
            ServedParts::Tools { context, .. } => {
                context.end();
                // The folder exists only if a tool wrote to it.
                if let Err(error) = tokio::fs::remove_dir_all(&context.scratch).await
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, folder = %context.scratch.display(), "scratch files are left behind");
                }
            }
        }
        self.http.close().await;
    }
}

/// Returns the broker for calls of a client that asks its own user. A service that the token names needs no mode.
fn asking_broker(broker: &Broker, grant: &SessionGrant, naming: ToolNaming) -> Broker {
    let limits = grant.limits();
    let modes = match naming {
        ToolNaming::Qualified => limits.modes.clone(),
        ToolNaming::Bare => Vec::new(),
    };
    let approval = limits.approval.map(ApprovalLevel::for_asking_client);
    let limits = TokenLimits { modes, approval, ..limits.clone() };
    broker.with_grant(&SessionGrant::new(grant.principal().clone(), limits))
}

/// Returns the level of an endpoint's calls: that of the flag or the mode, within the token's, and then without
/// questions.
fn approval(broker: &Broker, mode: &ModeId, flag: Option<ApprovalLevel>, limits: &TokenLimits) -> ApprovalLevel {
    let of_mode = || broker.plan().mode(mode).map_or(ApprovalLevel::Ask, |(entry, _)| broker.plan().approval(entry));
    limits.tighten(flag.unwrap_or_else(of_mode)).for_asking_client()
}

fn not_found() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, NO_ENDPOINT)
}

/// Returns the answer if the manifests of the server have errors.
fn manifest_refusal(error: &ProjectError) -> Refusal {
    tracing::error!(problem = %error.problem, "the manifests of the server have errors");
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the manifests of the server have errors; run `skein check`\n")
}

impl std::fmt::Debug for McpParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpParts").field("approval", &self.approval).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_an_endpoint() {
        let mode = |name: &str| Some(EndpointName::Mode(name.parse().unwrap()));
        assert_eq!(EndpointName::parse("/mcp/agents"), Some(EndpointName::Agents));
        assert_eq!(EndpointName::parse("/mcp/services/time"), Some(EndpointName::Service("time".to_owned())));
        assert_eq!(EndpointName::parse("/mcp/coding/qa"), mode("coding/qa"));
        for path in ["/mcp", "/mcp/", "/mcp/coding", "/mcp/coding/", "/mcp/coding/qa/x", "/other/coding/qa"] {
            assert_eq!(EndpointName::parse(path), None, "{path}");
        }
    }
}
