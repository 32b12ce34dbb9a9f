//! MCP over streamable HTTP: the tools of a mode, one service, or the agents themselves. Each token has its own endpoints.
//!
//! Invariant: what the token does not reach is answered like what does not exist. Tools, sessions and files of an
//! endpoint belong to the principal of its token. An endpoint has one plan: after a change, another one takes its place
//! for new sessions.

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
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::ServerState;
use super::agents::project;
use super::authenticator::ActiveToken;
use super::checks::{Refusal, read_body};
use super::runs;
use crate::adapter::export::{BindingServer, BindingSource, SESSION_SERVICES, ToolNaming, about_mode, about_service};
use crate::adapter::http_endpoint::{HttpEndpoint, asks_for_work};
use crate::adapter::suspension_slots::SuspensionSlots;
use crate::broker::{BindRequest, Broker};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::ApprovalLevel;
use crate::mcp_server::{AgentMcpServer, McpServerConfig};
use crate::orchestrator::Orchestrator;
use crate::principal::{Principal, SessionGrant, TokenLimits, UsagePermit};
use crate::project::{Project, ProjectError, ProjectUse};
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
    /// Endpoints with an older plan, which serve their sessions to the end.
    replaced: Mutex<Vec<(EndpointKey, Arc<McpEndpoint>)>>,
    /// The places for calls that wait for answers of clients.
    suspended: SuspensionSlots,
}

/// An MCP server for the clients of one token.
struct McpEndpoint {
    http: HttpEndpoint,
    token: Arc<ActiveToken>,
    /// The plan of the token's folder when the endpoint was opened.
    plan: Arc<Plan>,
    served: ServedParts,
    /// Cancelled when an endpoint with another plan has taken its place.
    replaced: CancellationToken,
    /// Keeps the project loaded, so that the next request finds the same plan.
    _usage: ProjectUse,
}

/// What an endpoint serves.
enum ServedParts {
    /// Tools, which the client calls itself.
    Tools {
        context: Arc<SessionContext>,
        server: BindingServer,
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
    let (parts, body) = request.into_parts();
    let endpoint = match state.mcp.find_with(&key, |endpoint| endpoint.http.has_session(&parts.headers)) {
        Some(endpoint) => endpoint,
        None => find_or_open(&state, &token, &key).await?,
    };
    let body = read_body(body).await?;
    let is_draining = state.draining.is_cancelled();
    // An answer goes to the endpoint that waits for it. Without an older one, there is only one that can.
    let waiting = (is_draining || state.mcp.has_replaced()).then(|| state.mcp.find_waiting(&key, &body)).flatten();
    // A turn that waits for an answer cannot end without it.
    if is_draining && waiting.is_none() && asks_for_work(&body) {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down\n");
        return Err(refusal.retry_after(RETRY_AFTER));
    }
    let endpoint = waiting.unwrap_or(endpoint);
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

/// Returns the endpoint with the current plan, and opens it if it is not open. Fails if the token does not reach it, or
/// it cannot be opened.
async fn find_or_open(
    state: &Arc<ServerState>,
    token: &Arc<ActiveToken>,
    key: &EndpointKey,
) -> Result<Arc<McpEndpoint>, Refusal> {
    let before = state.mcp.find(key);
    let current = match (project(state, &token.grant).await, &before) {
        (Ok(current), _) => current,
        (Err(_), Some(before)) => return Ok(Arc::clone(before)),
        (Err(error), None) => return Err(manifest_refusal(&error)),
    };
    let plan = Arc::clone(current.broker.plan());
    if let Some(before) = before.as_ref().filter(|before| before.plan.is_same(&plan)) {
        return Ok(Arc::clone(before));
    }
    record_exclusion(state, token, &key.name, &plan).await;
    let source = source(state, &token.grant, &key.name, current).await?;
    let cell = state.mcp.cell(key, &plan);
    let opened = cell.get_or_try_init(|| async move {
        let endpoint = Arc::new(McpEndpoint::open(state, token, source, plan).await?);
        let (watched, server) = (Arc::clone(&endpoint), Arc::clone(state));
        state.scope.spawn(async move { watched.watch(&server).await });
        Ok::<_, Refusal>(endpoint)
    });
    let opened = opened.await.cloned();
    drop(cell);
    if opened.is_err() {
        state.mcp.remove_empty();
    }
    opened
}

/// Records in the audit log that managed settings exclude what a client wants to reach.
async fn record_exclusion(state: &ServerState, token: &ActiveToken, name: &EndpointName, plan: &Plan) {
    let exclusion = match name {
        EndpointName::Agents => None,
        EndpointName::Mode(mode) => plan.mode_refusal(mode).map(|exclusion| (mode.to_string(), exclusion)),
        EndpointName::Service(service) => {
            let entry = plan.service(service);
            let exclusion = entry.and_then(|entry| plan.manifests().service_refusal(entry));
            exclusion.map(|exclusion| (service.clone(), exclusion))
        }
    };
    let Some((subject, exclusion)) = exclusion else { return };
    match runs::sessions(&state.acp_server(token)).await {
        Ok(sessions) => sessions.record_managed(&subject, &exclusion.setting),
        Err(error) => tracing::error!(%error, subject, "a refusal is not in the audit log"),
    }
}

/// Loads what an endpoint serves. Fails if the token does not reach it.
async fn source(
    state: &ServerState,
    grant: &SessionGrant,
    name: &EndpointName,
    project: Project,
) -> Result<EndpointSource, Refusal> {
    match name {
        EndpointName::Agents => Ok(EndpointSource::Agents(project)),
        EndpointName::Mode(mode) => {
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

    /// Returns an open endpoint, also one with an older plan, that fits.
    fn find_with(&self, key: &EndpointKey, fits: impl Fn(&McpEndpoint) -> bool) -> Option<Arc<McpEndpoint>> {
        let older =
            || self.lock_replaced().iter().find(|(of, older)| of == key && fits(older)).map(|(_, it)| Arc::clone(it));
        self.find(key).filter(|endpoint| fits(endpoint)).or_else(older)
    }

    /// Returns whether an endpoint has an older plan.
    fn has_replaced(&self) -> bool {
        !self.lock_replaced().is_empty()
    }

    /// Returns the endpoint in which a turn or a call waits for the answer in this body. `None` if there is none.
    fn find_waiting(&self, key: &EndpointKey, body: &[u8]) -> Option<Arc<McpEndpoint>> {
        let message: Value = serde_json::from_slice(body).ok()?;
        let waiting = message["params"]["requestState"].as_str()?;
        self.find_with(key, |endpoint| match &endpoint.served {
            ServedParts::Agents(agents) => agents.is_suspended(waiting),
            ServedParts::Tools { server, .. } => server.is_suspended(waiting),
        })
    }

    /// Returns the place of an endpoint that is to be opened with this plan. One with another plan leaves the place.
    fn cell(&self, key: &EndpointKey, plan: &Plan) -> EndpointCell {
        // A request may have been dropped while it opened an endpoint.
        self.remove_empty();
        let mut all = self.all();
        let cell = all.entry(key.clone()).or_default();
        if let Some(endpoint) = cell.get().filter(|it| it.http.is_closed() || !it.plan.is_same(plan)) {
            if !endpoint.http.is_closed() {
                endpoint.replaced.cancel();
                self.lock_replaced().push((key.clone(), Arc::clone(endpoint)));
            }
            *cell = EndpointCell::default();
        }
        Arc::clone(cell)
    }

    /// Removes the places of endpoints that were not opened. A place that a request fills or waits for stays.
    fn remove_empty(&self) {
        self.all().retain(|_, cell| cell.get().is_some() || Arc::strong_count(cell) > 1);
    }

    fn remove(&self, endpoint: &Arc<McpEndpoint>) {
        self.all().retain(|_, cell| cell.get().is_none_or(|known| !Arc::ptr_eq(known, endpoint)));
        self.lock_replaced().retain(|(_, known)| !Arc::ptr_eq(known, endpoint));
    }

    fn lock_replaced(&self) -> MutexGuard<'_, Vec<(EndpointKey, Arc<McpEndpoint>)>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<EndpointKey, EndpointCell>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl McpEndpoint {
    /// Opens an endpoint. Fails if the token has too many sessions, or a service does not start.
    async fn open(
        state: &ServerState,
        token: &Arc<ActiveToken>,
        source: EndpointSource,
        plan: Arc<Plan>,
    ) -> Result<Self, Refusal> {
        let replaced = CancellationToken::new();
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
                    suspended: state.mcp.suspended.clone(),
                };
                let agents = AgentMcpServer::new(config, project.broker.plan(), |_| true);
                let http = HttpEndpoint::new(agents.clone());
                let served = ServedParts::Agents(agents);
                return Ok(Self { http, token: Arc::clone(token), plan, served, replaced, _usage: project.usage });
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
        let server =
            BindingServer::new(source, Arc::clone(&context), naming, about).without_services(&SESSION_SERVICES);
        let server = server.with_client_questions(&state.mcp.suspended, grant.principal().name());
        let http = HttpEndpoint::new(server.clone());
        let served = ServedParts::Tools { context, server, _counted: counted };
        Ok(Self { http, token: Arc::clone(token), plan, served, replaced, _usage: project.usage })
    }

    /// Ends sessions that are idle, until nothing uses the endpoint, its token ends or the server closes. Then closes
    /// it. An endpoint that is replaced closes as soon as it has no session.
    async fn watch(self: Arc<Self>, state: &ServerState) {
        let interval = (state.idle / 10).clamp(Duration::from_millis(50), Duration::from_secs(10));
        let mut idle = state.idle;
        loop {
            tokio::select! {
                biased;
                () = self.token.ended.cancelled() => break,
                () = state.closing.cancelled() => break,
                () = self.replaced.cancelled(), if !idle.is_zero() => idle = Duration::ZERO,
                () = tokio::time::sleep(interval) => {}
            }
            self.http.expire_sessions(state.idle).await;
            let waits = match &self.served {
                ServedParts::Agents(agents) => agents.has_suspended(),
                ServedParts::Tools { server, .. } => server.has_suspended(),
            };
            if !waits && self.http.close_if_unused(idle) {
                break;
            }
        }
        state.mcp.remove(&self);
        match &self.served {
            ServedParts::Agents(agents) => agents.stop().await,
            ServedParts::Tools { context, server, .. } => {
                server.stop().await;
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

    #[test]
    fn an_endpoint_that_was_not_opened_leaves_its_place() {
        let (endpoints, plan) = (McpEndpoints::default(), Plan::empty());
        let key = |token: &str| EndpointKey { token: token.to_owned(), name: EndpointName::Agents };
        let has_place = |token: &str| endpoints.all().contains_key(&key(token));
        let opening = endpoints.cell(&key("opening"), &plan);
        drop(endpoints.cell(&key("failed"), &plan));
        endpoints.remove_empty();
        assert!(has_place("opening") && !has_place("failed"));
        // The requests are dropped.
        drop(opening);
        let other = endpoints.cell(&key("other"), &plan);
        assert!(has_place("other") && !has_place("opening"));
        assert!(other.get().is_none(), "a request opens it");
    }
}
