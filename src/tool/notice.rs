//! Defines notices: warnings and hints for the user of a session.

/// A warning or hint for the user, in one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub text: String,
}

impl Notice {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }
}

/// The port through which the services of a session send notices. Must not block.
///
/// It is not `agents::Notifier`, because services know no turns: the session passes a notice to the notifier of the
/// running turn, or keeps it for the next one.
pub trait NoticeSink: Send + Sync {
    fn send(&self, notice: Notice);
}

/// Writes notices to the log, for a context without a user.
#[derive(Debug, Clone, Copy)]
pub struct LogNotices;

impl NoticeSink for LogNotices {
    fn send(&self, notice: Notice) {
        tracing::warn!("{}", notice.text);
    }
}
