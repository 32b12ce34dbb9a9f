//! Binds the services of a mode to a session. Listing and calling tools go through the same filter.
//!
//! Invariant: uses no protocol. `Binding::call` is the only path to a tool.

mod audit_asker;
mod binding;
mod bound_tool;
mod consent;
mod rule_arguments;
mod files;
mod sanitize;
mod gate;
mod hook_reply;
mod unmatched_rules;
mod manage;
mod named_hosts;
mod names;
mod pinned_specs;
mod program_sandboxes;
mod requirement;
mod session_state;
mod shared_tools;
mod template;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use binding::BindingBase;
pub use binding::{
    AdmissionError, Binding, ExcludedTool, HookOccasion, HookVerdict, PermitError, Requester, ServiceResource,
};
pub use bound_tool::BoundTool;
pub use files::{PathError, within};
use futures::future::BoxFuture;
pub use gate::{DecisionReason, GateDecision, Judge, RuleStore, RuleStoreError};
use manage::DISABLED;
pub use manage::sanitize_text;
pub use pinned_specs::{ToolClaims, ui_of};
pub use requirement::{RequirementPublisher, RequirementSource};
pub use rule_arguments::unreadable;
#[cfg(any(test, fuzzing))]
pub use sanitize::check_tool;

use crate::graph::{Plan, ToolScope};
use crate::ids::{ModeId, ServiceName};
use crate::manifest::{ApprovalLevel, ManagedExclusion, ModeEntry, Readiness, ServiceEntry};
use crate::permissions::{self, SourcedRule};
use crate::principal::SessionGrant;
use crate::services::{Lease, Pool, Service};
use crate::tool::ask::Asker;
use crate::tool::{Catalog, ServiceError, SessionContext, SessionStates};
use requirement::RequirementBinder;
use session_state::BrokerState;

/// Binds modes to sessions.
#[derive(Debug, Clone)]
pub struct Broker {
    plan: Arc<Plan>,
    pool: Pool,
    /// Rules in addition to those of the plan.
    rules: Arc<[SourcedRule]>,
    judge: Option<Arc<dyn Judge>>,
    /// Publishes required services. `None`: a program that requires a service does not start.
    publisher: Option<Arc<dyn RequirementPublisher>>,
    limits: ParentLimits,
    /// The loosest approval level of a session. `None`: any.
    loosest: Option<ApprovalLevel>,
    /// The sessions belong to another principal than the user whose config this is.
    is_foreign: bool,
    /// What the broker remembers about each session. Clones share it.
    states: Arc<SessionStates<BrokerState>>,
}

/// The session of a binding, and its permissions.
#[derive(Clone)]
pub struct BindRequest {
    pub session: Arc<SessionContext>,
    /// Overrides the approval level of the mode's manifest.
    pub approval: Option<ApprovalLevel>,
    pub asker: Arc<dyn Asker>,
    /// Services that the session's client provides. The group `mcp` covers them.
    pub client_services: Vec<Arc<ServiceEntry>>,
}

/// Limits of a child session in addition to those of its mode.
#[derive(Clone, Default)]
pub struct ParentLimits {
    /// The parent's binding. A call needs at least the consent it needs there, and is denied if it is denied there.
    pub parent: Option<Arc<Binding>>,
    /// Acquired by calls that write.
    pub write_lock: Option<Arc<dyn WriteLock>>,
}

/// A wait for a file that would never end, because another task waits for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "task `{task}` writes to {} and waits for a file of yours; do what needs no other file of that task, and report what is \
     left",
    .file.display()
)]
pub struct WriteDeadlock {
    /// The task that holds the file.
    pub task: String,
    pub file: PathBuf,
}

/// Serializes writes of parallel tasks to the same files.
pub trait WriteLock: Send + Sync {
    /// Waits until the caller may write to these files. Fails if waiting would deadlock.
    fn acquire(&self, files: Vec<PathBuf>) -> BoxFuture<'_, Result<(), WriteDeadlock>>;
}

/// Makes the bindings of required services for one session in one mode.
trait RequiredBinder: Send + Sync {
    /// Returns the binding of a required service with this catalog. `None` if there is no such service.
    fn binding(&self, service: &Arc<Service>, catalog: &Arc<Catalog>) -> Option<Arc<Binding>>;
}

impl BindRequest {
    /// Finds a service of the client or of the plan. The two never share a name.
    fn service<'a>(&'a self, plan: &'a Plan, name: &str) -> Option<&'a ServiceEntry> {
        let brought = self.client_services.iter().find(|entry| entry.manifest.name.as_str() == name);
        brought.map(Arc::as_ref).or_else(|| plan.service(name))
    }
}

/// A service that the mode names and the session does not have.
#[derive(Debug, Clone, PartialEq)]
pub struct MissingService {
    pub service: ServiceName,
    pub optional: bool,
    pub cause: AbsenceCause,
    pub reason: String,
}

/// Why a service is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsenceCause {
    /// It is only planned.
    Planned,
    /// The active profile leaves it out, or a config disables it.
    Profile,
    /// It did not start, or the session disabled it.
    Failure,
}

impl MissingService {
    /// Returns false if the service is only planned or the user's profile leaves it out, so that its absence needs no
    /// report.
    pub fn is_expected(&self) -> bool {
        self.cause == AbsenceCause::Failure
    }
}

/// Writes the notice for the user.
impl std::fmt::Display for MissingService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "service `{}` is unavailable: {}", self.service, self.reason)
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BindError {
    #[error("there is no mode `{0}`")]
    UnknownMode(ModeId),
    #[error("`{mode}` cannot be entered: {exclusion}")]
    Managed { mode: ModeId, exclusion: Box<ManagedExclusion> },
    #[error("`{mode}` cannot be entered: it depends on the service `{service}`, which is only planned")]
    Planned { mode: ModeId, service: ServiceName },
    #[error("`{mode}` cannot be entered: {error}")]
    Service { mode: ModeId, error: ServiceError },
}

impl Broker {
    pub fn new(plan: Arc<Plan>, pool: Pool) -> Self {
        Self {
            plan,
            pool,
            rules: Arc::default(),
            judge: None,
            publisher: None,
            limits: ParentLimits::default(),
            loosest: None,
            is_foreign: false,
            states: Arc::default(),
        }
    }

    /// Returns the same broker without a publisher: its bindings do not decide about required services.
    #[must_use]
    pub fn without_publisher(&self) -> Self {
        Self { publisher: None, ..self.clone() }
    }

    /// Returns the same broker with a publisher for required services.
    #[must_use]
    pub fn with_publisher(&self, publisher: Arc<dyn RequirementPublisher>) -> Self {
        Self { publisher: Some(publisher), ..self.clone() }
    }

    /// Returns a broker for another plan that uses the same pool.
    #[must_use]
    pub fn with_plan(&self, plan: Arc<Plan>) -> Self {
        Self { plan, ..self.clone() }
    }

    /// Returns the same broker with rules that come from no file.
    #[must_use]
    pub fn with_rules(&self, rules: Vec<SourcedRule>) -> Self {
        Self { rules: rules.into(), ..self.clone() }
    }

    /// Returns the same broker with a judge for calls at the level `smart`.
    #[must_use]
    pub fn with_judge(&self, judge: Arc<dyn Judge>) -> Self {
        Self { judge: Some(judge), ..self.clone() }
    }

    /// Returns the same broker with the limits of a parent session.
    #[must_use]
    pub fn with_limits(&self, bounds: ParentLimits) -> Self {
        Self { limits: bounds, ..self.clone() }
    }

    /// Returns the same broker for a principal, within the limits of its token: other modes do not exist, and no session
    /// has a looser approval level. Consents of `local` do not apply to another principal.
    #[must_use]
    pub fn with_grant(&self, grant: &SessionGrant) -> Self {
        let limits = grant.limits();
        let plan = match self.plan.mode_globs().eq(limits.modes.iter().map(String::as_str)) {
            true => Arc::clone(&self.plan),
            false => Arc::new(self.plan.restrict_to(&limits.modes)),
        };
        Self { plan, loosest: limits.approval, is_foreign: !grant.principal().is_local(), ..self.clone() }
    }

    /// Returns the same broker within the limits of a second token, for the turns that it begins: only modes that both
    /// tokens admit exist, and no call has a looser approval level than either admits.
    #[must_use]
    pub fn narrow_to(&self, grant: &SessionGrant) -> Self {
        let limits = grant.limits();
        let plan = match limits.modes.is_empty() {
            true => Arc::clone(&self.plan),
            false => {
                let mut modes: Vec<_> = self
                    .plan
                    .selectable_modes()
                    .flat_map(|(agent, modes)| {
                        let name = &agent.manifest.name;
                        modes.into_iter().map(move |mode| ModeId::new(name.clone(), mode.mode.slug.clone()))
                    })
                    .filter(|mode| limits.admits_mode(mode))
                    .map(|mode| mode.to_string())
                    .collect();
                if modes.is_empty() {
                    // An empty list would admit all modes, and no mode has this name.
                    modes.push(String::new());
                }
                Arc::new(self.plan.restrict_to(&modes))
            }
        };
        let loosest = limits.approval.map_or(self.loosest, |level| Some(self.tighten(level)));
        Self { plan, loosest, ..self.clone() }
    }

    /// Returns the rules for a session in this folder: from the configs, and those given at launch.
    pub fn rules(&self, cwd: &Path) -> Vec<SourcedRule> {
        let real = std::fs::canonicalize(cwd).unwrap_or_else(|_| cwd.to_owned());
        self.rules_in(cwd, &real)
    }

    /// Returns the rules for a session. A folder at the client is only a name here.
    fn session_rules(&self, session: &SessionContext) -> Vec<SourcedRule> {
        match session.client_folders() {
            Some(client) => self.rules_in(&client.cwd, &client.cwd),
            None => self.rules(&session.cwd),
        }
    }

    fn rules_in(&self, cwd: &Path, real: &Path) -> Vec<SourcedRule> {
        let mut rules = permissions::config_rules(self.plan.manifests());
        rules.retain(|rule| !(self.is_foreign && rule.is_kept_consent()));
        rules.extend(self.rules.iter().cloned());
        rules.retain(|rule| rule.is_for(cwd, real));
        rules
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the claims of a tool of the session or of a child session. `None` if the tool is built in or unknown.
    pub fn tool_claims(&self, session: &SessionContext, tool: &str) -> Option<ToolClaims> {
        self.states.of(session).specs.claims(tool)
    }

    /// Remembers the hosts in a text that the user of the session typed.
    pub fn note_user_text(&self, session: &SessionContext, text: &str) {
        self.states.of(session).hosts.add_from(text);
    }

    /// Returns the default approval level of a mode.
    pub fn approval(&self, mode: &ModeEntry) -> ApprovalLevel {
        self.tighten(self.plan.approval(mode))
    }

    /// Returns the level, or the loosest one of the token and of managed settings if the level is looser.
    fn tighten(&self, level: ApprovalLevel) -> ApprovalLevel {
        let level = self.loosest.map_or(level, |loosest| level.stricter(loosest));
        self.plan.manifests().managed.tighten(level)
    }

    /// Returns the services that the mode depends on and the active profile leaves out.
    fn services_outside_profile(&self, scope: &ToolScope, terms: &BindRequest) -> Vec<MissingService> {
        let needed = scope.needs().iter().filter_map(|name| terms.service(&self.plan, name.as_str()));
        let left_out = needed.filter(|entry| !entry.enabled);
        let missing = |entry: &ServiceEntry| MissingService {
            service: entry.manifest.name.clone(),
            optional: true,
            cause: AbsenceCause::Profile,
            reason: entry.disabled_by.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        left_out.map(missing).collect()
    }

    /// Returns the error for a mode that is not in the plan.
    fn missing_mode(&self, id: &ModeId) -> BindError {
        match self.plan.mode_refusal(id) {
            Some(exclusion) => BindError::Managed { mode: id.clone(), exclusion: Box::new(exclusion) },
            None => BindError::UnknownMode(id.clone()),
        }
    }

    /// Removes the services of the client and of the session that managed settings do not allow, and returns them.
    fn remove_refused_services(&self, terms: &mut BindRequest) -> Vec<MissingService> {
        let mut refused = Vec::new();
        terms.client_services.retain(|entry| {
            let exclusion = self.plan.manifests().service_refusal(entry);
            refused.extend(exclusion.iter().map(|exclusion| MissingService {
                service: entry.manifest.name.clone(),
                optional: true,
                cause: AbsenceCause::Failure,
                reason: exclusion.to_string(),
            }));
            exclusion.is_none()
        });
        refused
    }

    /// Starts the services that the mode needs, level by level and in parallel within a level, and freezes the result.
    /// Fails as a whole: a session that switches modes keeps its old binding until the new one is complete.
    pub async fn bind(&self, id: &ModeId, mut terms: BindRequest) -> Result<Binding, BindError> {
        let found = self.plan.mode(id).ok_or_else(|| self.missing_mode(id));
        let (mode, scope) = found.inspect_err(|error| terms.record_mode_refusal(error))?;
        terms.add_enabled_services(&self.plan);
        let refused = self.remove_refused_services(&mut terms);
        for missing in &refused {
            terms.record_service_refusal(id, &missing.service, missing.reason.clone());
        }
        terms.record_answers(id);
        let gate = self.session_gate(id, mode, &terms);
        let base = BindingBase {
            plan: Arc::clone(&self.plan),
            mode: id.clone(),
            scope: scope.clone(),
            gate,
            request: terms.clone(),
        };
        let binder: Arc<dyn RequiredBinder> = Arc::new(RequirementBinder::new(base.clone()));
        // Without a publisher, no program calls a required service.
        if self.publisher.is_some() {
            self.states.of(&terms.session).add_binder(Arc::downgrade(&binder));
        }
        let find = |name: &ServiceName| terms.service(&self.plan, name.as_str());
        let mut levels = self.plan.start_levels(id);
        let mut brought = terms.client_requirements(&levels);
        if !scope.lists_mcp() {
            brought.retain(|need| scope.needs().contains(&need.service));
        }
        if !brought.is_empty() {
            match levels.first_mut() {
                Some(first) => first.extend(brought),
                None => levels.push(brought),
            }
        }
        let mut bound: Vec<(Lease, Arc<Catalog>)> = Vec::new();
        let mut absent = self.services_outside_profile(scope, &terms);
        absent.extend(refused);
        for level in levels {
            let mut starting = Vec::new();
            for need in level {
                let Some(entry) = terms.service(&self.plan, need.service.as_str()) else { continue };
                if let Some(exclusion) = self.plan.manifests().service_refusal(entry) {
                    terms.record_service_refusal(id, &need.service, exclusion.setting.to_string());
                    let (service, reason) = (need.service, exclusion.to_string());
                    if !need.optional {
                        let error = ServiceError::NotStarted { service, reason };
                        return Err(BindError::Service { mode: id.clone(), error });
                    }
                    absent.push(MissingService { service, optional: true, cause: AbsenceCause::Profile, reason });
                    continue;
                }
                let is_planned = entry.manifest.status == Readiness::Planned;
                if is_planned || terms.disables(entry) {
                    let service = need.service;
                    if !need.optional {
                        let mode = id.clone();
                        return Err(if is_planned {
                            BindError::Planned { mode, service }
                        } else {
                            let error = ServiceError::NotStarted { service, reason: DISABLED.to_owned() };
                            BindError::Service { mode, error }
                        });
                    }
                    let (reason, cause) = match is_planned {
                        true => ("it is planned".to_owned(), AbsenceCause::Planned),
                        false => (DISABLED.to_owned(), AbsenceCause::Failure),
                    };
                    absent.push(MissingService { service, optional: true, cause, reason });
                    continue;
                }
                let lease = self.lease(entry, &terms.session, &find);
                starting.push(async move {
                    let catalog = lease.service().catalog().await;
                    (need, lease, catalog)
                });
            }
            for (need, lease, catalog) in futures::future::join_all(starting).await {
                match catalog {
                    Ok(catalog) => bound.push((lease, catalog)),
                    Err(error) if need.optional => {
                        tracing::warn!(service = %need.service, %error, "an optional service is absent");
                        absent.push(MissingService {
                            service: need.service,
                            optional: true,
                            cause: AbsenceCause::Failure,
                            reason: error.to_string(),
                        });
                    }
                    Err(error) => return Err(BindError::Service { mode: id.clone(), error }),
                }
            }
        }
        let binding = Binding::freeze(&base, bound, absent, binder);
        for problem in binding.rules_without_match() {
            tracing::warn!("{problem}");
        }
        Ok(binding)
    }
}

impl std::fmt::Debug for ParentLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParentLimits").field("parent", &self.parent).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for BindRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BindRequest")
            .field("session", &self.session)
            .field("approval", &self.approval)
            .finish_non_exhaustive()
    }
}
