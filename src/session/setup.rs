//! Derives model, binding and system prompt from the settings of a session. A switch makes a new setup, so a running
//! turn keeps the one it started with.

mod shared_prompts;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OnceCell;

use super::external_sessions::{ExternalSessionKey, ExternalSessions};
use super::permitted_provider::PermittedProvider;
use super::{SessionPorts, SessionSettings};
use crate::agents::{
    AgentSandbox, BudgetMeter, ExternalAgent, ExternalAgentSpec, MeteredProvider, ModelJudge, RecoveryPolicy,
    RemoteAgentSpec, SystemPromptInputs, memories, system_prompt,
};
use crate::broker::{BindError, BindRequest, Binding, Broker, ParentLimits};
use crate::clock;
use crate::graph::Plan;
use crate::ids::{AgentName, ModeId, ModeSlug, ModelRef, ServiceName};
use crate::llm::{LlmError, Provider, RequestOrigin};
use crate::manifest::{AgentRuntime, ApprovalLevel, Layer, PromptFileError, PromptValues, TaskWorkspace};
use crate::principal::SessionGrant;
use crate::tool::ask::NoAsker;
use crate::tool::{AuditRecord, SessionContext};

/// The settings of a session and their binding, which is made when it is first needed.
pub(super) struct SessionSetup {
    pub(super) choice: SessionSettings,
    host: SessionPorts,
    session: Arc<SessionContext>,
    binding: OnceCell<Arc<Binding>>,
    /// The binding with skills and recipes for modes that have none. `None` if it cannot be made.
    library: OnceCell<Option<Arc<Binding>>>,
    /// Shared by consecutive setups of one mode: the prompt must stay byte-identical while the mode does not change.
    system: Arc<OnceCell<Arc<str>>>,
    /// All bindings of this session that are still in use: a stricter level must reach them.
    bindings: Bindings,
    /// The external sessions of this session.
    external_sessions: Arc<ExternalSessions>,
    /// Counts the requests against the limits of the session.
    meter: Arc<BudgetMeter>,
    /// Setups for turns that are routed to other modes, each with the service overrides it was made with.
    routed: Mutex<HashMap<ModeId, RoutedSetup>>,
}

type Bindings = Arc<Mutex<Vec<Weak<Binding>>>>;

struct RoutedSetup {
    enabled: BTreeMap<ServiceName, bool>,
    setup: Arc<SessionSetup>,
}

impl SessionSetup {
    pub(super) fn new(
        choice: SessionSettings,
        host: SessionPorts,
        session: Arc<SessionContext>,
        meter: Arc<BudgetMeter>,
    ) -> Self {
        let (binding, library) = (OnceCell::new(), OnceCell::new());
        let (system, routed) = (Arc::default(), Mutex::default());
        let (bindings, external_sessions) = (Arc::default(), Arc::default());
        Self { choice, host, session, binding, library, system, bindings, external_sessions, meter, routed }
    }

    /// Returns a setup of the same session in another mode, for one turn. A call never needs less consent than in the
    /// session's own mode.
    pub(super) async fn for_mode(&self, mode: ModeId) -> Result<Arc<Self>, BindError> {
        let bounds = ParentLimits { parent: Some(self.binding().await?), write_lock: None };
        let mut handed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        let enabled = self.session.service_overrides().all();
        if let Some(before) = handed.get(&mode).filter(|before| before.enabled == enabled) {
            return Ok(Arc::clone(&before.setup));
        }
        let host = SessionPorts { broker: self.host.broker.with_limits(bounds), ..self.host.clone() };
        let choice = SessionSettings { mode: mode.clone(), ..self.choice.clone() };
        let (bindings, external_sessions) = (Arc::clone(&self.bindings), Arc::clone(&self.external_sessions));
        let setup = Arc::new(Self { bindings, external_sessions, ..self.renew(choice, host) });
        handed.insert(mode, RoutedSetup { enabled, setup: Arc::clone(&setup) });
        Ok(setup)
    }

    pub(super) fn host(&self) -> &SessionPorts {
        &self.host
    }

    /// Returns a setup of the same session with other settings.
    pub(super) fn with(&self, choice: SessionSettings) -> Self {
        let same_mode = choice.mode == self.choice.mode;
        let system = if same_mode { Arc::clone(&self.system) } else { Arc::default() };
        let (bindings, external_sessions) = (Arc::clone(&self.bindings), Arc::clone(&self.external_sessions));
        Self { system, bindings, external_sessions, ..self.renew(choice, self.host.clone()) }
    }

    /// Returns a setup of the same session with other settings and ports, such as a new plan.
    pub(super) fn with_ports(&self, choice: SessionSettings, host: SessionPorts) -> Self {
        let (bindings, external_sessions) = (Arc::clone(&self.bindings), Arc::clone(&self.external_sessions));
        Self { bindings, external_sessions, ..self.renew(choice, host) }
    }

    /// Returns a new setup of the same session.
    fn renew(&self, choice: SessionSettings, host: SessionPorts) -> Self {
        Self::new(choice, host, Arc::clone(&self.session), Arc::clone(&self.meter))
    }

    /// Returns a setup for one turn that a client of another token begins, within the limits of both tokens.
    pub(super) fn narrow_to(&self, grant: &SessionGrant) -> Self {
        let broker = self.host.broker.narrow_to(grant);
        // The prompt names the modes to which the session may delegate.
        let is_same = broker.plan().is_same(self.host.broker.plan());
        let narrow = self.with_ports(self.choice.clone(), SessionPorts { broker, ..self.host.clone() });
        if is_same { Self { system: Arc::clone(&self.system), ..narrow } } else { narrow }
    }

    /// Returns the recovery policy. Its models take turns with the requests of other sessions.
    pub(super) fn recovery_policy(&self) -> Result<RecoveryPolicy, LlmError> {
        let policy = self.note_refusal(self.host.models.recovery_policy())?;
        let accelerator = policy.accelerator.map(|provider| self.for_session(provider));
        let fallbacks = self.note_refusal(self.host.models.fallbacks(&self.choice.model))?;
        let fallbacks = fallbacks.into_iter().map(|provider| self.for_session(provider)).collect();
        Ok(RecoveryPolicy { accelerator, fallbacks, ..policy })
    }

    /// Returns the model for the requests of this session, which take turns with those of other sessions and count
    /// against its limits.
    fn for_session(&self, provider: Arc<dyn Provider>) -> Arc<dyn Provider> {
        let origin = RequestOrigin {
            principal: self.session.principal().name().into(),
            session: self.session.id.as_str().into(),
        };
        let provider = provider.for_origin(&origin).unwrap_or(provider);
        let provider = match self.session.work_permit.get() {
            Some(permit) => Arc::new(PermittedProvider::new(provider, Arc::clone(permit))),
            None => provider,
        };
        Arc::new(MeteredProvider::new(provider, Arc::clone(&self.meter)))
    }

    /// Returns the model of the settings. If it is an external agent, each request is a single question to it.
    pub(super) fn provider(&self) -> Result<Arc<dyn Provider>, LlmError> {
        self.provider_named(&self.choice.model)
    }

    /// Records that a managed setting does not allow a model. Other errors are no decisions.
    fn note_refusal<T>(&self, made: Result<T, LlmError>) -> Result<T, LlmError> {
        if let Err(LlmError::NotAllowed { model, setting, .. }) = &made {
            let actor = self.choice.mode.to_string();
            self.session.audit.record(AuditRecord::setting_refusal(actor, model, setting));
        }
        made
    }

    /// Returns the model that the user names. Fails if it is unknown or unusable.
    pub(super) fn provider_named(&self, model: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        self.note_refusal(self.find_provider(model))
    }

    fn find_provider(&self, model: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        let Some(agent) = model.external_agent() else {
            return self.host.models.provider(model).map(|provider| self.for_session(provider));
        };
        let who = self.external_agent_named(agent).ok_or_else(|| {
            let model = model.to_string();
            match self.host.broker.plan().agent_refusal(agent.as_str()) {
                Some(exclusion) => {
                    let reason = exclusion.describe(&format!("the agent `{agent}`"));
                    LlmError::NotAllowed { model, reason, setting: exclusion.setting.to_string() }
                }
                None => {
                    let reason = format!("there is no external agent `{agent}`; `skein agents` lists them");
                    LlmError::Unusable { model, reason }
                }
            }
        })?;
        let provider = self.host.external_agents.model(who);
        Ok(Arc::new(MeteredProvider::new(provider, Arc::clone(&self.meter))))
    }

    /// Returns the external agent that runs turns here: the mode's own, or the one chosen as the model. `None` if
    /// neither is external.
    pub(super) fn external_agent(&self) -> Option<(ExternalAgent, ExternalSessionKey)> {
        let of_mode = self.external_agent_named(&self.choice.mode.agent);
        let who = of_mode.or_else(|| self.external_agent_named(self.choice.model.external_agent()?))?;
        let key = (self.choice.mode.clone(), who.name().clone());
        Some((who, key))
    }

    fn external_agent_named(&self, agent: &AgentName) -> Option<ExternalAgent> {
        let manifest = &self.host.broker.plan().agent(agent.as_str())?.manifest;
        let (name, title) = (manifest.name.clone(), manifest.title.clone());
        let title = title.unwrap_or_else(|| manifest.name.to_string());
        let runtime = match manifest.runtime.clone()? {
            AgentRuntime::Acp(runtime) => *runtime,
            AgentRuntime::A2a(runtime) => {
                return Some(ExternalAgent::Remote(RemoteAgentSpec { name, title, runtime }));
            }
        };
        let spec = self.host.broker.agent_sandbox(&manifest.name, &self.session);
        let sandbox = spec.map(|spec| AgentSandbox { spec, session: Arc::clone(&self.session) });
        let principal = self.session.principal().clone();
        Some(ExternalAgent::Program(Box::new(ExternalAgentSpec { name, principal, title, runtime, sandbox })))
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

    /// Returns the binding if it was made.
    pub(super) fn current_binding(&self) -> Option<Arc<Binding>> {
        self.binding.get().cloned()
    }

    /// Returns a binding with the user's skills and recipes, for a mode without them. Only the user uses it, for
    /// commands; the mode's tools do not change. `None` if a profile leaves the service out.
    pub(super) async fn library(&self) -> Option<Arc<Binding>> {
        let bind = async || {
            // This built-in mode always has the service. Its other services are in this process and cost nothing.
            let mode = ModeId::new(AgentName::new("orchestrator"), ModeSlug::new("auto"));
            let request = BindRequest {
                session: Arc::clone(&self.session),
                approval: self.choice.approval,
                asker: Arc::new(NoAsker),
                client_services: Vec::new(),
            };
            // The session's own mode decides about the calls of its services.
            let bound = self.host.broker.without_publisher().bind(&mode, request).await;
            bound.inspect_err(|error| tracing::warn!(%error, "there are no skills and recipes")).ok().map(Arc::new)
        };
        self.library.get_or_init(bind).await.clone()
    }

    /// Requires at least this level for every further call of the session, through any of its bindings.
    pub(super) fn tighten(&self, level: ApprovalLevel) {
        let bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        bindings.iter().filter_map(Weak::upgrade).for_each(|binding| binding.tighten(level));
    }

    /// Returns the broker, with a judge for the level `smart` if there is a suitable model. A project's own
    /// `goose/judge` and its choice of model are ignored: they would weaken the user's decisions.
    fn broker(&self) -> Broker {
        let broker = &self.host.broker;
        match self.judge() {
            Some((provider, system)) => broker.with_judge(Arc::new(ModelJudge::new(provider, system))),
            None => broker.clone(),
        }
    }

    /// Returns the model and the prompt of `goose/judge`. `None` if there is no suitable model, or if a project defines
    /// `goose/judge`.
    pub(super) fn judge(&self) -> Option<(Arc<dyn Provider>, Arc<str>)> {
        let (entry, _) = self.host.broker.plan().mode(&ModeId::new(AgentName::new("goose"), ModeSlug::new("judge")))?;
        if entry.layer == Layer::Project {
            return None;
        }
        let provider = self.host.models.judge(&self.choice.model).filter(|provider| !provider.name().is_offline())?;
        let provider = self.for_session(provider);
        let date = clock::date(clock::now());
        let values = PromptValues { agent: "goose", mode: "judge", cwd: "", date: &date, os: "", delegates: "" };
        let system = entry.prompt.as_ref()?.fill_in(&values).ok()?;
        Some((provider, shared_prompts::share(system)))
    }

    /// Returns the system prompt for an external agent. `None` if the mode has no prompt. Fails if the prompt cannot be
    /// filled in.
    pub(super) async fn external_system_prompt(
        &self,
        binding: &Binding,
        prompt: &str,
        os: &str,
    ) -> Result<Option<Arc<str>>, PromptFileError> {
        let has_prompt = |(entry, _): (&crate::manifest::ModeEntry, _)| entry.prompt.is_some();
        if !self.host.broker.plan().mode(&self.choice.mode).is_some_and(has_prompt) {
            return Ok(None);
        }
        self.system(binding, prompt, os).await.map(Some)
    }

    /// Returns the system prompt. It is made once for a mode, with the memories that match the first prompt. Fails if
    /// the mode's prompt cannot be filled in.
    pub(super) async fn system(&self, binding: &Binding, prompt: &str, os: &str) -> Result<Arc<str>, PromptFileError> {
        let make = async || {
            let plan = self.host.broker.plan();
            let mode_prompt = plan.mode(&self.choice.mode).and_then(|(entry, _)| entry.prompt.as_ref());
            let memories = memories(binding, &self.session, prompt).await;
            let delegates = delegates(plan, &self.choice.mode.agent);
            let date = clock::date(clock::now());
            let setting = SystemPromptInputs { date: &date, os, memories: &memories, delegates: &delegates };
            system_prompt(mode_prompt, binding, &self.session, setting).map(shared_prompts::share)
        };
        self.system.get_or_try_init(make).await.cloned()
    }
}

/// Lists the modes that an agent may delegate to, one per line.
fn delegates(plan: &Plan, agent: &AgentName) -> String {
    let line = |id: &ModeId| {
        let place = match plan.manifests().task_workspace(agent, id) {
            TaskWorkspace::Shared => "",
            TaskWorkspace::Worktree => " (own worktree)",
        };
        plan.mode(id).map(|(entry, _)| format!("  - `{id}`{place}: {}", entry.mode.description))
    };
    plan.delegates(agent).iter().filter_map(line).collect::<Vec<_>>().join("\n")
}
