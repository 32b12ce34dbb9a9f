//! Opens sessions for the console, and runs their turns. A turn continues when the browser disconnects.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::super::ServerState;
use super::super::agents;
use super::super::authenticator::ActiveToken;
use super::layout::ConsoleProblem;
use crate::acp::{AcpServer, RunningTurn, SharedSession, next_viewer_id};
use crate::agents::{Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::conversation::Content;
use crate::ids::ModeId;
use crate::orchestrator::{Orchestrator, PromptOptions};
use crate::principal::{GrantError, SessionFiles};
use crate::project::{Project, ProjectError, SessionLauncher, load_project};
use crate::session::{
    LiveSession, PendingTurn, PromptError, SessionError, SessionRoots, Sessions, TurnFailure, ViewerId, name_session,
};
use crate::store::{SessionStore, StoreError, StoredSession};

/// The sessions that a login may use.
pub(super) struct ConsoleSessions {
    state: Arc<ServerState>,
    token: Arc<ActiveToken>,
    server: AcpServer,
    sessions: Sessions,
}

/// An open session. While it is held, no other request opens or closes the session.
pub(super) struct OpenedSession {
    pub(super) open: Arc<SharedSession>,
    lock: OwnedMutexGuard<()>,
}

impl ConsoleSessions {
    /// Returns the sessions of a token. Fails if the store cannot be opened.
    pub(super) async fn of(state: &Arc<ServerState>, token: &Arc<ActiveToken>) -> Result<Self, ConsoleProblem> {
        let server = state.acp_server(token);
        let sessions = (server.sessions)().await.map_err(|error| {
            tracing::error!(%error, "the session store cannot be opened");
            unusable_store()
        })?;
        let sessions = sessions.with_grant(server.grant.clone());
        Ok(Self { state: Arc::clone(state), token: Arc::clone(token), server, sessions })
    }

    pub(super) fn store(&self) -> &SessionStore {
        self.sessions.store()
    }

    pub(super) fn orchestrator(&self) -> &Orchestrator {
        &self.server.orchestrator
    }

    /// Returns whether there is such a session of the principal.
    pub(super) async fn exists(&self, id: &str) -> Result<bool, ConsoleProblem> {
        Ok(self.store().find(id).await?.is_some())
    }

    /// Returns a session. Fails if there is none, or it is not the principal's.
    pub(super) async fn find(&self, id: &str) -> Result<StoredSession, ConsoleProblem> {
        self.store().find(id).await?.ok_or_else(ConsoleProblem::no_session)
    }

    /// Opens a stored session, or joins it if it is open.
    pub(super) async fn open(&self, id: &str) -> Result<OpenedSession, ConsoleProblem> {
        let open_sessions = &self.server.open_sessions;
        let lock = open_sessions.lock_session(id).await;
        let stored = self.find(id).await?;
        if stored.parent.is_some() {
            let text = "This session works for another one. Prompt that one instead.";
            return Err(ConsoleProblem::new(StatusCode::CONFLICT, text));
        }
        let open = open_sessions.find_live(id).await;
        if let Some(open) = open.filter(|open| open.is_busy() || open.session.live().has_others(ViewerId::MAX)) {
            open.session.check_client(&self.server.grant)?;
            if !open.is_busy() {
                // The page of the session keeps it open, so changed files apply here. It keeps the modes of the token that
                // opened it.
                let (roots, grant) = (SessionRoots::of(open.session.context()), open.session.sessions().grant());
                open.reload(load_project(&self.server.projects, &roots.cwd, roots.files, grant).await).await;
            }
            return Ok(OpenedSession { open, lock });
        }
        let project = self.project(&stored.cwd, stored.files).await?;
        let launcher = self.launcher(project)?;
        let ports = open_sessions.ports();
        let launched = launcher.reopen(id, Vec::new(), |_| ports.of_session()).await?;
        launcher.resume(&launched.session).await?;
        let open = open_sessions.add(launched.session, launcher.project().clone(), ports);
        Ok(OpenedSession { open, lock })
    }

    /// Creates a session in a mode and a folder. Without a folder it works in an empty one.
    pub(super) async fn create(&self, mode: &ModeId, folder: Option<PathBuf>) -> Result<OpenedSession, ConsoleProblem> {
        let roots = match folder {
            Some(folder) => SessionRoots::here(folder, Vec::new()),
            None => self.sessions.default_roots().await?,
        };
        let project = self.project(&roots.cwd, roots.files).await?;
        if let Some(exclusion) = project.broker.plan().mode_refusal(mode) {
            self.sessions.record_managed(&mode.to_string(), &exclusion.setting);
            let text = format!("The mode `{mode}` is not allowed here: {exclusion}.");
            return Err(ConsoleProblem::new(StatusCode::FORBIDDEN, text));
        }
        if !project.broker.plan().is_selectable(mode) {
            return Err(ConsoleProblem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("There is no mode `{mode}`.")));
        }
        let launcher = SessionLauncher::in_mode(mode.clone(), self.sessions.clone(), project, self.server.approval);
        let open_sessions = &self.server.open_sessions;
        let ports = open_sessions.ports();
        let launched = launcher.create(roots, |_| ports.of_session()).await?;
        let lock = open_sessions.lock_session(launched.session.id()).await;
        let open = open_sessions.add(launched.session, launcher.project().clone(), ports);
        Ok(OpenedSession { open, lock })
    }

    /// Starts a turn. Fails if a turn runs, or the server shuts down.
    pub(super) async fn prompt(&self, opened: OpenedSession, prompt: Vec<Content>) -> Result<(), ConsoleProblem> {
        let OpenedSession { open, lock } = opened;
        if self.state.draining.is_cancelled() {
            let text = "The server is shutting down. Send the prompt again in half a minute.";
            return Err(ConsoleProblem::new(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        let running = open.try_begin(&self.token.grant).ok_or_else(busy)?;
        let pending = match open.session.begin_for(&self.token.grant) {
            Ok(pending) => pending,
            Err(error) => {
                drop(running);
                drop(lock);
                release(Arc::clone(&self.state), open).await;
                return Err(error.into());
            }
        };
        let turn = ConsoleTurn {
            state: Arc::clone(&self.state),
            token: Arc::clone(&self.token),
            open,
            orchestrator: self.server.orchestrator.clone(),
        };
        drop(lock);
        self.state.scope.spawn(turn.run(running, pending, prompt));
        Ok(())
    }

    /// Cancels the running turn of a session.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), ConsoleProblem> {
        self.find(id).await?;
        let open = self.server.open_sessions.find(id).filter(|open| open.is_busy());
        let open = open.ok_or_else(|| ConsoleProblem::new(StatusCode::CONFLICT, "No turn runs in this session."))?;
        open.session.check_client(&self.server.grant)?;
        open.cancel();
        Ok(())
    }

    /// Loads what applies in a folder. Fails if the token does not admit the folder, or its manifests have errors.
    async fn project(&self, folder: &Path, files: SessionFiles) -> Result<Project, ConsoleProblem> {
        let project = load_project(&self.server.projects, folder, files, &self.server.grant).await;
        project.map_err(|error| project_problem(&error))
    }

    fn launcher(&self, project: Project) -> Result<SessionLauncher, ConsoleProblem> {
        SessionLauncher::new(self.sessions.clone(), project, self.server.approval)
            .map_err(|error| ConsoleProblem::new(StatusCode::CONFLICT, format!("{error}; {}", error.help())))
    }
}

impl OpenedSession {
    /// Ends the use of a session that runs no turn for this request. Closes it if no client shows it.
    pub(super) async fn release(self, state: &Arc<ServerState>) {
        drop(self.lock);
        release(Arc::clone(state), self.open).await;
    }
}

/// Closes a session that runs no turn and that no client shows.
pub(super) async fn release(state: Arc<ServerState>, open: Arc<SharedSession>) {
    let open_sessions = &state.parts.open_sessions;
    let _alone = open_sessions.lock_session(open.session.id()).await;
    let is_current = open_sessions.find(open.session.id()).is_some_and(|current| Arc::ptr_eq(&current, &open));
    if is_current && !open.is_busy() && !open.session.live().has_others(ViewerId::MAX) {
        open_sessions.close(&open).await;
    }
}

/// Returns the folder of new sessions. `None` if the token has none.
pub(super) fn home_folder<'a>(state: &'a ServerState, token: &'a ActiveToken) -> Option<&'a Path> {
    match token.grant.principal().is_local() {
        true => Some(&state.parts.folder),
        false => token.grant.limits().roots.first().map(PathBuf::as_path),
    }
}

/// Loads what applies in the folder of new sessions. Fails if its manifests have errors.
pub(super) async fn home_project(state: &ServerState, token: &ActiveToken) -> Result<Project, ConsoleProblem> {
    let project = match token.grant.principal().is_local() {
        true => load_project(&state.parts.projects, &state.parts.folder, SessionFiles::Server, &token.grant).await,
        false => agents::project(state, &token.grant).await,
    };
    project.map_err(|error| project_problem(&error))
}

/// The turn of a prompt.
struct ConsoleTurn {
    state: Arc<ServerState>,
    token: Arc<ActiveToken>,
    open: Arc<SharedSession>,
    orchestrator: Orchestrator,
}

impl ConsoleTurn {
    async fn run(self, running: RunningTurn, pending: PendingTurn, prompt: Vec<Content>) {
        let live = Arc::clone(self.open.session.live());
        // No viewer has this id, so that every feed receives the end.
        live.begin(next_viewer_id(), self.open.session.event_count());
        let guard = ConsoleTurnGuard(Arc::clone(&live));
        let cancel: CancellationToken = running.cancel().clone();
        let options = PromptOptions { plan_only: false, from_user: true };
        let notifier = Arc::clone(&live) as Arc<dyn Notifier>;
        let turn = self.orchestrator.prompt(pending, prompt, options, notifier, &cancel);
        tokio::pin!(turn);
        let ended = tokio::select! {
            biased;
            ended = &mut turn => ended,
            () = self.token.ended.cancelled() => {
                cancel.cancel();
                (&mut turn).await
            }
        };
        // Before the session is free: the next turn must not end with this one.
        guard.end(&ended);
        drop(running);
        if matches!(&ended, Ok(TurnEnd { ending: StopReason::EndTurn, .. }))
            && let Some(naming) = name_session(&self.open.session)
            && let Some(title) = naming.await
        {
            live.status(StatusUpdate::Title(title));
        }
        release(self.state, self.open).await;
    }
}

/// Ends the turn for the viewers of the session, also if the turn is dropped.
struct ConsoleTurnGuard(Arc<LiveSession>);

impl ConsoleTurnGuard {
    fn end(self, ended: &Result<TurnEnd, PromptError>) {
        match ended {
            Ok(end) => self.0.end(Ok(end)),
            Err(error) => self.0.end(Err(&TurnFailure(error.to_string()))),
        }
    }
}

impl Drop for ConsoleTurnGuard {
    fn drop(&mut self) {
        // Does nothing if the turn has ended.
        self.0.end(Err(&TurnFailure("the turn was interrupted".to_owned())));
    }
}

fn busy() -> ConsoleProblem {
    let text = "The session is still busy with the prompt before. Wait for its end, or cancel it.";
    ConsoleProblem::new(StatusCode::CONFLICT, text)
}

fn unusable_store() -> ConsoleProblem {
    ConsoleProblem::new(StatusCode::SERVICE_UNAVAILABLE, "The session store cannot be used at the moment.")
}

fn project_problem(error: &ProjectError) -> ConsoleProblem {
    tracing::error!(problem = %error.problem, "the manifests have errors");
    let text = format!(
        "The manifests or settings of the folder have errors: {}. Run `skein check`, or correct them under \
         /console/manifests with a token with --admin.",
        error.problem
    );
    ConsoleProblem::new(StatusCode::CONFLICT, text)
}

impl From<StoreError> for ConsoleProblem {
    fn from(error: StoreError) -> Self {
        if let StoreError::OwnedElsewhere { .. } | StoreError::Taken { .. } | StoreError::FilesElsewhere { .. } = error
        {
            return Self::new(StatusCode::CONFLICT, format!("Another server has this session: {error}."));
        }
        tracing::error!(%error, "the session store cannot be used");
        unusable_store()
    }
}

impl From<GrantError> for ConsoleProblem {
    fn from(error: GrantError) -> Self {
        let status = match error {
            GrantError::Sessions { .. } | GrantError::Turns { .. } => StatusCode::TOO_MANY_REQUESTS,
            GrantError::Folder { .. }
            | GrantError::Approval { .. }
            | GrantError::OtherToken
            | GrantError::Managed(_) => StatusCode::FORBIDDEN,
        };
        Self::new(status, error.to_string())
    }
}

impl From<SessionError> for ConsoleProblem {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Grant(error) => error.into(),
            SessionError::Store(error) => error.into(),
            SessionError::Unknown(_) => Self::no_session(),
            error => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}

impl From<PromptError> for ConsoleProblem {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Busy => busy(),
            PromptError::Grant(error) => error.into(),
            PromptError::Store(error) => error.into(),
            PromptError::Record(error) => error.into(),
            error => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}
