//! A model whose requests count against the limits of a session.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use super::budget::BudgetMeter;
use super::usage_estimate::UsageEstimate;
use crate::conversation::Usage;
use crate::ids::ModelRef;
use crate::llm::{EarlierThoughts, LlmError, ModelRequest, Price, Provider, RequestOrigin, StreamEvent};

/// Passes requests to a model while the limits of the session admit more.
pub struct MeteredProvider {
    inner: Arc<dyn Provider>,
    meter: Arc<BudgetMeter>,
}

impl MeteredProvider {
    pub fn new(inner: Arc<dyn Provider>, meter: Arc<BudgetMeter>) -> Self {
        Self { inner, meter }
    }

    /// Counts the tokens of an answer and their cost.
    fn count(&self, usage: &Usage) {
        self.meter.count_answer(usage, self.price().map(|price| price.of(usage)));
    }

    /// Fails if a limit is reached, or if the cost is limited and unknown.
    fn check(&self) -> Result<(), LlmError> {
        if let Some(reason) = self.meter.limit_reached() {
            return Err(LlmError::LimitReached { reason });
        }
        let is_hosted = matches!(self.name(), ModelRef::Hosted { .. });
        match self.meter.cost_limit().filter(|_| is_hosted && self.price().is_none()) {
            Some(source) => Err(LlmError::Unusable {
                model: self.name().to_string(),
                reason: format!(
                    "its price is unknown and the cost is limited ({source}); state its price under `models` in your \
                     config.yaml, or under `prices` in the managed file that limits the cost (docs/models.md)"
                ),
            }),
            None => Ok(()),
        }
    }
}

impl Provider for MeteredProvider {
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
        Some(Arc::new(Self { inner, meter: Arc::clone(&self.meter) }))
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        if let Err(error) = self.check() {
            return stream::iter([Err(error)]).boxed();
        }
        let mut ticket = Some(self.meter.enter());
        let estimate = UsageEstimate::new(self.inner.as_ref(), &request);
        let mut answer = OpenAnswer { provider: self, estimate: Some(estimate) };
        let count = move |event: &Result<StreamEvent, LlmError>| match event {
            Ok(StreamEvent::Queued { .. }) => {}
            Ok(event) => {
                if ticket.take().is_some() {
                    self.meter.count_request();
                }
                answer.receive(event);
            }
            // A request that was refused cost nothing.
            Err(_) => drop(ticket.take()),
        };
        self.inner.stream(request).inspect(count).boxed()
    }
}

/// An answer that arrives. Dropping it before its end counts what has arrived.
struct OpenAnswer<'a> {
    provider: &'a MeteredProvider,
    /// `None` after the end of the answer.
    estimate: Option<UsageEstimate>,
}

impl OpenAnswer<'_> {
    fn receive(&mut self, event: &StreamEvent) {
        if let StreamEvent::Done { usage, .. } = event {
            self.estimate = None;
            self.provider.count(usage);
        } else if let Some(estimate) = &mut self.estimate {
            estimate.add(event);
        }
    }
}

impl Drop for OpenAnswer<'_> {
    fn drop(&mut self) {
        let usage = self.estimate.take().map(|estimate| estimate.usage());
        if let Some(usage) = usage.filter(|usage| *usage != Usage::default()) {
            self.provider.count(&usage);
        }
    }
}

impl std::fmt::Debug for MeteredProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeteredProvider").field("model", &self.name()).finish_non_exhaustive()
    }
}
