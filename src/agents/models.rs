//! Converts the models and providers in settings to a `ModelRegistry`.

use std::sync::Arc;

use crate::llm::{ModelInfo, ModelRegistry, Price, ProviderEndpoint, RequestLimits, RequestQueues};
use crate::manifest::Settings;

/// Returns the registry of the models and providers in the user's settings. All registries of a process share `queues`.
pub fn models(settings: &Settings, queues: Arc<RequestQueues>) -> ModelRegistry {
    let providers = settings.providers.iter().map(|(name, address)| {
        let limits = RequestLimits {
            concurrency: address.limits.concurrency,
            requests_per_minute: address.limits.requests_per_minute,
            tokens_per_minute: address.limits.tokens_per_minute,
        };
        (name.clone(), ProviderEndpoint { base_url: address.base_url.clone(), key: address.key.clone(), limits })
    });
    let facts = settings.models.iter().map(|(name, facts)| {
        // A price needs both input and output cost.
        let price = facts.input.zip(facts.output).map(|(input, output)| Price {
            input,
            output,
            cached: facts.cached.unwrap_or(input),
        });
        (name.clone(), ModelInfo { window: facts.window, price })
    });
    ModelRegistry { providers: providers.collect(), facts: facts.collect(), queues }
}
