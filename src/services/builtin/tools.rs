//! Connects a service that a front end implements in this process: a list of tools and a handler for their calls,
//! without MCP.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::run_guarded;
use crate::services::connection::{CallError, ServiceConnection};
use crate::tool::{CallContext, Catalog, ToolCall, ToolOutcome, ToolSpec};

/// Tools that are answered in this process.
pub trait InlineTools: Send + Sync {
    fn list(&self) -> Vec<ToolSpec>;

    fn call(&self, call: ToolCall) -> BoxFuture<'_, ToolOutcome>;
}

pub(super) struct InlineConnection(pub(super) Arc<dyn InlineTools>);

impl ServiceConnection for InlineConnection {
    fn instructions(&self) -> Option<String> {
        None
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>> {
        Box::pin(async { Ok(Catalog { tools: self.0.list(), ..Catalog::default() }) })
    }

    fn call(&self, call: ToolCall, limit: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>> {
        Box::pin(async move {
            let context = call.context.clone();
            let answer = run_guarded(&context, Some(limit), async { Ok(self.0.call(call).await) }).await?;
            answer.map_err(|error| CallError::Refused(error.message.into_owned()))
        })
    }

    fn read_resource(&self, _: String, _: CallContext, _: Duration) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async { Err(CallError::Refused("it has no resources".to_owned())) })
    }

    fn get_prompt(
        &self,
        _: String,
        _: Map<String, Value>,
        _: CallContext,
        _: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async { Err(CallError::Refused("it has no prompts".to_owned())) })
    }
}
