//! The REST API: agents, runs and sessions of the Agent Communication Protocol.
//!
//! Invariant: runs and sessions of another principal get the answer of an unknown id.

mod asker;
mod errors;
mod messages;
mod questions;
mod run;
mod run_table;
mod turns;

pub(super) use run_table::RunTable;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ServerState;
use super::authenticator::ActiveToken;
use super::checks::read_body;
use crate::manifest::ApprovalLevel;
use errors::RestError;
use messages::InputMessage;
use run::AgentRun;
use turns::{NewRun, RunMode};

/// Describes the API.
const OPENAPI: &str = include_str!("rest/openapi.json");
const RUN_ID: HeaderName = HeaderName::from_static("run-id");
const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
/// How often a comment keeps an event stream without events open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Returns the routes of the API, except for the list of agents.
pub(super) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/ping", get(async || json_response(StatusCode::OK, &json!({}))))
        .route("/openapi.json", get(async || ([(header::CONTENT_TYPE, JSON)], OPENAPI)))
        .route("/agents/{name}", get(read_agent))
        .route("/runs", post(create_run))
        .route("/runs/{id}", get(read_run).post(resume_run))
        .route("/runs/{id}/cancel", post(cancel_run))
        .route("/runs/{id}/events", get(list_events))
        .route("/sessions/{id}", get(read_session))
}

async fn read_agent(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(name): Path<String>,
) -> Result<Response, RestError> {
    let (agent, _) = turns::find_agent(&state, &token, &name).await?;
    Ok(json_response(StatusCode::OK, &agent.manifest))
}

async fn create_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    request: Request,
) -> Result<Response, RestError> {
    let new: NewRun = read_json(request).await?;
    let run = turns::start(&state, &token, &new).await?;
    Ok(answer(run, new.mode, 0).await)
}

async fn read_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    Ok(json_response(StatusCode::OK, &find_run(&state, &token, &id)?.to_json()))
}

async fn list_events(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    let events = find_run(&state, &token, &id)?.events();
    Ok(json_response(StatusCode::OK, &json!({"events": events})))
}

async fn cancel_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    let run = find_run(&state, &token, &id)?;
    run.cancel()?;
    Ok(json_response(StatusCode::ACCEPTED, &run.to_json()))
}

/// The body of `POST /runs/{id}`.
#[derive(Debug, Deserialize)]
struct RunAnswer {
    await_resume: AwaitResume,
    mode: RunMode,
}

/// The answer to the open question of a run.
#[derive(Debug, Deserialize)]
struct AwaitResume {
    #[serde(rename = "type", default)]
    _kind: ResumeKind,
    message: InputMessage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResumeKind {
    #[default]
    Message,
}

async fn resume_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, RestError> {
    let run = find_run(&state, &token, &id)?;
    let RunAnswer { await_resume, mode } = read_json(request).await?;
    // A token that cannot consent to the calls of its runs cannot do so for another token of its principal.
    if !run.is_of_token(&token.id) && !token.grant.limits().admits_approval(ApprovalLevel::Ask) {
        return Err(RestError::forbidden("your token must not answer questions of another token's run"));
    }
    let position = run.event_count();
    run.resume(&await_resume.message.text())?;
    Ok(answer(run, mode, position).await)
}

/// Returns the session with this UUID. Skein keeps its history, which only its agents read.
async fn read_session(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    let unknown = || RestError::not_found("there is no such session");
    let uuid = turns::parse_uuid(&id).ok_or_else(unknown)?;
    let sessions = turns::sessions(&state.acp_server(&token)).await?;
    sessions.store().find_uuid(&uuid).await?.ok_or_else(unknown)?;
    Ok(json_response(StatusCode::OK, &json!({"id": uuid, "history": [], "state": null})))
}

fn find_run(state: &ServerState, token: &ActiveToken, id: &str) -> Result<Arc<AgentRun>, RestError> {
    state.runs.find(id, &token.grant).ok_or_else(|| RestError::not_found("there is no such run"))
}

/// Answers with the run or its events from `position` on, as the client asked.
async fn answer(run: Arc<AgentRun>, mode: RunMode, position: usize) -> Response {
    let id = HeaderValue::from_str(&run.id).ok();
    let mut response = match mode {
        RunMode::Sync => {
            run.wait_for_stop().await;
            json_response(StatusCode::OK, &run.to_json())
        }
        RunMode::Async => json_response(StatusCode::ACCEPTED, &run.to_json()),
        RunMode::Stream => event_stream(run, position),
    };
    if let Some(id) = id {
        response.headers_mut().insert(RUN_ID, id);
    }
    response
}

fn event_stream(run: Arc<AgentRun>, position: usize) -> Response {
    let events = Body::from_stream(futures::stream::unfold((run, position), next_event));
    let mut response = ([(header::CONTENT_TYPE, EVENT_STREAM)], events).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // A proxy that collects events would delay them.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

type EventPosition = (Arc<AgentRun>, usize);

async fn next_event(
    (run, position): EventPosition,
) -> Option<(Result<Bytes, std::convert::Infallible>, EventPosition)> {
    let (text, position) = match tokio::time::timeout(KEEP_ALIVE, run.next_event(position)).await {
        Ok(Some(event)) => (format!("data: {event}\n\n"), position + 1),
        Ok(None) => return None,
        Err(_) => (":\n\n".to_owned(), position),
    };
    Some((Ok(Bytes::from(text)), (run, position)))
}

/// Reads the body of a request. Fails if it is not JSON of the expected form. The Python client names no content type.
async fn read_json<T: DeserializeOwned>(request: Request) -> Result<T, RestError> {
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        return Err(RestError::other_media_type());
    }
    let bytes = read_body(body).await?;
    serde_json::from_slice(&bytes).map_err(|error| RestError::invalid(format!("the body cannot be used: {error}")))
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case(JSON)
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], value.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_the_api_names_every_path() {
        let described: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths: Vec<_> = described["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "/ping",
            "/agents",
            "/agents/{name}",
            "/runs",
            "/runs/{run_id}",
            "/runs/{run_id}/cancel",
            "/runs/{run_id}/events",
            "/sessions/{session_id}",
            "/openapi.json",
        ];
        assert_eq!(paths, expected);
    }
}
