//! Defines how an exchange recovers from failed requests and a full context window.

use std::sync::Arc;

use super::ask::RetryPolicy;
use crate::llm::Provider;
use crate::manifest::Moderator;

/// Retry policy, fallback models, summarizing model and compaction strategy of an exchange.
#[derive(Clone)]
pub struct RecoveryPolicy {
    /// The model that summarizes. `None` means the model of the exchange.
    pub accelerator: Option<Arc<dyn Provider>>,
    /// The models that answer if the model of the exchange fails before it answers, in order.
    pub fallbacks: Vec<Arc<dyn Provider>>,
    pub moderator: Moderator,
    pub retry: RetryPolicy,
}

impl Default for RecoveryPolicy {
    fn default() -> Self {
        Self {
            accelerator: None,
            fallbacks: Vec::new(),
            moderator: Moderator::Summarize,
            retry: RetryPolicy::default(),
        }
    }
}

impl std::fmt::Debug for RecoveryPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let accelerator = self.accelerator.as_ref().map(|accelerator| accelerator.name());
        let fallbacks: Vec<_> = self.fallbacks.iter().map(|fallback| fallback.name()).collect();
        f.debug_struct("RecoveryPolicy")
            .field("accelerator", &accelerator)
            .field("fallbacks", &fallbacks)
            .field("moderator", &self.moderator)
            .field("patience", &self.retry)
            .finish()
    }
}
