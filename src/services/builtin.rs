//! Registers the services compiled into Skein and calls them directly as MCP servers. A call is not serialised and
//! spawns no task. A panic in a handler becomes an error of the call.

mod answer;
pub mod apps;
pub mod autovisualiser;
pub mod chatrecall;
pub mod computercontroller;
pub mod developer;
pub mod extensionmanager;
pub mod fetch;
pub mod knowledge;
pub mod memory;
mod schema;
pub mod summon;
pub mod todo;
pub mod tom;
mod tools;
pub mod tutorial;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, GetPromptRequestParams, GetPromptResponse, NumberOrString,
    ReadResourceRequestParams, ReadResourceResponse,
};
use rmcp::service::{RequestContext, RunningService, serve_directly};
use rmcp::{Peer, RoleServer, ServerHandler};
use serde_json::{Map, Value};

pub use self::tools::InlineTools;
use super::connection::{CallError, ServiceConnection};
use super::{Service, UserFolders, content};
use crate::ids::RoleName;
use crate::principal::Principal;
use crate::process::Reaper;
use crate::sandbox::SandboxLauncher;
use crate::store::StorePlace;
use crate::tool::{CallContext, Catalog, SessionStates, ToolCall, ToolOutcome};

/// Everything that a built-in service receives when it starts.
#[derive(Clone)]
pub struct BuiltinContext {
    /// The services it requires, by role.
    pub roles: BTreeMap<RoleName, Arc<Service>>,
    /// Ends its child processes when Skein ends.
    pub reaper: Option<Reaper>,
    /// Variables that its child processes may inherit.
    pub environment: BTreeMap<std::ffi::OsString, std::ffi::OsString>,
    /// Starts the sandboxes of its child processes.
    pub sandbox: Option<SandboxLauncher>,
    /// Folder for the persistent data of all principals.
    pub data: std::path::PathBuf,
    /// The place of sessions and memories.
    pub store: StorePlace,
    /// The owner of the data that it reads and writes.
    pub principal: Principal,
    /// Folders with the user's files for all projects.
    pub user: UserFolders,
    /// Working directory of the session that owns the service; `None` if all sessions share it.
    pub cwd: Option<std::path::PathBuf>,
    /// The `settings` of its manifest.
    pub settings: Map<String, Value>,
}

impl BuiltinContext {
    /// Returns what a service needs to start commands of the model.
    fn shell_options(&self) -> developer::DeveloperOptions {
        developer::DeveloperOptions {
            reaper: self.reaper.clone(),
            environment: self.environment.clone(),
            sandbox: self.sandbox.clone(),
        }
    }
}

impl std::fmt::Debug for BuiltinContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuiltinContext").field("roles", &self.roles.keys()).finish_non_exhaustive()
    }
}

type Factory = Arc<dyn Fn(&BuiltinContext) -> Result<Arc<dyn ServiceConnection>, BuiltinError> + Send + Sync>;

/// An error of the code that creates a service.
type FactoryError = Box<dyn std::error::Error + Send + Sync>;

/// Why a built-in service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    #[error("this skein has no built-in service `{name}`")]
    Unknown { name: String },
    #[error("its `settings` are wrong: it has no settings, and the manifest gives `{setting}`")]
    NoSettings { setting: String },
    #[error("its `settings` are wrong: {0}")]
    Settings(#[source] FactoryError),
    #[error(transparent)]
    Setup(FactoryError),
    #[error("{message}")]
    Panic { message: String },
}

/// The built-in services by name.
#[derive(Clone, Default)]
pub struct BuiltinRegistry {
    factories: HashMap<&'static str, Factory>,
}

impl BuiltinRegistry {
    /// Returns the services that ship with Skein. The state that they keep for a session outlives an instance, because a
    /// service that stops while it is idle starts again in the same session.
    pub fn builtin() -> Self {
        let (recall, documents, saved, symbols) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        let browsers: Arc<SessionStates<computercontroller::BrowserState>> = Arc::default();
        let fetch: Arc<SessionStates<fetch::Cache>> = Arc::default();
        let pages = Arc::clone(&fetch);
        let developer: Arc<SessionStates<developer::DeveloperState>> = Arc::default();
        // Scripts run in the sandboxes of the session's shell, and the browser reaches its servers.
        let shells = Arc::clone(&developer);
        let camera = computercontroller::PageCamera::new(Arc::clone(&browsers));
        // Describing their tools takes longer than the rest of the start, and few commands need them.
        let todo: OnceLock<todo::TodoService> = OnceLock::new();
        let autovisualiser: OnceLock<autovisualiser::AutovisualiserService> = OnceLock::new();
        Self::empty()
            .with("apps", |surroundings| apps::AppsService::new(&surroundings.principal.folder(&surroundings.data)))
            .with("autovisualiser", move |surroundings| {
                let service = autovisualiser.get_or_init(autovisualiser::AutovisualiserService::new).clone();
                service.with_launcher(surroundings.sandbox.clone()).with_camera(camera.clone())
            })
            .with("chatrecall", move |surroundings| {
                let service = chatrecall::ChatRecallService::new(&surroundings.data);
                service.with_place(surroundings.store.clone()).with_states(Arc::clone(&recall))
            })
            .with("computercontroller", move |surroundings| {
                let shell = developer::Shell::new(surroundings.shell_options());
                let scripts = computercontroller::ScriptRunner::new(shell, Arc::clone(&shells), Arc::clone(&saved));
                let (launcher, environment) = (surroundings.sandbox.clone(), surroundings.environment.clone());
                computercontroller::ComputerControllerService::new(launcher.clone())
                    .with_states(Arc::clone(&documents))
                    .with_pages(Arc::clone(&pages))
                    .with_scripts(scripts)
                    .with_desktop(launcher, environment, Arc::clone(&browsers), Arc::clone(&shells))
            })
            .with("developer", move |surroundings| {
                let service = developer::Developer::new(surroundings.shell_options());
                service.with_states(Arc::clone(&developer)).with_symbols(Arc::clone(&symbols))
            })
            .with("extensionmanager", |surroundings| {
                extensionmanager::ExtensionManagerService::new().with_config(surroundings.user.config.clone())
            })
            .with_settings("fetch", move |surroundings| {
                let service = fetch::FetchService::new(&surroundings.settings);
                service.map(|service| service.with_states(Arc::clone(&fetch)))
            })
            .with("knowledge", |surroundings| knowledge::KnowledgeService::new(surroundings.user.clone()))
            .with("memory", |surroundings| {
                let service = memory::MemoryService::new(&surroundings.data).with_place(surroundings.store.clone());
                service.with_principal(surroundings.principal.clone())
            })
            .with("summon", |_| summon::SummonService::new())
            .with("todo", move |_| todo.get_or_init(todo::TodoService::new).clone())
            .with("tom", |_| tom::TomService)
            .with("tutorial", |_| tutorial::TutorialService::new())
    }

    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds a service without settings. Any rmcp server handler can be a service.
    #[must_use]
    pub fn with<H: ServerHandler>(
        self,
        name: &'static str,
        make: impl Fn(&BuiltinContext) -> H + Send + Sync + 'static,
    ) -> Self {
        self.with_handler(name, move |surroundings| match surroundings.settings.keys().next() {
            Some(setting) => Err(BuiltinError::NoSettings { setting: setting.clone() }),
            None => Ok(make(surroundings)),
        })
    }

    /// Adds a service that parses its settings. `make` returns an error that describes what is wrong with them.
    #[must_use]
    pub fn with_settings<H: ServerHandler, E: Into<FactoryError>>(
        self,
        name: &'static str,
        make: impl Fn(&BuiltinContext) -> Result<H, E> + Send + Sync + 'static,
    ) -> Self {
        self.with_handler(name, move |surroundings| {
            make(surroundings).map_err(|error| BuiltinError::Settings(error.into()))
        })
    }

    fn with_handler<H: ServerHandler>(
        mut self,
        name: &'static str,
        make: impl Fn(&BuiltinContext) -> Result<H, BuiltinError> + Send + Sync + 'static,
    ) -> Self {
        let factory: Factory = Arc::new(move |surroundings| {
            Ok(Arc::new(BuiltinConnection::new(make(surroundings)?, surroundings.cwd.clone())))
        });
        self.factories.insert(name, factory);
        self
    }

    /// Adds a service that answers in this process without being an MCP server.
    #[must_use]
    pub fn with_tools<E: Into<FactoryError>>(
        mut self,
        name: &'static str,
        make: impl Fn(&BuiltinContext) -> Result<Arc<dyn InlineTools>, E> + Send + Sync + 'static,
    ) -> Self {
        let factory: Factory = Arc::new(move |surroundings| {
            let tools = make(surroundings).map_err(|error| BuiltinError::Setup(error.into()))?;
            Ok(Arc::new(tools::InlineConnection(tools)))
        });
        self.factories.insert(name, factory);
        self
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.factories.keys().copied()
    }

    pub(super) fn start(
        &self,
        name: &str,
        surroundings: &BuiltinContext,
    ) -> Result<Arc<dyn ServiceConnection>, BuiltinError> {
        let factory = self.factories.get(name).ok_or_else(|| BuiltinError::Unknown { name: name.to_owned() })?;
        let started = catch_unwind(AssertUnwindSafe(|| factory(surroundings)));
        started.unwrap_or_else(|panic| Err(BuiltinError::Panic { message: panic_text(panic.as_ref()) }))
    }
}

impl std::fmt::Debug for BuiltinRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}

/// Returns the call context that Skein attaches to a request. Fails if there is none, because the tool then has no
/// session.
fn call_context(context: &RequestContext<RoleServer>) -> Result<&CallContext, answer::ToolRefusal> {
    context.extensions.get().ok_or_else(|| answer::ToolRefusal::new("the call carries no session; call through Skein"))
}

/// An MCP server in this process. The client side that it sees is not connected.
struct BuiltinConnection<H> {
    handler: H,
    peer: Peer<RoleServer>,
    /// Working directory of the session that owns the service. Listing requests use it.
    cwd: std::path::PathBuf,
    next_id: AtomicI64,
}

#[derive(Clone)]
struct NoClient;

impl ServerHandler for NoClient {}

/// Returns a client that is not connected, so that sending to it fails at once. All services share it, because its
/// queues and its task take 30 KiB.
fn no_client() -> Peer<RoleServer> {
    static PEER: OnceLock<Peer<RoleServer>> = OnceLock::new();
    let make = || {
        // rmcp hands out a `Peer` only for a running service. This one ends as soon as it is dropped here.
        let (outgoing, _) = futures::channel::mpsc::channel(1);
        let nobody: RunningService<RoleServer, NoClient> =
            serve_directly(NoClient, (outgoing, futures::stream::pending()), None);
        nobody.peer().clone()
    };
    PEER.get_or_init(make).clone()
}

impl<H: ServerHandler> BuiltinConnection<H> {
    fn new(handler: H, cwd: Option<std::path::PathBuf>) -> Self {
        let cwd = cwd.unwrap_or_else(|| "/".into());
        Self { handler, peer: no_client(), cwd, next_id: AtomicI64::new(0) }
    }

    async fn list(&self, context: &CallContext) -> Result<Catalog, rmcp::ErrorData> {
        let offers = self.handler.get_info().capabilities;
        let changes = |changes: Option<bool>| changes == Some(true);
        let volatile = offers.prompts.as_ref().is_some_and(|prompts| changes(prompts.list_changed))
            || offers.resources.as_ref().is_some_and(|resources| changes(resources.list_changed));
        let mut catalog = Catalog { volatile, ..Catalog::default() };
        let listing = CatalogRead::default();
        let request = || {
            let mut request = self.request(context);
            request.extensions.insert(listing.clone());
            request
        };
        if offers.tools.is_some() {
            let tools = self.handler.list_tools(None, request()).await?;
            catalog.tools = tools.tools.into_iter().map(content::spec).collect();
        }
        if offers.prompts.is_some() {
            let prompts = self.handler.list_prompts(None, request()).await?;
            catalog.prompts = prompts.prompts.iter().map(content::json).collect();
        }
        if offers.resources.is_some() {
            let resources = self.handler.list_resources(None, request()).await?;
            catalog.resources = resources.resources.iter().map(content::json).collect();
            let templates = self.handler.list_resource_templates(None, request()).await?;
            catalog.templates = templates.resource_templates.iter().map(content::json).collect();
        }
        Ok(catalog)
    }

    fn request(&self, context: &CallContext) -> RequestContext<RoleServer> {
        let id = NumberOrString::Number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut request = RequestContext::new(id, self.peer.clone());
        request.ct = context.cancel.clone();
        request.extensions.insert(context.clone());
        request
    }
}

/// What the requests for one catalog share: a handler reads for the first of them, and not again for the others.
#[derive(Debug, Clone, Default)]
struct CatalogRead(Arc<OnceLock<Arc<dyn Any + Send + Sync>>>);

/// Runs a handler until it answers, panics or times out, or for two seconds after cancellation.
async fn run_guarded<T>(
    context: &CallContext,
    limit: Option<Duration>,
    handler: impl Future<Output = Result<T, rmcp::ErrorData>>,
) -> Result<Result<T, rmcp::ErrorData>, CallError> {
    let answer = AssertUnwindSafe(handler).catch_unwind();
    let answer = async {
        match limit {
            Some(limit) => tokio::time::timeout(limit, answer).await.map_err(|_| CallError::TimedOut),
            None => Ok(answer.await),
        }
    };
    let answer = tokio::select! {
        biased;
        answer = answer => answer?,
        // A handler that watches the token ends by itself; this branch ends the others.
        () = async { context.cancel.cancelled().await; tokio::time::sleep(Duration::from_secs(2)).await } => {
            return Err(CallError::Cancelled);
        }
    };
    answer.map_err(|panic| CallError::Died(panic_text(panic.as_ref())))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a message");
    tracing::error!(panic = text, "a built-in service panicked");
    format!("it panicked: {text}")
}

impl<H: ServerHandler> ServiceConnection for BuiltinConnection<H> {
    fn instructions(&self) -> Option<String> {
        self.handler.get_info().instructions
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>> {
        Box::pin(async move {
            let session = crate::tool::SessionContext::new("catalog", self.cwd.clone(), Vec::new(), "/".into());
            let context = CallContext::new(session);
            let listed = run_guarded(&context, None, self.list(&context)).await?;
            listed.map_err(|error| CallError::Refused(error.message.into_owned()))
        })
    }

    fn call(&self, call: ToolCall, limit: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>> {
        Box::pin(async move {
            let params = CallToolRequestParams::new(call.tool.as_str().to_owned()).with_arguments(call.arguments);
            let handler = self.handler.call_tool(params, self.request(&call.context));
            match run_guarded(&call.context, Some(limit), handler).await? {
                Ok(CallToolResponse::Complete(result)) => Ok(content::outcome(result)),
                Ok(_) => Err(CallError::Refused("a built-in service answers at once or not at all".to_owned())),
                Err(error) => Ok(ToolOutcome::error(error.message.into_owned())),
            }
        })
    }

    fn read_resource(
        &self,
        uri: String,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let handler = self.handler.read_resource(ReadResourceRequestParams::new(uri), self.request(&context));
            match run_guarded(&context, Some(limit), handler).await? {
                Ok(ReadResourceResponse::Complete(result)) => Ok(content::json(&result)),
                Ok(_) => Err(CallError::Refused("a built-in service answers at once or not at all".to_owned())),
                Err(error) => Err(CallError::Refused(error.message.into_owned())),
            }
        })
    }

    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let params = GetPromptRequestParams::new(name).with_arguments(arguments);
            let handler = self.handler.get_prompt(params, self.request(&context));
            match run_guarded(&context, Some(limit), handler).await? {
                Ok(GetPromptResponse::Complete(result)) => Ok(content::json(&result)),
                Ok(_) => Err(CallError::Refused("a built-in service answers at once or not at all".to_owned())),
                Err(error) => Err(CallError::Refused(error.message.into_owned())),
            }
        })
    }
}

#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::harness::Harness;
    use super::{BuiltinContext, BuiltinRegistry};

    #[tokio::test]
    async fn sending_to_the_client_of_a_service_fails_at_once() {
        for _ in 0..2 {
            let peer = super::no_client();
            let sent = tokio::time::timeout(Duration::from_secs(5), peer.notify_tool_list_changed()).await;
            assert!(sent.is_ok_and(|sent| sent.is_err()));
        }
    }

    #[tokio::test]
    async fn settings_that_nobody_reads_keep_a_service_from_starting() {
        let start = |name: &str, settings: serde_json::Value| {
            let surroundings = BuiltinContext {
                roles: std::collections::BTreeMap::new(),
                reaper: None,
                environment: std::collections::BTreeMap::new(),
                sandbox: None,
                data: std::path::PathBuf::new(),
                store: super::StorePlace::default(),
                principal: super::Principal::local(),
                user: super::UserFolders::default(),
                cwd: None,
                settings: serde_json::from_value(settings).unwrap(),
            };
            BuiltinRegistry::builtin().start(name, &surroundings).map(|_| "started")
        };
        assert!(start("fetch", serde_json::json!({"allow_hosts": ["wiki.internal"]})).is_ok());
        let unknown = start("fetch", serde_json::json!({"allowed": []})).unwrap_err();
        assert!(unknown.to_string().starts_with("its `settings` are wrong: unknown field `allowed`"), "{unknown}");
        let none = start("todo", serde_json::json!({"allow_hosts": []})).unwrap_err();
        assert_eq!(
            none.to_string(),
            "its `settings` are wrong: it has no settings, and the manifest gives `allow_hosts`"
        );
    }

    /// What is paid in every request of a mode that binds them. With the developer's tools, those of
    /// `goose/assistant` stay under 7,700 bytes.
    #[tokio::test]
    async fn tool_schemas_are_small() {
        let memory = Harness::with_data(super::memory::MemoryService::new).schema_bytes("memory").await;
        let todo = Harness::new(super::todo::TodoService::new()).schema_bytes("todo").await;
        let fetch = super::fetch::FetchService::new(&serde_json::Map::new()).unwrap();
        let fetch = Harness::new(fetch).schema_bytes("fetch").await;
        let knowledge = super::knowledge::KnowledgeService::new(super::UserFolders::default());
        let knowledge = Harness::new(knowledge).schema_bytes("knowledge").await;
        let tutorial = Harness::new(super::tutorial::TutorialService::new()).schema_bytes("tutorial").await;
        let apps = Harness::with_data(super::apps::AppsService::new).schema_bytes("apps").await;
        let autovisualiser = super::autovisualiser::AutovisualiserService::new();
        let autovisualiser = Harness::new(autovisualiser).schema_bytes("autovisualiser").await;
        let chatrecall = Harness::with_data(super::chatrecall::ChatRecallService::new).schema_bytes("chatrecall").await;
        let manager = super::extensionmanager::ExtensionManagerService::new();
        let manager = Harness::new(manager).schema_bytes("extensionmanager").await;
        for (service, bytes, limit) in [
            ("apps", apps, 3_500),
            // Goose's service of this name takes 15,800 bytes.
            ("autovisualiser", autovisualiser, 3_400),
            ("chatrecall", chatrecall, 1_000),
            ("extensionmanager", manager, 2_000),
            ("fetch", fetch, 520),
            ("knowledge", knowledge, 300),
            ("memory", memory, 1_500),
            ("todo", todo, 950),
            ("tutorial", tutorial, 560),
        ] {
            assert!(bytes <= limit, "{service} has {bytes} bytes, more than {limit}");
        }
    }
}
