//! Runs one service of the pool: starts it on first use, restarts it after a failure while its circuit allows, and
//! stops trying when it fails too often.
//!
//! Invariant: a call is sent at most once. A call that may have run is never sent again. An HTTP service that refuses a
//! call with 401 has not run it: the call is sent once more, with a new token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value};

use super::active_calls::ActiveCalls;
use super::circuit::{Circuit, StartPermit};
use super::connection::{CallError, ServiceConnection};
use super::environment::SecretValues;
use super::remote::{ConnectError, Owner};
use super::requirement_offers::RequirementOffers;
use super::service_sandbox::{BoundServiceSandbox, ServiceSpec};
use super::stdio::ProgramSandbox;
use super::{Inner, Lease, RequirementHost, RequirementRequest, StartError};
use crate::ids::{RoleName, ServiceName};
use crate::manifest::ServiceManifest;
use crate::principal::Principal;
use crate::sandbox::{CurrentGate, SandboxLauncher, SandboxSpec};
use crate::telemetry::WorkSpan;
use crate::tool::{
    AddressForm, CallContext, Catalog, RequirementError, ServiceError, ServiceHealth, ServiceStatus, SessionContext,
    ToolCall, ToolOutcome,
};

const STOPPED: &str = "skein has stopped its services";
const SESSION_ENDED: &str = "its session has ended";

/// A service that lists tools and executes calls.
pub struct Service {
    pub(super) manifest: ServiceManifest,
    /// Leases on the services it requires, held while it is in the pool.
    pub(super) required: Vec<(RoleName, Lease)>,
    /// Offers these services to its program.
    pub(super) requirements: Option<Arc<dyn RequirementHost>>,
    /// The calls that it works on.
    pub(super) calls: Arc<ActiveCalls>,
    /// The owner of the sessions that use it.
    pub(super) principal: Principal,
    /// The session that owns it; `None` if all sessions of the principal share it.
    pub(super) owner: Option<Arc<Owner>>,
    /// `None` if it runs without a sandbox.
    sandbox: Option<BoundServiceSandbox>,
    /// Locked during a start, so that concurrent callers cause only one start.
    instance: tokio::sync::Mutex<Option<RunningInstance>>,
    state: Mutex<State>,
    /// Values to redact in errors.
    pub(super) secrets: SecretValues,
    pool: Weak<Inner>,
}

/// A running instance and its last known catalog.
#[derive(Clone)]
struct RunningInstance {
    connection: Arc<dyn ServiceConnection>,
    catalog: Arc<Catalog>,
    generation: u64,
}

struct State {
    circuit: Circuit,
    leases: usize,
    /// When the last lease was dropped.
    unused_since: Instant,
    /// A task waits for the end of the idle time.
    has_idle_timer: bool,
    starting: bool,
    starts: u32,
    last_error: Option<String>,
    tools: Option<usize>,
    started_at: Option<SystemTime>,
    /// The running connection, readable without the lock on `instance`.
    watched: Option<Arc<dyn ServiceConnection>>,
}

impl Service {
    pub(super) fn new(
        spec: &ServiceSpec,
        required: Vec<(RoleName, Lease)>,
        principal: Principal,
        owner: Option<Arc<Owner>>,
        pool: &Arc<Inner>,
    ) -> Self {
        let manifest = spec.manifest.clone();
        let circuit = Circuit::new(&manifest.restart);
        let secrets = pool.options.environment.transport_secrets(&manifest.transport);
        Self {
            manifest,
            required,
            requirements: spec.requirements.clone(),
            calls: Arc::default(),
            principal,
            owner,
            sandbox: spec.sandbox.as_ref().map(BoundServiceSandbox::new),
            instance: tokio::sync::Mutex::new(None),
            state: Mutex::new(State {
                circuit,
                leases: 0,
                unused_since: Instant::now(),
                has_idle_timer: false,
                starting: false,
                starts: 0,
                last_error: None,
                tools: None,
                started_at: None,
                watched: None,
            }),
            secrets,
            pool: Arc::downgrade(pool),
        }
    }

    pub fn name(&self) -> &ServiceName {
        &self.manifest.name
    }

    /// Returns the purpose of the service, from its manifest.
    pub fn description(&self) -> &str {
        &self.manifest.description
    }

    /// Returns the service's usage instructions for models. `None` if it has not been started or gives none.
    pub fn instructions(&self) -> Option<String> {
        self.state().watched.as_ref().and_then(|connection| connection.instructions())
    }

    pub fn status(&self) -> ServiceStatus {
        let state = self.state();
        let ended = state.watched.as_ref().and_then(|connection| connection.closed());
        let running = state.watched.as_ref().filter(|_| ended.is_none());
        let pid = running.and_then(|connection| connection.pid());
        let health = match state.circuit.health(Instant::now(), running.is_some()) {
            ServiceHealth::Stopped | ServiceHealth::Healthy if state.starting => ServiceHealth::Starting,
            // It died and has not been used since.
            ServiceHealth::Stopped if state.watched.is_some() => ServiceHealth::Degraded,
            health => health,
        };
        ServiceStatus {
            health,
            leases: state.leases,
            restarts: state.starts.saturating_sub(1),
            last_error: ended.map(|reason| self.secrets.hide(&reason)).or_else(|| state.last_error.clone()),
            tools: state.tools,
            started_at: state
                .started_at
                .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
                .map(|since| since.as_secs()),
            pid,
            memory_bytes: pid.and_then(crate::process::resident_memory),
        }
    }

    /// Returns the lists of the service. Starts it if it is not running.
    pub async fn catalog(&self) -> Result<Arc<Catalog>, ServiceError> {
        Ok(self.ensure_running().await?.catalog)
    }

    /// Returns the catalog if the service is running; never starts it.
    pub async fn running_catalog(&self) -> Option<Arc<Catalog>> {
        // The lock is held during a start; a caller that needs the catalog then waits in `catalog`.
        let mut instance = self.instance.try_lock().ok()?;
        let running = instance.as_ref().filter(|running| running.connection.closed().is_none())?;
        if running.connection.generation() == running.generation {
            return Some(Arc::clone(&running.catalog));
        }
        self.current(&mut instance).await.ok().map(|running| running.catalog)
    }

    /// Returns a counter that changes when the running service reports new lists. `None` if it does not report changes.
    pub fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        self.state().watched.as_ref().and_then(|connection| connection.changes())
    }

    pub async fn call(&self, call: ToolCall) -> Result<ToolOutcome, ServiceError> {
        let connection = self.ensure_running().await?.connection;
        let _active = self.calls.begin(&call.context);
        let tool = call.tool.clone();
        let limit = self.manifest.timeouts.call.duration();
        connection.call(call, limit).await.map_err(|error| self.explain(error, tool.as_str()))
    }

    /// Reads the contents of a resource, in MCP's JSON.
    pub async fn read_resource(&self, uri: String, context: CallContext) -> Result<Value, ServiceError> {
        let connection = self.ensure_running().await?.connection;
        let _active = self.calls.begin(&context);
        let limit = self.manifest.timeouts.call.duration();
        let answer = connection.read_resource(uri, context, limit).await;
        answer.map_err(|error| self.explain(error, "resources/read"))
    }

    /// Returns a prompt with its arguments filled in, in MCP's JSON.
    pub async fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> Result<Value, ServiceError> {
        let connection = self.ensure_running().await?.connection;
        let _active = self.calls.begin(&context);
        let limit = self.manifest.timeouts.call.duration();
        let answer = connection.get_prompt(name, arguments, context, limit).await;
        answer.map_err(|error| self.explain(error, "prompts/get"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the service's notices to this session from now on.
    pub(super) fn send_notices_to(&self, session: &SessionContext) {
        if let Some(owner) = &self.owner {
            *owner.notices.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&session.notices);
        }
    }

    /// Lets the session of `spec` decide about the hosts that the process reaches from now on.
    pub(super) fn decide_hosts_with(&self, spec: &ServiceSpec) {
        if let (Some(current), Some(SandboxSpec { gate, .. })) = (self.gate(), &spec.sandbox) {
            current.set(Arc::clone(gate));
        }
    }

    /// Returns the gate that decides about the hosts that the process reaches. `None` if it runs without a sandbox.
    pub(super) fn gate(&self) -> Option<&CurrentGate> {
        self.sandbox.as_ref().map(BoundServiceSandbox::gate)
    }

    /// Returns the sandbox in which the process of the service starts. `None` if it starts without one.
    pub(super) fn program_sandbox<'a>(&self, launcher: Option<&'a SandboxLauncher>) -> Option<ProgramSandbox<'a>> {
        let bound = self.sandbox.as_ref()?;
        Some(bound.program(launcher, self.owner.as_deref(), format!("service `{}`", self.manifest.name)))
    }

    /// Sends remarks about the sandbox to the user, once.
    pub(super) fn report_sandbox(&self, notices: Vec<String>) {
        if let Some(bound) = &self.sandbox {
            bound.report(notices, &self.manifest.name, self.owner.as_deref());
        }
    }

    /// Offers the required services to a new process or connection. Each start gets its own offers, because an address
    /// works once. Fails if a required service does not start or cannot be offered.
    pub(super) async fn offer_requirements(&self, form: AddressForm) -> Result<RequirementOffers, ConnectError> {
        let mut offers = Vec::new();
        for (role, lease) in &self.required {
            let required = lease.service();
            let Some(host) = &self.requirements else {
                return Err(RequirementError::NoServer { service: required.name().clone() }.into());
            };
            let catalog = Box::pin(required.catalog()).await?;
            let (caller, calls) = (self.name().clone(), Arc::clone(&self.calls));
            let request = RequirementRequest { caller, required, catalog, calls, form };
            offers.push((role.clone(), host.offer(request)?));
        }
        Ok(RequirementOffers(offers))
    }

    pub(super) fn add_lease(&self) {
        self.state().leases += 1;
    }

    /// Removes a lease. Returns true if it was the last one.
    pub(super) fn remove_lease(&self) -> bool {
        let mut state = self.state();
        state.leases -= 1;
        state.unused_since = Instant::now();
        state.leases == 0
    }

    /// Returns true if the caller must wait for the end of the idle time, because no other task does.
    pub(super) fn begin_idle_timer(&self) -> bool {
        !std::mem::replace(&mut self.state().has_idle_timer, true)
    }

    /// Returns what is left of the idle time. `None` if the service is in use; then the idle timer has ended.
    pub(super) fn idle_time_left(&self) -> Option<Duration> {
        let mut state = self.state();
        state.has_idle_timer = state.leases == 0;
        let idle = self.manifest.timeouts.idle.duration();
        state.has_idle_timer.then(|| idle.saturating_sub(state.unused_since.elapsed()))
    }

    /// Starts the service if it is not running.
    pub(super) async fn start(&self) -> Result<(), ServiceError> {
        self.ensure_running().await.map(drop)
    }

    pub(super) async fn stop(&self) {
        let instance = self.instance.lock().await.take();
        {
            let mut state = self.state();
            state.watched = None;
            state.started_at = None;
        }
        if let Some(instance) = instance {
            instance.connection.stop().await;
            tracing::info!(service = %self.manifest.name, "service stopped");
        }
    }

    /// Returns the running instance. Starts the service if necessary; fails if the circuit refuses.
    async fn ensure_running(&self) -> Result<RunningInstance, ServiceError> {
        let mut instance = self.instance.lock().await;
        if let Some(running) = instance.as_ref() {
            match running.connection.closed() {
                // Calls that still run hold the old connection, which ends with the last of them.
                None if running.connection.is_outdated() => {
                    self.state().watched = None;
                    *instance = None;
                }
                None => return self.current(&mut instance).await,
                Some(reason) => {
                    drop(self.record_failure(&reason));
                    *instance = None;
                }
            }
        }
        let service = self.manifest.name.clone();
        let Some(pool) = self.pool.upgrade().filter(|pool| !pool.scope.cancelled().is_cancelled()) else {
            return Err(ServiceError::NotStarted { service, reason: STOPPED.to_owned() });
        };
        if self.owner.as_ref().is_some_and(|owner| owner.lifetime.has_ended()) {
            return Err(ServiceError::NotStarted { service, reason: SESSION_ENDED.to_owned() });
        }
        let permission = self.state().circuit.may_start(Instant::now());
        let pause = match permission {
            StartPermit::NotFor(retry_in) => {
                let reason = self.state().last_error.clone().unwrap_or_default();
                return Err(ServiceError::CircuitOpen { service, reason, retry_in });
            }
            StartPermit::After(pause) => pause,
        };
        let starting = StartGuard::of(self);
        let span = WorkSpan::service_start(self.manifest.name.as_str());
        let started = tokio::select! {
            biased;
            () = pool.scope.cancelled().cancelled() => {
                return Err(ServiceError::NotStarted { service, reason: STOPPED.to_owned() });
            }
            () = self.wait_for_session_end() => {
                return Err(ServiceError::NotStarted { service, reason: SESSION_ENDED.to_owned() });
            }
            started = span.run(self.connect(&pool, pause)) => started,
        };
        drop(starting);
        match started {
            Ok(running) => {
                let mut state = self.state();
                state.circuit.record_start();
                state.starts += 1;
                state.tools = Some(running.catalog.tools.len());
                state.started_at = Some(SystemTime::now());
                state.watched = Some(Arc::clone(&running.connection));
                tracing::info!(service = %self.manifest.name, starts = state.starts, "service started");
                *instance = Some(running.clone());
                Ok(running)
            }
            Err(error) => {
                span.fail("not_started");
                let reason = self.record_failure(&error.to_string());
                Err(ServiceError::NotStarted { service, reason })
            }
        }
    }

    /// Waits for the end of the session that the service belongs to; forever if it belongs to none.
    async fn wait_for_session_end(&self) {
        match &self.owner {
            Some(owner) => owner.lifetime.wait_for_end().await,
            None => std::future::pending().await,
        }
    }

    async fn connect(&self, pool: &Inner, pause: Duration) -> Result<RunningInstance, StartError> {
        tokio::time::sleep(pause).await;
        for (_, required) in &self.required {
            Box::pin(required.start()).await?;
        }
        let limit = self.manifest.timeouts.start.duration();
        let starting = async {
            // The future is large, and every caller would contain it.
            let connection = Box::pin(pool.connect(self)).await?;
            let catalog = connection.catalog().await;
            match catalog {
                Ok(catalog) => {
                    let generation = connection.generation();
                    Ok(RunningInstance { connection, catalog: Arc::new(catalog), generation })
                }
                Err(error) => {
                    connection.stop().await;
                    Err(StartError::Catalog { reason: reason_of(&error) })
                }
            }
        };
        // On a timeout, dropping the future kills the process.
        let started = match self.gate() {
            // A question about a host does not use up the time.
            Some(gate) => gate.limit(limit, starting).await,
            None => tokio::time::timeout(limit, starting).await.ok(),
        };
        started.unwrap_or(Err(StartError::Timeout { limit: self.manifest.timeouts.start }))
    }

    /// Returns the running instance. Reloads its catalog if the service reported a change or the catalog is
    /// volatile.
    async fn current(&self, instance: &mut Option<RunningInstance>) -> Result<RunningInstance, ServiceError> {
        let Some(running) = instance.as_mut() else { return Err(self.died_error("it was stopped")) };
        let generation = running.connection.generation();
        if running.generation != generation || running.catalog.volatile {
            // Reloaded once per change: a server that announces a change and does not list it would delay every
            // call.
            running.generation = generation;
            let limit = self.manifest.timeouts.start.duration();
            match tokio::time::timeout(limit, running.connection.catalog()).await {
                Ok(Ok(catalog)) => {
                    // Bindings keep the catalog that they were made with, so equal ones are kept once.
                    if *running.catalog != catalog {
                        running.catalog = Arc::new(catalog);
                    }
                    self.state().tools = Some(running.catalog.tools.len());
                }
                // The old catalog stays.
                Ok(Err(_)) | Err(_) => tracing::warn!(service = %self.manifest.name, "changed lists could not be read"),
            }
        }
        Ok(running.clone())
    }

    /// Records a failure. Returns its reason without secrets.
    fn record_failure(&self, reason: &str) -> String {
        let reason = self.secrets.hide(reason);
        let mut state = self.state();
        state.circuit.record_failure(Instant::now());
        state.last_error = Some(reason.clone());
        state.watched = None;
        tracing::warn!(service = %self.manifest.name, reason, "service failed");
        reason
    }

    fn died_error(&self, reason: &str) -> ServiceError {
        ServiceError::Died { service: self.manifest.name.clone(), reason: reason.to_owned() }
    }

    fn explain(&self, error: CallError, tool: &str) -> ServiceError {
        let service = self.manifest.name.clone();
        match error {
            CallError::Died(reason) => ServiceError::Died { service, reason: self.secrets.hide(&reason) },
            CallError::TimedOut => {
                let limit = self.manifest.timeouts.call.duration();
                ServiceError::TimedOut { service, tool: crate::ids::ToolName::new(tool), limit }
            }
            CallError::Cancelled => ServiceError::Cancelled,
            CallError::Refused(reason) => ServiceError::Refused { service, reason: self.secrets.hide(&reason) },
        }
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Service({})", self.name())
    }
}

/// Marks the service as starting until dropped, also if the starting task is cancelled.
struct StartGuard<'a>(&'a Service);

impl<'a> StartGuard<'a> {
    fn of(entry: &'a Service) -> Self {
        entry.state().starting = true;
        Self(entry)
    }
}

impl Drop for StartGuard<'_> {
    fn drop(&mut self) {
        self.0.state().starting = false;
    }
}

fn reason_of(error: &CallError) -> String {
    match error {
        CallError::Died(reason) | CallError::Refused(reason) => reason.clone(),
        CallError::TimedOut => "it gave no answer".to_owned(),
        CallError::Cancelled => "it was cancelled".to_owned(),
    }
}
