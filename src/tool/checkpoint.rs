//! Defines the port through which a call announces that it may change files.

use futures::future::BoxFuture;

/// Keeps the state of the workspace before a turn changes it.
pub trait CheckpointKeeper: Send + Sync {
    /// Called before each call that may change files. The first one of a turn waits until the state is kept. If it
    /// cannot be kept, the user gets a notice and the call runs.
    fn before_change(&self) -> BoxFuture<'_, ()>;
}
