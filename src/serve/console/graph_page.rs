//! The service graph: agents, modes and services, the tools of a mode and why others are absent, and the drawing.

use std::sync::{Arc, Weak};

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::super::ServerState;
use super::assets::checksum;
use super::form::FormFields;
use super::layout::{ConsoleProblem, Section, page};
use super::logins::Login;
use super::open_session::home_project;
use super::transcript::display_text;
use crate::graph::{Format, Plan, ProcessKind, ToolScope, profile_text, render};
use crate::ids::{ModeId, ServiceName};
use crate::manifest::{AgentEntry, ModeEntry, ServiceEntry, Transport};
use crate::tool::{ServiceHealth, ServiceStatus};

/// A drawing runs nothing. Its colours are in a style element.
const DRAWING_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

/// Shows agents, modes and services.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
) -> Result<Response, ConsoleProblem> {
    let project = home_project(&state, &login.token).await?;
    let plan = project.broker.plan();
    let body = html! {
        h1 { "Graph" }
        div class="row" {
            label class="grow" { "Filter" input type="search" data-filter=".filtered" autocomplete="off"; }
            a href="/console/graph.svg" download="skein-graph.svg" { "Export as SVG" }
        }
        div id="graph" data-page="graph" data-shape=(shape(&login, plan)) {
            (graph(&login, plan, &running_services(&state, &login)))
        }
    };
    Ok(page(&login, Section::Graph, "Graph", &body))
}

fn graph(login: &Login, plan: &Plan, running: &[(ServiceName, ServiceStatus)]) -> Markup {
    html! {
        h2 { "Agents and modes" }
        ul class="rows" { @for agent in plan.agents() { (agent_row(plan, agent)) } }
        h2 { "Services" }
        div class="scroll" tabindex="0" role="region" aria-label="Services" {
            table {
                thead { tr { th { "Service" } th { "State" } th { "Leases" } th { "Restarts" } th { "Sandbox" } th { "Used by" } } }
                tbody { (service_rows(login, plan, running)) }
            }
        }
    }
}

/// Identifies what the graph shows without the states of services. It changes with the manifests.
fn shape(login: &Login, plan: &Plan) -> String {
    format!("{:x}", checksum(&graph(login, plan, &[]).0))
}

/// The last shape that was sent to a page, so that an unchanged plan is not rendered again.
#[derive(Debug, Default)]
pub(super) struct KnownShape {
    /// Keeps the address of the plan from another use.
    plan: Weak<Plan>,
    shape: String,
}

impl KnownShape {
    fn of_plan(&mut self, login: &Login, plan: &Arc<Plan>) -> &str {
        if !std::ptr::eq(self.plan.as_ptr(), Arc::as_ptr(plan)) {
            *self = Self { plan: Arc::downgrade(plan), shape: shape(login, plan) };
        }
        &self.shape
    }
}

/// Returns the states of the services and the shape of the graph, for a page that is open.
pub(super) async fn news(state: &ServerState, login: &Login, known: &mut KnownShape) -> Result<Value, ConsoleProblem> {
    let project = home_project(state, &login.token).await?;
    let services = service_states(&running_services(state, login));
    Ok(json!({"kind": "graph", "shape": known.of_plan(login, project.broker.plan()), "services": services}))
}

/// Returns the states of the services. If the page does not know the current agents, modes and services, returns the
/// graph too.
pub(super) async fn states(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let project = home_project(&state, &login.token).await?;
    let plan = project.broker.plan();
    let running = running_services(&state, &login);
    let shape = shape(&login, plan);
    let is_known = FormFields::of_query(query.as_deref()).get("known") == Some(shape.as_str());
    let html = (!is_known).then(|| graph(&login, plan, &running).into_string());
    let news = json!({"shape": shape, "html": html, "services": service_states(&running)});
    Ok(([(header::CONTENT_TYPE, "application/json")], news.to_string()).into_response())
}

/// Returns the state of each running service as JSON.
fn service_states(running: &[(ServiceName, ServiceStatus)]) -> Vec<Value> {
    let mut names: Vec<_> = running.iter().map(|(name, _)| name).collect();
    names.dedup();
    let state_of = |name: &ServiceName| {
        let summary = ProcessSummary::of(running, name);
        json!({
            "name": name,
            "state": summary.state,
            "leases": summary.leases,
            "restarts": summary.restarts,
            "problem": summary.problem.map(display_text),
        })
    };
    names.into_iter().map(state_of).collect()
}

/// Sends the drawing.
pub(super) async fn drawing(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
) -> Result<Response, ConsoleProblem> {
    let project = home_project(&state, &login.token).await?;
    let text = render(project.broker.plan(), Format::Svg);
    let mut response = ([(header::CONTENT_TYPE, "image/svg+xml")], text).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(DRAWING_POLICY));
    Ok(response)
}

/// Shows one mode: tools, exclusions, prompt and sandbox.
pub(super) async fn mode(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path((agent, slug)): Path<(String, String)>,
) -> Result<Response, ConsoleProblem> {
    let project = home_project(&state, &login.token).await?;
    let plan = project.broker.plan();
    let unknown = || ConsoleProblem::new(StatusCode::NOT_FOUND, "There is no such mode.");
    let id: ModeId = format!("{agent}/{slug}").parse().map_err(|_| unknown())?;
    if !plan.is_selectable(&id) {
        return Err(unknown());
    }
    let (entry, scope) = plan.mode(&id).ok_or_else(unknown)?;
    let body = html! {
        h1 { (id.to_string()) }
        p { (display_text(&entry.mode.description)) }
        dl class="panel" {
            dt { "Approval" } dd { (project.broker.approval(entry).as_str()) }
            dt { "Sandbox of its commands" }
            dd { (display_text(&profile_text(ProcessKind::Command, plan.mode_sandbox(&id)))) }
            dt { "Services" }
            dd {
                @if scope.needs().is_empty() { "none" }
                @for name in scope.needs() { a href={ "/console/services/" (name) } { code { (name) } } " " }
                @if scope.lists_mcp() { "and all third-party services" }
            }
        }
        (tools(&login, plan, scope))
        (prompt(&login, entry))
    };
    Ok(page(&login, Section::Graph, &id.to_string(), &body))
}

fn agent_row(plan: &Plan, agent: &AgentEntry) -> Markup {
    let name = agent.manifest.name.as_str();
    html! {
        li class="filtered" {
            strong { (name) }
            @if agent.is_external() {
                " " span class="state" { "external" } " "
                span class="meta" {
                    (display_text(&profile_text(ProcessKind::ExternalAgent, plan.agent_sandbox(&agent.manifest.name))))
                }
            }
            p class="meta" { (display_text(&agent.manifest.description)) }
            ul {
                @for entry in plan.modes_of(agent).filter(|entry| !entry.mode.internal) {
                    li {
                        a href={ "/console/modes/" (name) "/" (entry.mode.slug.as_str()) } { (entry.mode.slug.as_str()) }
                        " " span class="meta" { (display_text(&entry.mode.description)) }
                    }
                }
            }
        }
    }
}

/// Returns the services that were started, sorted by name. Those of other principals are the concern of administrators.
pub(super) fn running_services(state: &ServerState, login: &Login) -> Vec<(ServiceName, ServiceStatus)> {
    let is_admin = login.token.grant.limits().admin;
    let mut running = if is_admin { (state.parts.pool_status)() } else { Vec::new() };
    running.sort_by(|(one, _), (other, _)| one.cmp(other));
    running
}

/// The state of all processes of one service.
struct ProcessSummary<'a> {
    state: &'static str,
    leases: usize,
    restarts: u32,
    problem: Option<&'a str>,
}

impl<'a> ProcessSummary<'a> {
    fn of(running: &'a [(ServiceName, ServiceStatus)], name: &ServiceName) -> Self {
        let statuses: Vec<_> = running.iter().filter(|(known, _)| known == name).map(|(_, status)| status).collect();
        let health = statuses.iter().map(|status| status.health).find(|health| *health != ServiceHealth::Stopped);
        Self {
            state: health.map_or("stopped", health_label),
            leases: statuses.iter().map(|status| status.leases).sum(),
            restarts: statuses.iter().map(|status| status.restarts).sum(),
            problem: statuses.iter().find_map(|status| status.last_error.as_deref()),
        }
    }
}

/// Returns whether a login sees a service. A token with limited modes sees the services that those modes use, and those
/// that it reaches without a mode.
pub(super) fn is_within_reach(login: &Login, plan: &Plan, service: &ServiceEntry) -> bool {
    let limits = login.token.grant.limits();
    limits.admin || limits.admits_service(service.manifest.name.as_str()) || plan.reaches(service)
}

fn service_rows(login: &Login, plan: &Plan, running: &[(ServiceName, ServiceStatus)]) -> Markup {
    html! {
        @for service in plan.services().filter(|service| is_within_reach(login, plan, service)) {
            (service_row(plan, service, &ProcessSummary::of(running, &service.manifest.name)))
        }
    }
}

fn service_row(plan: &Plan, service: &ServiceEntry, summary: &ProcessSummary<'_>) -> Markup {
    let name = service.manifest.name.as_str();
    let state = if service.enabled { summary.state } else { "disabled" };
    html! {
        tr class="filtered" data-service=(name) {
            td {
                strong { a href={ "/console/services/" (name) } { (name) } }
                div class="meta" { (display_text(&service.manifest.description)) }
                div class="meta" data-cell="problem" {
                    @if let Some(problem) = summary.problem { "Last error: " (display_text(problem)) }
                }
            }
            td { span class={ "state " (state) } data-cell="state" { (state) } }
            td data-cell="leases" { (summary.leases) }
            td data-cell="restarts" { (summary.restarts) }
            td { (display_text(&sandbox_of(plan, service))) }
            td { (plan.users(service).iter().map(ModeId::to_string).collect::<Vec<_>>().join(", ")) }
        }
    }
}

pub(super) fn sandbox_of(plan: &Plan, service: &ServiceEntry) -> String {
    match service.manifest.transport {
        Transport::Builtin(_) => "built in; commands use the sandbox of the mode".to_owned(),
        Transport::Http(_) => "runs elsewhere".to_owned(),
        Transport::Stdio(_) => profile_text(ProcessKind::Service, plan.service_sandbox(&service.manifest.name)),
    }
}

pub(super) fn health_label(health: ServiceHealth) -> &'static str {
    match health {
        ServiceHealth::Stopped => "stopped",
        ServiceHealth::Starting => "starting",
        ServiceHealth::Healthy => "healthy",
        ServiceHealth::Degraded => "degraded",
        ServiceHealth::Open => "open",
        ServiceHealth::HalfOpen => "half-open",
    }
}

/// Returns the tools that the manifests name: those in scope with their groups, and the others with the reason.
fn tools(login: &Login, plan: &Plan, scope: &ToolScope) -> Markup {
    let mut within = Vec::new();
    let mut without = Vec::new();
    for service in plan.services().filter(|service| is_within_reach(login, plan, service)) {
        for tool in tool_names(service) {
            let name = format!("{}__{tool}", service.manifest.name);
            match scope.admits(service, tool) {
                Ok(admission) => {
                    let groups: Vec<_> = admission.rules.iter().map(|rule| rule.group.to_string()).collect();
                    let files: Vec<_> = admission.files().iter().map(|files| files.as_str().to_owned()).collect();
                    let files = if files.is_empty() { "all files".to_owned() } else { files.join(" or ") };
                    within.push((name, groups.join(", "), files));
                }
                Err(refusal) => without.push((name, refusal.to_string())),
            }
        }
    }
    html! {
        h2 { "Tools (" (within.len()) ")" }
        div class="row" {
            label class="grow" { "Filter" input type="search" data-filter=".filtered" autocomplete="off"; }
        }
        div class="scroll" tabindex="0" role="region" aria-label="Tools" {
            table {
                thead { tr { th { "Tool" } th { "Group" } th { "Files" } } }
                tbody {
                    @for (name, groups, files) in &within {
                        tr class="filtered" { td { code { (name) } } td { (groups) } td { (display_text(files)) } }
                    }
                }
            }
        }
        p class="hint" { "Services that tell their tools only when they run may have more." }
        h2 { "Absent tools (" (without.len()) ")" }
        div class="scroll" tabindex="0" role="region" aria-label="Absent tools" {
            table {
                thead { tr { th { "Tool" } th { "Reason" } } }
                tbody {
                    @for (name, reason) in &without {
                        tr class="filtered" { td { code { (name) } } td { (display_text(reason)) } }
                    }
                }
            }
        }
    }
}

/// Returns the tools that a service's manifest names, without duplicates, in the order of its groups.
fn tool_names(service: &ServiceEntry) -> Vec<&str> {
    let mut tools: Vec<&str> = Vec::new();
    for tool in service.manifest.groups.values().flatten() {
        if !tools.contains(&tool.as_str()) {
            tools.push(tool.as_str());
        }
    }
    tools
}

/// Shows the prompt of a mode. Its path names folders of the server, so only administrators see it.
fn prompt(login: &Login, entry: &ModeEntry) -> Markup {
    let is_admin = login.token.grant.limits().admin;
    html! {
        h2 { "Prompt" }
        @match &entry.prompt {
            Some(prompt) => {
                p class="meta" {
                    @if is_admin { (display_text(&prompt.file)) " · " }
                    (prompt.text.len()) " bytes"
                }
                pre tabindex="0" { (display_text(&prompt.text)) }
            }
            None => { p class="empty" { "An external agent has its own prompt." } }
        }
    }
}
