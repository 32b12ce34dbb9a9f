//! The port through which a session learns whether it may start work in this process. Other processes may share its
//! store and take it over.

use futures::future::BoxFuture;

/// Decides whether a session may start a model request or a call.
pub trait WorkPermit: Send + Sync {
    /// Waits until work may start. Fails if it may not start any more in this process.
    fn admit(&self) -> BoxFuture<'_, Result<(), WorkRefusal>>;
}

/// Why a session starts no more work here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkRefusal(pub String);
