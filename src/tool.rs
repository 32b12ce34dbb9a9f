//! The port between whoever calls tools and whatever offers them. A service is anything that implements
//! `ToolService`: in process, a child process, a server behind HTTP, a recording.
//!
//! Invariant: a tool's failure is an answer the model can read; an `Err` means that there is no answer.

mod activity;
pub mod delegate;
pub mod editor;
pub mod elicit;
mod limit;
pub mod manage;
mod text;
mod preview;
mod target;

pub use activity::{Activity, CallProgress, StepPriority, StepStatus, TodoStep};
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

/// The key in `_meta` of an outcome under which a built-in tool reports a URL at another host instead of the page: each
/// host is for the caller to decide about.
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
    /// MCP's `_meta`, passed on as it is.
    pub meta: Option<Value>,
}

/// What a tool says about itself. Only a built-in service is believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolHints {
    pub read_only: Option<bool>,
    pub destructive: Option<bool>,
    pub idempotent: Option<bool>,
    pub open_world: Option<bool>,
}

/// What a service offers, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    pub tools: Vec<ToolSpec>,
    /// Prompts, resources and resource templates in MCP's JSON.
    pub prompts: Vec<Value>,
    pub resources: Vec<Value>,
    pub templates: Vec<Value>,
    /// Prompts and resources follow from something that changes by itself, such as files: whoever needs them asks
    /// again.
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

/// What comes with a call: whose it is, how it is stopped, who hears of what it does.
#[derive(Clone)]
pub struct CallContext {
    pub session: Arc<SessionContext>,
    /// Cancelled when nobody waits for the answer any more.
    pub cancel: CancellationToken,
    /// As the model or the client named the call; what is said about it is said under this id.
    pub id: Option<Arc<str>>,
    pub view: ExchangeView,
    /// The resolved paths that the call was allowed for; `None` if nothing was checked.
    targets: Option<Arc<[PathBuf]>>,
    activity: Option<ActivitySink>,
    /// Whoever brings questions of the service to the user, if somebody does.
    elicitor: Option<Arc<dyn elicit::Elicitor>>,
}

type ActivitySink = Arc<dyn Fn(Activity) + Send + Sync>;

/// The talk up to a call, for tools that need it; to be read only.
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
        Self { session, cancel, id: None, view, targets: None, activity: None, elicitor: None }
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

    /// A tool must not touch a file that resolves to another path than these.
    #[must_use]
    pub fn with_targets(mut self, targets: impl Into<Arc<[PathBuf]>>) -> Self {
        self.targets = Some(targets.into());
        self
    }

    pub fn targets(&self) -> Option<&[PathBuf]> {
        self.targets.as_deref()
    }

    /// `listener` must not block: it is called from the task that reads the service.
    #[must_use]
    pub fn with_activity(mut self, listener: impl Fn(Activity) + Send + Sync + 'static) -> Self {
        self.activity = Some(Arc::new(listener));
        self
    }

    /// The same for one who wants to know no more than how far it is.
    #[must_use]
    pub fn with_progress(self, listener: impl Fn(CallProgress) + Send + Sync + 'static) -> Self {
        self.with_activity(move |activity| {
            if let Activity::Progress(progress) = activity {
                listener(progress);
            }
        })
    }

    #[must_use]
    pub fn with_elicitor(mut self, elicitor: Arc<dyn elicit::Elicitor>) -> Self {
        self.elicitor = Some(elicitor);
        self
    }

    pub fn elicitor(&self) -> Option<&Arc<dyn elicit::Elicitor>> {
        self.elicitor.as_ref()
    }

    /// The same for work that outlasts the call: nobody hears of it, and nobody cancels it with the call.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { cancel: CancellationToken::new(), activity: None, elicitor: None, ..self.clone() }
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

/// The session a call belongs to. Services keep nothing of it for themselves: what a service must remember
/// about a session lies in the session, and goes with it.
pub struct SessionContext {
    pub id: String,
    /// Relative paths mean this folder.
    pub cwd: PathBuf,
    /// File tools reach what lies below these, the working directory included.
    pub roots: Vec<PathBuf>,
    /// Where long output and other leavings of the session go.
    pub scratch: PathBuf,
    /// What file tools neither read nor write, also below the roots.
    hidden: Arc<HiddenPaths>,
    /// Whoever shows the session, if it lends files or terminals.
    pub editor: Option<Arc<dyn editor::Editor>>,
    /// Whoever hands work to others for it, if it may have that done.
    pub delegator: OnceLock<Arc<dyn delegate::Delegator>>,
    /// Whoever manages its services, if somebody does.
    pub manager: OnceLock<Arc<dyn manage::ServiceManager>>,
    enabled: Mutex<manage::EnabledServices>,
    /// The session that it works for in the end, if it works for one.
    family: OnceLock<String>,
    /// Where services that are its own warn the user.
    pub warnings: Arc<Warnings>,
    /// By type: each service keeps its own.
    state: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl SessionContext {
    pub fn new(id: impl Into<String>, cwd: PathBuf, additional_roots: Vec<PathBuf>, scratch: PathBuf) -> Arc<Self> {
        Self::in_editor(id, cwd, additional_roots, scratch, Arc::default(), None)
    }

    pub fn in_editor(
        id: impl Into<String>,
        cwd: PathBuf,
        additional_roots: Vec<PathBuf>,
        scratch: PathBuf,
        hidden: Arc<HiddenPaths>,
        editor: Option<Arc<dyn editor::Editor>>,
    ) -> Arc<Self> {
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
            warnings: Arc::default(),
            state: Mutex::default(),
        })
    }

    /// The hidden path that `path`, which is resolved, is or is in; the scratch folder is never hidden.
    pub fn find_hidden(&self, path: &Path) -> Option<PathBuf> {
        let hidden = self.hidden.covering(path)?;
        let scratch = crate::root_files::resolve(&self.scratch).is_ok_and(|scratch| path.starts_with(scratch.path));
        (!scratch).then_some(hidden)
    }

    /// The services that were enabled and disabled in it.
    pub fn service_overrides(&self) -> manage::EnabledServices {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The id of the session that the user has, which this one is or works for.
    pub fn family(&self) -> &str {
        self.family.get().unwrap_or(&self.id)
    }

    /// From now on it has the services that `parent` has, for which it works.
    pub fn share_services(&self, parent: &SessionContext) {
        self.family.get_or_init(|| parent.family().to_owned());
        let of_parent = parent.service_overrides();
        *self.enabled.lock().unwrap_or_else(PoisonError::into_inner) = of_parent;
    }

    /// What a service remembers about this session, made at its first use.
    pub fn state<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = state.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry under a type's id was made from that type just above.
        Arc::clone(entry).downcast().unwrap_or_else(|_| Arc::new(T::default()))
    }
}

/// The way of a warning to whoever shows the session.
#[derive(Default)]
pub struct Warnings(OnceLock<Box<dyn Fn(String) -> bool + Send + Sync>>);

impl Warnings {
    /// `listener` must not block, and says whether somebody was told. The first one stays.
    pub fn listen(&self, listener: impl Fn(String) -> bool + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(listener));
    }

    /// True if somebody was told.
    pub fn say(&self, text: String) -> bool {
        self.0.get().is_some_and(|listener| listener(text))
    }
}

impl std::fmt::Debug for Warnings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Warnings")
    }
}

impl std::fmt::Debug for SessionContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallContext").field("id", &self.id).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// What a tool answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub content: Vec<Content>,
    pub structured: Option<Value>,
    /// The content says what went wrong, for the model to correct.
    pub is_error: bool,
    /// It was not called, because nobody consented.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// What MCP says about pieces of the content, by their place: whom they are for, and how much they matter.
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

    /// All text of the answer.
    pub fn all_text(&self) -> String {
        self.content.iter().filter_map(Content::as_text).collect::<Vec<_>>().join("\n")
    }
}

/// Why a service gave no answer. Each says what the model or the user can do about it.
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

/// Whatever can be asked for its tools and called.
pub trait ToolService: Send + Sync {
    fn name(&self) -> &ServiceName;

    /// Of the manifest: what it is for.
    fn description(&self) -> &str;

    /// What the service tells a model about its use, if it has been started and says something.
    fn instructions(&self) -> Option<String>;

    fn status(&self) -> ServiceStatus;

    fn catalog(&self) -> BoxFuture<'_, Result<Arc<Catalog>, ServiceError>>;

    /// The same if it runs and can be asked; nothing is started for it.
    fn running_catalog(&self) -> BoxFuture<'_, Option<Arc<Catalog>>> {
        Box::pin(async { None })
    }

    /// Changes whenever the running service says that its lists have changed; nothing if it does not say.
    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }

    fn call(&self, call: ToolCall) -> BoxFuture<'_, Result<ToolOutcome, ServiceError>>;

    /// The contents of a resource, in MCP's JSON.
    fn read_resource(&self, uri: String, context: CallContext) -> BoxFuture<'_, Result<Value, ServiceError>>;

    /// A prompt filled in, in MCP's JSON.
    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> BoxFuture<'_, Result<Value, ServiceError>>;
}

/// How a service is, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceStatus {
    pub health: ServiceHealth,
    pub leases: usize,
    pub restarts: u32,
    pub last_error: Option<String>,
    /// Known once it has been started.
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
    /// Not running, and nothing is wrong with that.
    Stopped,
    Starting,
    Healthy,
    /// It died or failed lately, and will be started again.
    Degraded,
    /// It failed too often: calls fail at once.
    Open,
    /// The next call tries it again.
    HalfOpen,
}
