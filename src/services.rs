//! Starts services from their manifests, shares them by reference count, and stops them after an idle period.
//!
//! Invariant: the pool knows no agent and no mode. Every holder of a `Lease` may call; the broker decides who gets
//! one. A service that belongs to a session ends with the session. A service has the sessions of one principal only,
//! unless its manifest has `shared_by: all`.

mod active_calls;
pub mod builtin;
mod circuit;
mod connection;
mod content;
mod service;
mod environment;
mod eras;
mod hook_process;
mod http;
pub mod login;
mod negotiation;
mod record;
mod remote;
mod replies;
mod requirement_offers;
pub(crate) mod sandboxes;
mod service_sandbox;
mod stdio;
mod suggestion;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sha2::{Digest as _, Sha256};

pub use active_calls::ActiveCalls;
pub use builtin::computercontroller::{DOCUMENT_PARSER_ARGUMENT, run_document_parser};
pub use builtin::{BuiltinContext, BuiltinError, BuiltinRegistry, InlineTools};
pub use circuit::{Circuit, StartPermit};
#[cfg(any(test, fuzzing))]
pub use content::{read_outcome, read_tools};
pub use environment::{Environment, MissingVariableError, SecretValues, literal_secrets};
pub use hook_process::{HookOutput, HookProcess, HookProcessError};
pub use record::{Cassette, RecordError};
#[cfg(any(test, fuzzing))]
pub use replies::count_failures;
pub use service::Service;
pub use service_sandbox::ServiceSpec;
pub use stdio::{LaunchError, LineError, LineReader, ProgramSandbox, SpawnedProgram, spawn};
pub use suggestion::suggest_groups;

use crate::ids::{RoleName, ServiceName};
use crate::manifest::{ManifestDuration, ServiceSharing as Sharing, Transport};
use crate::principal::Principal;
use crate::process::{Reaper, minimal_environment};
use crate::sandbox::{FileAccess, SandboxLauncher, SandboxSpec};
use crate::store::StorePlace;
use crate::task::TaskScope;
use crate::tool::{
    AddressForm, Catalog, RequirementError, RequirementOffer, ServiceError, ServiceStatus, SessionContext,
    SessionLifetime, SessionStates,
};
use connection::ServiceConnection;
use eras::{Era, EraCache};
use hook_process::HookState;
use login::LoginStore;
use remote::{ConnectError, McpClient, McpConnection, Owner};

/// Settings and ports shared by all services of a pool.
#[derive(Debug, Default)]
pub struct PoolOptions {
    /// Resolves `${env:NAME}` and supplies the environment of child processes.
    pub environment: Environment,
    /// Ends child processes even if Skein is killed.
    pub reaper: Option<Reaper>,
    /// Starts the sandboxes of child processes. `None`: a process with a sandbox profile does not start.
    pub sandbox: Option<SandboxLauncher>,
    /// Folder in which built-in services persist their data.
    pub data: std::path::PathBuf,
    /// The place of sessions and memories. `None`: files in `data`, without encryption.
    pub store: Option<StorePlace>,
    /// Folders in which built-in services find the user's files for all projects.
    pub user: UserFolders,
    /// Records the answers of services, or replays them instead of starting services.
    pub cassette: Option<Cassette>,
    /// Stores the user's logins at HTTP services. `None`: no service gets a token from Skein.
    pub logins: Option<Arc<dyn LoginStore>>,
}

/// Folders of the user, of Skein and of other tools. An empty path means that the folder does not exist.
#[derive(Debug, Clone, Default)]
pub struct UserFolders {
    pub home: std::path::PathBuf,
    /// Folder that contains one settings folder per program.
    pub config_home: std::path::PathBuf,
    /// Skein's settings folder.
    pub config: std::path::PathBuf,
}

/// Why a service could not be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Required(#[from] ServiceError),
    #[error(transparent)]
    Replay(#[from] record::ReplayError),
    #[error(transparent)]
    Builtin(#[from] BuiltinError),
    #[error("`settings` are for built-in services; give it `env`, `args` or `headers`")]
    SettingsNotBuiltin,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("its tools could not be listed: {reason}")]
    Catalog { reason: String },
    #[error("it was not ready after {limit}")]
    Timeout { limit: ManifestDuration },
}

/// A service that the program of another one is to reach.
#[derive(Debug)]
pub struct RequirementRequest {
    /// The service whose program calls.
    pub caller: ServiceName,
    pub required: Arc<Service>,
    /// The catalog of the required service when the program starts.
    pub catalog: Arc<Catalog>,
    /// The calls that the caller works on.
    pub calls: Arc<ActiveCalls>,
    pub form: AddressForm,
}

/// Offers required services to the programs of one session. The session's rules and consents apply to their calls.
pub trait RequirementHost: std::fmt::Debug + Send + Sync {
    /// Offers a service to the first program that uses the address. Fails if this process offers no services.
    fn offer(&self, request: RequirementRequest) -> Result<RequirementOffer, RequirementError>;
}

/// A handle on the pool that is cheap to clone.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    entries: Mutex<HashMap<Key, Arc<Service>>>,
    registry: BuiltinRegistry,
    options: PoolOptions,
    eras: Arc<EraCache>,
    scope: TaskScope,
    /// The processes of hooks, by session.
    hooks: SessionStates<HookState>,
}

/// Cancels the tasks of a pool that was dropped without [`Pool::stop`], which ends its services.
impl Drop for Inner {
    fn drop(&mut self) {
        self.scope.cancel();
    }
}

type Find<'a> = &'a dyn Fn(&ServiceName) -> Option<ServiceSpec>;

/// Everything that distinguishes one connection from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    service: ServiceName,
    /// The owner of the sessions that use it. Principals share a connection only if the manifest has `shared_by: all`.
    principal: Principal,
    /// The session that it belongs to; `None` if sessions share it.
    session: Option<SessionLifetime>,
    /// Hash of the sandbox, the settings and the transport with its variables filled in. Hashed because they may
    /// contain secrets.
    fingerprint: [u8; 32],
}

impl Pool {
    pub fn new(registry: BuiltinRegistry, options: PoolOptions) -> Self {
        let inner = Inner {
            entries: Mutex::default(),
            registry,
            options,
            eras: Arc::default(),
            scope: TaskScope::new(),
            hooks: SessionStates::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Leases a service for a session without starting it. `find` looks up the services that it requires. The
    /// recursion ends because manifests have no cycles.
    pub fn lease(&self, spec: &ServiceSpec, session: &SessionContext, find: Find<'_>) -> Lease {
        let alone = is_session_scoped(spec, find).then(|| session.lifetime().clone());
        self.share(spec, session, find, alone)
    }

    /// Leases a client-provided service. At most the session that it came with and its child sessions share it.
    pub fn lease_brought(&self, spec: &ServiceSpec, session: &SessionContext, find: Find<'_>) -> Lease {
        let own = spec.sharing() == Sharing::Session;
        let alone = if own { session.lifetime() } else { session.family_lifetime() };
        self.share(spec, session, find, Some(alone.clone()))
    }

    /// Leases the service. `alone` is the session that gets its own instance; `None` shares it with all sessions of the
    /// principal.
    fn share(
        &self,
        spec: &ServiceSpec,
        session: &SessionContext,
        find: Find<'_>,
        alone: Option<SessionLifetime>,
    ) -> Lease {
        // A manifest of the user may let all principals share the instances of a service.
        let is_common = alone.is_none() && spec.manifest.is_shared_by_all();
        let owner = if is_common { Principal::local() } else { session.principal().clone() };
        let key = self.inner.key(spec, owner, alone);
        // The lease is counted under the lock, so that an idle timer never removes a service that was just leased.
        let leased = |entry: &Arc<Service>| {
            entry.add_lease();
            Arc::clone(entry)
        };
        let known = self.inner.entries().get(&key).map(leased);
        let entry = known.unwrap_or_else(|| {
            let roles = spec.manifest.requires.roles().into_iter();
            let required: Vec<(RoleName, Lease)> =
                roles.filter_map(|(role, service)| Some((role, self.lease(&find(service)?, session, find)))).collect();
            let owner = key.session.clone().map(|lifetime| Arc::new(Owner::of(session, lifetime)));
            let entry = Arc::new(Service::new(spec, required, session.principal().clone(), owner, &self.inner));
            self.inner.end_with_session(&key, &entry);
            leased(self.inner.entries().entry(key.clone()).or_insert(entry))
        });
        if key.session.as_ref() == Some(session.lifetime()) {
            entry.send_notices_to(session);
        }
        entry.decide_hosts_with(spec);
        Lease { entry, key, pool: Arc::downgrade(&self.inner) }
    }

    /// Returns the status of every service in the pool, sorted by name.
    /// Returns what starts the sandboxes of child processes. `None` if this program starts none.
    pub fn sandbox_launcher(&self) -> Option<&SandboxLauncher> {
        self.inner.options.sandbox.as_ref()
    }

    pub fn status(&self) -> Vec<(ServiceName, ServiceStatus)> {
        let mut all: Vec<_> =
            self.inner.entries().values().map(|entry| (entry.name().clone(), entry.status())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Stops every service and all tasks of the pool. No service can be started afterwards.
    pub async fn stop(&self) {
        self.inner.scope.cancel();
        let entries: Vec<_> = self.inner.entries().drain().map(|(_, entry)| entry).collect();
        futures::future::join_all(entries.iter().map(|entry| entry.stop())).await;
        self.inner.scope.stop().await;
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("services", &self.status()).finish()
    }
}

impl Inner {
    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Arc<Service>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops a service when the session that it belongs to ends, even if leases are left.
    fn end_with_session(self: &Arc<Self>, key: &Key, entry: &Arc<Service>) {
        let Some(session) = key.session.clone() else { return };
        // Without a runtime no service can be running.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (pool, entry, key) = (Arc::downgrade(self), Arc::downgrade(entry), key.clone());
        let ending = self.scope.cancelled().clone();
        self.scope.spawn(async move {
            tokio::select! {
                biased;
                () = ending.cancelled() => return,
                () = session.wait_for_end() => {}
            }
            let Some(entry) = entry.upgrade() else { return };
            if let Some(pool) = pool.upgrade() {
                let mut entries = pool.entries();
                if entries.get(&key).is_some_and(|known| Arc::ptr_eq(known, &entry)) {
                    entries.remove(&key);
                }
            }
            entry.stop().await;
        });
    }

    fn key(
        &self,
        ServiceSpec { manifest, sandbox, .. }: &ServiceSpec,
        principal: Principal,
        session: Option<SessionLifetime>,
    ) -> Key {
        let mut hasher = Sha256::new();
        let transport = serde_json::to_string(&manifest.transport).unwrap_or_default();
        // A missing variable is reported when the service starts.
        hasher.update(self.options.environment.fill_in(&transport).unwrap_or(transport));
        hasher.update(serde_json::to_string(&manifest.settings).unwrap_or_default());
        if let Some(SandboxSpec { profile, rules, visible, .. }) = sandbox {
            hasher.update(serde_json::to_string(profile).unwrap_or_default());
            hasher.update(rules);
            // Sessions with other roots do not share a process that sees them.
            let visible = visible.as_ref().filter(|_| profile.files != FileAccess::None);
            hasher.update(serde_json::to_string(&visible).unwrap_or_default());
        }
        Key { service: manifest.name.clone(), principal, session, fingerprint: hasher.finalize().into() }
    }

    /// Connects to a service outside this process.
    async fn reach(&self, service: &Service, era: Era) -> Result<McpConnection, ConnectError> {
        let environment = &self.options.environment;
        let Service { manifest, owner, secrets, .. } = service;
        let name = manifest.name.clone();
        let form = match &manifest.transport {
            Transport::Builtin(_) => return Err(ConnectError::InProcess),
            Transport::Stdio(_) => AddressForm::CommandLine,
            Transport::Http(_) => AddressForm::Url,
        };
        let offers = service.offer_requirements(form).await?;
        let secrets = secrets.clone().and(SecretValues::of(offers.secrets()));
        let client = McpClient::new(name.clone(), secrets.clone(), owner.clone());
        let connection = match &manifest.transport {
            Transport::Builtin(_) => return Err(ConnectError::InProcess),
            Transport::Stdio(transport) => {
                let mut sandbox = service.program_sandbox(self.options.sandbox.as_ref());
                if let Some(sandbox) = &mut sandbox {
                    offers.open_in(sandbox);
                }
                let program = stdio::Program { transport, environment, variables: offers.variables() };
                let started = stdio::start(program, self.options.reaper.as_ref(), sandbox).await?;
                if !started.has_unix_sockets && !offers.is_empty() {
                    return Err(RequirementError::NoSockets.into());
                }
                service.report_sandbox(started.notices);
                let (wire, group) = (started.wire, started.group);
                let failure = wire.failure();
                self.scope.spawn(stdio::log(name, started.stderr, secrets, failure.clone()));
                McpConnection::connect(client, wire, era, Some((group, failure)), service.gate(), &self.scope).await?
            }
            Transport::Http(transport) => {
                let login = match &self.options.logins {
                    Some(store) => http::login(&name, transport, environment, store, &self.scope).await?,
                    None => None,
                };
                let identity = http::ServiceIdentity { service: name, login };
                let wire = http::start(transport, environment, &offers.headers(), identity)?;
                let connected = McpConnection::connect(client, wire, era, None, None, &self.scope).await;
                match connected {
                    Err(ConnectError::Handshake { .. }) if http::speaks_old_transport(transport, environment).await => {
                        return Err(ConnectError::OldTransport);
                    }
                    connected => connected?,
                }
            }
        };
        connection.hold(offers, &self.scope);
        Ok(connection)
    }

    async fn connect(&self, service: &Service) -> Result<Arc<dyn ServiceConnection>, StartError> {
        let Service { manifest, required, principal, owner, .. } = service;
        if let Some(cassette) = self.options.cassette.as_ref().filter(|cassette| cassette.replays()) {
            return Ok(cassette.play(manifest, &self.options.environment)?);
        }
        if manifest.settings.is_some() && !matches!(manifest.transport, Transport::Builtin(_)) {
            return Err(StartError::SettingsNotBuiltin);
        }
        let environment = &self.options.environment;
        let connection: Arc<dyn ServiceConnection> = match &manifest.transport {
            Transport::Builtin(name) => {
                let roles = required.iter().map(|(role, lease)| (role.clone(), lease.service())).collect();
                let surroundings = BuiltinContext {
                    roles,
                    reaper: self.options.reaper.clone(),
                    environment: minimal_environment(environment.variables()),
                    sandbox: self.options.sandbox.clone(),
                    data: self.options.data.clone(),
                    store: self.options.store.clone().unwrap_or_else(|| StorePlace::files(&self.options.data)),
                    principal: principal.clone(),
                    user: self.options.user.clone(),
                    cwd: owner.as_ref().map(|owner| owner.cwd.clone()),
                    settings: manifest.settings.clone().unwrap_or_default().into_iter().collect(),
                };
                self.registry.start(name.as_str(), &surroundings)?
            }
            Transport::Stdio(_) | Transport::Http(_) => Arc::new(Box::pin(self.negotiate(service)).await?),
        };
        Ok(match &self.options.cassette {
            Some(cassette) => cassette.record(manifest, environment, connection),
            None => connection,
        })
    }
}

/// Returns whether each session needs its own instance: the service is session-scoped or requires one that is.
fn is_session_scoped(spec: &ServiceSpec, find: Find<'_>) -> bool {
    let mut required = spec.manifest.requires.roles().into_iter().filter_map(|(_, service)| find(service));
    spec.sharing() == Sharing::Session || required.any(|required| is_session_scoped(&required, find))
}

/// A lease on a service. Dropping the last one starts the service's idle timer.
pub struct Lease {
    entry: Arc<Service>,
    key: Key,
    /// Weak, because services hold leases on the services they require, and the pool holds the services.
    pool: Weak<Inner>,
}

impl Lease {
    /// Starts the service if it is not running.
    pub async fn start(&self) -> Result<(), ServiceError> {
        self.entry.start().await
    }

    pub fn service(&self) -> Arc<Service> {
        Arc::clone(&self.entry)
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.entry.name())
    }
}

/// Waits for the end of a service's idle time, and removes the service from the pool. Returns false if it is in use.
async fn remove_idle(entry: &Arc<Service>, key: &Key, pool: &Weak<Inner>) -> bool {
    loop {
        let left = {
            let Some(pool) = pool.upgrade() else { return false };
            let mut entries = pool.entries();
            let Some(left) = entry.idle_time_left() else { return false };
            if left.is_zero() {
                return entries.get(key).is_some_and(|known| Arc::ptr_eq(known, entry))
                    && entries.remove(key).is_some();
            }
            left
        };
        // The service may be used again meanwhile, and then be idle from a later time on.
        tokio::time::sleep(left).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.entry.remove_lease() {
            return;
        }
        let session = self.key.session.clone();
        // The pool has stopped it, or is about to.
        if session.as_ref().is_some_and(SessionLifetime::has_ended) {
            return;
        }
        let Some(scope) = self.pool.upgrade().map(|pool| pool.scope.clone()) else { return };
        let (entry, key, pool) = (Arc::clone(&self.entry), self.key.clone(), Weak::clone(&self.pool));
        // Without a runtime no service can be running, so there is none to stop later.
        if tokio::runtime::Handle::try_current().is_err() || !entry.begin_idle_timer() {
            return;
        }
        let ending = scope.cancelled().clone();
        scope.spawn(async move {
            let session_end = async {
                match &session {
                    Some(session) => session.wait_for_end().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = ending.cancelled() => return,
                // It ends with its session, and must not stay in memory for the idle time.
                () = session_end => return,
                is_idle = remove_idle(&entry, &key, &pool) => if !is_idle { return },
            }
            entry.stop().await;
        });
    }
}
