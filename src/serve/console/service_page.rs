//! One service: the state of its processes, the modes that use it, and the end of its log.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::super::ServerState;
use super::graph_page::{health_label, is_within_reach, running_services, sandbox_of};
use super::layout::{ConsoleProblem, Section, page};
use super::logins::Login;
use super::open_session::home_project;
use super::setup::{LogEntry, require_admin, use_setup};
use super::transcript::display_text;
use crate::clock;
use crate::manifest::{ServiceEntry, Transport};
use crate::tool::ServiceStatus;

/// Shows a service. Its processes and its log, which other principals use too, are only for administrators. So is the
/// path of its manifest, which names the account and the folders of the server.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(name): Path<String>,
) -> Result<Response, ConsoleProblem> {
    let project = home_project(&state, &login.token).await?;
    let plan = project.broker.plan();
    let unknown = || ConsoleProblem::new(StatusCode::NOT_FOUND, "There is no such service.");
    let service = plan.service(&name).filter(|service| is_within_reach(&login, plan, service)).ok_or_else(unknown)?;
    let users = plan.users(service);
    let is_admin = login.token.grant.limits().admin;
    let processes = match is_admin {
        true => {
            let LiveParts { status, log } = LiveParts::read(&state, &login, service).await?;
            html! {
                div data-page={ "services/" (name) } {
                    div id="service-status" { (status) }
                    div id="service-log" { (log) }
                }
            }
        }
        false => html! { p class="hint" { "Processes and logs are shown to tokens with --admin." } },
    };
    let body = html! {
        p { a href="/console/graph" { "Graph" } }
        h1 { (display_text(&name)) }
        p { (display_text(&service.manifest.description)) }
        dl class="panel" {
            dt { "Runs" } dd { (transport_text(service)) }
            dt { "Enabled" } dd { (if service.enabled { "yes" } else { "no" }) }
            dt { "Sandbox" } dd { (display_text(&sandbox_of(plan, service))) }
            dt { "Layer" } dd { (service.layer.to_string()) }
            @if is_admin { dt { "File" } dd { (display_text(&service.source.file)) } }
        }
        h2 { "Used by" }
        @if users.is_empty() { p class="empty" { "No mode uses it." } }
        ul { @for user in &users { li { a href={ "/console/modes/" (user) } { (user) } } } }
        (processes)
    };
    Ok(page(&login, Section::Graph, &name, &body))
}

/// Returns the parts of the page that change, as HTML by their ids. Fails if the login may not see them.
pub(super) async fn news(state: &ServerState, login: &Login, name: &str) -> Result<Value, ConsoleProblem> {
    require_admin(login, "Processes and logs of services")?;
    let project = home_project(state, &login.token).await?;
    let unknown = || ConsoleProblem::new(StatusCode::NOT_FOUND, "There is no such service.");
    let service = project.broker.plan().service(name).ok_or_else(unknown)?;
    let LiveParts { status, log } = LiveParts::read(state, login, service).await?;
    let parts = json!({"service-status": status.into_string(), "service-log": log.into_string()});
    Ok(json!({"kind": "service", "name": name, "parts": parts}))
}

/// The parts of the page that change while it is open.
struct LiveParts {
    status: Markup,
    log: Markup,
}

impl LiveParts {
    async fn read(state: &ServerState, login: &Login, service: &ServiceEntry) -> Result<Self, ConsoleProblem> {
        let name = service.manifest.name.clone();
        let log = use_setup(state, move |setup| setup.service_log(name.as_str())).await?;
        let running = running_services(state, login);
        let running = running.iter().filter(|(name, _)| *name == service.manifest.name);
        let statuses: Vec<&ServiceStatus> = running.map(|(_, status)| status).collect();
        Ok(Self { status: process_table(&statuses), log: log_lines(service, &log) })
    }
}

fn transport_text(service: &ServiceEntry) -> &'static str {
    match service.manifest.transport {
        Transport::Builtin(_) => "inside Skein",
        Transport::Stdio(_) => "as a process",
        Transport::Http(_) => "elsewhere, behind an address",
    }
}

fn process_table(statuses: &[&ServiceStatus]) -> Markup {
    html! {
        h2 { "Status" }
        @if statuses.is_empty() { p class="empty" { "It was not started yet." } }
        @else {
            div class="scroll" tabindex="0" role="region" aria-label="Processes" {
                table {
                    thead {
                        tr { th { "State" } th { "Since" } th { "Leases" } th { "Restarts" } th { "Tools" } th { "Memory" } th { "Last error" } }
                    }
                    tbody {
                        @for status in statuses {
                            @let label = health_label(status.health);
                            tr {
                                td { span class={ "state " (label) } { (label) } }
                                td { (status.started_at.map_or_else(|| "–".to_owned(), |at| clock::moment(at.saturating_mul(1_000)))) }
                                td { (status.leases) }
                                td { (status.restarts) }
                                td { (status.tools.map_or_else(|| "–".to_owned(), |count| count.to_string())) }
                                td { (status.memory_bytes.map_or_else(|| "–".to_owned(), memory_text)) }
                                td { (display_text(status.last_error.as_deref().unwrap_or("none"))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn memory_text(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn log_lines(service: &ServiceEntry, log: &[LogEntry]) -> Markup {
    let empty = match service.manifest.transport {
        Transport::Stdio(_) => "It has written nothing that the log still has.",
        Transport::Builtin(_) | Transport::Http(_) => "It has no separate process, so it has no log.",
    };
    html! {
        h2 { "End of its log" }
        @if log.is_empty() { p class="empty" { (empty) } }
        @else {
            pre tabindex="0" role="region" aria-label="End of its log" {
                @for line in log { (line.time) " " (display_text(&line.text)) "\n" }
            }
        }
    }
}
