//! What a session thinks with at the moment: a choice, and what follows from it. A switch makes another one, so a
//! turn that runs keeps what it began with.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::{Choice, Host, ModelSource};
use crate::agents::{ModelJudge, Setting, memories, system_prompt};
use crate::broker::{BindError, Binding, Broker, Terms};
use crate::clock;
use crate::ids::{AgentName, ModeId, ModeSlug};
use crate::llm::{LlmError, Provider};
use crate::manifest::{Layer, PromptValues};
use crate::tool::Session;

/// One choice and its binding, which is made when it is first needed.
pub(super) struct Setup {
    pub(super) choice: Choice,
    host: Host,
    session: Arc<Session>,
    binding: OnceCell<Arc<Binding>>,
    /// Shared by all setups of one mode in a row: the bytes must not change while the mode does not.
    system: Arc<OnceCell<Arc<str>>>,
}

impl Setup {
    pub(super) fn new(choice: Choice, host: Host, session: Arc<Session>) -> Self {
        Self { choice, host, session, binding: OnceCell::new(), system: Arc::default() }
    }

    /// The same session with another choice.
    pub(super) fn with(&self, choice: Choice) -> Self {
        let same_mode = choice.mode == self.choice.mode;
        let system = if same_mode { Arc::clone(&self.system) } else { Arc::default() };
        Self { system, ..Self::new(choice, self.host.clone(), Arc::clone(&self.session)) }
    }

    pub(super) fn models(&self) -> &dyn ModelSource {
        self.host.models.as_ref()
    }

    /// The model of the choice.
    pub(super) fn provider(&self) -> Result<Arc<dyn Provider>, LlmError> {
        self.host.models.provider(&self.choice.model)
    }

    pub(super) async fn binding(&self) -> Result<Arc<Binding>, BindError> {
        let bind = async || {
            let terms = Terms {
                session: Arc::clone(&self.session),
                approval: self.choice.approval,
                asker: Arc::clone(&self.host.asker),
                brought: self.host.brought.clone(),
            };
            self.broker().bind(&self.choice.mode, terms).await.map(Arc::new)
        };
        self.binding.get_or_try_init(bind).await.cloned()
    }

    /// The binding, if it has been made.
    pub(super) fn bound(&self) -> Option<&Arc<Binding>> {
        self.binding.get()
    }

    /// With a judge for `smart`, if there is a model that can be one. Neither a project's own `goose/judge` nor a model
    /// of its choice is heard: that would loosen what the user decides.
    fn broker(&self) -> Broker {
        let broker = &self.host.broker;
        let judge = || -> Option<ModelJudge> {
            let (entry, _) = broker.plan().mode(&ModeId::new(AgentName::new("goose"), ModeSlug::new("judge")))?;
            if entry.layer == Layer::Project {
                return None;
            }
            let provider =
                self.host.models.judge(&self.choice.model).filter(|provider| provider.name() != "offline")?;
            let date = clock::date(clock::now());
            let values = PromptValues { agent: "goose", mode: "judge", cwd: "", date: &date, os: "" };
            let system = entry.prompt.as_ref()?.fill_in(&values).ok()?;
            Some(ModelJudge::new(provider, system.into()))
        };
        match judge() {
            Some(judge) => broker.with_judge(Arc::new(judge)),
            None => broker.clone(),
        }
    }

    /// Made once for a mode, with the memories that matter for the prompt it begins with.
    pub(super) async fn system(&self, binding: &Binding, prompt: &str, os: &str) -> Result<Arc<str>, String> {
        let make = async || {
            let plan = self.host.broker.plan();
            let mode_prompt = plan.mode(&self.choice.mode).and_then(|(entry, _)| entry.prompt.as_ref());
            let memories = memories(binding, &self.session, prompt).await;
            let setting = Setting { date: &clock::date(clock::now()), os, memories: &memories };
            system_prompt(mode_prompt, binding, &self.session, setting).map(Arc::from)
        };
        self.system.get_or_try_init(make).await.cloned()
    }
}
