//! A2A 1.0: each agent as a JSON-RPC endpoint with a card. A context is a session and a task is a run, with the UUIDs
//! that REST shows.
//!
//! Invariant: tasks and contexts of another principal get the answer of an unknown id. The public card says nothing of
//! what the server has.

mod agent_card;
mod errors;
mod task_json;
mod task_list;
mod task_message;
mod task_stream;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures::StreamExt as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ServerState;
use super::authenticator::ActiveToken;
use super::checks::{Refusal, read_body};
use super::event_stream;
use super::runs::{self, AgentRun, MissingSession, RunError, RunRequest, RunStatus, StreamEnd};
use agent_card::AgentCard;
use errors::A2aError;
use task_list::ListRequest;
use task_message::TaskMessage;
use task_stream::TaskStream;

const VERSION_HEADER: &str = "a2a-version";
/// The version of the protocol. A third number may follow it.
const VERSION: &str = "1.0";
/// How long a request to cancel waits for the end of the turn.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// Returns the routes of the protocol.
pub(super) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/.well-known/agent-card.json", get(public_card))
        .route("/a2a/{agent}", post(answer))
        .route("/a2a/{agent}/.well-known/agent-card.json", get(card))
}

async fn public_card(State(state): State<Arc<ServerState>>, request: Request) -> Response {
    json_response(&AgentCard::public(&base_url(&state, &request)).to_json())
}

async fn card(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(agent): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let base = base_url(&state, &request);
    Ok(json_response(&find_card(&state, &token, &agent, &base).await?.to_json()))
}

/// Returns the address under which the client reaches the server.
fn base_url(state: &ServerState, request: &Request) -> String {
    state.hosts.base_url(request, state.scheme)
}

/// Returns the card of an agent. Fails if the token does not reach it.
async fn find_card(
    state: &ServerState,
    token: &ActiveToken,
    agent: &str,
    base_url: &str,
) -> Result<AgentCard, Refusal> {
    match runs::find_agent(state, token, agent).await {
        Ok((agent, project)) => Ok(AgentCard::of_agent(&agent, project.broker.plan(), base_url)),
        Err(RunError::NotFound(_)) => Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such agent\n")),
        Err(error) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))),
    }
}

/// Answers a request in JSON-RPC. An error of the protocol is an answer, too.
async fn answer(
    State(state): State<Arc<ServerState>>,
    Extension(token): Extension<Arc<ActiveToken>>,
    Path(agent): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let base = base_url(&state, &request);
    let card = find_card(&state, &token, &agent, &base).await?;
    let (parts, body) = request.into_parts();
    let bytes = read_body(body).await?;
    let call = match RpcCall::read(&bytes) {
        Ok(call) => call,
        Err(wrong) => return Ok(wrong.1.to_response(&wrong.0)),
    };
    let id = call.id.clone();
    let endpoint = AgentEndpoint { state, token, agent, card };
    let answered = match check_version(&parts.headers) {
        Ok(()) => endpoint.answer(call).await,
        Err(error) => Err(error),
    };
    Ok(match answered {
        Ok(RpcAnswer::Result(result)) => json_response(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
        Ok(RpcAnswer::Stream(stream)) => {
            let ended = endpoint.token.ended.clone().cancelled_owned();
            event_stream::response(stream.into_events(id).take_until(ended))
        }
        Err(error) => error.to_response(&id),
    })
}

fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Fails unless the client names the version that the server speaks.
fn check_version(headers: &HeaderMap) -> Result<(), A2aError> {
    let named = headers.get(VERSION_HEADER).and_then(|version| version.to_str().ok()).unwrap_or_default().trim();
    let rest = named.strip_prefix(VERSION);
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
        return Ok(());
    }
    let named = if named.is_empty() { "no version".to_owned() } else { format!("version `{named}`") };
    Err(A2aError::version(format!("the header A2A-Version names {named}; this server speaks {VERSION}")))
}

/// A request in JSON-RPC.
struct RpcCall {
    /// A string, a number or null.
    id: Value,
    method: String,
    params: Value,
}

impl RpcCall {
    /// Reads a request. Fails with its id if it is not one of JSON-RPC 2.0.
    fn read(bytes: &[u8]) -> Result<Self, Box<(Value, A2aError)>> {
        let wrong = |id: &Value, error| Box::new((id.clone(), error));
        let mut body: Value = serde_json::from_slice(bytes)
            .map_err(|error| wrong(&Value::Null, A2aError::parse(format!("the body is not JSON: {error}"))))?;
        if !body.is_object() {
            let problem = "the body must be one request of JSON-RPC; there are no batches";
            return Err(wrong(&Value::Null, A2aError::request(problem)));
        }
        let id = Some(body["id"].take()).filter(|id| id.is_string() || id.is_number()).unwrap_or_default();
        if body["jsonrpc"] != "2.0" {
            return Err(wrong(&id, A2aError::request("`jsonrpc` must be `2.0`")));
        }
        let Some(method) = body["method"].as_str().map(str::to_owned) else {
            return Err(wrong(&id, A2aError::request("`method` must name a method")));
        };
        let params = match body["params"].take() {
            Value::Null => json!({}),
            params => params,
        };
        Ok(Self { id, method, params })
    }

    /// Reads the parameters. Fails if they do not have the form of the method.
    fn params<T: DeserializeOwned>(self) -> Result<T, A2aError> {
        serde_json::from_value(self.params)
            .map_err(|error| A2aError::params(format!("`params` cannot be used: {error}")))
    }
}

enum RpcAnswer {
    Result(Value),
    Stream(TaskStream),
}

/// The parameters of `SendMessage` and `SendStreamingMessage`. Unknown fields are ignored.
#[derive(Debug, Deserialize)]
struct SendRequest {
    message: TaskMessage,
    #[serde(default)]
    configuration: SendConfiguration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SendConfiguration {
    return_immediately: bool,
    task_push_notification_config: Option<Value>,
}

/// The parameters of methods about one task.
#[derive(Debug, Deserialize)]
struct TaskIdParams {
    id: String,
}

/// An agent as one client reaches it.
struct AgentEndpoint {
    state: Arc<ServerState>,
    token: Arc<ActiveToken>,
    /// The agent's name in the API.
    agent: String,
    card: AgentCard,
}

impl AgentEndpoint {
    async fn answer(&self, call: RpcCall) -> Result<RpcAnswer, A2aError> {
        match &*call.method {
            "SendMessage" => {
                let request: SendRequest = call.params()?;
                let returns_at_once = request.configuration.return_immediately;
                let run = self.send(request).await?;
                if !returns_at_once {
                    run.wait_for_stop().await;
                }
                Ok(RpcAnswer::Result(json!({"task": task_json::task(&run)})))
            }
            "SendStreamingMessage" => {
                let run = self.send(call.params()?).await?;
                Ok(RpcAnswer::Stream(TaskStream::new(run, StreamEnd::Stop)))
            }
            "GetTask" => Ok(RpcAnswer::Result(task_json::task(&*self.find(call)?))),
            "ListTasks" => {
                let request: ListRequest = call.params()?;
                Ok(RpcAnswer::Result(request.answer(&self.state.runs.list(&self.token.grant))?))
            }
            "CancelTask" => {
                let run = self.find(call)?;
                run.cancel().map_err(|error| A2aError::not_cancelable(error.to_string()))?;
                // A turn that takes longer is reported as it is; `GetTask` has its end later.
                drop(tokio::time::timeout(CANCEL_WAIT, run.wait_for_end()).await);
                Ok(RpcAnswer::Result(task_json::task(&run)))
            }
            "SubscribeToTask" => {
                let run = self.find(call)?;
                let status = run.snapshot().status;
                if status.is_terminal() {
                    let problem = format!("the task is {} and has no further events", status.as_str());
                    return Err(A2aError::wrong_state(problem));
                }
                // A task that waits for its client continues after the answer, which may come from another request.
                Ok(RpcAnswer::Stream(TaskStream::new(run, StreamEnd::Terminal)))
            }
            "GetExtendedAgentCard" => Ok(RpcAnswer::Result(self.card.to_json())),
            "CreateTaskPushNotificationConfig"
            | "GetTaskPushNotificationConfig"
            | "ListTaskPushNotificationConfigs"
            | "DeleteTaskPushNotificationConfig" => Err(A2aError::no_push()),
            _ => Err(A2aError::method()),
        }
    }

    /// Returns the task that a request names. Fails if the client has no such task.
    fn find(&self, call: RpcCall) -> Result<Arc<AgentRun>, A2aError> {
        let TaskIdParams { id } = call.params()?;
        self.find_task(&id)
    }

    fn find_task(&self, id: &str) -> Result<Arc<AgentRun>, A2aError> {
        self.state.runs.find(id, &self.token.grant).ok_or_else(A2aError::no_task)
    }

    /// Begins a task, or answers the question of one.
    async fn send(&self, request: SendRequest) -> Result<Arc<AgentRun>, A2aError> {
        if request.configuration.task_push_notification_config.is_some() {
            return Err(A2aError::no_push());
        }
        let message = request.message;
        message.check()?;
        let Some(task) = message.task_id.as_deref().filter(|id| !id.is_empty()) else {
            return self.begin(&message).await;
        };
        let run = self.find_task(task)?;
        let context = message.context_id.as_deref().filter(|id| !id.is_empty());
        if context.is_some_and(|context| !context.eq_ignore_ascii_case(&run.owner.session)) {
            return Err(A2aError::params("`contextId` is not the context of the task"));
        }
        let status = run.snapshot().status;
        if status != RunStatus::Awaiting {
            let problem = format!("the task is {} and has no open question; leave out `taskId`", status.as_str());
            return Err(A2aError::wrong_state(problem));
        }
        runs::resume(&run, &self.token, &message.answer())?;
        Ok(run)
    }

    /// Begins a task in the message's context, or in a new one.
    async fn begin(&self, message: &TaskMessage) -> Result<Arc<AgentRun>, A2aError> {
        let session = match message.context_id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => runs::parse_uuid(id).ok_or_else(|| A2aError::params("`contextId` must be a UUID"))?,
            None => crate::ids::random_uuid(),
        };
        let (agent, missing) = (self.agent.clone(), MissingSession::Create);
        let request = RunRequest { agent, session, missing, prompt: message.prompt()? };
        Ok(runs::start(&self.state, &self.token, request).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_client_names_version_one() {
        let checked = |version: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(version) = version {
                headers.insert(VERSION_HEADER, HeaderValue::from_static(version));
            }
            check_version(&headers).is_ok()
        };
        assert!(checked(Some("1.0")) && checked(Some("1.0.2")));
        for wrong in [None, Some(""), Some("0.3"), Some("1"), Some("1.1"), Some("1.01"), Some("2.0")] {
            assert!(!checked(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_request_has_a_method_and_keeps_its_id() {
        let read = |body: &str| RpcCall::read(body.as_bytes()).map_err(|wrong| wrong.0);
        let call = read(r#"{"jsonrpc": "2.0", "id": 7, "method": "GetTask"}"#).ok().unwrap();
        assert_eq!((call.id, &*call.method, call.params), (json!(7), "GetTask", json!({})));
        for (body, id) in [
            ("{", Value::Null),
            ("[]", Value::Null),
            (r#"{"id": "a", "method": "GetTask"}"#, json!("a")),
            (r#"{"jsonrpc": "2.0", "id": 1}"#, json!(1)),
            (r#"{"jsonrpc": "2.0", "id": {}, "method": 1}"#, Value::Null),
        ] {
            assert_eq!(read(body).err(), Some(id), "{body}");
        }
    }
}
