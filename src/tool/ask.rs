//! Defines the port through which a session reaches its user: permission requests and elicitations.
//!
//! Invariant: a port only. An implementation without a user neither consents nor invents an answer.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::elicit::{Elicitation, ElicitationResponse};
use super::preview::FileChange;
use super::target::{FileTarget, path_line};
use crate::diagnostic::printable;
use crate::ids::ServiceName;
use crate::manifest::PermissionRule;
use crate::sandbox::ProtectedPath;

/// The port through which a session asks its user. A front end without a user passes [`NoAsker`].
pub trait Asker: Send + Sync {
    /// Asks whether a call may run.
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse>;

    /// Shows a permission request of an external agent, with the agent's options. Returns the id of the option that the
    /// user chose, or `None`. An implementation without a user must not choose.
    fn choose(&self, _: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { None })
    }

    /// Sends an elicitation of a service or an external agent to the user.
    fn elicit(&self, _: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async { ElicitationResponse::Unavailable })
    }

    /// Reports that the user is done with a page they were asked to open.
    fn page_done(&self, _by: &str, _id: &str) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionResponse {
    Allow,
    AllowAlways,
    Refuse,
    RefuseAlways,
    /// There is no user to ask.
    Unavailable,
}

/// An asker without a user; refuses every call that needs consent.
#[derive(Debug, Clone, Copy)]
pub struct NoAsker;

impl Asker for NoAsker {
    fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async { PermissionResponse::Unavailable })
    }
}

/// A call that needs consent.
#[derive(Debug, Clone)]
pub struct PermissionRequest {
    /// The id of the call, if it has one.
    pub call: Option<Arc<str>>,
    /// The calling `agent/mode`, if it is a child of the prompted session.
    pub by: Option<String>,
    /// Id of the child session and of the call in it, for clients that show it separately.
    pub apart: Option<(String, Arc<str>)>,
    /// The services that make the call for one another, the first caller first. Empty if no service makes it.
    pub chain: Vec<ServiceName>,
    /// The tool's name as the model sees it. A tool of a required service is named in the same form.
    pub tool: String,
    pub title: Option<String>,
    pub arguments: Map<String, Value>,
    /// The resolved file that a built-in tool works on.
    pub target: Option<FileTarget>,
    /// The change that a built-in tool would make to the file, if it can be computed.
    pub change: Option<FileChange>,
    /// Set if the call writes a protected path. Consent then covers this call only.
    pub protected: Option<ProtectedPath>,
    /// The scope of [`PermissionResponse::AllowAlways`] and [`PermissionResponse::RefuseAlways`] in this session.
    pub always: ConsentSubject,
    /// The narrowest useful rule that could be stored for this project, if there is one.
    pub rule: Option<PermissionRule>,
}

/// Begins the names that requests of a sandbox have instead of a tool's name. No tool's name contains a colon.
const SANDBOX_PREFIX: &str = "sandbox:";
/// The name that a request to merge the changes of a task has instead of a tool's name.
pub const TASK_MERGE: &str = "task:merge";
/// The name that a request to add a service has instead of the name of the tool that proposes it.
pub const SERVICE_ADDITION: &str = "service:add";

impl PermissionRequest {
    /// Returns the services that ask to make the call, as in `scheduling → calendar`. `None` if no service makes it.
    pub fn calling_services(&self) -> Option<String> {
        (!self.chain.is_empty()).then(|| join_chain(&self.chain))
    }

    /// Returns true if every answer holds for this request only: each merge has other changes, and a service is added
    /// once.
    pub fn is_single(&self) -> bool {
        self.single_subject().is_some()
    }

    /// Returns the one thing that an answer covers. `None` if answers can last.
    fn single_subject(&self) -> Option<&'static str> {
        match self.tool.as_str() {
            TASK_MERGE => Some("merge"),
            SERVICE_ADDITION => Some("service"),
            _ => None,
        }
    }

    /// Returns why consent covers this call only. `None` if consent can last.
    pub fn once_reason(&self) -> Option<String> {
        let single = || self.single_subject().map(|subject| format!("An answer covers this {subject} only"));
        self.protected.as_ref().map(ToString::to_string).or_else(single)
    }

    /// Returns the title of a request that Skein itself makes: for a sandbox, to merge the changes of a task, or to add a
    /// service. `None` if a tool makes it.
    pub fn own_title(&self) -> Option<&str> {
        self.sandbox_title().or_else(|| self.title.as_deref().filter(|_| self.is_single()))
    }

    /// Returns the title of a request that a sandbox makes for its processes. `None` if a tool makes it.
    pub fn sandbox_title(&self) -> Option<&str> {
        self.title.as_deref().filter(|_| self.tool.starts_with(SANDBOX_PREFIX))
    }
}

/// The scope of an "always" answer: the narrowest one that is still useful.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsentSubject {
    pub tool: String,
    pub target: ConsentTarget,
    /// The services that make the call for one another. Consent to a call of the model covers no call of a service.
    pub chain: Vec<ServiceName>,
}

/// The calls of a tool that a [`ConsentSubject`] covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ConsentTarget {
    /// This exact command line, in the background or not.
    Command { line: String, background: bool },
    /// This exact command line without a sandbox.
    Unsandboxed { line: String },
    /// Any call of the tool on this file, with links resolved.
    File { shown: String, real: PathBuf },
    /// Any call of the tool that reads from this host.
    Host(String),
    /// The call with exactly these arguments, as JSON.
    Exactly(String),
}

impl ConsentSubject {
    /// Covers every URL at this host.
    pub fn of_host(tool: &str, host: impl Into<String>) -> Self {
        Self { tool: tool.to_owned(), target: ConsentTarget::Host(host.into()), chain: Vec::new() }
    }

    /// Returns the host that the consent covers. `None` if it covers something else.
    pub fn host(&self) -> Option<&str> {
        match &self.target {
            ConsentTarget::Host(host) => Some(host),
            ConsentTarget::Command { .. }
            | ConsentTarget::Unsandboxed { .. }
            | ConsentTarget::File { .. }
            | ConsentTarget::Exactly(_) => None,
        }
    }

    /// Derives the subject of a call. `command` has a known meaning only if `builtin`; `target` is the file of a
    /// built-in tool.
    pub fn of(tool: &str, arguments: &Map<String, Value>, builtin: bool, target: Option<&FileTarget>) -> Self {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str).map(str::to_owned).filter(|_| builtin);
        let covered = match (text("command"), target) {
            (Some(line), _) if arguments.get("unsandboxed").is_some_and(Value::is_string) => {
                ConsentTarget::Unsandboxed { line }
            }
            (Some(line), _) => {
                ConsentTarget::Command { line, background: arguments.get("background") == Some(&Value::Bool(true)) }
            }
            (None, Some(target)) => ConsentTarget::File { shown: target.shown.clone(), real: target.real.clone() },
            (None, None) => ConsentTarget::Exactly(Value::Object(arguments.clone()).to_string()),
        };
        Self { tool: tool.to_owned(), target: covered, chain: Vec::new() }
    }

    /// Returns the subject of the same call if these services make it.
    #[must_use]
    pub fn by_services(&self, chain: Vec<ServiceName>) -> Self {
        Self { chain, ..self.clone() }
    }
}

impl std::fmt::Display for ConsentSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |text: &str| {
            let line: String = printable(&text.replace('\n', "⏎")).chars().take(60).collect();
            if line.chars().count() < text.chars().count() { format!("{line}…") } else { line }
        };
        match &self.target {
            ConsentTarget::Command { line, background: false } => write!(f, "`{}`", short(line)),
            ConsentTarget::Command { line, background: true } => write!(f, "`{}` in the background", short(line)),
            ConsentTarget::Unsandboxed { line } => write!(f, "`{}` without a sandbox", short(line)),
            ConsentTarget::File { shown, .. } => {
                let action = match self.tool.as_str() {
                    "developer__edit_file" => "edits of".to_owned(),
                    "developer__write_file" => "writing of".to_owned(),
                    "developer__undo_edit" => "undoing of edits of".to_owned(),
                    "developer__read_file" => "reading of".to_owned(),
                    other => format!("{} of", words(other)),
                };
                write!(f, "{action} {}", path_line(shown))
            }
            ConsentTarget::Host(host) => write!(f, "requests to {}", short(host)),
            ConsentTarget::Exactly(_) => write!(f, "exactly this call of {}", words(&self.tool)),
        }?;
        if self.chain.is_empty() { Ok(()) } else { write!(f, " by {}", join_chain(&self.chain)) }
    }
}

/// Joins services that call one another: `scheduling → calendar`.
fn join_chain(chain: &[ServiceName]) -> String {
    chain.iter().map(ServiceName::as_str).collect::<Vec<_>>().join(" → ")
}

/// Returns a tool name for people: `notes__add_item` becomes `notes: add item`.
fn words(tool: &str) -> String {
    match tool.split_once("__") {
        Some((service, tool)) => format!("{service}: {}", tool.replace('_', " ")),
        None => tool.replace('_', " "),
    }
}

/// A permission request of an external agent, with its own options.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalPermissionRequest {
    /// The requesting agent, as `agent/mode`.
    pub by: String,
    /// Id of the child session that asks, for clients that show it separately.
    pub apart: Option<String>,
    /// Id of the call in the agent's own session.
    pub call: String,
    /// Id of the call in the prompted session, if a child session asks.
    pub parent_call: Option<String>,
    /// Describes the action to the user.
    pub title: String,
    /// Arguments of the call, if the agent sent them.
    pub input: Option<Value>,
    pub options: Vec<PermissionOption>,
    /// The whole request in ACP's JSON, without the session id. Only `acp` opens it, to pass it to its client.
    pub request: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption {
    pub id: String,
    pub name: String,
    pub allows: bool,
}
