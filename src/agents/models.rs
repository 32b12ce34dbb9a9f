//! The models that settings speak of.

use crate::llm::{ModelInfo, ModelRegistry, Price, ProviderEndpoint};
use crate::manifest::Settings;

/// What the user's settings say about models and providers, for whoever asks one by name.
pub fn models(settings: &Settings) -> ModelRegistry {
    let providers = settings.providers.iter().map(|(name, address)| {
        (name.clone(), ProviderEndpoint { base_url: address.base_url.clone(), key: address.key.clone() })
    });
    let facts = settings.models.iter().map(|(name, facts)| {
        // A cost that is only half known is not known.
        let price = facts.input.zip(facts.output).map(|(input, output)| Price {
            input,
            output,
            cached: facts.cached.unwrap_or(input),
        });
        (name.clone(), ModelInfo { window: facts.window, price })
    });
    ModelRegistry { providers: providers.collect(), facts: facts.collect() }
}
