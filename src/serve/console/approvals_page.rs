//! The open requests of a principal, from all its sessions, and the answers to them.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, PreEscaped, html};

use super::super::replica_headers::NotHere;
use super::super::{ServerState, peers};
use super::SCRIPT;
use super::elicitation_form::inputs;
use super::form::FormFields;
use super::layout::{ConsoleProblem, Section, csrf_field, fragment, page};
use super::login_page::see_other;
use super::logins::Login;
use super::requests::{RequestAnswerError, RequestKind, ShownRequest};
use super::session_list::title_of;
use super::transcript::{DiffBudget, diff, display_text, pretty, render};
use crate::clock;
use crate::tool::ask::{ExternalPermissionRequest, PermissionRequest};
use crate::tool::command;
use crate::tool::elicit::{Elicitation, ElicitationKind};

/// The path of the rows, which replicas also ask each other for.
const ROWS: &str = "/console/approvals/rows";

/// Shows all requests.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let own = own_rows(&state, &login).await?;
    let others = peers::collect_fragments(&state, ROWS, &headers).await;
    let body = html! {
        h1 { "Approvals" }
        p class="hint" {
            "Move the focus to a request with Tab. Then " kbd { "a" } " allows it once and " kbd { "r" }
            " rejects it, as soon as you could see it for half a second."
        }
        p id="no-approvals" class="empty" hidden[!(own.0.is_empty() && others.is_empty())] { "No session waits for you." }
        ul id="approvals" class="rows" { (own) (PreEscaped(&others)) }
    };
    Ok(page(&login, Section::Approvals, "Approvals", &body))
}

/// Returns the rows alone, for a page that is open.
pub(super) async fn list(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let own = own_rows(&state, &login).await?;
    let others = peers::collect_fragments(&state, ROWS, &headers).await;
    Ok(fragment(&html! { (own) (PreEscaped(&others)) }))
}

/// Returns the rows of this replica, for another one.
pub(super) async fn list_own(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
) -> Result<Response, ConsoleProblem> {
    Ok(fragment(&own_rows(&state, &login).await?))
}

async fn own_rows(state: &ServerState, login: &Arc<Login>) -> Result<Markup, ConsoleProblem> {
    let requests = state.parts.console.requests.list(&login.token.grant);
    let login = Arc::clone(login);
    render(move |budget| html! { @for request in &requests { (row(&login, request, budget)) } }).await
}

/// Answers a request. The first answer counts; a later one gets 409 and the answer that counted.
pub(super) async fn answer(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
    Path(number): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let requests = &state.parts.console.requests;
    let number = number.parse::<u64>().map_err(|_| RequestAnswerError::Unknown)?;
    match requests.answer(number, &form, &login.token.grant) {
        Err(RequestAnswerError::Unknown) => {
            let mut response = ConsoleProblem::from(RequestAnswerError::Unknown).into_response();
            response.extensions_mut().insert(NotHere);
            return Ok(response);
        }
        answered => answered?,
    }
    match headers.contains_key(SCRIPT) {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Ok(see_other("/console/approvals")),
    }
}

impl From<RequestAnswerError> for ConsoleProblem {
    fn from(error: RequestAnswerError) -> Self {
        let status = match error {
            RequestAnswerError::Unknown => StatusCode::NOT_FOUND,
            RequestAnswerError::Forbidden => StatusCode::FORBIDDEN,
            RequestAnswerError::Closed(_) => StatusCode::CONFLICT,
            RequestAnswerError::Unfit => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}

fn row(login: &Login, request: &ShownRequest, budget: &DiffBudget) -> Markup {
    let state = if request.answer.is_some() { "closed" } else { "open" };
    let (title, details) = match &request.kind {
        RequestKind::Permission(permission) => (permission_title(permission), permission_details(permission, budget)),
        RequestKind::Choice(choice) => (choice_title(choice), choice_details(choice)),
        RequestKind::Elicitation(question) => {
            (display_text(&format!("{} asks you", question.by)), elicitation_details(question))
        }
    };
    let source = &request.source;
    html! {
        li data-request=(request.number) data-state=(state) tabindex="0" aria-label=(title) {
            strong { (title) }
            div class="meta" {
                a href={ "/console/sessions/" (source.session) } { (title_of(source.title.as_deref())) }
                " · " (source.mode.to_string()) " · " (display_text(&source.folder.to_string_lossy())) " · "
                time datetime=(clock::iso(request.asked_at)) { (clock::ago(request.asked_at)) }
            }
            (details)
            p class="meta" { "Sandbox of commands: " (display_text(&source.sandbox)) }
            p class="problem" role="alert" hidden {}
            @match &request.answer {
                Some(answer) => { p class="meta" { "Closed: " (display_text(answer)) "." } }
                None => { (answers(login, request)) }
            }
        }
    }
}

fn answers(login: &Login, request: &ShownRequest) -> Markup {
    html! {
        form method="post" action={ "/console/approvals/" (request.number) } class="row" data-draft=[draft_key(request)] {
            (csrf_field(login))
            @match &request.kind {
                RequestKind::Permission(permission) => {
                    button type="submit" name="answer" value="allow" { "Allow once" }
                    @if permission.once_reason().is_none() {
                        button type="submit" name="answer" value="allow-always" class="quiet" { "Always allow" }
                    }
                    button type="submit" name="answer" value="reject" class="reject" { "Reject" }
                    @if !permission.is_single() {
                        button type="submit" name="answer" value="reject-always" class="quiet" { "Always reject" }
                    }
                }
                RequestKind::Elicitation(question) => {
                    @if let ElicitationKind::Fields(schema) = &question.kind { (inputs(schema)) }
                    button type="submit" name="answer" value="accept" { "Done" }
                    button type="submit" name="answer" value="decline" class="reject" formnovalidate { "Decline" }
                }
                RequestKind::Choice(choice) => {
                    @for option in &choice.options {
                        button type="submit" name="answer" value={ "option:" (option.id) } class=(option_class(option.allows)) {
                            (display_text(&option.name))
                        }
                    }
                }
            }
        }
    }
}

/// Identifies a form among the drafts that the browser keeps. `None` if the request has no form.
fn draft_key(request: &ShownRequest) -> Option<String> {
    let RequestKind::Elicitation(question) = &request.kind else { return None };
    matches!(question.kind, ElicitationKind::Fields(_)).then(|| format!("request {}", request.number))
}

fn option_class(allows: bool) -> &'static str {
    if allows { "allow" } else { "reject" }
}

fn permission_title(request: &PermissionRequest) -> String {
    if let Some(title) = request.sandbox_title() {
        return format!("The sandbox asks: {}", display_text(title));
    }
    let caller = request.by.as_deref().unwrap_or("The agent");
    let services = request.calling_services().map(|services| format!(" for {services}")).unwrap_or_default();
    display_text(&format!("{caller} wants to call {}{services}", request.tool))
}

/// Describes a call in full: command, file, diff, host and what an answer with "always" covers.
fn permission_details(request: &PermissionRequest, budget: &DiffBudget) -> Markup {
    let line = command(&request.arguments);
    let covers = match (&request.protected, request.once_reason()) {
        (Some(protected), _) => format!("{protected}. Consent covers this call only."),
        (None, Some(reason)) => format!("{reason}."),
        (None, None) => format!("An answer with “always” covers {} in this session.", request.always),
    };
    html! {
        @if let Some(title) = request.title.as_deref().filter(|_| request.sandbox_title().is_none()) {
            p { (display_text(title)) }
        }
        @if let Some(line) = line { pre tabindex="0" class="command" { (display_text(line)) } }
        @if let Some(target) = &request.target { p { "File: " code { (display_text(&target.to_string())) } } }
        @if let Some(host) = request.always.host() { p { "Host: " code { (display_text(host)) } } }
        @if let Some(change) = &request.change {
            (diff(&change.path.to_string_lossy(), change.before.as_deref().unwrap_or_default(), &change.after, budget))
        }
        details {
            summary { "Arguments" }
            pre tabindex="0" { (pretty(&serde_json::Value::Object(request.arguments.clone()))) }
        }
        p class="meta" { (display_text(&covers)) }
    }
}

fn elicitation_details(question: &Elicitation) -> Markup {
    html! {
        p class="said" { (display_text(&question.message)) }
        @if let ElicitationKind::Page { url, .. } = &question.kind {
            p { "Open this page: " a href=(url) target="_blank" rel="noopener noreferrer" { (display_text(url)) } }
        }
    }
}

fn choice_title(request: &ExternalPermissionRequest) -> String {
    display_text(&format!("{} asks: {}", request.by, request.title))
}

fn choice_details(request: &ExternalPermissionRequest) -> Markup {
    html! {
        @if let Some(input) = &request.input {
            details open {
                summary { "Arguments" }
                pre tabindex="0" { (pretty(input)) }
            }
        }
    }
}
