//! The port through which the proxy consults host rules and the user, and the refusals that it reports.

use futures::future::BoxFuture;

use super::inspect::NameMismatch;
use crate::network::{AddressKind, RemoteHost};

/// Rules and consent, provided by the broker.
pub trait HostGate: Send + Sync {
    /// Evaluates the host rules of the user.
    fn rule(&self, host: &RemoteHost) -> HostRuling;

    /// Decides about a host without a question: by a consent for the session, a rule or the approval level. Returns `None`
    /// if the user must decide. Each connection asks this again, because the level may change while a process runs.
    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer>;

    /// Asks the user about a host. The proxy drops the future when all commands that need the answer have ended.
    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer>;

    /// Receives every decision, for the audit log.
    fn record(&self, record: &HostRecord);
}

/// What the host rules say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRuling {
    /// A rule denies the host; the text shows the rule.
    Deny(String),
    /// A rule asks about the host, even if the sandbox profile lists it.
    Ask,
    /// A rule with a wildcard allows the host.
    Allow,
    /// A rule allows the host by its exact name, and so its addresses in private networks.
    AllowExact,
    /// No rule matches.
    Silent,
}

/// A question about a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostQuestion {
    pub host: RemoteHost,
    /// The command line of the first process that needs the host. `None` for a background process.
    pub command: Option<String>,
}

/// The answer to a question. The texts are reasons for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAnswer {
    /// The user allows the host, until the command ends.
    Once,
    /// The user allows the host, until the session ends.
    Session,
    /// A rule or the approval level allows this connection. The level may change, so the next one is decided again.
    Permitted,
    /// The user refuses, until the command ends.
    Declined(String),
    /// A rule or the approval level refuses this connection. The level may change, so the next one is decided again.
    Forbidden(String),
    /// There is no user to ask about this connection. The next one asks again.
    Unavailable(String),
}

/// Identifies a running command. The proxy's address in its environment contains it as the user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandId(pub(super) u64);

impl std::fmt::Display for CommandId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "command-{}", self.0)
    }
}

impl CommandId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.strip_prefix("command-")?.parse().ok().map(Self)
    }
}

/// Who allows a host that is not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostConsent {
    User,
    /// The approval level, without a question.
    Level,
}

impl HostAnswer {
    /// Returns who allows the host. Fails with the reason of a refusal.
    pub(super) fn consent(&self) -> Result<HostConsent, RefusalReason> {
        match self.refusal() {
            Some(reason) => Err(reason),
            None if *self == HostAnswer::Permitted => Ok(HostConsent::Level),
            None => Ok(HostConsent::User),
        }
    }

    /// Returns the reason of a refusal. `None` if the answer allows the host.
    pub(super) fn refusal(&self) -> Option<RefusalReason> {
        match self {
            HostAnswer::Once | HostAnswer::Session | HostAnswer::Permitted => None,
            HostAnswer::Declined(reason) | HostAnswer::Forbidden(reason) => {
                Some(RefusalReason::Declined(reason.clone()))
            }
            HostAnswer::Unavailable(reason) => Some(RefusalReason::NoUser(reason.clone())),
        }
    }
}

/// A decision about one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRecord {
    pub host: RemoteHost,
    /// The command that connects, if it still runs.
    pub id: Option<CommandId>,
    /// Its command line. It may contain secrets, so no log has it.
    pub command: Option<String>,
    /// `None`: the connection was allowed.
    pub refusal: Option<RefusalReason>,
    /// The gate consented to the host, for this connection or before.
    pub consented: bool,
}

/// A refused connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused by the sandbox: {} ({reason})", host.authority())]
pub struct HostRefusal {
    pub host: RemoteHost,
    pub reason: RefusalReason,
}

/// The reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    #[error("the rule {0}")]
    Rule(String),
    #[error("the sandbox profile denies this host")]
    Profile,
    #[error("the sandbox profile does not list this host")]
    Unlisted,
    #[error("{0}")]
    Declined(String),
    #[error("{0}")]
    NoUser(String),
    #[error("the user has not answered yet; try again")]
    Unanswered,
    #[error("too many questions are open; try again")]
    TooManyQuestions,
    #[error("its address {address} is {kind}")]
    Address { address: String, kind: AddressKind },
    #[error("{0}")]
    OtherName(NameMismatch),
}

impl RefusalReason {
    /// Returns a name for logs. Unlike the reason itself, it never repeats what a command sent.
    pub fn name(&self) -> &'static str {
        match self {
            RefusalReason::Rule(_) => "rule",
            RefusalReason::Profile => "profile",
            RefusalReason::Unlisted => "not listed",
            RefusalReason::Declined(_) => "declined",
            RefusalReason::NoUser(_) => "no user",
            RefusalReason::Unanswered => "not answered",
            RefusalReason::TooManyQuestions => "too many questions",
            RefusalReason::Address { .. } => "address",
            RefusalReason::OtherName(_) => "server name",
        }
    }
}

impl std::fmt::Display for NameMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NameMismatch::ServerName(name) => write!(f, "TLS names another server, `{}`", name.escape_debug()),
            NameMismatch::HostHeader(name) => write!(f, "the Host header names `{}`", name.escape_debug()),
            NameMismatch::Unreadable => f.write_str("its first message is malformed"),
        }
    }
}
