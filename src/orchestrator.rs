//! Layer 1: who works on a prompt, and what they know when they begin. Every turn of every front door passes here.
//!
//! Invariant: knows no protocol. What it hands over is never more than the session itself may do.

mod adviser;
mod decide;
mod desk;
mod known;
pub mod manager;
mod preface;
mod recall;
mod relay;
pub mod route;
mod tasks;
pub mod tom;
mod turn;
mod verify;
mod writers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::agents::{Notifier, Status, TurnEnd};
use crate::broker::note_user_text;
use crate::conversation::Content;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::llm::Provider;
use crate::manifest::AgentEntry;
use crate::router::THRESHOLD;
use crate::session::{Begun, Live, PromptError};
use desk::Desk;
use known::Known;
use manager::Manager;
use route::{Decision, NoSuchMode};
use tom::{Read, TopOfMind};
pub use turn::Wish;
pub use verify::{Finding, Verdict};

/// The agent that routes and hands over.
const OWN: &str = "orchestrator";
/// Who does a task that fits nobody for sure.
const ANYBODY: &str = "goose/specialist";

/// See the module. A cheap handle.
#[derive(Debug, Clone)]
pub struct Orchestrator {
    known: Arc<Known>,
    top_of_mind: Arc<TopOfMind>,
}

/// What a prompt is told beside its words.
struct Found {
    top: Option<String>,
    pieces: Vec<recall::Piece>,
}

impl Found {
    /// What of it the talk does not show yet.
    fn preface(&self, begun: &Begun) -> Option<Content> {
        preface::preface(&begun.history().shown(), self.top.as_deref(), &self.pieces)
    }
}

impl Orchestrator {
    /// What is learned and corrected is kept below the data folder.
    pub fn new(data: PathBuf, top_of_mind: TopOfMind) -> Self {
        Self { known: Arc::new(Known::new(data)), top_of_mind: Arc::new(top_of_mind) }
    }

    /// Runs a turn that the front end has started: chooses the mode that works on the prompt and hands the turn to it.
    /// `front` receives its events, the end of the turn last.
    pub async fn prompt(
        &self,
        mut begun: Begun,
        prompt: Vec<Content>,
        wish: Wish,
        front: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> Result<TurnEnd, PromptError> {
        let live = Arc::clone(begun.live());
        let text = turn::words(&prompt);
        if wish.typed {
            prompt.iter().filter_map(Content::as_text).for_each(|text| note_user_text(live.session(), text));
        }
        let named = if wish.typed { route::explicit(&text, &live.plan()).map_err(turn::misdirected)? } else { None };
        if let Some(title) = begun.name_after(&prompt) {
            front.status(Status::Title(title));
        }
        if begun.choice().mode.agent.as_str() == OWN {
            live.session().delegator.get_or_init(|| Desk::of(self, &live));
            live.session().manager.get_or_init(|| Arc::new(Manager::new(live.broker(), live.brought())));
        }
        let open = async {
            let (current, found) = tokio::join!(begun.catch_up(), self.found(&live, &prompt, &front));
            current?;
            let preface = found.preface(&begun);
            let mut opening = self.open(&mut begun, prompt.clone(), named, wish, &front).await?;
            opening.prompt.splice(0..0, preface);
            Ok::<_, PromptError>(opening)
        };
        let opening = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            opening = open => Some(opening?),
        };
        begun.run(opening.unwrap_or_else(|| prompt.into()), front, cancel).await
    }

    /// What is to be kept in mind, and what earlier sessions said that has to do with the prompt.
    async fn found(&self, live: &Live, prompt: &[Content], front: &Arc<dyn Notifier>) -> Found {
        let Read { text: top, problem } = self.top_of_mind.read();
        if let Some(problem) = problem {
            front.status(Status::Notice(problem));
        }
        let about = prompt.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n");
        let family = live.family().await;
        let pieces = recall::extract(live.sessions().store(), &about, &live.session().cwd, &family).await;
        Found { top, pieces }
    }

    fn known(&self) -> &Arc<Known> {
        &self.known
    }

    /// Where a prompt would go, without sending it there; and what the user should know about that. `adviser` is asked
    /// where the router is unsure.
    pub async fn would_route(
        &self,
        plan: &Arc<Plan>,
        cwd: &Path,
        prompt: &str,
        adviser: Option<&dyn Provider>,
    ) -> Result<(Decision, Option<String>), NoSuchMode> {
        if let Some((mode, task)) = route::explicit(prompt, plan)? {
            return Ok((Decision::explicit(mode, task.to_owned()), None));
        }
        let own = plan.agent(OWN).and_then(AgentEntry::default_mode);
        let own =
            own.ok_or_else(|| NoSuchMode { problem: "there is no orchestrator".to_owned(), help: String::new() })?;
        // A command is for the mode it is typed in.
        if prompt.trim_start().starts_with('/') {
            return Ok((Decision::explicit(own, prompt.trim().to_owned()), None));
        }
        let router = self.known.router(plan, &own, cwd).await;
        let router = router.map_err(|problem| NoSuchMode { problem, help: "try again".to_owned() })?;
        let decided = decide::decided(plan, &own, prompt.trim(), &router, adviser).await;
        Ok((decided.decision, decided.problem))
    }

    /// Remembers for this project whom a prompt is for.
    pub async fn remember(&self, cwd: &Path, prompt: &str, mode: &ModeId) -> Result<(), String> {
        self.known.correct(cwd, prompt, mode).await
    }

    /// Who of the granted ones fits a task best.
    async fn fitting(&self, live: &Live, granted: &[ModeId], task: &str) -> Result<ModeId, String> {
        let plan = live.plan();
        let router = self.known.router(&plan, &live.choice().mode, &live.session().cwd).await?;
        let best = router.rank(task).into_iter().find(|ranked| granted.contains(&ranked.mode));
        let sure = best.filter(|best| best.confidence >= THRESHOLD).map(|best| best.mode);
        let anybody = || ANYBODY.parse::<ModeId>().ok().filter(|mode| granted.contains(mode));
        sure.or_else(anybody).ok_or_else(|| "say who should do it: `agent` and `mode`".to_owned())
    }
}
