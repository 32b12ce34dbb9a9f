//! One live instance of a service, whatever it is reached by.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use tokio::sync::watch;

use crate::tool::{CallContext, Catalog, ToolCall, ToolOutcome};

/// What the pool holds while a service runs. Once [`Connection::closed`] gives a reason, it stays closed.
pub(super) trait ServiceConnection: Send + Sync {
    fn instructions(&self) -> Option<String>;

    /// Goes up when the service says that what it offers has changed.
    fn generation(&self) -> u64 {
        0
    }

    /// Where [`Connection::generation`] can be watched, if it can change.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>>;

    /// `limit` is the time without any sign of life, which for a built-in service is all the time there is. While the
    /// user is asked something it does not pass.
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

    /// Why it can no longer be used. What is no process and no wire does not close.
    fn closed(&self) -> Option<String> {
        None
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Why a request got no answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CallError {
    /// The connection broke after the request was handed over.
    Died(String),
    TimedOut,
    Cancelled,
    /// The service answered that it will not.
    Refused(String),
}
