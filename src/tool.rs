//! Defines the types that callers of tools and services share. A service can run in process, in a child process,
//! behind HTTP or from a recording.
//!
//! Invariant: a tool's failure is an outcome that the model can read; an `Err` means that the service gave no answer.

mod activity;
pub mod ask;
mod audit;
mod call_sandbox;
mod checkpoint;
mod client_folders;
pub mod delegate;
pub mod editor;
pub mod elicit;
mod limit;
pub mod manage;
mod notice;
mod outer_call;
mod requirement;
mod text;
mod preview;
pub mod protected_check;
mod session;
mod state;
mod target;
mod work_permit;
mod working_folder;

pub use activity::{Activity, CallProgress, StepPriority, StepStatus, TodoStep};
pub use audit::{AuditKind, AuditRecord, AuditSink, AuditSource, AuditVerdict, NoAuditLog};
pub use call_sandbox::{CallSandbox, SandboxView};
pub use checkpoint::CheckpointKeeper;
pub use client_folders::ClientFolders;
pub use notice::{LogNotices, Notice, NoticeSink};
pub use outer_call::{InnerCall, InnerCallSink, InnerQuestion, OpenInnerCall};
pub use preview::{FileChange, ScriptText, command, script, subject};
pub use requirement::{AddressForm, RequirementError, RequirementOffer, requirement_header, requirement_variable};
pub use session::{SessionContext, SessionContextPorts, SessionLifetime, SessionStates};
pub use state::{NoStateStore, StateEntries, StateStore};
pub use target::{FileTarget, path_line};
pub use text::{is_hidden, strip_invisible, strip_to_line, truncate};
pub use work_permit::{WorkPermit, WorkRefusal};
pub use working_folder::WorkingFolder;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::conversation::{Content, Message};
use crate::ids::{ServiceName, ToolName};
use crate::sandbox::SandboxGate;
use crate::telemetry::WorkSpan;
use outer_call::{InnerQuestions, OuterCall};

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
    /// The port to the user of the client that makes the call, if that is not the session's user.
    client_asker: Option<Arc<dyn ask::Asker>>,
    sandbox: Option<Arc<CallSandbox>>,
    /// The call of a service during which this one is made. `None` if no service makes it.
    outer: Option<Arc<OuterCall>>,
    questions: Arc<InnerQuestions>,
    /// Receives the calls that services make inside this one.
    inner_calls: Option<Arc<dyn InnerCallSink>>,
    gate: Option<Arc<dyn SandboxGate>>,
    /// The span of the turn, if the call comes from outside its task.
    pub turn_span: Option<WorkSpan>,
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
        Self {
            session,
            cancel: CancellationToken::new(),
            id: None,
            view: ExchangeView::default(),
            targets: None,
            activity: None,
            asker: None,
            client_asker: None,
            sandbox: None,
            gate: None,
            outer: None,
            questions: Arc::default(),
            inner_calls: None,
            turn_span: None,
        }
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

    /// Reports the call as part of the turn that the session runs now, although another task makes it.
    #[must_use]
    pub fn in_running_turn(mut self) -> Self {
        self.turn_span = self.session.turn_span();
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

    /// Sends the questions of this call to the user of a client instead of the session's.
    #[must_use]
    pub fn with_client_asker(mut self, asker: Arc<dyn ask::Asker>) -> Self {
        self.client_asker = Some(asker);
        self
    }

    /// Returns the port to the user of the client that makes the call. `None` if the session's user is asked.
    pub fn client_asker(&self) -> Option<&Arc<dyn ask::Asker>> {
        self.client_asker.as_ref()
    }

    /// Returns the port to the user of the session. `None` if the session has none.
    pub fn asker(&self) -> Option<&Arc<dyn ask::Asker>> {
        self.asker.as_ref()
    }

    #[must_use]
    pub fn with_sandbox(mut self, sandbox: CallSandbox) -> Self {
        self.sandbox = Some(Arc::new(sandbox));
        self
    }

    /// Returns the sandbox of the processes that the call starts. `None` if they run without one.
    pub fn sandbox(&self) -> Option<&CallSandbox> {
        self.sandbox.as_deref()
    }

    #[must_use]
    pub fn with_gate(mut self, gate: Arc<dyn SandboxGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Returns the gate that decides about hosts for the session, whether or not the call has a sandbox. `None` if no
    /// binding made the call.
    pub fn gate(&self) -> Option<&Arc<dyn SandboxGate>> {
        self.gate.as_ref()
    }

    /// Returns a context for work that outlasts the call. It reports nothing, and cancelling the call does not cancel
    /// it.
    #[must_use]
    pub fn detach(&self) -> Self {
        let cancel = CancellationToken::new();
        Self { cancel, activity: None, asker: None, client_asker: None, turn_span: None, ..self.clone() }
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "read_indices")]
    pub annotations: BTreeMap<usize, Value>,
    pub meta: Option<Value>,
}

/// Reads a map whose keys are numbers. JSON writes them as text, and inside a tagged enum serde does not convert them
/// back.
fn read_indices<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<usize, Value>, D::Error> {
    use serde::de::Error as _;
    let by_text = BTreeMap::<String, Value>::deserialize(deserializer)?;
    let index = |(key, value): (String, Value)| match key.parse() {
        Ok(index) => Ok((index, value)),
        Err(_) => Err(D::Error::custom(format!("`{key}` is not the index of a content part"))),
    };
    by_text.into_iter().map(index).collect()
}

impl ToolOutcome {
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Content::text(text)], ..Self::default() }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// Returns the result of a call that the user cancelled.
    pub fn cancelled() -> Self {
        Self::error("the user cancelled before this call was done")
    }

    /// Returns the result of a call that a time limit ended.
    pub fn out_of_time() -> Self {
        Self::error("the time limit was reached before this call was done")
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
