//! The REST API: agents, runs and sessions of the Agent Communication Protocol.
//!
//! Invariant: runs and sessions of another principal get the answer of an unknown id.

mod errors;
mod messages;
mod new_run;
mod run_json;

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures::StreamExt as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ServerState;
use super::authenticator::ActiveToken;
use super::checks::read_body;
use super::event_stream::{self, KEEP_ALIVE};
use super::runs::{self, AgentRun, EventPosition, StreamEnd};
use errors::RestError;
use messages::InputMessage;
use new_run::{NewRun, RunMode};

/// Describes the API.
const OPENAPI: &str = include_str!("rest/openapi.json");
const RUN_ID: HeaderName = HeaderName::from_static("run-id");
const JSON: &str = "application/json";

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
    let (agent, _) = runs::find_agent(&state, &token, &name).await?;
    Ok(json_response(StatusCode::OK, &agent.manifest))
}

async fn create_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    request: Request,
) -> Result<Response, RestError> {
    let new: NewRun = read_json(request).await?;
    let run = runs::start(&state, &token, new.request()?).await?;
    Ok(answer(&token, run, new.mode, EventPosition::default()).await)
}

async fn read_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    Ok(json_response(StatusCode::OK, &run_json::run(&*find_run(&state, &token, &id)?)))
}

async fn list_events(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    let run = find_run(&state, &token, &id)?;
    let events: Vec<_> = run.events().iter().map(|event| run_json::event(&run, event)).collect();
    Ok(json_response(StatusCode::OK, &json!({"events": events})))
}

async fn cancel_run(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    let run = find_run(&state, &token, &id)?;
    run.cancel()?;
    Ok(json_response(StatusCode::ACCEPTED, &run_json::run(&run)))
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
    let position = run.event_end();
    runs::resume(&run, &token, &await_resume.message.text())?;
    Ok(answer(&token, run, mode, position).await)
}

/// Returns the session with this UUID. Skein keeps its history, which only its agents read.
async fn read_session(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(id): Path<String>,
) -> Result<Response, RestError> {
    let unknown = || RestError::not_found("there is no such session");
    let uuid = runs::parse_uuid(&id).ok_or_else(unknown)?;
    let sessions = runs::sessions(&state.acp_server(&token)).await?;
    sessions.store().find_uuid(&uuid).await?.ok_or_else(unknown)?;
    Ok(json_response(StatusCode::OK, &json!({"id": uuid, "history": [], "state": null})))
}

fn find_run(state: &ServerState, token: &ActiveToken, id: &str) -> Result<Arc<AgentRun>, RestError> {
    state.runs.find(id, &token.grant).ok_or_else(|| RestError::not_found("there is no such run"))
}

/// Answers with the run or its events from `position` on, as the client asked. The events end with the token.
async fn answer(token: &ActiveToken, run: Arc<AgentRun>, mode: RunMode, position: EventPosition) -> Response {
    let id = HeaderValue::from_str(&run.id).ok();
    let mut response = match mode {
        RunMode::Sync => {
            run.wait_for_stop().await;
            json_response(StatusCode::OK, &run_json::run(&run))
        }
        RunMode::Async => json_response(StatusCode::ACCEPTED, &run_json::run(&run)),
        RunMode::Stream => {
            let events = futures::stream::unfold((run, position), next_event);
            event_stream::response(events.take_until(token.ended.clone().cancelled_owned()))
        }
    };
    if let Some(id) = id {
        response.headers_mut().insert(RUN_ID, id);
    }
    response
}

type RunPosition = (Arc<AgentRun>, EventPosition);

async fn next_event((run, position): RunPosition) -> Option<(String, RunPosition)> {
    let (text, position) = match tokio::time::timeout(KEEP_ALIVE, run.next_event(position, StreamEnd::Stop)).await {
        Ok(Some((event, next))) => (event_stream::data(&run_json::event(&run, &event)), next),
        Ok(None) => return None,
        Err(_) => (event_stream::COMMENT.to_owned(), position),
    };
    Some((text, (run, position)))
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
