//! The state of the server: its version, sessions, services and all metrics.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::html;

use super::super::ServerState;
use super::layout::{Section, page};
use super::logins::Login;

/// Shows the state of the server.
pub(super) async fn show(State(state): State<Arc<ServerState>>, Extension(login): Extension<Arc<Login>>) -> Response {
    let sessions = &state.parts.sessions;
    let services = (state.parts.services)();
    let metrics = state.metrics.render(sessions, &services);
    let all: usize = services.iter().map(|(_, count)| count).sum();
    let body = html! {
        h1 { "Health" }
        dl class="panel" {
            dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) }
            dt { "State" } dd { (if state.draining.is_cancelled() { "shutting down" } else { "ready" }) }
            dt { "Open sessions" } dd { (sessions.open_sessions()) }
            dt { "Running turns" } dd { (sessions.running_turns()) }
        }
        h2 { "Services by state" }
        @if all == 0 { p class="empty" { "No service was used yet." } }
        table {
            thead { tr { th { "State" } th { "Services" } th { "Share" } } }
            tbody {
                @for (label, count) in &services {
                    tr {
                        td { (label) }
                        td { (count) }
                        td { meter min="0" max=(all.max(1)) value=(count) aria-label=(label) { (count) } }
                    }
                }
            }
        }
        h2 { "Metrics" }
        pre tabindex="0" { (metrics) }
    };
    page(&login, Section::Health, "Health", &body)
}
