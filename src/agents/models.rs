//! The models that settings speak of.

use crate::llm::{Address, Facts, Models, Price};
use crate::manifest::Settings;

/// What the user's settings say about models and providers, for whoever asks one by name.
pub fn models(settings: &Settings) -> Models {
    let providers = settings.providers.iter().map(|(name, address)| {
        (name.clone(), Address { base_url: address.base_url.clone(), key: address.key.clone() })
    });
    let facts = settings.models.iter().map(|(name, facts)| {
        // A cost that is only half known is not known.
        let price = facts.input.zip(facts.output).map(|(input, output)| Price {
            input,
            output,
            cached: facts.cached.unwrap_or(input),
        });
        (name.clone(), Facts { window: facts.window, price })
    });
    Models { providers: providers.collect(), facts: facts.collect() }
}
