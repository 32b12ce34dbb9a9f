//! A model whose requests wait until this process may start work for the session.

use std::sync::Arc;

use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};

use crate::ids::ModelRef;
use crate::llm::{EarlierThoughts, LlmError, ModelRequest, Price, Provider, RequestOrigin, StreamEvent};
use crate::tool::WorkPermit;

/// Passes requests to a model while no other process may have taken over the session.
pub(super) struct PermittedProvider {
    inner: Arc<dyn Provider>,
    permit: Arc<dyn WorkPermit>,
}

impl PermittedProvider {
    pub(super) fn new(inner: Arc<dyn Provider>, permit: Arc<dyn WorkPermit>) -> Self {
        Self { inner, permit }
    }
}

impl Provider for PermittedProvider {
    fn name(&self) -> &ModelRef {
        self.inner.name()
    }

    fn window(&self) -> Option<u64> {
        self.inner.window()
    }

    fn address(&self) -> Option<&str> {
        self.inner.address()
    }

    fn price(&self) -> Option<Price> {
        self.inner.price()
    }

    fn earlier_thoughts(&self) -> EarlierThoughts {
        self.inner.earlier_thoughts()
    }

    fn for_origin(&self, origin: &RequestOrigin) -> Option<Arc<dyn Provider>> {
        let inner = self.inner.for_origin(origin)?;
        Some(Arc::new(Self { inner, permit: Arc::clone(&self.permit) }))
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let answer = async move {
            match self.permit.admit().await {
                Ok(()) => self.inner.stream(request),
                Err(refusal) => {
                    let (model, reason) = (self.name().to_string(), refusal.to_string());
                    stream::iter([Err(LlmError::Failed { model, reason })]).boxed()
                }
            }
        };
        answer.flatten_stream().boxed()
    }
}

impl std::fmt::Debug for PermittedProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PermittedProvider").field("model", &self.name()).finish_non_exhaustive()
    }
}
