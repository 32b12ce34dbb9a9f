//! Handles the session requests of a client: new, load, resume, fork, list and delete.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema as acp;
use serde_json::{Map, Value, json};

use super::ask::AcpAsker;
use super::connection::{ClientConnection, ClientSession, ShownTurn};
use super::editor::{self, ClientEditor};
use super::shared_session::SharedSession;
use super::stop_reason::stop_reason;
use super::updates::TURN_STATE;
use super::{Project, errors, limited_client, options};
use crate::agents::Event;
use crate::graph::Plan;
use crate::manifest::{HttpTransport, ServiceEntry, SessionServiceError, StdioTransport, Transport, client_service};
use crate::principal::{GrantError, SessionFiles};
use crate::project::{ClientPorts, SessionLauncher};
use crate::session::{SessionError, SessionRoots};
use crate::store::{Cursor, FolderFilter, ListFilter, StoredSession};
use crate::tool::WorkingFolder;

/// Sessions on one page of a list.
const PAGE: usize = 50;

/// The checked parameters that a client gives a session.
struct SessionParams {
    cwd: PathBuf,
    roots: Vec<PathBuf>,
    /// Where the folders are.
    files: SessionFiles,
    servers: Vec<acp::McpServer>,
}

impl SessionParams {
    fn try_new(
        connection: &ClientConnection,
        cwd: PathBuf,
        roots: Vec<PathBuf>,
        servers: Vec<acp::McpServer>,
    ) -> Result<Self, acp::Error> {
        for path in std::iter::once(&cwd).chain(&roots) {
            if !path.is_absolute() {
                return Err(errors::invalid_params(format!("`{}` is not an absolute path", path.display())));
            }
        }
        let grant = &connection.server.grant;
        let files = grant.files_of(&cwd);
        // A token learns nothing about folders outside its own, not even that they exist.
        for root in &roots {
            grant.check_place(root, files).map_err(|error| errors::invalid_params(error.to_string()))?;
        }
        if files == SessionFiles::Server && !cwd.is_dir() {
            let problem = if cwd.exists() { "is no folder" } else { "does not exist" };
            return Err(errors::invalid_params(format!("the working directory `{}` {problem}", cwd.display())));
        }
        Ok(Self { cwd, roots, files, servers })
    }
}

/// Returns the launcher for sessions in `cwd` with the client's MCP servers.
async fn launcher(
    connection: &ClientConnection,
    (cwd, files): (&Path, SessionFiles),
    servers: &[acp::McpServer],
) -> Result<SessionLauncher, acp::Error> {
    let project = connection.project(cwd, files).await?;
    // A program that a client brings starts in the session's folder, if that is here.
    let folder = (files == SessionFiles::Server).then_some(cwd);
    let (services, notices) = client_services(servers, folder, project.broker.plan());
    let sessions = connection.sessions().await?.clone();
    let launcher = SessionLauncher::new(sessions, project, connection.server.approval);
    let mut launcher = launcher.map_err(|error| errors::mode(&error))?.with_services(services);
    notices.into_iter().for_each(|notice| launcher.add_notice(notice));
    let lends_files = editor::abilities(&connection.client()).is_some_and(|abilities| abilities.read);
    if files == SessionFiles::Client && !lends_files {
        launcher.add_notice(format!(
            "this session has no files: {} is not below a root of your token, and your editor lends no files (`fs`)",
            cwd.display()
        ));
    }
    connection.take_notices().into_iter().for_each(|notice| launcher.add_notice(notice));
    Ok(launcher)
}

/// Returns the ports of the session `id`, which reach this client.
fn ports(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    project: &Project,
    id: &str,
    folder: WorkingFolder,
) -> ClientPorts {
    let session = acp::SessionId::new(id);
    let editor = editor::abilities(&connection.client()).map(|abilities| {
        let (client, session, tasks) = (client.clone(), session.clone(), connection.tasks.clone());
        Arc::new(ClientEditor { client, session, abilities, tasks }) as Arc<dyn crate::tool::editor::Editor>
    });
    let plan = Arc::clone(project.broker.plan());
    let (wire, features) = (connection.wire.clone(), connection.features());
    let (client, rules) = (client.clone(), Arc::clone(&project.rules));
    ClientPorts { asker: Arc::new(AcpAsker { client, session, wire, plan, folder, rules, features }), editor }
}

/// Converts the client's MCP servers to services of the session. Leaves out servers that cannot be used and returns a
/// notice about each.
fn client_services(
    servers: &[acp::McpServer],
    cwd: Option<&Path>,
    plan: &Plan,
) -> (Vec<Arc<ServiceEntry>>, Vec<String>) {
    let mut brought: Vec<Arc<ServiceEntry>> = Vec::new();
    let mut notices = Vec::new();
    for server in servers {
        let (name, transport) = match server {
            acp::McpServer::Stdio(stdio) => (&stdio.name, Ok(stdio_transport(stdio, cwd))),
            acp::McpServer::Http(http) => {
                let headers = http.headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect();
                (&http.name, Ok(Transport::Http(HttpTransport { url: http.url.clone(), headers })))
            }
            acp::McpServer::Sse(sse) => (&sse.name, Err(SessionServiceError::ClientOldTransport)),
            _ => continue,
        };
        let taken = |name: &str| {
            plan.service(name).is_some() || brought.iter().any(|entry| entry.manifest.name.as_str() == name)
        };
        match transport.and_then(|transport| client_service(name, transport, taken)) {
            Ok(entry) => brought.push(Arc::new(entry)),
            Err(problem) => notices.push(format!("the MCP server `{name}` is left out: {problem}")),
        }
    }
    (brought, notices)
}

fn stdio_transport(server: &acp::McpServerStdio, cwd: Option<&Path>) -> Transport {
    Transport::Stdio(StdioTransport {
        command: server.command.to_string_lossy().into_owned(),
        args: server.args.clone(),
        env: server.env.iter().map(|variable| (variable.name.clone(), variable.value.clone())).collect(),
        cwd: cwd.map(|cwd| cwd.to_string_lossy().into_owned()),
    })
}

pub(super) async fn new(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    request: acp::NewSessionRequest,
) -> Result<Arc<ClientSession>, acp::Error> {
    let given = SessionParams::try_new(connection, request.cwd, request.additional_directories, request.mcp_servers)?;
    let launcher = launcher(connection, (&given.cwd, given.files), &given.servers).await?;
    let roots = SessionRoots { cwd: given.cwd.clone(), roots: given.roots, files: given.files, scratch: None };
    let shared = connection.server.open_sessions.ports();
    let launched = launcher.create(roots, |_| shared.of_session()).await.map_err(|error| errors::session(&error))?;
    let shared = connection.server.open_sessions.add(launched.session, launcher.project().clone(), shared);
    attach(connection, client, shared, Replay::Nothing).await
}

/// What a client is shown of a session's past.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replay {
    Everything,
    Nothing,
}

/// Shows a session on this connection: its past, then its running turn, then its open questions.
async fn attach(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    shared: Arc<SharedSession>,
    replay: Replay,
) -> Result<Arc<ClientSession>, acp::Error> {
    let (session, live) = (Arc::clone(&shared.session), shared.session.live());
    let refused = |error: GrantError| errors::session(&SessionError::from(error));
    let permit = connection.count(&session).map_err(refused)?;
    loop {
        let (version, is_running) = (live.version(), live.is_running());
        let events = match (replay, is_running) {
            (Replay::Nothing, false) => Vec::new(),
            _ => session.sessions().events(session.id()).await.map_err(|error| errors::session(&error))?,
        };
        let open = connection.add(Arc::clone(&shared), permit.clone(), session.event_count());
        let viewer = limited_client::viewer(&open);
        // If a turn began or ended meanwhile, the events are read again.
        if live.attach(connection.id, viewer, &events, replay == Replay::Everything, version).is_ok() {
            let ports = ports(connection, client, &shared.project(), session.id(), session.context().working_folder());
            let ports = limited_client::ports(&open, ports, connection.server.open_sessions.ask_timeout());
            shared.ports.attach(connection.id, ports);
            // No turn began or ended since `version`. A turn that ends from now on shows its end here.
            let turn = if is_running { Some(ShownTurn::Running) } else { last_turn(&events) };
            // It is new, so nothing is set yet.
            turn.into_iter().for_each(|turn| drop(open.shown_turn.set(turn)));
            return Ok(open);
        }
    }
}

/// Returns how the last turn of a session that no turn runs in has ended. `None` if it had none.
fn last_turn(events: &[Event]) -> Option<ShownTurn> {
    let is_edge = |event: &&Event| match event {
        Event::TurnEnded { .. } => true,
        Event::Message { message } => message.is_prompt(),
        Event::ToolStarted { .. }
        | Event::ToolEnded { .. }
        | Event::Compacted { .. }
        | Event::External { .. }
        | Event::ExternalSessionOpened { .. }
        | Event::Undone { .. } => false,
    };
    let edge = events.iter().rfind(is_edge)?;
    Some(if let Event::TurnEnded { end } = edge { ShownTurn::Ended(end.clone()) } else { ShownTurn::Interrupted })
}

/// Returns the `_meta` of a loaded session: whether a turn is running that will show its end here, or how the last one
/// ended. A client that lost its connection learns from it what became of its prompt.
pub(super) fn turn_state(open: &ClientSession) -> Map<String, Value> {
    let shown = open.shown_turn.get();
    let mut state = json!({"running": matches!(shown, Some(ShownTurn::Running))});
    match shown {
        Some(ShownTurn::Ended(end)) => match stop_reason(&end.ending) {
            Ok(reason) => state["stopReason"] = json!(reason),
            Err(problem) => state["error"] = json!({"message": problem.0}),
        },
        Some(ShownTurn::Interrupted) => {
            state["error"] = json!({"message": "turn interrupted: the program that ran it has ended"});
        }
        Some(ShownTurn::Running) | None => {}
    }
    Map::from_iter([(TURN_STATE.to_owned(), state)])
}

/// Opens a stored session again, or attaches to it if it is busy or another connection shows it. Fails if the store has
/// no such session, or if its external agent cannot resume it.
async fn reopen(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    id: &acp::SessionId,
    given: SessionParams,
    replay: Replay,
) -> Result<Arc<ClientSession>, acp::Error> {
    let open_sessions = &connection.server.open_sessions;
    let _alone = open_sessions.lock_session(&id.0).await;
    let sessions = connection.sessions().await?;
    let stored = sessions.store().find(&id.0).await.map_err(|error| errors::internal_error(error.to_string()))?;
    let StoredSession { cwd, files, .. } = stored.ok_or_else(|| errors::not_stored(&id.0))?;
    let is_shared = |open: &Arc<SharedSession>| open.is_busy() || open.session.live().has_others(connection.id);
    if let Some(shared) = open_sessions.find_live(&id.0).await.filter(is_shared) {
        shared.session.check_client(&connection.server.grant).map_err(|error| errors::session(&error))?;
        return attach(connection, client, shared, replay).await;
    }
    // A session stays in the folder where it started, so the manifests and the trust of that folder apply.
    let mut launcher = launcher(connection, (&cwd, files), &given.servers).await?;
    if cwd != given.cwd {
        launcher.add_notice(format!("the session works in {}, where it began", cwd.display()));
    }
    // Close the session if it is open here. Not earlier: an error above must leave it open.
    connection.close(id).await;
    let shared = open_sessions.ports();
    let launched = launcher.reopen(&id.0, given.roots, |_| shared.of_session()).await;
    let launched = launched.map_err(|error| errors::session(&error))?;
    launcher.resume(&launched.session).await.map_err(|error| errors::session(&error))?;
    let shared = open_sessions.add(launched.session, launcher.project().clone(), shared);
    attach(connection, client, shared, replay).await
}

/// Loads a stored session. Sends its whole history to the client before it returns.
pub(super) async fn load(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    request: acp::LoadSessionRequest,
) -> Result<Arc<ClientSession>, acp::Error> {
    let given = SessionParams::try_new(connection, request.cwd, request.additional_directories, request.mcp_servers)?;
    reopen(connection, client, &request.session_id, given, Replay::Everything).await
}

pub(super) async fn resume(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    request: acp::ResumeSessionRequest,
) -> Result<Arc<ClientSession>, acp::Error> {
    let given = SessionParams::try_new(connection, request.cwd, request.additional_directories, request.mcp_servers)?;
    reopen(connection, client, &request.session_id, given, Replay::Nothing).await
}

pub(super) async fn fork(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    request: acp::ForkSessionRequest,
) -> Result<Arc<ClientSession>, acp::Error> {
    let given = SessionParams::try_new(connection, request.cwd, request.additional_directories, request.mcp_servers)?;
    let copied = connection.sessions().await?.store().copy(&request.session_id.0).await;
    let copied = copied.map_err(|error| errors::internal_error(error.to_string()))?;
    let id = copied.ok_or_else(|| errors::not_stored(&request.session_id.0))?;
    reopen(connection, client, &acp::SessionId::new(id), given, Replay::Nothing).await
}

pub(super) async fn list(
    connection: &ClientConnection,
    request: acp::ListSessionsRequest,
) -> Result<acp::ListSessionsResponse, acp::Error> {
    let after = request.cursor.as_deref().map(cursor).transpose()?;
    let within = request.cwd.map_or(FolderFilter::Anywhere, FolderFilter::Folder);
    // One session more than a page shows whether there is another page.
    let filter = ListFilter { within, after, limit: Some(PAGE + 1), ..ListFilter::default() };
    let listed = connection.sessions().await?.store().list(filter).await;
    let mut listed = listed.map_err(|error| errors::internal_error(error.to_string()))?;
    let more = listed.len() > PAGE;
    listed.truncate(PAGE);
    let next = listed.last().filter(|_| more).map(|last| format!("{}.{}", last.updated_at, last.id));
    Ok(acp::ListSessionsResponse::new(listed.into_iter().map(info).collect()).next_cursor(next))
}

fn cursor(text: &str) -> Result<Cursor, acp::Error> {
    let parts = text.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    let (updated_at, id) = parts.ok_or_else(|| errors::invalid_params("the cursor is none that a list has given"))?;
    Ok(Cursor { updated_at, id })
}

fn info(stored: StoredSession) -> acp::SessionInfo {
    acp::SessionInfo::new(stored.id, stored.cwd)
        .additional_directories(stored.roots)
        .title(stored.title)
        .updated_at(crate::clock::iso(stored.updated_at))
}

pub(super) async fn delete(
    connection: &ClientConnection,
    request: &acp::DeleteSessionRequest,
) -> Result<(), acp::Error> {
    let (id, open_sessions) = (&*request.session_id.0, &connection.server.open_sessions);
    let _alone = open_sessions.lock_session(id).await;
    connection.close(&request.session_id).await;
    let sessions = connection.sessions().await?;
    // Other clients may have it open. The store shows only sessions of this principal.
    let own = sessions.store().find(id).await.map_err(|error| errors::internal_error(error.to_string()))?;
    if let Some(open) = open_sessions.find(id).filter(|_| own.is_some()) {
        open_sessions.close(&open).await;
    }
    let deleted = sessions.delete(id).await;
    deleted.map(drop).map_err(|error| errors::session(&error))
}

/// Sends the commands, options and notices of a session after the response that opened it. Sends nothing if the session
/// is closed meanwhile.
pub(super) async fn finish_setup(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    open: &Arc<ClientSession>,
) {
    let (commands, changes) = tokio::select! {
        biased;
        () = open.closed.cancelled() => return,
        updated = super::commands::update_and_subscribe(open) => updated,
    };
    let mut updates = vec![commands];
    // The options of an external agent are known only once it has opened a session.
    if open.session.external_session().is_some_and(|external| !external.options().is_empty()) {
        updates.push(acp::SessionUpdate::ConfigOptionUpdate(acp::ConfigOptionUpdate::new(options::options(open))));
    }
    let id = acp::SessionId::new(open.session.id());
    for update in updates {
        // Fails only if the client has disconnected.
        drop(client.send_notification(acp::SessionNotification::new(id.clone(), update)));
    }
    options::watch_external(connection, open);
    connection.send_pending_notices(client, open);
    connection.spawn(super::commands::watch(Arc::downgrade(open), Arc::clone(&open.viewer), changes));
}
