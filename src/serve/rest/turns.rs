//! Opens the session of a run and runs its turn. The turn continues when the client disconnects.

use std::sync::Arc;

use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::super::ServerState;
use super::super::agents::{self, RestAgent};
use super::super::authenticator::ActiveToken;
use super::asker::RunAsker;
use super::errors::RestError;
use super::messages::{self, InputMessage};
use super::run::{AgentRun, RunOwner};
use crate::acp::{AcpServer, RunningTurn, SharedSession, SharedSessions, next_viewer_id};
use crate::agents::{Notifier, TurnEnd};
use crate::conversation::Content;
use crate::orchestrator::{Orchestrator, PromptOptions};
use crate::project::{ClientPorts, ExplicitSettings, Project, ProjectError, SessionLauncher, load_project};
use crate::session::{LiveSession, PendingTurn, SessionRoots, SessionViewer, Sessions, TurnFailure, ViewerId};

/// The body of `POST /runs`.
#[derive(Debug, Deserialize)]
pub(super) struct NewRun {
    pub(super) agent_name: String,
    session_id: Option<String>,
    session: Option<ForwardedSession>,
    input: Vec<InputMessage>,
    #[serde(default)]
    pub(super) mode: RunMode,
}

/// A session that a client brings along.
#[derive(Debug, Deserialize)]
struct ForwardedSession {
    id: Option<String>,
    #[serde(default)]
    history: Vec<String>,
}

/// What a client gets as the answer to its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RunMode {
    /// The run when it has stopped.
    #[default]
    Sync,
    /// The run at once.
    Async,
    /// The events until the run stops.
    Stream,
}

/// The session that a run asks for.
struct SessionRequest {
    uuid: String,
    /// The client brings messages of another server.
    has_history: bool,
}

impl NewRun {
    /// Returns the session of the run. Fails if an id is not a UUID, or the two ids differ.
    fn session(&self) -> Result<SessionRequest, RestError> {
        let forwarded = self.session.as_ref();
        let ids = [self.session_id.as_deref(), forwarded.and_then(|session| session.id.as_deref())];
        let mut uuids = Vec::new();
        for id in ids.into_iter().flatten() {
            let uuid = parse_uuid(id).ok_or_else(|| RestError::invalid(format!("`{id}` is not a UUID")))?;
            uuids.push(uuid);
        }
        if uuids.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(RestError::contradiction("`session_id` and `session.id` differ"));
        }
        let uuid = uuids.pop().unwrap_or_else(crate::ids::random_uuid);
        Ok(SessionRequest { uuid, has_history: forwarded.is_some_and(|session| !session.history.is_empty()) })
    }
}

/// Returns a UUID in lower case. `None` if the text is none.
pub(super) fn parse_uuid(text: &str) -> Option<String> {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    let is_uuid = groups == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    is_uuid.then(|| text.to_ascii_lowercase())
}

/// Returns the agent with this name. Fails if the token does not reach one.
pub(super) async fn find_agent(
    state: &ServerState,
    token: &ActiveToken,
    name: &str,
) -> Result<(RestAgent, Project), RestError> {
    let project = agents::project(state, &token.grant).await.map_err(|error| project_failure(&error))?;
    let agent = agents::find(project.broker.plan(), name);
    Ok((agent.ok_or_else(|| RestError::not_found("there is no such agent"))?, project))
}

fn project_failure(error: &ProjectError) -> RestError {
    tracing::error!(problem = %error.problem, "the manifests of the server have errors");
    RestError::server("the manifests of the server have errors; run `skein check`")
}

/// Returns the sessions that a client may use.
pub(super) async fn sessions(server: &AcpServer) -> Result<Sessions, RestError> {
    let sessions = (server.sessions)().await.map_err(|error| {
        tracing::error!(%error, "the session store cannot be opened");
        RestError::server("the session store cannot be used at the moment")
    })?;
    Ok(sessions.with_grant(server.grant.clone()))
}

/// Starts a run. Fails if its agent or session cannot be used now.
pub(super) async fn start(
    state: &Arc<ServerState>,
    token: &Arc<ActiveToken>,
    request: &NewRun,
) -> Result<Arc<AgentRun>, RestError> {
    let prompt = messages::prompt(&request.input)?;
    let wanted = request.session()?;
    if state.draining.is_cancelled() {
        return Err(RestError::draining());
    }
    let (agent, project) = find_agent(state, token, &request.agent_name).await?;
    // A run that must wait leaves no empty session behind.
    drop(token.grant.begin_turn()?);
    let server = state.acp_server(token);
    let opening = RunOpening { sessions: sessions(&server).await?, server: &server, agent: &agent };
    // Two requests with one new UUID must not create two sessions.
    let key = format!("{} {}", token.grant.principal().name(), wanted.uuid);
    let _alone = server.open_sessions.lock_session(&key).await;
    // Held until the run is attached, so that the end of the run before it does not close the session.
    let mut attaching = None;
    let open = match opening.sessions.store().find_uuid(&wanted.uuid).await? {
        Some(id) => {
            attaching = Some(server.open_sessions.lock_session(&id).await);
            opening.reopen(&id).await?
        }
        None if wanted.has_history => {
            let problem = "`session` has a history of another server, which Skein does not read";
            return Err(RestError::contradiction(problem));
        }
        None => opening.create(&wanted.uuid, project).await?,
    };
    let running =
        open.try_begin(&token.grant).ok_or_else(|| RestError::busy("the session is busy with another run"))?;
    let pending = match open.session.begin_for(&token.grant) {
        Ok(pending) => pending,
        Err(error) => {
            drop(running);
            if !open.is_busy() && !open.session.live().has_others(ViewerId::MAX) {
                server.open_sessions.close(&open).await;
            }
            return Err(error.into());
        }
    };
    let owner = RunOwner {
        principal: token.grant.principal().clone(),
        token: token.id.clone(),
        agent: agent.name.clone(),
        mode: agent.mode.clone(),
        session: wanted.uuid,
        roots: SessionRoots::of(open.session.context()),
    };
    let run = Arc::new(AgentRun::new(owner, running.cancel().clone()));
    state.runs.add(&run);
    let turn = RunTurn {
        run: Arc::clone(&run),
        viewer: next_viewer_id(),
        open,
        open_sessions: Arc::clone(&server.open_sessions),
        orchestrator: server.orchestrator.clone(),
        token: Arc::clone(token),
    };
    turn.attach();
    drop(attaching);
    run.start();
    state.scope.spawn(turn.run(running, pending, prompt));
    Ok(run)
}

/// Opens the session of a run.
struct RunOpening<'a> {
    sessions: Sessions,
    server: &'a AcpServer,
    agent: &'a RestAgent,
}

impl RunOpening<'_> {
    fn launcher(&self, project: Project) -> SessionLauncher {
        let (mode, sessions) = (self.agent.mode.clone(), self.sessions.clone());
        SessionLauncher::in_mode(mode, sessions, project, self.server.approval)
    }

    /// Creates a session in the first root of the token, or in an empty folder.
    async fn create(&self, uuid: &str, project: Project) -> Result<Arc<SharedSession>, RestError> {
        let launcher = self.launcher(project);
        let ports = self.server.open_sessions.ports();
        let roots = self.sessions.default_roots().await?;
        let launched = launcher.create(roots, |_| ports.of_session()).await?;
        self.sessions.store().put_uuid(launched.session.id(), uuid);
        Ok(self.server.open_sessions.add(launched.session, launcher.project().clone(), ports))
    }

    /// Opens a stored session in the mode of the run. If other clients show the session, the run joins them. The caller
    /// has locked the session. Fails if a turn runs.
    async fn reopen(&self, id: &str) -> Result<Arc<SharedSession>, RestError> {
        let open_sessions = &self.server.open_sessions;
        if let Some(open) = open_sessions.find_live(id).await {
            if open.is_busy() {
                return Err(RestError::busy("the session is busy with another run"));
            }
            if open.session.live().has_others(ViewerId::MAX) {
                open.session.check_client(&self.server.grant)?;
                // The session keeps the modes of the token that opened it.
                let (roots, grant) = (SessionRoots::of(open.session.context()), open.session.sessions().grant());
                open.reload(load_project(&self.server.projects, &roots.cwd, roots.files, grant).await).await;
                if !open.session.plan().is_selectable(&self.agent.mode) {
                    return Err(RestError::forbidden(
                        "the session is open with a token that does not admit this agent",
                    ));
                }
                open.session.set_mode(self.agent.mode.clone()).await?;
                return Ok(open);
            }
        }
        let stored = self.sessions.store().find(id).await?;
        let stored = stored.ok_or_else(|| RestError::not_found("there is no such session"))?;
        // A session stays in the folder where it began.
        let project = load_project(&self.server.projects, &stored.cwd, stored.files, &self.server.grant).await;
        let project = project.map_err(|error| project_failure(&error))?;
        let is_other = self.agent.mode.to_string() != format!("{}/{}", stored.agent, stored.mode);
        let launcher = self.launcher(project).with_explicit(ExplicitSettings { mode: is_other, model: false });
        let ports = open_sessions.ports();
        let launched = launcher.reopen(id, Vec::new(), |_| ports.of_session()).await?;
        launcher.resume(&launched.session).await?;
        Ok(open_sessions.add(launched.session, launcher.project().clone(), ports))
    }
}

/// The turn of a run.
struct RunTurn {
    run: Arc<AgentRun>,
    /// The run as a client that shows the session.
    viewer: ViewerId,
    open: Arc<SharedSession>,
    open_sessions: Arc<SharedSessions>,
    orchestrator: Orchestrator,
    token: Arc<ActiveToken>,
}

impl RunTurn {
    /// Shows the session's events and questions to the run.
    fn attach(&self) {
        let live = self.open.session.live();
        let viewer = Arc::clone(&self.run) as Arc<dyn SessionViewer>;
        // No other turn can begin, so a second attempt succeeds.
        while live.attach(self.viewer, Arc::clone(&viewer), &[], false, live.version()).is_err() {}
        let asker = RunAsker { run: Arc::clone(&self.run), timeout: self.open_sessions.ask_timeout() };
        self.open.ports.attach(self.viewer, ClientPorts { asker: Arc::new(asker), editor: None });
    }

    async fn run(self, running: RunningTurn, pending: PendingTurn, prompt: Vec<Content>) {
        let live = Arc::clone(self.open.session.live());
        live.begin(self.viewer, self.open.session.event_count());
        let mut guard = TurnGuard { run: Arc::clone(&self.run), live: Some(Arc::clone(&live)) };
        let cancel: CancellationToken = running.cancel().clone();
        // A program sends the prompt, so its text cannot choose another agent.
        let options = PromptOptions { plan_only: false, from_user: false };
        let turn = self.orchestrator.prompt(pending, prompt, options, live as Arc<dyn Notifier>, &cancel);
        tokio::pin!(turn);
        let ended = tokio::select! {
            biased;
            ended = &mut turn => ended,
            () = self.token.ended.cancelled() => {
                cancel.cancel();
                (&mut turn).await
            }
        };
        let ended = ended.map_err(|error| TurnFailure(error.to_string()));
        guard.end_turn(ended.as_ref());
        // The session is free before the client learns of the end, so that its next run can follow at once.
        drop(running);
        self.run.finish(ended.as_ref());
        let _alone = self.open_sessions.lock_session(self.open.session.id()).await;
        if self.open.detach(self.viewer) && !self.open.is_busy() {
            self.open_sessions.close(&self.open).await;
        }
    }
}

/// Ends the run and its turn, also if the turn is dropped.
struct TurnGuard {
    run: Arc<AgentRun>,
    /// `None` when the turn has ended.
    live: Option<Arc<LiveSession>>,
}

impl TurnGuard {
    fn end_turn(&mut self, end: Result<&TurnEnd, &TurnFailure>) {
        if let Some(live) = self.live.take() {
            live.end(end);
        }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        let failure = TurnFailure("the turn was interrupted".to_owned());
        self.end_turn(Err(&failure));
        // Does nothing if the run has ended.
        self.run.finish(Err(&failure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(body: &str) -> Option<SessionRequest> {
        let request: NewRun = serde_json::from_str(body).unwrap();
        request.session().ok()
    }

    #[test]
    fn a_run_names_its_session_by_uuid() {
        let uuid = "0B9A2C1E-0000-4000-8000-000000000001";
        let named = |fields: &str| session(&format!(r#"{{"agent_name": "a", "input": [], {fields}}}"#));
        let lower = uuid.to_lowercase();
        assert_eq!(named(&format!(r#""session_id": "{uuid}""#)).unwrap().uuid, lower);
        let brought = named(&format!(r#""session": {{"id": "{uuid}", "history": ["http://x/1"]}}"#)).unwrap();
        assert_eq!((brought.uuid, brought.has_history), (lower.clone(), true));
        assert!(parse_uuid(&named(r#""session_id": null"#).unwrap().uuid).is_some(), "a new one");
        assert!(named(r#""session_id": "other""#).is_none());
        let other = "0b9a2c1e-0000-4000-8000-000000000002";
        assert!(named(&format!(r#""session_id": "{uuid}", "session": {{"id": "{other}"}}"#)).is_none());
    }
}
