//! Handles `initialize` and `authenticate`: advertises Skein's capabilities and login methods. Logging in is optional.

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema as acp;
use serde_json::{Map, Value, json};

use super::connection::ClientConnection;
use super::updates::TURN_ENDED;
use super::{Project, errors};
use crate::task::run_blocking;

/// Login method that uses the keys in the environment.
const ENVIRONMENT: &str = "environment";
/// Login method that runs the setup in a terminal.
const SETUP: &str = "setup";
/// Key in `_meta` by which a client announces that it runs a command for a login.
const TERMINAL_AUTH: &str = "terminal-auth";

pub(super) fn initialize(connection: &ClientConnection, request: acp::InitializeRequest) -> acp::InitializeResponse {
    let mut methods = vec![acp::AuthMethod::Agent(
        acp::AuthMethodAgent::new(ENVIRONMENT, "Keys in the environment")
            .description("Use the model and the key that Skein finds in its environment and config".to_owned()),
    )];
    let announces = |key: &str| {
        let meta = request.client_capabilities.meta.as_ref();
        meta.is_some_and(|meta| meta.get(key) == Some(&Value::Bool(true)))
    };
    // A client elsewhere cannot run the set-up of this machine.
    let is_local = connection.server.grant.principal().is_local();
    if is_local && (request.client_capabilities.auth.terminal || announces(TERMINAL_AUTH)) {
        let mut method = acp::AuthMethodTerminal::new(SETUP, "Set up Skein")
            .description("Choose a model; sessions work without one, too".to_owned())
            .args(vec!["--setup".to_owned()]);
        if announces(TERMINAL_AUTH) {
            // Zed's own form of a terminal method: the whole command line.
            let command = connection.server.program.to_string_lossy();
            let run = json!({"label": "Set up Skein", "command": command, "args": ["configure"]});
            method = method.meta(Map::from_iter([(TERMINAL_AUTH.to_owned(), run)]));
        }
        methods.push(acp::AuthMethod::Terminal(method));
    }
    let mut sessions = acp::SessionCapabilities::new()
        .list(acp::SessionListCapabilities::new())
        .resume(acp::SessionResumeCapabilities::new())
        .close(acp::SessionCloseCapabilities::new())
        .delete(acp::SessionDeleteCapabilities::new())
        .additional_directories(acp::SessionAdditionalDirectoriesCapabilities::new());
    if connection.server.fork {
        sessions = sessions.fork(acp::SessionForkCapabilities::new());
    }
    let capabilities = acp::AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(acp::PromptCapabilities::new().image(true).embedded_context(true))
        .mcp_capabilities(acp::McpCapabilities::new().http(true))
        .session_capabilities(sessions)
        .meta(Map::from_iter([(TURN_ENDED.to_owned(), Value::Bool(true))]))
        .auth(acp::AgentAuthCapabilities::new().logout(acp::LogoutCapabilities::new()));
    connection.set_client(request.client_capabilities, request.client_info.as_ref());
    acp::InitializeResponse::new(ProtocolVersion::V1)
        .agent_info(acp::Implementation::new("skein", connection.server.version).title("Skein".to_owned()))
        .agent_capabilities(capabilities)
        .auth_methods(methods)
}

/// Loads the project of a client that has named no folder yet.
async fn default_project(connection: &ClientConnection) -> Result<Project, acp::Error> {
    let cwd = &connection.server.cwd;
    connection.project(cwd, connection.server.grant.files_of(cwd)).await
}

/// Loads the manifests, the session store and the model that a first session needs, while the client decides what to
/// do. Ignores errors: the request that opens a session reports them.
pub(super) async fn make_ready(connection: &ClientConnection) {
    // The answer to `initialize` goes first.
    connection.wire.first_output().await;
    let models = async {
        if let Ok(project) = default_project(connection).await {
            let make = tokio::task::spawn_blocking(move || drop(project.models.provider(&project.model)));
            drop(make.await);
        }
    };
    tokio::join!(models, async { drop(connection.sessions().await) });
}

/// Checks whether the model can be used. No session requires this. Fails if the model or its key is missing, or if the
/// method is unknown.
pub(super) async fn authenticate(
    connection: &ClientConnection,
    request: &acp::AuthenticateRequest,
) -> Result<acp::AuthenticateResponse, acp::Error> {
    match &*request.method_id.0 {
        ENVIRONMENT => {
            let project = default_project(connection).await?;
            // The keyring may take seconds to answer.
            let usable = run_blocking(move || project.models.provider(&project.model).map(drop)).await;
            let usable = usable.map_err(|error| errors::internal_error(error.to_string()))?;
            usable.map(|()| acp::AuthenticateResponse::new()).map_err(|error| errors::auth_required(error.to_string()))
        }
        SETUP => Err(errors::invalid_params("`setup` runs in a terminal: start `skein acp --setup`")),
        other => Err(errors::invalid_params(format!("there is no way to log in called `{other}`"))),
    }
}
