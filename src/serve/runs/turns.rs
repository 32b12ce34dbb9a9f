//! Opens the session of a run and runs its turn. The turn continues when the client disconnects.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::super::ServerState;
use super::super::agents::{self, RestAgent};
use super::super::authenticator::ActiveToken;
use super::asker::RunAsker;
use super::run::{AgentRun, RunOwner};
use super::run_error::RunError;
use crate::acp::{AcpServer, RunningTurn, SharedSession, SharedSessions, next_viewer_id};
use crate::agents::{Notifier, TurnEnd};
use crate::conversation::Content;
use crate::manifest::ApprovalLevel;
use crate::orchestrator::{Orchestrator, PromptOptions};
use crate::project::{ClientPorts, ExplicitSettings, Project, ProjectError, SessionLauncher, load_project};
use crate::session::{LiveSession, PendingTurn, SessionRoots, SessionViewer, Sessions, TurnFailure, ViewerId};

/// What a client asks for.
pub(in crate::serve) struct RunRequest {
    /// The agent's name in the API.
    pub(in crate::serve) agent: String,
    /// The UUID of the session, in lower case.
    pub(in crate::serve) session: String,
    pub(in crate::serve) missing: MissingSession,
    pub(in crate::serve) prompt: Vec<Content>,
}

/// What happens if the client has no session with the UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum MissingSession {
    Create,
    /// The request fails with this text.
    Refuse(&'static str),
}

/// Returns a UUID in lower case. `None` if the text is none.
pub(in crate::serve) fn parse_uuid(text: &str) -> Option<String> {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    let is_uuid = groups == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    is_uuid.then(|| text.to_ascii_lowercase())
}

/// Returns the agent with this name. Fails if the token does not reach one. The audit log has what managed settings
/// refuse.
pub(in crate::serve) async fn find_agent(
    state: &ServerState,
    token: &ActiveToken,
    name: &str,
) -> Result<(RestAgent, Project), RunError> {
    let project = agents::project(state, &token.grant).await.map_err(|error| project_failure(&error))?;
    let plan = project.broker.plan();
    let Some(agent) = agents::find(plan, name) else {
        if let Some((mode, exclusion)) = agents::find_excluded(plan, name) {
            sessions(&state.acp_server(token)).await?.record_managed(&mode.to_string(), &exclusion.setting);
        }
        return Err(RunError::NotFound("there is no such agent"));
    };
    Ok((agent, project))
}

fn project_failure(error: &ProjectError) -> RunError {
    tracing::error!(problem = %error.problem, "the manifests of the server have errors");
    RunError::Server("the manifests of the server have errors; run `skein check`".to_owned())
}

/// Returns the sessions that a client may use.
pub(in crate::serve) async fn sessions(server: &AcpServer) -> Result<Sessions, RunError> {
    let sessions = (server.sessions)().await.map_err(|error| {
        tracing::error!(%error, "the session store cannot be opened");
        RunError::Server("the session store cannot be used at the moment".to_owned())
    })?;
    Ok(sessions.with_grant(server.grant.clone()))
}

/// Starts a run. Fails if its agent or session cannot be used now.
pub(in crate::serve) async fn start(
    state: &Arc<ServerState>,
    token: &Arc<ActiveToken>,
    request: RunRequest,
) -> Result<Arc<AgentRun>, RunError> {
    let RunRequest { agent, session: uuid, missing, prompt } = request;
    if state.draining.is_cancelled() {
        return Err(RunError::Draining);
    }
    let (agent, project) = find_agent(state, token, &agent).await?;
    // A run that must wait leaves no empty session behind.
    drop(token.grant.begin_turn()?);
    let server = state.acp_server(token);
    let opening = RunOpening { sessions: sessions(&server).await?, server: &server, agent: &agent };
    // Two requests with one new UUID must not create two sessions.
    let key = format!("{} {}", token.grant.principal().name(), uuid);
    let _alone = server.open_sessions.lock_session(&key).await;
    // Held until the run is attached, so that the end of the run before it does not close the session.
    let mut attaching = None;
    let open = match opening.sessions.store().find_uuid(&uuid).await? {
        Some(id) => {
            attaching = Some(server.open_sessions.lock_session(&id).await);
            opening.reopen(&id).await?
        }
        None => match missing {
            MissingSession::Create => opening.create(&uuid, project).await?,
            MissingSession::Refuse(problem) => return Err(RunError::Contradiction(problem.to_owned())),
        },
    };
    let running = open.try_begin(&token.grant).ok_or_else(busy)?;
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
        session: uuid,
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

/// Answers the question of a run. Fails if there is none, the text is no answer to it, or the token must not answer.
pub(in crate::serve) fn resume(run: &AgentRun, token: &ActiveToken, text: &str) -> Result<(), RunError> {
    // A token that cannot consent to the calls of its runs cannot do so for another token of its principal.
    if !run.is_of_token(&token.id) && !token.grant.limits().admits_approval(ApprovalLevel::Ask) {
        let problem = "your token must not answer questions of another token's run";
        return Err(RunError::Forbidden(problem.to_owned()));
    }
    run.resume(text)
}

fn busy() -> RunError {
    RunError::Busy("the session is busy with another run".to_owned())
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
    async fn create(&self, uuid: &str, project: Project) -> Result<Arc<SharedSession>, RunError> {
        let launcher = self.launcher(project);
        let ports = self.server.open_sessions.ports();
        let roots = self.sessions.default_roots().await?;
        let launched = launcher.create(roots, |_| ports.of_session()).await?;
        launched.session.sessions().store().put_uuid(launched.session.id(), uuid);
        Ok(self.server.open_sessions.add(launched.session, launcher.project().clone(), ports))
    }

    /// Opens a stored session in the mode of the run. If other clients show the session, the run joins them. The caller
    /// has locked the session. Fails if a turn runs.
    async fn reopen(&self, id: &str) -> Result<Arc<SharedSession>, RunError> {
        let open_sessions = &self.server.open_sessions;
        if let Some(open) = open_sessions.find_live(id).await {
            if open.is_busy() {
                return Err(busy());
            }
            if open.session.live().has_others(ViewerId::MAX) {
                open.session.check_client(&self.server.grant)?;
                // The session keeps the modes of the token that opened it.
                let (roots, grant) = (SessionRoots::of(open.session.context()), open.session.sessions().grant());
                open.reload(load_project(&self.server.projects, &roots.cwd, roots.files, grant).await).await;
                if !open.session.plan().is_selectable(&self.agent.mode) {
                    let problem = "the session is open with a token that does not admit this agent";
                    return Err(RunError::Forbidden(problem.to_owned()));
                }
                open.session.set_mode(self.agent.mode.clone()).await?;
                return Ok(open);
            }
        }
        let stored = self.sessions.store().find(id).await?;
        let stored = stored.ok_or(RunError::NotFound("there is no such session"))?;
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
