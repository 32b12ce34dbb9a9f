//! Converts the models and providers in settings to a `ModelRegistry`.

use crate::llm::{ModelInfo, ModelRegistry, Price, ProviderEndpoint};
use crate::manifest::Settings;

/// Returns the registry of the models and providers in the user's settings.
pub fn models(settings: &Settings) -> ModelRegistry {
    let providers = settings.providers.iter().map(|(name, address)| {
        (name.clone(), ProviderEndpoint { base_url: address.base_url.clone(), key: address.key.clone() })
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
    ModelRegistry { providers: providers.collect(), facts: facts.collect() }
}
