//! For administrators: which rule decides about a call, the sandbox of each mode, and all tokens.

use std::path::Path;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::super::ServerState;
use super::form::FormFields;
use super::layout::{ConsoleProblem, Section, page};
use super::logins::Login;
use super::open_session::{ConsoleSessions, home_folder, home_project};
use super::session_list::mode_options;
use super::setup::require_admin;
use super::transcript::display_text;
use crate::broker::{Binding, GateDecision};
use crate::graph::profile_groups;
use crate::ids::ModeId;
use crate::store::StoredToken;

/// A call to test, as a person writes it.
struct CallText<'a> {
    mode: &'a str,
    tool: &'a str,
    arguments: &'a str,
}

/// Shows the tester, the sandboxes and the tokens.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Rules and tokens")?;
    let fields = FormFields::of_query(text.as_deref());
    let field = |name: &str| fields.text(name).unwrap_or_default();
    let call = CallText { mode: field("mode"), tool: field("tool"), arguments: field("arguments") };
    let project = home_project(&state, &login.token).await?;
    let plan = project.broker.plan();
    let decision = match call.tool.is_empty() {
        true => html! {},
        false => match decide(&state, &login, &call).await {
            Ok(decision) => decision,
            Err(problem) => html! { p class="problem" role="alert" { (display_text(&problem.text)) } },
        },
    };
    let tokens = state.parts.tokens.list().await?;
    let body = html! {
        h1 { "Rules" }
        h2 { "Which rule decides about a call" }
        form method="get" action="/console/rules" class="stack" data-draft="rules" {
            div class="row" {
                label { "Mode" select name="mode" { (mode_options(plan, call.mode)) } }
                label class="grow" { "Tool" input name="tool" value=(call.tool) placeholder="developer__shell" required; }
            }
            label { "Arguments as JSON"
                textarea name="arguments" spellcheck="false" { (fields.get("arguments").unwrap_or("{}")) }
            }
            button type="submit" { "Test" }
        }
        p class="hint" { "The call does not run. The services of the mode start, because they check the arguments." }
        (decision)
        h2 { "Sandboxes" }
        (sandboxes(&profile_groups(plan)))
        h2 { "Principals and tokens" }
        (token_table(&tokens))
    };
    Ok(page(&login, Section::Rules, "Rules", &body))
}

/// Decides about a call in a session that is not stored.
async fn decide(state: &Arc<ServerState>, login: &Login, call: &CallText<'_>) -> Result<Markup, ConsoleProblem> {
    let invalid = |text: &str| ConsoleProblem::new(StatusCode::UNPROCESSABLE_ENTITY, text);
    let mode: ModeId = call.mode.parse().map_err(|_| invalid("Choose a mode."))?;
    let arguments = if call.arguments.is_empty() { "{}" } else { call.arguments };
    let arguments: Map<String, Value> = serde_json::from_str(arguments)
        .map_err(|error| invalid(&format!("The arguments are no JSON object: {error}")))?;
    let sessions = ConsoleSessions::of(state, &login.token).await?;
    let opened = sessions.create(&mode, home_folder(state, &login.token).map(Path::to_owned)).await?;
    let binding = opened.open.session.binding().await;
    let decision = match binding {
        Ok(binding) => decision_markup(&binding, call.tool, &arguments),
        Err(error) => Err(ConsoleProblem::new(StatusCode::CONFLICT, error.to_string())),
    };
    opened.release(state).await;
    decision
}

fn decision_markup(binding: &Binding, tool: &str, arguments: &Map<String, Value>) -> Result<Markup, ConsoleProblem> {
    let decision = binding.simulate_call(tool, arguments);
    let decision = decision.map_err(|error| ConsoleProblem::new(StatusCode::CONFLICT, error.to_string()))?;
    let (word, reason) = match &decision {
        GateDecision::Run(reason) => ("runs", reason),
        GateDecision::Ask(reason) => ("asks you", reason),
        GateDecision::Refuse(reason) => ("is refused", reason),
    };
    let parts: Vec<(String, String)> = binding
        .allow_rules(tool, arguments)
        .iter()
        .map(|part| {
            let rule = part.allowed_by.map_or_else(|| "no rule allows it".to_owned(), ToString::to_string);
            (part.command.clone(), rule)
        })
        .collect();
    Ok(html! {
        div class="panel" id="decision" {
            p { strong { "The call " (word) } ": " (display_text(&reason.to_string())) }
            @if !parts.is_empty() {
                ul {
                    @for (command, rule) in &parts {
                        li { code { (display_text(command)) } " " span class="meta" { (display_text(rule)) } }
                    }
                }
            }
        }
    })
}

fn sandboxes(groups: &[(Vec<String>, String)]) -> Markup {
    html! {
        dl class="panel" {
            @for (names, profile) in groups {
                dt { (names.join(", ")) }
                dd { (display_text(profile)) }
            }
        }
    }
}

fn token_table(tokens: &[StoredToken]) -> Markup {
    html! {
        p class="hint" { "Only " code { "skein token" } " creates and revokes tokens." }
        div class="scroll" tabindex="0" role="region" aria-label="Tokens" {
            table {
                thead { tr { th { "Principal" } th { "Token" } th { "State" } th { "Limits" } th { "Expires" } } }
                tbody {
                    @for token in tokens {
                        tr {
                            td { (token.grant.principal.name()) }
                            td { code { (token.grant.id) } }
                            td { (token.state.as_str()) }
                            td { (limits_text(token)) }
                            td { (token.grant.expires.map_or_else(|| "never".to_owned(), |at| at.to_string())) }
                        }
                    }
                }
            }
        }
    }
}

fn limits_text(token: &StoredToken) -> String {
    let limits = &token.grant.limits;
    let mut words = Vec::new();
    if limits.admin {
        words.push("admin".to_owned());
    }
    if !limits.modes.is_empty() {
        words.push(format!("modes {}", limits.modes.join(", ")));
    }
    words.extend(limits.approval.map(|level| format!("approval {}", level.as_str())));
    words.extend(limits.roots.iter().map(|root| format!("folder {}", root.display())));
    words.extend(limits.sessions.map(|count| format!("{count} sessions")));
    words.extend(limits.turns.map(|count| format!("{count} turns")));
    words.extend(limits.requests_per_minute.map(|count| format!("{count} requests a minute")));
    if words.is_empty() { "none".to_owned() } else { display_text(&words.join("; ")) }
}
