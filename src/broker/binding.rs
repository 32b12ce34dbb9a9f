//! Holds the frozen tools and services of one session in one mode. Listing and calling use the same predicate.

mod admission;
mod audit;
mod client_tools;
mod credential_gate;
mod exclusion;
mod hooks;
pub(super) mod host_gate;
mod permit;
mod policy;
mod prepare;
mod redirect;
mod resources;
mod sandbox;
mod tool_span;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::watch;

pub use admission::AdmissionError;
use admission::AdmittedCall;
use exclusion::ExclusionError;
pub use hooks::{HookOccasion, HookVerdict};
use host_gate::SessionHostGate;
pub use permit::PermitError;
pub(super) use policy::CallPolicy;
pub use resources::{Requester, ServiceResource};
use sandbox::BoundSandbox;

use super::bound_tool::{BoundTool, SHELL, SandboxChoice, always_asks, reaching, url_argument};
use super::files::CallPaths;
use super::gate::{self, DecisionReason, GateDecision};
use super::pinned_specs::{ToolClaims, ui_of};
use super::session_state::BrokerState;
use super::{BindRequest, MissingService, RequiredBinder, files, names, rule_arguments, sanitize};
use crate::graph::{GroupRuleKind, Plan, ToolScope};
use crate::ids::{GroupName, ModeId, ServiceName, ToolName};
use crate::manifest::{ApprovalLevel, CodeExecution, Layer, ServiceEntry, Transport};
use crate::permissions::{self, Call, CommandRule};
use crate::sandbox::SandboxGate;
use crate::services::{Lease, Service};
use crate::tool::editor::EditorCapabilities;
use crate::tool::{Activity, CallContext, Catalog, ServiceError, ToolCall, ToolOutcome, ToolSpec};

/// The tools, services and permissions of a session in its mode.
pub struct Binding {
    mode: ModeId,
    plan: Arc<Plan>,
    scope: ToolScope,
    /// Keyed by the name the model sees.
    pub(super) tools: BTreeMap<String, Arc<BoundTool>>,
    exclusions: Vec<ExcludedTool>,
    services: BTreeMap<ServiceName, Arc<Service>>,
    /// Services that are in scope as a whole, with their catalogs at freeze time.
    whole: Vec<(ServiceName, Arc<Catalog>)>,
    missing_services: Vec<MissingService>,
    pub(super) policy: Arc<CallPolicy>,
    /// Decides about hosts. Services and external agents hold it weakly.
    pub(super) gate: Arc<SessionHostGate>,
    /// The sandbox of the processes that calls start. `None` if they run without one.
    sandbox: Option<BoundSandbox>,
    pub(super) request: BindRequest,
    /// The catalog of each bound service at freeze time.
    frozen: Vec<(Arc<Service>, Arc<Catalog>)>,
    /// What the client of a session with client files lent at freeze time.
    lent: EditorCapabilities,
    /// Keep the services running.
    _leases: Vec<Lease>,
    /// Binds the services that these require. `None` in the binding of a required service.
    _binder: Option<Arc<dyn RequiredBinder>>,
}

/// What a binding is made of, besides its services.
#[derive(Clone)]
pub(super) struct BindingBase {
    pub(super) plan: Arc<Plan>,
    pub(super) mode: ModeId,
    pub(super) scope: ToolScope,
    pub(super) gate: Arc<SessionHostGate>,
    pub(super) request: BindRequest,
}

/// A tool of a bound service that the session does not get, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct ExcludedTool {
    pub service: ServiceName,
    pub tool: ToolName,
    pub reason: String,
}

impl Binding {
    /// Freezes the tools of the services that a mode starts.
    pub(super) fn freeze(
        base: &BindingBase,
        bound: Vec<(Lease, Arc<Catalog>)>,
        absent: Vec<MissingService>,
        binder: Arc<dyn RequiredBinder>,
    ) -> Self {
        let mut binding = Self::without_tools(base);
        binding.missing_services = absent;
        binding.add_services(bound.iter().map(|(lease, catalog)| (lease.service(), Arc::clone(catalog))).collect());
        binding._leases = bound.into_iter().map(|(lease, _)| lease).collect();
        binding._binder = Some(binder);
        binding
    }

    /// Freezes the tools of a service that another service requires, and which holds a lease on it.
    pub(super) fn of_required(base: &BindingBase, service: &Arc<Service>, catalog: &Arc<Catalog>) -> Self {
        let mut binding = Self::without_tools(base);
        binding.add_services(vec![(Arc::clone(service), Arc::clone(catalog))]);
        binding
    }

    fn without_tools(BindingBase { plan, mode, scope, gate, request }: &BindingBase) -> Self {
        Self {
            mode: mode.clone(),
            plan: Arc::clone(plan),
            scope: scope.clone(),
            tools: BTreeMap::new(),
            exclusions: Vec::new(),
            services: BTreeMap::new(),
            whole: Vec::new(),
            missing_services: Vec::new(),
            policy: Arc::clone(&gate.policy),
            gate: Arc::clone(gate),
            sandbox: None,
            request: request.clone(),
            frozen: Vec::new(),
            lent: client_tools::client_capabilities(&request.session),
            _leases: Vec::new(),
            _binder: None,
        }
    }

    fn add_services(&mut self, bound: Vec<(Arc<Service>, Arc<Catalog>)>) {
        let (terms, plan) = (self.request.clone(), Arc::clone(&self.plan));
        let mut offered: Vec<BoundTool> = Vec::new();
        for (service, catalog) in bound {
            let Some(entry) = terms.service(&plan, service.name().as_str()) else { continue };
            // A service that only another service requires runs, but stays invisible.
            if !self.scope.binds(entry) {
                continue;
            }
            let mut listed = HashSet::new();
            for spec in &catalog.tools {
                let first = listed.insert(&spec.name);
                let tool = if first { self.offer(entry, spec, &catalog) } else { Err(ExclusionError::ListedTwice) };
                match tool {
                    Ok(tool) => offered.push(tool),
                    Err(error) => {
                        let (tool, reason) = (spec.name.clone(), error.to_string());
                        self.exclusions.push(ExcludedTool { service: service.name().clone(), tool, reason });
                    }
                }
            }
            if self.admits_whole(entry, &catalog) {
                self.whole.push((service.name().clone(), Arc::clone(&catalog)));
            }
            self.frozen.push((Arc::clone(&service), catalog));
            self.services.insert(service.name().clone(), service);
        }
        let named = names::assign(offered.iter().map(|tool| (&tool.service, &tool.spec.name)));
        let mut offered: BTreeMap<_, _> =
            offered.into_iter().map(|tool| ((tool.service.clone(), tool.spec.name.clone()), tool)).collect();
        for (name, key) in named {
            if let Some(tool) = offered.remove(&key) {
                self.tools.insert(name, super::shared_tools::share(tool));
            }
        }
        self.sandbox = self.bind_sandbox();
        self.record_claims();
    }

    /// Returns whether a bound service has added or removed tools since the freeze, or the client lends other things.
    /// Ignores changed descriptions: the pinned ones stay in force.
    pub async fn is_outdated(&self) -> bool {
        if client_tools::client_capabilities(&self.request.session) != self.lent {
            return true;
        }
        let names = |catalog: &Catalog| catalog.tools.iter().map(|tool| tool.name.clone()).collect::<HashSet<_>>();
        for (service, seen) in &self.frozen {
            if let Some(now) = service.running_catalog().await
                && !Arc::ptr_eq(&now, seen)
                && names(&now) != names(seen)
            {
                return true;
            }
        }
        false
    }

    /// Returns the change counters of the bound services that have one. Watching them does not keep a service running.
    pub fn list_changes(&self) -> Vec<watch::Receiver<u64>> {
        self.frozen.iter().filter_map(|(service, _)| service.changes()).collect()
    }

    /// Applies the scope predicate and checks that the tool can be offered.
    fn offer(
        &self,
        entry: &ServiceEntry,
        spec: &ToolSpec,
        catalog: &Arc<Catalog>,
    ) -> Result<BoundTool, ExclusionError> {
        let admission = self.scope.admits(entry, spec.name.as_str())?;
        client_tools::check(entry, spec.name.as_str(), &self.request.session)?;
        let files: Vec<_> = admission.files().into_iter().cloned().collect();
        let spec = sanitize::sanitize_tool(spec.clone())?;
        if !files.is_empty() && files::takes_command_line(&spec) {
            return Err(ExclusionError::CommandLine);
        }
        let group = admission.rules.first().map(|rule| rule.group.clone()).ok_or(ExclusionError::NoRule)?;
        let builtin = matches!(entry.manifest.transport, Transport::Builtin(_));
        let validator = OnceLock::new();
        // A listed tool must be callable, so reject an unusable schema here. The schemas of built-in services are
        // valid.
        if !builtin {
            let built = validator.get_or_init(|| sanitize::validator(&spec));
            built.as_ref().map_err(|error| ExclusionError::Schema(error.clone()))?;
        }
        let (spec, seen) = if builtin { (spec, Arc::clone(catalog)) } else { self.pin_spec(entry, spec, catalog) };
        Ok(BoundTool {
            service: entry.manifest.name.clone(),
            group,
            files,
            read_only: builtin && spec.hints.read_only == Some(true) && !always_asks(&spec),
            reaching: reaching(&spec),
            url_argument: url_argument(&spec).filter(|_| builtin),
            spec,
            builtin,
            brought: matches!(entry.layer, Layer::Project | Layer::Editor),
            relative: client_tools::relative_base(entry, &self.request.session),
            seen,
            validator,
            nameless_bytes: OnceLock::new(),
        })
    }

    /// Returns the spec that the session saw first. If the tool has changed since, returns an empty catalog, so that a
    /// call is rejected as changed.
    fn pin_spec(&self, entry: &ServiceEntry, spec: ToolSpec, catalog: &Arc<Catalog>) -> (ToolSpec, Arc<Catalog>) {
        let first = self.state().specs.first(&entry.manifest.name, &spec);
        if first == spec { (spec, Arc::clone(catalog)) } else { (first, Arc::default()) }
    }

    /// Returns whether the service is in scope as a whole. Resources and prompts belong to no group, so they require
    /// that.
    fn admits_whole(&self, entry: &ServiceEntry, catalog: &Catalog) -> bool {
        let named = |group: &GroupName| group.as_str() == entry.manifest.name.as_str();
        let holds_all = |group: &GroupName| {
            let tools = entry.manifest.groups.get(group);
            tools.is_some_and(|tools| catalog.tools.iter().all(|spec| tools.contains(&spec.name)))
        };
        let mut rules = self.scope.rules().iter().filter(|rule| rule.files.is_none() && entry.only.is_none());
        rules.any(|rule| match rule.kind {
            GroupRuleKind::Service => named(&rule.group),
            // A group named like its service may still exclude some of its tools.
            GroupRuleKind::Declared => named(&rule.group) && holds_all(&rule.group),
            GroupRuleKind::Mcp => entry.user_installed(),
            // A pattern limits some of its tools.
            GroupRuleKind::Required => self.scope.rules().iter().all(|rule| rule.files.is_none()),
        })
    }

    /// Returns the approval level. Never looser than the parent's current level.
    pub fn approval(&self) -> ApprovalLevel {
        self.policy.approval()
    }

    /// Makes the approval level stricter, effective immediately, also in a running turn. Ignores a looser level.
    pub fn tighten(&self, level: ApprovalLevel) {
        let mut approval = self.policy.approval.lock().unwrap_or_else(PoisonError::into_inner);
        *approval = approval.stricter(level);
    }

    pub fn mode(&self) -> &ModeId {
        &self.mode
    }

    /// Returns the code execution setting of the mode's manifest.
    pub fn code_execution(&self) -> CodeExecution {
        self.plan.mode(&self.mode).map(|(entry, _)| entry.mode.code_execution).unwrap_or_default()
    }

    /// Returns the tools in scope, keyed by the name the model sees.
    pub fn tools(&self) -> &BTreeMap<String, Arc<BoundTool>> {
        &self.tools
    }

    /// Returns the tools of bound services that are not in scope.
    pub fn exclusions(&self) -> &[ExcludedTool] {
        &self.exclusions
    }

    /// Returns the services that the mode names and that are unavailable.
    pub fn missing_services(&self) -> &[MissingService] {
        &self.missing_services
    }

    /// Returns a notice for each unavailable service that the user expects.
    pub fn missing_service_notices(&self) -> impl Iterator<Item = String> {
        self.missing_services.iter().filter(|missing| missing.is_expected()).map(ToString::to_string)
    }

    /// Returns the instructions of each bound service. Omits lines that mention tools this mode does not have, so that
    /// a model does not try to call them.
    pub fn instructions(&self) -> Vec<(ServiceName, String)> {
        let speaks_of = |line: &str, tool: &str| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').any(|word| word == tool)
        };
        let said = |(name, service): (&ServiceName, &Arc<Service>)| {
            let missing: Vec<_> = self.exclusions.iter().filter(|tool| tool.service == *name).collect();
            let text = sanitize::sanitize_text(&service.instructions()?);
            let fitting = text.lines().filter(|line| !missing.iter().any(|tool| speaks_of(line, tool.tool.as_str())));
            Some((name.clone(), fitting.collect::<Vec<_>>().join("\n")))
        };
        self.services.iter().filter_map(said).filter(|(_, text)| !text.trim().is_empty()).collect()
    }

    /// Calls a tool by the name the model sees. Returns problems that the model can correct as an outcome; fails only
    /// if the call was cancelled.
    pub async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> Result<ToolOutcome, ServiceError> {
        let inner = context.begin_inner(name, &arguments);
        let outcome = self.call_in_span(name, arguments, context).await?;
        if let Some(inner) = inner {
            inner.end(&outcome);
        }
        Ok(outcome)
    }

    /// Calls the tool without following redirects.
    async fn call_once(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> Result<ToolOutcome, ServiceError> {
        let AdmittedCall { tool, service, target, consented, hook_context, .. } =
            match self.check_call(name, &arguments, &context).await? {
                Ok(admitted) => admitted,
                Err(outcome) => return Ok(outcome),
            };
        let mut context = self.with_asker(context).with_gate(Arc::clone(&self.gate) as Arc<dyn SandboxGate>);
        if let Some(sandbox) = self.call_sandbox(tool, &arguments, consented) {
            context = context.with_sandbox(sandbox);
        }
        if let Some(target) = target {
            context = context.with_targets([target.real]);
        }
        prepare::prepare_call(tool, &context).await?;
        context.report(Activity::Running);
        let hooked = self.call_to_report(&arguments, &context);
        let call = ToolCall { tool: tool.spec.name.clone(), arguments, context };
        let outcome = match service.call(call).await {
            Err(ServiceError::Cancelled) => return Err(ServiceError::Cancelled),
            Err(error) => ToolOutcome::error(error.to_string()).limit(),
            Ok(outcome) => outcome.limit(),
        };
        Ok(self.finish_hooks(name, outcome, hook_context, hooked).await)
    }

    /// Records the claims of third-party tools for front ends, in this session and in all its parents.
    fn record_claims(&self) {
        let mut binding = Some(self);
        while let Some(of) = binding {
            let state = of.state();
            for (name, tool) in self.tools.iter().filter(|(_, tool)| !tool.builtin) {
                let said = ToolClaims {
                    service: tool.service.to_string(),
                    title: tool.spec.title.clone(),
                    hints: tool.spec.hints,
                    ui: ui_of(tool.spec.meta.as_ref()),
                };
                state.specs.set_claims(name, &said);
            }
            binding = of.policy.limits.parent.as_deref();
        }
    }

    /// Returns what the broker remembers about the user's session, which is that of the topmost parent.
    pub(super) fn top_state(&self) -> Arc<BrokerState> {
        self.user_binding().state()
    }

    /// Returns what the broker remembers about the session of this binding.
    pub(super) fn state(&self) -> Arc<BrokerState> {
        self.policy.states.of(&self.request.session)
    }

    /// Returns the context with an asker, so that the service can send elicitations.
    fn with_asker(&self, context: CallContext) -> CallContext {
        let asker = Arc::clone(context.client_asker().unwrap_or(&self.request.asker));
        context.with_asker(asker)
    }

    /// Returns the gate's decision on a call without running it. Fails if the tool is unknown or the arguments are
    /// invalid.
    pub fn simulate_call(&self, name: &str, arguments: &Map<String, Value>) -> Result<GateDecision, AdmissionError> {
        let admitted = self.admit_here(name, arguments)?;
        Ok(self.decide(name, &admitted, arguments))
    }

    /// Returns the reason for a decision as text. Names the managed setting that sets the approval level, if one does.
    pub fn explain(&self, because: &DecisionReason) -> String {
        self.policy.explain(because)
    }

    /// Combines rules, approval level and the check for protected paths.
    fn decide(&self, name: &str, admitted: &AdmittedCall<'_>, arguments: &Map<String, Value>) -> GateDecision {
        let tool = admitted.tool;
        let facts = rule_arguments::of_call(arguments, tool, &admitted.paths);
        let call = Call { tool: name, arguments: &facts, brought: tool.brought };
        let ruling = permissions::evaluate(&self.policy.rules, call);
        // A script must not do what the rules for the shell forbid.
        let ruling = match tool.script(arguments) {
            Some(script) => {
                let facts = rule_arguments::of_script(&facts, &script);
                let in_shell = Call { tool: SHELL, arguments: &facts, brought: false };
                ruling.and(permissions::evaluate(&self.policy.rules, in_shell))
            }
            None => ruling,
        };
        let ruling = match tool.resource(arguments) {
            Some((service, uri)) => ruling.and(self.tightening(&service, uri)),
            None => ruling,
        };
        let by_level = gate::decide(self.approval(), tool.reads_only(arguments) || admitted.confined, &ruling);
        let verdict = match (tool.host(arguments), by_level) {
            // A tool that reads a host and then changes something.
            (Some(_), refused @ GateDecision::Refuse(_)) if !tool.read_only => refused,
            (Some(host), _) => {
                let user_named = self.user_binding().state().hosts.contains(&host);
                let of_host = permissions::judge_host(&self.policy.rules, &host);
                gate::judge_host(self.approval(), gate::HostCall { host, user_named, ruling: of_host }, ruling)
            }
            (None, GateDecision::Ask(DecisionReason::Level(level))) if tool.asks_itself() => {
                GateDecision::Run(DecisionReason::Level(level))
            }
            (None, by_level) => by_level,
        };
        let rules = &self.policy.rules;
        let verdict = match tool.sandbox_choice(arguments) {
            SandboxChoice::Unsandboxed(_) if self.policy.managed_sandbox.is_some() => {
                self.policy.refuse_unsandboxed(verdict)
            }
            SandboxChoice::Unsandboxed(reason)
                if self.sandbox.is_some() && !permissions::allow_by_program(rules, call) =>
            {
                gate::guard_unsandboxed(verdict, reason.to_owned(), program_rule(name, arguments))
            }
            SandboxChoice::Unsandboxed(_) | SandboxChoice::ReadOnly | SandboxChoice::Mode => verdict,
        };
        let protected = self.list_protected(admitted, arguments).into_iter();
        let mut unnamed = protected.filter(|(_, path)| !permissions::allow_by_name(rules, call, path.name));
        match unnamed.next() {
            Some((argument, path)) => {
                let rule = format!("{name}: {{{argument}: {}}}", Value::from(path.shown.as_str()));
                gate::guard(verdict, path, rule)
            }
            None => verdict,
        }
    }

    /// Returns, for each part of a call's command line, the rule that allows it. Empty if there is no such tool or
    /// command line.
    pub fn allow_rules(&self, name: &str, arguments: &Map<String, Value>) -> Vec<CommandRule<'_>> {
        let Some(tool) = self.tools.get(name) else { return Vec::new() };
        let paths = CallPaths::new(&self.request.session, tool.relative);
        let arguments = rule_arguments::of_call(arguments, tool, &paths);
        permissions::allowing(&self.policy.rules, Call { tool: name, arguments: &arguments, brought: tool.brought })
    }
}

/// Returns a rule that allows the program of a command line, also without a sandbox.
fn program_rule(name: &str, arguments: &Map<String, Value>) -> String {
    let line = arguments.get("command").and_then(Value::as_str).unwrap_or_default();
    let script = permissions::read(line);
    let program = script.parts.first().and_then(|part| part.to_string().split_whitespace().next().map(str::to_owned));
    format!("{name}: {{command: {}}}", Value::from(format!("{} *", program.as_deref().unwrap_or("PROGRAM"))))
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binding").field("mode", &self.mode).field("tools", &self.tools.keys()).finish_non_exhaustive()
    }
}
