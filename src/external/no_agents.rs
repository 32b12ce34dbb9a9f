//! Takes the place of the external agents where they are disabled: every request fails.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::agents::{ExternalAgent, ExternalAgentError, ExternalAgents, ExternalSession, ExternalSessionRequest};
use crate::ids::ModelRef;
use crate::llm::{LlmError, ModelRequest, Provider, StreamEvent};

/// Implements [`ExternalAgents`] where external agents are disabled: every request fails.
#[derive(Debug, Clone, Copy)]
pub struct NoExternalAgents;

impl ExternalAgents for NoExternalAgents {
    fn enter(&self, _: ExternalSessionRequest) -> BoxFuture<'_, Result<Arc<dyn ExternalSession>, ExternalAgentError>> {
        Box::pin(async { Err(ExternalAgentError::Disabled) })
    }

    fn model(&self, who: ExternalAgent) -> Arc<dyn Provider> {
        Arc::new(UnavailableModel { name: ModelRef::External(who.name().clone()) })
    }
}

/// A model that fails every request, because external agents are disabled.
struct UnavailableModel {
    name: ModelRef,
}

impl Provider for UnavailableModel {
    fn name(&self) -> &ModelRef {
        &self.name
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let reason = "this skein runs no external agents".to_owned();
        futures::stream::iter([Err(LlmError::Unusable { model: self.name.to_string(), reason })]).boxed()
    }
}
