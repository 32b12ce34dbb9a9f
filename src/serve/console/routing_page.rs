//! Where a prompt would be routed and why, and the correction of a route.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::super::ServerState;
use super::assets::checksum;
use super::form::{FormFields, query};
use super::layout::{ConsoleProblem, Section, csrf_field, page};
use super::login_page::see_other;
use super::logins::Login;
use super::open_session::{ConsoleSessions, home_folder, home_project};
use super::session_list::mode_options;
use super::transcript::display_text;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::orchestrator::route::{DecisionSource, Route, RoutingDecision};
use crate::secrets::find_secret;

/// Shows the form, and the decision about a prompt if there is one.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let fields = FormFields::of_query(text.as_deref());
    let prompt = fields.text("prompt").unwrap_or_default();
    let project = home_project(&state, &login.token).await?;
    let plan = project.broker.plan();
    let decision = match prompt.is_empty() {
        true => html! {},
        false => route(&state, &login, plan, prompt).await?,
    };
    let body = html! {
        h1 { "Routing" }
        form method="get" action="/console/routing" class="stack" data-draft="routing" {
            label { "Prompt" textarea name="prompt" required { (prompt) } }
            button type="submit" { "Show the route" }
        }
        p class="hint" { "No model is asked and nothing runs. A session may also ask its model if the router is unsure." }
        p { a href="/console/routing/evaluation" { "Evaluate the router with cases of your own" } }
        (decision)
    };
    Ok(page(&login, Section::Routing, "Routing", &body))
}

async fn route(
    state: &Arc<ServerState>,
    login: &Login,
    plan: &Arc<Plan>,
    prompt: &str,
) -> Result<Markup, ConsoleProblem> {
    let sessions = ConsoleSessions::of(state, &login.token).await?;
    let principal = login.token.grant.principal();
    let folder = home_folder(state, &login.token).unwrap_or(&state.parts.empty_folder);
    let routed = sessions.orchestrator().would_route(principal, plan, folder, prompt, Some(sessions.store()), None);
    let (decision, notices) = match routed.await {
        Ok(routed) => routed,
        Err(error) => return Ok(html! { p class="problem" role="alert" { (display_text(&error.to_string())) } }),
    };
    let chosen = decision.routes.first().map(|route| route.mode.to_string()).unwrap_or_default();
    Ok(html! {
        @for notice in &notices { p class="meta" { (display_text(notice)) } }
        (decision_markup(&decision))
        h2 { "Correct it" }
        form method="post" action="/console/routing" class="row" data-draft={ "route " (format!("{:x}", checksum(prompt))) } {
            (csrf_field(login))
            input type="hidden" name="prompt" value=(prompt);
            label { "This prompt belongs to" select name="mode" { (mode_options(plan, &chosen)) } }
            button type="submit" { "Remember" }
        }
    })
}

fn decision_markup(decision: &RoutingDecision) -> Markup {
    html! {
        h2 { (decider(decision.by)) }
        ol class="rows" id="routes" { @for route in &decision.routes { (route_row(route, decision.is_compound())) } }
        @if !decision.alternatives.is_empty() {
            h2 { "Alternatives" }
            table {
                thead { tr { th { "Mode" } th { "Confidence" } th { "Words" } } }
                tbody {
                    @for other in &decision.alternatives {
                        tr {
                            td { (other.mode.to_string()) }
                            td { (percent(other.confidence)) }
                            td { (display_text(&other.reason)) }
                        }
                    }
                }
            }
        }
    }
}

/// Says who decides.
fn decider(source: DecisionSource) -> &'static str {
    match source {
        DecisionSource::Explicit => "The prompt names its mode",
        DecisionSource::Embedded => "The router decides",
        DecisionSource::Model => "A model decides",
        DecisionSource::Continuing => "The prompt continues the session in its mode",
        DecisionSource::Default => "The router is unsure, so the default mode applies",
    }
}

fn route_row(route: &Route, is_part: bool) -> Markup {
    html! {
        li {
            strong { (route.mode.to_string()) } " " (percent(route.confidence))
            p class="meta" { (display_text(&route.reason)) }
            @if is_part { p class="said" { (display_text(&route.task)) } }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Remembers the mode of a prompt for the folder of new sessions.
pub(super) async fn correct(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
) -> Result<Response, ConsoleProblem> {
    let invalid = |text: &str| ConsoleProblem::new(StatusCode::UNPROCESSABLE_ENTITY, text);
    let prompt = form.text("prompt").ok_or_else(|| invalid("Write a prompt first."))?;
    if prompt.starts_with('@') {
        return Err(invalid("A prompt that begins with @ names its mode itself."));
    }
    if let Some(secret) = find_secret(prompt) {
        return Err(invalid(&format!("The prompt is not remembered: it holds what looks like {secret}.")));
    }
    let project = home_project(&state, &login.token).await?;
    let mode = form.text("mode").and_then(|name| name.parse::<ModeId>().ok());
    let mode = mode.filter(|mode| project.broker.plan().is_selectable(mode));
    let mode = mode.ok_or_else(|| invalid("There is no such mode."))?;
    let no_folder = || invalid("Your token has no folder, so no project can remember the route.");
    let folder = home_folder(&state, &login.token).ok_or_else(no_folder)?;
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let kept = sessions.orchestrator().remember(login.token.grant.principal(), folder, prompt, &mode).await;
    kept.map_err(|error| {
        tracing::error!(%error, "a correction cannot be stored");
        ConsoleProblem::new(StatusCode::SERVICE_UNAVAILABLE, "The correction cannot be stored at the moment.")
    })?;
    Ok(see_other(&format!("/console/routing?{}", query(&[("prompt", prompt)]))))
}
