//! One session: its transcript with live updates, its delegated tasks, and its export.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::super::ServerState;
use super::form::{FormFields, query};
use super::layout::{ConsoleProblem, Section, csrf_field, page};
use super::logins::Login;
use super::open_session::{ConsoleSessions, home_project};
use super::session_list::{SessionState, mode_of, mode_options, title_of};
use super::transcript::{IMAGE_TYPES, display_text, entries, render};
use crate::agents::Event;
use crate::clock;
use crate::conversation::Role;
use crate::graph::Plan;
use crate::principal::ApprovalLevel;
use crate::store::{ListFilter, StoredEvent, StoredSession, UsageTotals};

/// Events on one page of the transcript.
const PAGE: usize = 200;
/// Events that a page gets at once while it catches up.
const CATCH_UP: usize = 500;

/// Shows the end of a transcript, or its part before an event.
pub(super) async fn show(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(id): Path<String>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let fields = FormFields::of_query(text.as_deref());
    let before: Option<u64> = fields.text("before").and_then(|text| text.parse().ok());
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let session = sessions.find(&id).await?;
    let events = sessions.store().events_before(&session.id, before, PAGE).await?;
    let tasks = task_tree(&state, &sessions, &session).await?;
    let project = home_project(&state, &login.token).await?;
    let is_end = before.is_none_or(|before| before > session.events);
    let title = title_of(session.title.as_deref());
    let first = events.first().map_or(1, |event| event.seq);
    let last = events.last().map_or(0, |event| event.seq);
    let transcript = render(move |budget| entries(&events, budget)).await?;
    let body = html! {
        h1 { (title) }
        (summary(&state, &session))
        div class="columns two" {
            div {
                (earlier(&session, first))
                @if is_end {
                    (live_transcript(&session, last, &transcript))
                    (prompt_form(&login, &session))
                } @else {
                    div class="entries" { (transcript) }
                    p { a href={ "/console/sessions/" (session.id) } { "To the end of the session" } }
                }
            }
            aside aria-label="About the session" {
                (controls(&login, &session, project.broker.plan()))
                h2 { "Delegated tasks" }
                div id="session-tasks" { (tasks) }
                h2 { "Export" }
                p {
                    a href={ "/console/sessions/" (session.id) "/export?format=markdown" } { "Markdown" } " · "
                    a href={ "/console/sessions/" (session.id) "/export?format=json" } { "JSON" }
                }
            }
        }
    };
    Ok(page(&login, Section::Sessions, &title, &body))
}

fn summary(state: &ServerState, session: &StoredSession) -> Markup {
    let is = SessionState::of(state, &session.id);
    html! {
        p class="meta" {
            span id="session-state" class={ "state " (is.label()) } { (is.label()) } " "
            (mode_of(session)) " · " (display_text(&session.model)) " · " (display_text(&session.cwd.to_string_lossy())) " · "
            span id="session-usage" { (usage_text(&session.spent)) }
        }
        p class="meta" id="session-progress" role="status" {}
    }
}

fn usage_text(spent: &UsageTotals) -> String {
    let cost = spent.cost.map(|cost| format!(" · ${cost:.4}")).unwrap_or_default();
    format!("{} tokens in ({} cached), {} out{cost}", spent.input, spent.cached, spent.output)
}

/// Leads to the entries before the event `first`.
fn earlier(session: &StoredSession, first: u64) -> Markup {
    // A page that removes its oldest entries shows it later.
    html! {
        p id="earlier" hidden[first <= 1] {
            a href={ "/console/sessions/" (session.id) "?" (query(&[("before", &first.to_string())])) } {
                "Earlier entries"
            }
        }
    }
}

fn live_transcript(session: &StoredSession, last: u64, transcript: &Markup) -> Markup {
    html! {
        div id="transcript" class="entries" role="log" aria-label="Transcript" aria-live="off"
            data-session=(session.id) data-last=(last) { (transcript) }
        div id="live" class="entries" aria-live="polite" {}
    }
}

fn prompt_form(login: &Login, session: &StoredSession) -> Markup {
    if let Some(parent) = &session.parent {
        return html! {
            p { "This session works for " a href={ "/console/sessions/" (parent) } { "another one" } ". Prompt that one." }
        };
    }
    html! {
        h2 { "Prompt" }
        form method="post" action={ "/console/sessions/" (session.id) "/prompt" } class="stack" data-stay {
            (csrf_field(login))
            p class="problem" role="alert" hidden {}
            label { "Your prompt" textarea name="prompt" data-draft=(session.id) {} }
            label { "Pictures" input type="file" name="image" multiple accept=(IMAGE_TYPES.join(",")); }
            div class="row" { button type="submit" { "Send" } span class="hint" { "Ctrl+Enter sends." } }
        }
        form method="post" action={ "/console/sessions/" (session.id) "/cancel" } id="cancel-form" class="stack" data-stay {
            (csrf_field(login))
            p class="problem" role="alert" hidden {}
            button type="submit" class="reject" { "Cancel the turn" }
        }
    }
}

fn controls(login: &Login, session: &StoredSession, plan: &Plan) -> Markup {
    let level = session.approval.as_deref().unwrap_or_default();
    let limits = login.token.grant.limits();
    html! {
        @if session.parent.is_none() {
            form method="post" action={ "/console/sessions/" (session.id) "/settings" } class="stack panel" data-stay {
                (csrf_field(login))
                p class="problem" role="alert" hidden {}
                label { "Mode" select name="mode" { (mode_options(plan, &mode_of(session))) } }
                label { "Approval"
                    select name="approval" {
                        option value="" selected[level.is_empty()] { "of the mode" }
                        @for other in ApprovalLevel::ALL.into_iter().filter(|level| limits.admits_approval(*level)) {
                            option value=(other.as_str()) selected[other.as_str() == level] { (other.as_str()) }
                        }
                    }
                }
                button type="submit" class="quiet" { "Switch" }
            }
        }
    }
}

/// Returns the sessions that work for this one, as a tree.
async fn task_tree(
    state: &ServerState,
    sessions: &ConsoleSessions,
    session: &StoredSession,
) -> Result<Markup, ConsoleProblem> {
    let filter = ListFilter { parent: Some(session.id.clone()), limit: Some(PAGE), ..ListFilter::default() };
    let children = sessions.store().list(filter).await?;
    Ok(html! {
        @if children.is_empty() { p class="empty" { "None." } }
        @else {
            ul class="tree" {
                @for child in children.iter().rev() {
                    @let is = SessionState::of(state, &child.id);
                    li {
                        a href={ "/console/sessions/" (child.id) } { (title_of(child.title.as_deref())) } " "
                        span class={ "state " (is.label()) } { (is.label()) }
                        div class="meta" { (mode_of(child)) " · " (usage_text(&child.spent)) }
                    }
                }
            }
        }
    })
}

/// Returns the entries after an event, for a page that is open.
pub(super) async fn news(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(id): Path<String>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let fields = FormFields::of_query(text.as_deref());
    let after: u64 = fields.text("after").and_then(|text| text.parse().ok()).unwrap_or_default();
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let session = sessions.find(&id).await?;
    // Before the events are read, so that the last events of a turn come with its end or before it.
    let is = SessionState::of(&state, &session.id);
    let events = sessions.store().events_after(&session.id, after, CATCH_UP).await?;
    let tasks = task_tree(&state, &sessions, &session).await?;
    let last = events.last().map_or(after, |event| event.seq);
    let has_more = events.len() == CATCH_UP;
    let transcript = render(move |budget| entries(&events, budget)).await?;
    let news = json!({
        "html": transcript.into_string(),
        "last": last,
        "more": has_more,
        "running": is != SessionState::Idle,
        "state": is.label(),
        "usage": usage_text(&session.spent),
        "tasks": tasks.into_string(),
    });
    Ok(json_response(&news))
}

fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Sends a whole session as a file.
pub(super) async fn export(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(id): Path<String>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    let fields = FormFields::of_query(text.as_deref());
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let session = sessions.find(&id).await?;
    let events = sessions.store().events(&session.id).await?;
    let (kind, ending, text) = match fields.text("format").unwrap_or("json") {
        "json" => ("application/json", "json", json_export(&session, &events)),
        "markdown" => ("text/markdown; charset=utf-8", "md", markdown_export(&session, &events)),
        _ => {
            let text = "The format must be `json` or `markdown`.";
            return Err(ConsoleProblem::new(StatusCode::UNPROCESSABLE_ENTITY, text));
        }
    };
    let mut response = ([(header::CONTENT_TYPE, kind)], text).into_response();
    let name = format!("attachment; filename=\"session-{}.{ending}\"", session.id);
    if let Ok(name) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

fn json_export(session: &StoredSession, events: &[StoredEvent]) -> String {
    let event = |event: &StoredEvent| {
        let body: Value = serde_json::from_str(&event.body).unwrap_or(Value::String(event.body.clone()));
        json!({"seq": event.seq, "at": clock::iso(event.at), "event": body})
    };
    let events: Vec<_> = events.iter().map(event).collect();
    format!("{:#}\n", json!({"session": session, "events": events}))
}

/// Writes the messages of both sides. The JSON has everything else.
fn markdown_export(session: &StoredSession, events: &[StoredEvent]) -> String {
    let mut text =
        format!("# {}\n\n{} in {}\n", title_of(session.title.as_deref()), mode_of(session), session.cwd.display());
    for stored in events {
        let Ok(event) = serde_json::from_str::<Event>(&stored.body) else { continue };
        for event in event.native_events() {
            if let Event::Message { message } = event
                && !message.text().trim().is_empty()
            {
                let by = match message.role {
                    Role::User => "You",
                    Role::Assistant => "Agent",
                };
                text.push_str(&format!("\n## {by}, {}\n\n{}\n", clock::moment(stored.at), message.text()));
            }
        }
    }
    text
}
