//! Chooses the mode that works on a prompt and gathers the context it starts with. Every turn of every front end passes
//! here.
//!
//! Invariant: uses no protocol. Delegated work never has more permissions than the session itself.

mod adviser;
mod decide;
pub mod evaluation;
mod task_runner;
mod router_cache;
pub mod session_services;
mod preface;
mod recall;
mod child;
pub mod route;
mod tasks;
pub mod tom;
mod turn;
mod verify;
mod file_locks;

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::agents::{Notifier, StatusUpdate, TurnEnd};
use crate::conversation::Content;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::llm::Provider;
use crate::manifest::{AgentEntry, Settings};
use crate::principal::Principal;
use crate::router::THRESHOLD;
use crate::session::{PendingTurn, PromptError, Session};
use crate::store::{FolderFilter, SessionStore, StorePlace, sessions_of_project};
use crate::tool::SessionStates;
use crate::tool::delegate::DelegateError;
use crate::worktree::TaskWorktrees;
use route::{RoutingContext, RoutingDecision, UnknownModeError};
use router_cache::RouterCache;
pub use router_cache::RouterCacheError;
use session_services::SessionServices;
use task_runner::TaskRunner;
use tom::{PrincipalTopOfMind, TopOfMind, TopOfMindText};
pub use turn::PromptOptions;
pub use verify::{Verification, VerificationError, VerificationResult};

/// The agent that routes and delegates.
const ORCHESTRATOR: &str = "orchestrator";
/// Mode for a delegated task that no mode fits with enough confidence.
const FALLBACK_MODE: &str = "goose/specialist";

/// Routes, splits and delegates prompts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Orchestrator {
    router_cache: Arc<RouterCache>,
    top_of_mind: Arc<PrincipalTopOfMind>,
    last_routes: Arc<SessionStates<turn::LastRoute>>,
    /// Gives tasks worktrees. `None` if this command makes none.
    worktrees: Option<TaskWorktrees>,
}

/// Context that is added to a prompt: the top-of-mind text and excerpts of earlier sessions.
struct PromptContext {
    top: Option<String>,
    excerpts: Vec<recall::RecallExcerpt>,
}

impl PromptContext {
    /// Returns the part of the context that the visible history does not contain yet. Leaves out excerpts if the mode
    /// of the turn does not recall. `None` if there is nothing to add.
    fn preface(&self, pending: &PendingTurn) -> Option<Content> {
        let recalls = mode_recalls(&pending.session().turn_plan(), pending.mode());
        let excerpts = if recalls { self.excerpts.as_slice() } else { &[] };
        preface::preface(&pending.history().visible_messages(), self.top.as_deref(), excerpts)
    }

    fn for_routing(&self) -> RoutingContext {
        RoutingContext::new(self.top.as_deref(), &self.excerpts)
    }
}

/// Returns false if the manifest of a mode turns excerpts of earlier sessions off.
fn mode_recalls(plan: &Plan, mode: &ModeId) -> bool {
    plan.mode(mode).is_none_or(|(entry, _)| entry.mode.recall != Some(false))
}

impl Orchestrator {
    /// Creates an orchestrator that keeps learned routers in the data folder of `store`, and corrections in `store`.
    /// `top_of_mind` is that of `local`.
    pub fn new(store: impl Into<StorePlace>, top_of_mind: TopOfMind) -> Self {
        let store = store.into();
        Self {
            top_of_mind: Arc::new(PrincipalTopOfMind::new(store.data().to_owned(), top_of_mind)),
            router_cache: Arc::new(RouterCache::new(store)),
            last_routes: Arc::default(),
            worktrees: None,
        }
    }

    /// Returns the same orchestrator, whose tasks can have worktrees.
    #[must_use]
    pub fn with_worktrees(self, worktrees: TaskWorktrees) -> Self {
        Self { worktrees: Some(worktrees), ..self }
    }

    fn worktrees(&self) -> Option<&TaskWorktrees> {
        self.worktrees.as_ref()
    }

    /// Runs a turn that the front end has started: chooses the mode that works on the prompt and hands the turn to it.
    /// `front` receives its events, the end of the turn last.
    pub async fn prompt(
        &self,
        mut pending: PendingTurn,
        prompt: Vec<Content>,
        options: PromptOptions,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> Result<TurnEnd, PromptError> {
        let session = Arc::clone(pending.session());
        if let Some(worktrees) = self.worktrees() {
            worktrees.sweep();
        }
        // A hook decides before the prompt is routed, because that may send it to a model.
        let added = pending.run_prompt_hooks(&prompt, cancel).await?;
        let text = turn::words(&prompt);
        if options.from_user {
            prompt
                .iter()
                .filter_map(Content::as_text)
                .for_each(|text| session.broker().note_user_text(session.context(), text));
        }
        let named = if options.from_user {
            let named = route::explicit(&text, &session.turn_plan());
            named.map_err(|error| turn::misdirection_error(error, &session))?
        } else {
            None
        };
        if let Some(title) = pending.name_after(&prompt) {
            front.status(StatusUpdate::Title(title));
        }
        if pending.choice().mode.agent.as_str() == ORCHESTRATOR {
            session.context().delegator.get_or_init(|| TaskRunner::of(self, &session));
            session
                .context()
                .manager
                .get_or_init(|| Arc::new(SessionServices::new(session.broker(), session.client_services())));
        }
        let open = async {
            // Another mode may work on the turn, so that mode decides about excerpts.
            let fixed = pending.choice().mode.agent.as_str() != ORCHESTRATOR && named.is_none();
            let recalls = !fixed || mode_recalls(&session.turn_plan(), &pending.choice().mode);
            let gather = self.gather_context(&session, &prompt, recalls, &front);
            let (current, found) = tokio::join!(pending.catch_up(), gather);
            current?;
            let context = found.for_routing();
            let mut opening = self.open(&mut pending, prompt.clone(), named, options, &context, &front).await?;
            opening.prompt.splice(0..0, found.preface(&pending).into_iter().chain(added));
            Ok::<_, PromptError>(opening)
        };
        let opening = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            opening = open => Some(opening?),
        };
        pending.run(opening.unwrap_or_else(|| prompt.into()), front, cancel).await
    }

    /// Reads the top-of-mind text. Looks up excerpts of earlier sessions that match the prompt, if `recalls` and the
    /// configs allow it.
    async fn gather_context(
        &self,
        session: &Session,
        prompt: &[Content],
        recalls: bool,
        front: &Arc<dyn Notifier>,
    ) -> PromptContext {
        let TopOfMindText { text: top, problem } = self.top_of_mind.read(session.context().principal());
        if let Some(problem) = problem {
            front.status(StatusUpdate::notice(problem));
        }
        if !recalls || !Settings::of(session.plan().manifests()).recall {
            return PromptContext { top, excerpts: Vec::new() };
        }
        let about = prompt.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n");
        let family = session.family().await;
        // A folder at the client is only a name here.
        let of_client = session.context().client_folders().map(|client| client.cwd.clone());
        let cwd = session.context().cwd.clone();
        let within = move || of_client.map_or_else(|| sessions_of_project(&cwd), FolderFilter::Folder);
        let pieces = recall::extract(session.sessions().store(), &about, within, &family).await;
        PromptContext { top, excerpts: pieces }
    }

    fn router_cache(&self) -> &Arc<RouterCache> {
        &self.router_cache
    }

    /// Returns where a prompt of a principal would be routed, without running it, and notices for the user. Asks
    /// `adviser` if the router is unsure. `sessions` are the earlier sessions, if there are any. Fails if the prompt names
    /// an unknown mode.
    pub async fn would_route(
        &self,
        principal: &Principal,
        plan: &Arc<Plan>,
        cwd: &Path,
        prompt: &str,
        sessions: Option<&SessionStore>,
        adviser: Option<&dyn Provider>,
    ) -> Result<(RoutingDecision, Vec<String>), UnknownModeError> {
        if let Some((mode, task)) = route::explicit(prompt, plan)? {
            return Ok((RoutingDecision::explicit(mode, task.to_owned()), Vec::new()));
        }
        let own = plan.agent(ORCHESTRATOR).and_then(AgentEntry::default_mode);
        let own = own.ok_or_else(|| UnknownModeError::new("there is no orchestrator", ""))?;
        // A slash command belongs to the mode in which the user types it.
        if prompt.trim_start().starts_with('/') {
            return Ok((RoutingDecision::explicit(own, prompt.trim().to_owned()), Vec::new()));
        }
        let router = self.router_cache.router(plan, &own, principal, cwd).await;
        let router = router.map_err(|error| UnknownModeError::new(error.to_string(), "try again"))?;
        let TopOfMindText { text: top, problem } = self.top_of_mind.read(principal);
        let folder = cwd.to_owned();
        let within = move || sessions_of_project(&folder);
        let excerpts = match sessions.filter(|_| Settings::of(plan.manifests()).recall) {
            Some(sessions) => recall::extract(sessions, prompt, within, &[]).await,
            None => Vec::new(),
        };
        let context = RoutingContext::new(top.as_deref(), &excerpts);
        let decided = decide::route_prompt(plan, &own, prompt.trim(), &context, &router, adviser).await;
        Ok((decided.decision, problem.into_iter().chain(decided.problem).collect()))
    }

    /// Stores, for a principal in this project, the mode that a prompt belongs to.
    pub async fn remember(
        &self,
        principal: &Principal,
        cwd: &Path,
        prompt: &str,
        mode: &ModeId,
    ) -> Result<(), RouterCacheError> {
        self.router_cache.correct(principal, cwd, prompt, mode).await
    }

    /// Returns the granted mode that fits a task best. Falls back to [`FALLBACK_MODE`]; fails if that is not granted.
    async fn best_mode(&self, session: &Session, granted: &[ModeId], task: &str) -> Result<ModeId, DelegateError> {
        let plan = session.turn_plan();
        let context = session.context();
        let router = self.router_cache.router(&plan, &session.choice().mode, context.principal(), &context.cwd).await;
        let router = router.map_err(|error| DelegateError::Routing(error.into()))?;
        let best = router.rank(task).into_iter().find(|ranked| granted.contains(&ranked.mode));
        let sure = best.filter(|best| best.confidence >= THRESHOLD).map(|best| best.mode);
        let anybody = || FALLBACK_MODE.parse::<ModeId>().ok().filter(|mode| granted.contains(mode));
        sure.or_else(anybody).ok_or(DelegateError::NoMode)
    }
}
