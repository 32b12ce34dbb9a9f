//! Converts the models and providers in settings to a `ModelRegistry`.

use std::sync::Arc;

use crate::ids::ModelRef;
use crate::llm::{
    AllowedModels, AllowedProviders, ModelInfo, ModelPolicy, ModelRegistry, Price, ProviderEndpoint, RequestLimits,
    RequestQueues,
};
use crate::manifest::{ManagedProvider, ModelAllowList, ModelPrice, ProviderAllowList, Settings};

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
    let (providers, facts) = (providers.collect(), facts.collect());
    ModelRegistry { providers, facts, queues, policy: policy(settings) }
}

/// Returns the limits of managed settings.
fn policy(settings: &Settings) -> ModelPolicy {
    let providers = settings.allowed_providers.iter().map(|ProviderAllowList { providers, setting }| {
        let address = |provider: &ManagedProvider| (provider.name().to_owned(), provider.base_url().map(str::to_owned));
        AllowedProviders { addresses: providers.iter().map(address).collect(), setting: setting.to_string() }
    });
    let models = settings.allowed_models.iter().map(|ModelAllowList { models, setting }| AllowedModels {
        patterns: models.clone(),
        setting: setting.to_string(),
    });
    let price = |(name, price): (&ModelRef, &ModelPrice)| {
        let ModelPrice { input, output, cached } = *price;
        (name.clone(), Price { input, output, cached: cached.unwrap_or(input) })
    };
    let fixed_prices = settings.fixed_prices.iter().map(|prices| prices.iter().map(price).collect());
    ModelPolicy { providers: providers.collect(), models: models.collect(), fixed_prices: fixed_prices.collect() }
}
