//! One service: the state of its processes, the modes that use it, and the end of its log.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::super::ServerState;
use super::graph_page::{health_label, is_within_reach, running_services, sandbox_of};
use super::layout::{ConsoleProblem, Section, page};
use super::logins::Login;
use super::open_session::home_project;
use super::setup::{LogEntry, use_setup};
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
            let service_name = name.clone();
            let log = use_setup(&state, move |setup| setup.service_log(&service_name)).await?;
            let running = running_services(&state, &login);
            let running: Vec<_> = running.into_iter().filter(|(known, _)| known.as_str() == name).collect();
            let statuses: Vec<&ServiceStatus> = running.iter().map(|(_, status)| status).collect();
            html! {
                div id="service-status" data-refresh { (process_table(&statuses)) }
                div id="service-log" data-refresh { (log_lines(service, &log)) }
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
