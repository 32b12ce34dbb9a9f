//! The state of the server, for administrators: findings of `doctor`, charts of the metrics, recent errors, services by
//! state and all metrics.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::super::ServerState;
use super::findings::severity_class;
use super::layout::{ConsoleProblem, Section, page};
use super::logins::Login;
use super::metric_history::charts;
use super::setup::{LogEntry, SetupFinding, require_admin, use_setup};
use super::transcript::display_text;
use crate::task::alive_tasks;

/// Shows the state of the server.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Health and metrics")?;
    let findings = use_setup(&state, |setup| setup.examine()).await;
    let errors = use_setup(&state, |setup| setup.recent_errors()).await;
    let sessions = &state.parts.sessions;
    let services = (state.parts.services)();
    let body = html! {
        h1 { "Health" }
        dl class="panel" {
            dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) }
            dt { "State" } dd { (if state.draining.is_cancelled() { "shutting down" } else { "ready" }) }
            dt { "Open sessions" } dd { (sessions.open_sessions()) }
            dt { "Running turns" } dd { (sessions.running_turns()) }
        }
        h2 { "Findings of doctor" }
        (part(findings, |findings| finding_rows(findings)))
        h2 { "The last hour" }
        (charts(&state))
        h2 { "Services by state" }
        (service_table(&services))
        h2 { "Recent errors" }
        (part(errors, |errors| error_table(errors)))
        h2 { "Metrics" }
        pre tabindex="0" role="region" aria-label="Metrics" { (state.metrics.render(sessions, &services, alive_tasks())) }
    };
    Ok(page(&login, Section::Health, "Health", &body))
}

/// Shows a part of the page, or the reason why it cannot be read. The rest is shown in both cases.
fn part<T>(read: Result<T, ConsoleProblem>, show: impl Fn(&T) -> Markup) -> Markup {
    match read {
        Ok(value) => show(&value),
        Err(problem) => html! { p class="problem" role="alert" { (display_text(&problem.text)) } },
    }
}

fn finding_rows(findings: &[SetupFinding]) -> Markup {
    html! {
        @if findings.is_empty() { p class="empty" { "Nothing to correct." } }
        ul class="rows" id="doctor" {
            @for found in findings {
                li class={ "finding " (severity_class(found.severity)) } {
                    strong { (found.severity) } ": " (display_text(&found.what))
                    div class="meta" { "At " (display_text(&found.place)) }
                    div class="meta" { "Fix: " (display_text(&found.fix)) }
                }
            }
        }
    }
}

fn service_table(services: &[(&'static str, usize)]) -> Markup {
    let all: usize = services.iter().map(|(_, count)| count).sum();
    html! {
        @if all == 0 { p class="empty" { "No service was used yet." } }
        table {
            thead { tr { th { "State" } th { "Services" } th { "Share" } } }
            tbody {
                @for (label, count) in services {
                    tr {
                        td { (label) }
                        td { (count) }
                        td { meter min="0" max=(all.max(1)) value=(count) aria-label=(label) { (count) } }
                    }
                }
            }
        }
    }
}

fn error_table(errors: &[LogEntry]) -> Markup {
    html! {
        @if errors.is_empty() { p class="empty" { "The log has no error and no warning." } }
        @else {
            div class="scroll" tabindex="0" role="region" aria-label="Recent errors" {
                table {
                    thead { tr { th { "Time" } th { "Level" } th { "Message" } } }
                    tbody {
                        @for error in errors {
                            tr {
                                td { (display_text(&error.time)) }
                                td { (error.level) }
                                td { (display_text(&error.text)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
