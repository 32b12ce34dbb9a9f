//! `GET /agents`: lists agents in the shape of the Agent Communication Protocol.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::ServerState;
use super::authenticator::ActiveToken;
use super::checks::Refusal;
use crate::graph::Plan;
use crate::ids::{ModeId, rest_name};
use crate::manifest::{AgentEntry, ManagedExclusion, ModeEntry};
use crate::principal::SessionGrant;
use crate::project::{Project, ProjectError};

/// Agents on one page, unless the client asks for fewer.
const MAX_PAGE: usize = 1000;
/// The largest number of agents to leave out.
const MAX_OFFSET: usize = 1_000_000;
/// The media type of agents that name none in their manifest.
const PLAIN_TEXT: &str = "text/plain";

/// Lists the agents that the token reaches: each agent in its default mode, and each mode.
pub(super) async fn list(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let page = PageRequest::parse(query.as_deref().unwrap_or_default())?;
    let project = project(&state, &token.grant).await.map_err(|error| {
        tracing::error!(problem = %error.problem, "the manifests of the server have errors");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the manifests of the server have errors; run `skein check`\n")
    })?;
    let agents = agents(project.broker.plan()).into_iter().map(|agent| agent.manifest);
    let agents: Vec<_> = agents.skip(page.offset).take(page.limit).collect();
    Ok(json_response(&json!({"agents": agents})))
}

/// Loads the project of a request that names no folder: that of the token's first root, or none. Fails if its manifests
/// have errors.
pub(super) async fn project(state: &ServerState, grant: &SessionGrant) -> Result<Project, ProjectError> {
    let folder = grant.limits().roots.first().unwrap_or(&state.parts.empty_folder).clone();
    let (projects, principal) = (Arc::clone(&state.parts.projects), grant.principal().clone());
    let opened = tokio::task::spawn_blocking(move || projects.open(&folder, &principal)).await;
    let broken = |error: tokio::task::JoinError| ProjectError { problem: error.to_string(), diagnostics: Vec::new() };
    opened.map_err(broken)?.map(|project| project.with_grant(grant))
}

fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// An agent of the REST API: a mode under one of its names.
pub(super) struct RestAgent {
    pub(super) name: String,
    pub(super) mode: ModeId,
    pub(super) manifest: Value,
}

/// Returns the agent with this name. `None` if there is none, or the plan is limited to others.
pub(super) fn find(plan: &Plan, name: &str) -> Option<RestAgent> {
    agents(plan).into_iter().find(|agent| agent.name == name)
}

/// Returns the mode of this name that managed settings exclude, and why. `None` if none is excluded.
pub(super) fn find_excluded(plan: &Plan, name: &str) -> Option<(ModeId, ManagedExclusion)> {
    let of_agent = |agent: &AgentEntry| {
        let agent_name = rest_name(agent.manifest.name.as_str());
        let default = agent.default_mode().filter(|_| name == agent_name);
        let mut ids = agent.modes.iter().map(|mode| ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone()));
        let named = ids.find(|id| name == format!("{agent_name}-{}", rest_name(id.mode.as_str())));
        let id = named.or(default)?;
        plan.mode_refusal(&id).map(|exclusion| (id, exclusion))
    };
    plan.manifests().agents.values().find_map(of_agent)
}

/// Returns each agent, in the order of their names. Of two agents with one name, only the first has it.
fn agents(plan: &Plan) -> Vec<RestAgent> {
    let mut agents: Vec<RestAgent> = Vec::new();
    for (agent, modes) in plan.selectable_modes() {
        let name = rest_name(agent.manifest.name.as_str());
        let default = plan.default_mode(agent).and_then(|id| modes.iter().find(|entry| entry.mode.slug == id.mode));
        if let Some(mode) = default {
            agents.push(rest_agent(name.clone(), &agent.manifest.description, agent, mode));
        }
        for mode in &modes {
            let name = format!("{name}-{}", rest_name(mode.mode.slug.as_str()));
            agents.push(rest_agent(name, &mode.mode.description, agent, mode));
        }
    }
    let mut names = HashSet::new();
    agents.retain(|agent| names.insert(agent.name.clone()));
    agents
}

fn rest_agent(name: String, description: &str, agent: &AgentEntry, mode: &ModeEntry) -> RestAgent {
    let types = |types: &[String]| match types {
        [] => json!([PLAIN_TEXT]),
        types => json!(types),
    };
    let mode = ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone());
    let manifest = json!({
        "name": name,
        "description": description,
        "input_content_types": types(&agent.manifest.input_content_types),
        "output_content_types": types(&agent.manifest.output_content_types),
        "metadata": {"annotations": {"skein/mode": mode.to_string()}},
    });
    RestAgent { name, mode, manifest }
}

/// The part of the list that a client asks for.
#[derive(Debug, PartialEq, Eq)]
struct PageRequest {
    limit: usize,
    offset: usize,
}

impl PageRequest {
    /// Reads `limit` and `offset`. Fails if one is not a number in its range.
    fn parse(query: &str) -> Result<Self, Refusal> {
        let mut page = Self { limit: MAX_PAGE, offset: 0 };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let wrong = |range: &str| {
                let text = format!("`{name}` must be a number {range}\n");
                Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, text)
            };
            match &*name {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                    page.limit = limit.ok_or_else(|| wrong("from 1 to 1000"))?;
                }
                "offset" => {
                    let offset = value.parse().ok().filter(|offset| *offset <= MAX_OFFSET);
                    page.offset = offset.ok_or_else(|| wrong("from 0 to 1000000"))?;
                }
                _ => {}
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_limit_and_an_offset() {
        let page = |query: &str| PageRequest::parse(query).ok().map(|page| (page.limit, page.offset));
        assert_eq!(page(""), Some((1000, 0)));
        assert_eq!(page("limit=3&offset=7&other=1"), Some((3, 7)));
        for wrong in ["limit=0", "limit=1001", "limit=x", "offset=-1", "offset=1000001"] {
            assert_eq!(page(wrong), None, "{wrong}");
        }
    }
}
