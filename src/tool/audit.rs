//! Defines the port through which decisions reach the audit log of a session.
//!
//! Invariant: a record names tools, hosts, rules and settings. It contains no text of a model, a user or a hook; of the
//! arguments, the log keeps a hash.

use serde_json::{Map, Value};

/// What a decision is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditKind {
    /// A call, a resource or a prompt.
    Call,
    /// A host that a process in a sandbox reaches.
    Host,
    /// A command without a sandbox.
    Escape,
    /// An answer of the user.
    Consent,
    Hook,
    /// A refusal by a managed setting.
    Managed,
}

impl AuditKind {
    pub fn as_str(self) -> &'static str {
        match self {
            AuditKind::Call => "call",
            AuditKind::Host => "host",
            AuditKind::Escape => "escape",
            AuditKind::Consent => "consent",
            AuditKind::Hook => "hook",
            AuditKind::Managed => "managed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditVerdict {
    Allow,
    /// A hook wants the user to decide.
    Ask,
    Refuse,
}

impl AuditVerdict {
    pub fn as_str(self) -> &'static str {
        match self {
            AuditVerdict::Allow => "allow",
            AuditVerdict::Ask => "ask",
            AuditVerdict::Refuse => "refuse",
        }
    }
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditSource {
    /// The tool is not in scope, or its schema or file patterns do not admit the arguments.
    Scope,
    /// The tool is not what it was when it was offered, or a path leads elsewhere.
    Change,
    /// Another task writes the same files.
    Lock,
    /// The approval level.
    Level,
    /// Permission rules.
    Rule,
    /// A list of protected paths.
    ProtectedPath,
    /// A prompt of the user names the host.
    Prompt,
    /// The sandbox profile, or a check of the sandbox.
    Sandbox,
    /// The user, now.
    User,
    /// An earlier answer of the user in this session.
    Consent,
    /// The model that judges calls at the level `smart`.
    Judge,
    /// Consent was needed, and no user could be asked.
    NoUser,
    Hook,
    /// A managed setting.
    Managed,
    /// The call was cancelled before the decision.
    Cancel,
}

impl AuditSource {
    pub fn as_str(self) -> &'static str {
        match self {
            AuditSource::Scope => "scope",
            AuditSource::Change => "change",
            AuditSource::Lock => "lock",
            AuditSource::Level => "level",
            AuditSource::Rule => "rule",
            AuditSource::ProtectedPath => "protected-path",
            AuditSource::Prompt => "prompt",
            AuditSource::Sandbox => "sandbox",
            AuditSource::User => "user",
            AuditSource::Consent => "consent",
            AuditSource::Judge => "judge",
            AuditSource::NoUser => "no-user",
            AuditSource::Hook => "hook",
            AuditSource::Managed => "managed",
            AuditSource::Cancel => "cancel",
        }
    }
}

/// A decision.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRecord {
    pub kind: AuditKind,
    /// The mode that acts, as `agent/mode`. Without a session, `command` or `client`.
    pub actor: String,
    /// A tool, a host, an event of hooks, or what a managed setting refuses.
    pub subject: String,
    /// The id of the call, if there is one.
    pub call: Option<String>,
    pub decision: AuditVerdict,
    pub source: AuditSource,
    /// The rule, level or setting that applied.
    pub rule: Option<String>,
    /// The log keeps only a hash of them.
    pub arguments: Option<Map<String, Value>>,
}

impl AuditRecord {
    /// Returns the record of a refusal by a managed setting that concerns no call. `subject` is a mode, an agent, a model,
    /// a service, a level or a flag.
    pub fn setting_refusal(actor: impl Into<String>, subject: impl Into<String>, setting: impl Into<String>) -> Self {
        Self {
            kind: AuditKind::Managed,
            actor: actor.into(),
            subject: subject.into(),
            call: None,
            decision: AuditVerdict::Refuse,
            source: AuditSource::Managed,
            rule: Some(setting.into()),
            arguments: None,
        }
    }
}

/// Receives every decision in a session.
pub trait AuditSink: Send + Sync {
    /// Appends a record to the log. Never waits.
    fn record(&self, record: AuditRecord);
}

/// The sink of a session without an audit log. Decisions go to the program's log.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAuditLog;

impl AuditSink for NoAuditLog {
    fn record(&self, AuditRecord { kind, actor, subject, decision, source, .. }: AuditRecord) {
        let (kind, decision, source) = (kind.as_str(), decision.as_str(), source.as_str());
        tracing::debug!(kind, actor, subject, decision, source, "decision in a session without an audit log");
    }
}
