//! What a session thinks with at the moment: a choice, and what follows from it. A switch makes another one, so a
//! turn that runs keeps what it began with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OnceCell;

use super::external::{ExternalSessionKey, ExternalSessions};
use super::{ModelSource, SessionPorts, SessionSettings};
use crate::agents::{ExternalAgentSpec, ModelJudge, SystemPromptInputs, memories, system_prompt};
use crate::broker::{BindError, BindRequest, Binding, Broker, ParentLimits};
use crate::clock;
use crate::graph::Plan;
use crate::ids::{AgentName, ModeId, ModeSlug, ServiceName};
use crate::llm::{LlmError, Provider};
use crate::manifest::{AgentRuntime, ApprovalLevel, Layer, PromptValues};
use crate::tool::SessionContext;

/// A model that begins like this is an agent outside.
const ACP_PREFIX: &str = "acp:";

/// One choice and its binding, which is made when it is first needed.
pub(super) struct SessionSetup {
    pub(super) choice: SessionSettings,
    host: SessionPorts,
    session: Arc<SessionContext>,
    binding: OnceCell<Arc<Binding>>,
    /// Shared by all setups of one mode in a row: the bytes must not change while the mode does not.
    system: Arc<OnceCell<Arc<str>>>,
    /// All bindings that this session ever had and that somebody still uses: a stricter level must reach them.
    bindings: Bindings,
    /// The session's places at agents outside.
    external_sessions: Arc<ExternalSessions>,
    /// For turns that are handed to other modes, with what was enabled when each was made.
    routed: Mutex<HashMap<ModeId, RoutedSetup>>,
}

type Bindings = Arc<Mutex<Vec<Weak<Binding>>>>;

struct RoutedSetup {
    enabled: BTreeMap<ServiceName, bool>,
    setup: Arc<SessionSetup>,
}

impl SessionSetup {
    pub(super) fn new(choice: SessionSettings, host: SessionPorts, session: Arc<SessionContext>) -> Self {
        let (binding, system, routed) = (OnceCell::new(), Arc::default(), Mutex::default());
        let (bindings, external_sessions) = (Arc::default(), Arc::default());
        Self { choice, host, session, binding, system, bindings, external_sessions, routed }
    }

    /// The same session in another mode for a turn, never with more than its own mode may do without being asked.
    pub(super) async fn for_mode(&self, mode: ModeId) -> Result<Arc<Self>, BindError> {
        let bounds = ParentLimits { parent: Some(self.binding().await?), write_lock: None };
        let mut handed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        let enabled = self.session.service_overrides().all();
        if let Some(before) = handed.get(&mode).filter(|before| before.enabled == enabled) {
            return Ok(Arc::clone(&before.setup));
        }
        let host = SessionPorts { broker: self.host.broker.with_limits(bounds), ..self.host.clone() };
        let choice = SessionSettings { mode: mode.clone(), ..self.choice.clone() };
        let (bindings, seats) = (Arc::clone(&self.bindings), Arc::clone(&self.external_sessions));
        let setup =
            Arc::new(Self { bindings, external_sessions: seats, ..Self::new(choice, host, Arc::clone(&self.session)) });
        handed.insert(mode, RoutedSetup { enabled, setup: Arc::clone(&setup) });
        Ok(setup)
    }

    pub(super) fn host(&self) -> &SessionPorts {
        &self.host
    }

    /// The same session with another choice.
    pub(super) fn with(&self, choice: SessionSettings) -> Self {
        let same_mode = choice.mode == self.choice.mode;
        let system = if same_mode { Arc::clone(&self.system) } else { Arc::default() };
        let (bindings, seats) = (Arc::clone(&self.bindings), Arc::clone(&self.external_sessions));
        Self {
            system,
            bindings,
            external_sessions: seats,
            ..Self::new(choice, self.host.clone(), Arc::clone(&self.session))
        }
    }

    pub(super) fn models(&self) -> &dyn ModelSource {
        self.host.models.as_ref()
    }

    /// The model of the choice; an agent outside, where one was chosen, is asked single questions by it.
    pub(super) fn provider(&self) -> Result<Arc<dyn Provider>, LlmError> {
        self.provider_named(&self.choice.model)
    }

    /// The model a user names.
    pub(super) fn provider_named(&self, model: &str) -> Result<Arc<dyn Provider>, LlmError> {
        let Some(agent) = model.strip_prefix(ACP_PREFIX) else { return self.host.models.provider(model) };
        let who = self.external_agent_named(agent).ok_or_else(|| LlmError::Unusable {
            model: model.to_owned(),
            reason: format!("there is no external agent `{agent}`; `skein agents` lists them"),
        })?;
        Ok(self.host.external_agents.model(who))
    }

    /// The agent outside that works here: the mode's own, or the one that was chosen as the model.
    pub(super) fn external_agent(&self) -> Option<(ExternalAgentSpec, ExternalSessionKey)> {
        let of_mode = self.external_agent_named(self.choice.mode.agent.as_str());
        let who = of_mode.or_else(|| self.external_agent_named(self.choice.model.strip_prefix(ACP_PREFIX)?))?;
        let key = (self.choice.mode.clone(), who.name.clone());
        Some((who, key))
    }

    fn external_agent_named(&self, agent: &str) -> Option<ExternalAgentSpec> {
        let manifest = &self.host.broker.plan().agent(agent)?.manifest;
        let AgentRuntime::Acp(runtime) = manifest.runtime.clone()?;
        let title = manifest.title.clone().unwrap_or_else(|| manifest.name.to_string());
        Some(ExternalAgentSpec { name: manifest.name.clone(), title, runtime })
    }

    pub(super) fn external_sessions(&self) -> &Arc<ExternalSessions> {
        &self.external_sessions
    }

    pub(super) async fn binding(&self) -> Result<Arc<Binding>, BindError> {
        let bind = async || {
            let terms = BindRequest {
                session: Arc::clone(&self.session),
                approval: self.choice.approval,
                asker: Arc::clone(&self.host.asker),
                client_services: self.host.client_services.clone(),
            };
            let binding = self.broker().bind(&self.choice.mode, terms).await.map(Arc::new)?;
            let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
            bindings.retain(|binding| binding.strong_count() > 0);
            bindings.push(Arc::downgrade(&binding));
            Ok(binding)
        };
        self.binding.get_or_try_init(bind).await.cloned()
    }

    /// From now on no call of the session needs less than this level, whichever binding it is made through.
    pub(super) fn tighten(&self, level: ApprovalLevel) {
        let bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        bindings.iter().filter_map(Weak::upgrade).for_each(|binding| binding.tighten(level));
    }

    /// With a judge for `smart`, if there is a model that can be one. Neither a project's own `goose/judge` nor a model
    /// of its choice is heard: that would loosen what the user decides.
    fn broker(&self) -> Broker {
        let broker = &self.host.broker;
        match self.judge() {
            Some((provider, system)) => broker.with_judge(Arc::new(ModelJudge::new(provider, system))),
            None => broker.clone(),
        }
    }

    /// The model and the prompt of goose/judge, if there is a model that can be one.
    pub(super) fn judge(&self) -> Option<(Arc<dyn Provider>, Arc<str>)> {
        let (entry, _) = self.host.broker.plan().mode(&ModeId::new(AgentName::new("goose"), ModeSlug::new("judge")))?;
        if entry.layer == Layer::Project {
            return None;
        }
        let provider = self.host.models.judge(&self.choice.model).filter(|provider| provider.name() != "offline")?;
        let date = clock::date(clock::now());
        let values = PromptValues { agent: "goose", mode: "judge", cwd: "", date: &date, os: "", delegates: "" };
        let system = entry.prompt.as_ref()?.fill_in(&values).ok()?;
        Some((provider, system.into()))
    }

    /// What an agent outside is told about the mode it works in; nothing if the mode says nothing about itself.
    pub(super) async fn external_system_prompt(
        &self,
        binding: &Binding,
        prompt: &str,
        os: &str,
    ) -> Result<Option<Arc<str>>, String> {
        let has_prompt = |(entry, _): (&crate::manifest::ModeEntry, _)| entry.prompt.is_some();
        if !self.host.broker.plan().mode(&self.choice.mode).is_some_and(has_prompt) {
            return Ok(None);
        }
        self.system(binding, prompt, os).await.map(Some)
    }

    /// Made once for a mode, with the memories that matter for the prompt it begins with.
    pub(super) async fn system(&self, binding: &Binding, prompt: &str, os: &str) -> Result<Arc<str>, String> {
        let make = async || {
            let plan = self.host.broker.plan();
            let mode_prompt = plan.mode(&self.choice.mode).and_then(|(entry, _)| entry.prompt.as_ref());
            let memories = memories(binding, &self.session, prompt).await;
            let delegates = delegates(plan, &self.choice.mode.agent);
            let date = clock::date(clock::now());
            let setting = SystemPromptInputs { date: &date, os, memories: &memories, delegates: &delegates };
            system_prompt(mode_prompt, binding, &self.session, setting).map(Arc::from)
        };
        self.system.get_or_try_init(make).await.cloned()
    }
}

/// Whom an agent may hand work to, a line each.
fn delegates(plan: &Plan, agent: &AgentName) -> String {
    let line = |id: &ModeId| plan.mode(id).map(|(entry, _)| format!("  - `{id}`: {}", entry.mode.description));
    plan.delegates(agent).iter().filter_map(line).collect::<Vec<_>>().join("\n")
}
