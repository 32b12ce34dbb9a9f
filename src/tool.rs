//! Defines the port between callers of tools and services. A `ToolService` can run in process, in a child process,
//! behind HTTP or from a recording.
//!
//! Invariant: a tool's failure is an outcome that the model can read; an `Err` means that the service gave no answer.

mod activity;
pub mod ask;
pub mod delegate;
pub mod editor;
pub mod elicit;
mod limit;
pub mod manage;
mod notice;
mod text;
mod preview;
mod target;

pub use activity::{Activity, CallProgress, StepPriority, StepStatus, TodoStep};
pub use notice::{LogNotices, Notice, NoticeSink};
pub use preview::{Preview, preview, subject};
pub use target::{FileTarget, path_line};
pub use text::{is_hidden, strip_invisible, strip_to_line, truncate};

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::conversation::{Content, Message};
use crate::ids::{ServiceName, ToolName};
use crate::sandbox::HiddenPaths;

/// Metadata key under which a built-in tool reports a URL at another host instead of the page. The caller decides about
/// each host.
pub const REDIRECT: &str = "skein/redirect";

/// A tool as its service describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    pub name: ToolName,
    pub title: Option<String>,
    pub description: String,
    pub input_schema: Arc<Map<String, Value>>,
    pub output_schema: Option<Arc<Map<String, Value>>>,
    pub hints: ToolHints,
    /// MCP's `_meta`, passed on unchanged.
    pub meta: Option<Value>,
}

/// A tool's claims about its own behaviour. Trusted for built-in services only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolHints {
    pub read_only: Option<bool>,
    pub destructive: Option<bool>,
    pub idempotent: Option<bool>,
    pub open_world: Option<bool>,
}

/// The tools, prompts and resources of a service at one point in time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    pub tools: Vec<ToolSpec>,
    /// Prompts, resources and resource templates in MCP's JSON.
    pub prompts: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    /// Prompts and resources depend on something that changes without notice, such as files. Request the catalog again
    /// before each use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub volatile: bool,
}

/// One call of one tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    pub tool: ToolName,
    pub arguments: Map<String, Value>,
    pub context: CallContext,
}

/// The context of a call: its session, its cancellation and its progress sink.
#[derive(Clone)]
pub struct CallContext {
    pub session: Arc<SessionContext>,
    /// Cancelled when the caller no longer waits for the result.
    pub cancel: CancellationToken,
    /// The call's id from the model or client. Progress and permission requests refer to it.
    pub id: Option<Arc<str>>,
    pub view: ExchangeView,
    /// The resolved paths that the call was allowed for; `None` if nothing was checked.
    targets: Option<Arc<[PathBuf]>>,
    activity: Option<ActivitySink>,
    /// The port for elicitations of the service, if the session has a user.
    asker: Option<Arc<dyn ask::Asker>>,
}

type ActivitySink = Arc<dyn Fn(Activity) + Send + Sync>;

/// The messages up to a call, read-only, for tools that need them.
#[derive(Debug, Clone, Default)]
pub struct ExchangeView {
    messages: Arc<[Arc<Message>]>,
}

impl ExchangeView {
    pub fn new(messages: impl Into<Arc<[Arc<Message>]>>) -> Self {
        Self { messages: messages.into() }
    }

    pub fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }
}

impl CallContext {
    pub fn new(session: Arc<SessionContext>) -> Self {
        let (cancel, view) = (CancellationToken::new(), ExchangeView::default());
        Self { session, cancel, id: None, view, targets: None, activity: None, asker: None }
    }

    #[must_use]
    pub fn with_cancel(mut self, cancel: CancellationToken) -> Self {
        self.cancel = cancel;
        self
    }

    #[must_use]
    pub fn with_id(mut self, id: &str) -> Self {
        self.id = Some(id.into());
        self
    }

    #[must_use]
    pub fn with_view(mut self, view: ExchangeView) -> Self {
        self.view = view;
        self
    }

    /// Restricts the call: a tool must not touch a file that resolves to a path not in `targets`.
    #[must_use]
    pub fn with_targets(mut self, targets: impl Into<Arc<[PathBuf]>>) -> Self {
        self.targets = Some(targets.into());
        self
    }

    pub fn targets(&self) -> Option<&[PathBuf]> {
        self.targets.as_deref()
    }

    /// Sets the receiver of activities. It must not block: the task that reads from the service calls it.
    #[must_use]
    pub fn with_activity(mut self, listener: impl Fn(Activity) + Send + Sync + 'static) -> Self {
        self.activity = Some(Arc::new(listener));
        self
    }

    /// Sets a receiver for progress only.
    #[must_use]
    pub fn with_progress(self, listener: impl Fn(CallProgress) + Send + Sync + 'static) -> Self {
        self.with_activity(move |activity| {
            if let Activity::Progress(progress) = activity {
                listener(progress);
            }
        })
    }

    #[must_use]
    pub fn with_asker(mut self, asker: Arc<dyn ask::Asker>) -> Self {
        self.asker = Some(asker);
        self
    }

    /// Returns the port to the user of the session. `None` if the session has none.
    pub fn asker(&self) -> Option<&Arc<dyn ask::Asker>> {
        self.asker.as_ref()
    }

    /// Returns a context for work that outlasts the call. It reports nothing, and cancelling the call does not cancel
    /// it.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { cancel: CancellationToken::new(), activity: None, asker: None, ..self.clone() }
    }

    pub fn report(&self, activity: Activity) {
        if let Some(listener) = &self.activity {
            listener(activity);
        }
    }
}

impl std::fmt::Debug for CallContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallContext({})", self.session.id)
    }
}

/// The ports that the creator of a session passes to its context.
pub struct SessionContextPorts {
    /// Paths that file tools neither read nor write, also below the roots.
    pub hidden: Arc<HiddenPaths>,
    /// The editor that shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn editor::Editor>>,
    /// Receives the notices of the session's services.
    pub notices: Arc<dyn NoticeSink>,
}

/// No hidden paths and no editor; notices go to the log.
impl Default for SessionContextPorts {
    fn default() -> Self {
        Self { hidden: Arc::default(), editor: None, notices: Arc::new(LogNotices) }
    }
}

impl std::fmt::Debug for SessionContextPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionContextPorts").field("hidden", &self.hidden).finish_non_exhaustive()
    }
}

/// The session of a call. A service keeps its data about a session in `SessionContext::state()`, so that the data ends
/// with the session.
pub struct SessionContext {
    pub id: String,
    /// Base of relative paths.
    pub cwd: PathBuf,
    /// File tools reach paths below these. Includes the working directory.
    pub roots: Vec<PathBuf>,
    /// Folder for long output and other temporary files of the session.
    pub scratch: PathBuf,
    /// Paths that file tools neither read nor write, also below the roots.
    hidden: Arc<HiddenPaths>,
    /// The editor that shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn editor::Editor>>,
    /// Delegates tasks for the session, if it may delegate.
    pub delegator: OnceLock<Arc<dyn delegate::Delegator>>,
    /// Manages the session's services, if it may change them.
    pub manager: OnceLock<Arc<dyn manage::ServiceManager>>,
    enabled: Mutex<manage::EnabledServices>,
    /// Id of the top-level session, if this is a child session.
    family: OnceLock<String>,
    /// Receives the notices of the session's services.
    pub notices: Arc<dyn NoticeSink>,
    /// State of services, keyed by type.
    state: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl SessionContext {
    pub fn new(id: impl Into<String>, cwd: PathBuf, additional_roots: Vec<PathBuf>, scratch: PathBuf) -> Arc<Self> {
        Self::with_ports(id, cwd, additional_roots, scratch, SessionContextPorts::default())
    }

    pub fn with_ports(
        id: impl Into<String>,
        cwd: PathBuf,
        additional_roots: Vec<PathBuf>,
        scratch: PathBuf,
        ports: SessionContextPorts,
    ) -> Arc<Self> {
        let SessionContextPorts { hidden, editor, notices } = ports;
        let mut roots = vec![cwd.clone(), scratch.clone()];
        roots.extend(additional_roots);
        Arc::new(Self {
            id: id.into(),
            cwd,
            roots,
            scratch,
            hidden,
            editor,
            delegator: OnceLock::new(),
            manager: OnceLock::new(),
            enabled: Mutex::default(),
            family: OnceLock::new(),
            notices,
            state: Mutex::default(),
        })
    }

    /// Returns the hidden path that equals or contains `path`, which must be resolved. The scratch folder is never
    /// hidden.
    pub fn find_hidden(&self, path: &Path) -> Option<PathBuf> {
        let hidden = self.hidden.covering(path)?;
        let scratch = crate::root_files::resolve(&self.scratch).is_ok_and(|scratch| path.starts_with(scratch.path));
        (!scratch).then_some(hidden)
    }

    /// Returns the services that the session has enabled or disabled. The result shares its state with the session.
    pub fn service_overrides(&self) -> manage::EnabledServices {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the id of the top-level session, which is this one or an ancestor.
    pub fn family(&self) -> &str {
        self.family.get().unwrap_or(&self.id)
    }

    /// Makes this session a child of `parent` and shares the parent's service overrides.
    pub fn share_services(&self, parent: &SessionContext) {
        self.family.get_or_init(|| parent.family().to_owned());
        let of_parent = parent.service_overrides();
        *self.enabled.lock().unwrap_or_else(PoisonError::into_inner) = of_parent;
    }

    /// Returns the state of type `T` that a service keeps for this session. Creates it on first use.
    pub fn state<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = state.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry under a type's id always has that type.
        Arc::clone(entry).downcast().unwrap_or_else(|_| Arc::new(T::default()))
    }
}

impl std::fmt::Debug for SessionContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallContext").field("id", &self.id).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// The result of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub content: Vec<Content>,
    pub structured: Option<Value>,
    /// The content describes an error that the model can correct.
    pub is_error: bool,
    /// The tool was not called, because consent was not given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// MCP annotations of content parts, such as audience and priority, keyed by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<usize, Value>,
    pub meta: Option<Value>,
}

impl ToolOutcome {
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Content::text(text)], ..Self::default() }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// Returns all text of the result.
    pub fn all_text(&self) -> String {
        self.content.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n")
    }
}

/// The reason why a service gave no answer. Each message says what the model or the user can do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ServiceError {
    #[error("the service `{service}` could not be started: {reason}")]
    NotStarted { service: ServiceName, reason: String },
    #[error(
        "the service `{service}` failed too often and is left alone for {}; use other tools, or tell the user: {reason}",
        seconds(*.retry_in)
    )]
    CircuitOpen { service: ServiceName, reason: String, retry_in: Duration },
    #[error(
        "the service `{service}` ended while it worked on this call ({reason}). The call may have taken effect and was \
         not repeated: check before you try again"
    )]
    Died { service: ServiceName, reason: String },
    #[error(
        "`{tool}` of the service `{service}` gave no answer within {}. It may have taken effect: check before you try again",
        seconds(*.limit)
    )]
    TimedOut { service: ServiceName, tool: ToolName, limit: Duration },
    #[error("the call was cancelled")]
    Cancelled,
    #[error("`{what}` was not called: {reason}")]
    NotPermitted { what: String, reason: String },
    #[error("the service `{service}` refused the request: {reason}")]
    Refused { service: ServiceName, reason: String },
}

fn seconds(duration: Duration) -> String {
    if duration.as_millis() < 1000 {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs())
    }
}

/// A service that lists tools and executes calls.
pub trait ToolService: Send + Sync {
    fn name(&self) -> &ServiceName;

    /// Returns the purpose of the service, from its manifest.
    fn description(&self) -> &str;

    /// Returns the service's usage instructions for models. `None` if it has not been started or gives none.
    fn instructions(&self) -> Option<String>;

    fn status(&self) -> ServiceStatus;

    fn catalog(&self) -> BoxFuture<'_, Result<Arc<Catalog>, ServiceError>>;

    /// Returns the catalog if the service is running; never starts it.
    fn running_catalog(&self) -> BoxFuture<'_, Option<Arc<Catalog>>> {
        Box::pin(async { None })
    }

    /// Returns a counter that changes when the running service reports new lists. `None` if it does not report changes.
    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }

    fn call(&self, call: ToolCall) -> BoxFuture<'_, Result<ToolOutcome, ServiceError>>;

    /// Reads the contents of a resource, in MCP's JSON.
    fn read_resource(&self, uri: String, context: CallContext) -> BoxFuture<'_, Result<Value, ServiceError>>;

    /// Returns a prompt with its arguments filled in, in MCP's JSON.
    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> BoxFuture<'_, Result<Value, ServiceError>>;
}

/// The state of a service, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceStatus {
    pub health: ServiceHealth,
    pub leases: usize,
    pub restarts: u32,
    pub last_error: Option<String>,
    /// Known after the first start.
    pub tools: Option<usize>,
    /// Seconds since the epoch.
    pub started_at: Option<u64>,
    pub pid: Option<u32>,
    /// Resident memory of the child process.
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceHealth {
    /// Not running, which is normal.
    Stopped,
    Starting,
    Healthy,
    /// Ended or failed recently; will be restarted.
    Degraded,
    /// Failed too often; calls fail immediately.
    Open,
    /// The next call tries to start it again.
    HalfOpen,
}
