//! The connection to one running instance of a service, for all transports.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use tokio::sync::watch;

use crate::tool::{CallContext, Catalog, ToolCall, ToolOutcome};

/// A connection that the pool holds while a service runs. Once [`ServiceConnection::closed`] returns a reason, the
/// connection stays closed.
pub(super) trait ServiceConnection: Send + Sync {
    fn instructions(&self) -> Option<String>;

    /// Increases when the service reports that its lists have changed.
    fn generation(&self) -> u64 {
        0
    }

    /// Returns a receiver for [`ServiceConnection::generation`]; `None` if it never changes.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>>;

    /// Calls a tool. `limit` is the time without activity; for a built-in service it is the total time. It does not
    /// run while the user is asked.
    fn call(&self, call: ToolCall, limit: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>>;

    fn read_resource(
        &self,
        uri: String,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>>;

    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>>;

    /// Returns why the connection can no longer be used. Always `None` for a connection without a process or a
    /// transport.
    fn closed(&self) -> Option<String> {
        None
    }

    /// Returns whether the service must be started again before the next call, for a reason that is not a failure.
    fn is_outdated(&self) -> bool {
        false
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// The reason why a request got no answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CallError {
    /// The connection broke after the request was sent.
    Died(String),
    TimedOut,
    Cancelled,
    /// The service answered with an error.
    Refused(String),
}
