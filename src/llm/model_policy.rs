//! Decides which models may be used and where their providers are.

use std::collections::BTreeMap;

use super::effort::split_effort;
use super::{LlmError, Price};
use crate::ids::{ModelRef, NamePattern};

/// The models that an administrator allows. Every list must allow a model. Without lists, all are allowed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelPolicy {
    pub providers: Vec<AllowedProviders>,
    pub models: Vec<AllowedModels>,
    /// The prices of each administrator who limits the cost. If there is one, only these and the published prices count:
    /// a user could otherwise lower the cost.
    pub fixed_prices: Vec<BTreeMap<ModelRef, Price>>,
}

/// A list of the only providers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedProviders {
    /// The address of each provider. `None` means its built-in address.
    pub addresses: BTreeMap<String, Option<String>>,
    /// The name of the setting, for messages.
    pub setting: String,
}

/// A list of the only models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedModels {
    /// As `provider:model`; `*` stands for any characters.
    pub patterns: Vec<String>,
    /// The name of the setting, for messages.
    pub setting: String,
}

impl ModelPolicy {
    /// Returns true if the prices of the user do not count.
    pub(super) fn fixes_prices(&self) -> bool {
        !self.fixed_prices.is_empty()
    }

    /// Returns the highest price that an administrator states, or who states none, the published one. `plain` is the
    /// name without an effort. `None` if the price is unknown to one of them.
    pub(super) fn price_of(&self, name: &ModelRef, plain: &ModelRef, published: Option<Price>) -> Option<Price> {
        let stated_price = |prices: &BTreeMap<_, Price>| prices.get(name).or(prices.get(plain)).copied();
        let stated = self.fixed_prices.iter().map(|prices| stated_price(prices).or(published));
        stated.collect::<Option<Vec<_>>>()?.into_iter().reduce(Price::highest)
    }

    /// Fails if the model or its provider is not allowed. `given` is the address in the config or the environment.
    /// `complete` returns the whole address; without an argument, the built-in one.
    pub(super) fn check(
        &self,
        name: &ModelRef,
        given: Option<&str>,
        complete: impl Fn(Option<&str>) -> String,
    ) -> Result<(), LlmError> {
        let ModelRef::Hosted { provider, .. } = name else { return Ok(()) };
        let not_allowed = |setting: &str, reason: String| LlmError::NotAllowed {
            model: name.to_string(),
            reason,
            setting: setting.to_owned(),
        };
        for AllowedProviders { addresses, setting } in &self.providers {
            let Some(allowed) = addresses.get(provider) else {
                return Err(not_allowed(setting, format!("{setting} does not list the provider `{provider}`")));
            };
            let plain = |address: Option<&str>| complete(address).trim_end_matches('/').to_ascii_lowercase();
            if plain(allowed.as_deref()) != plain(given) {
                let given = given.unwrap_or("its built-in address");
                let allowed = allowed.as_deref().unwrap_or("its built-in address");
                let reason = format!("{setting} allows `{provider}` only at {allowed}, not at {given}");
                return Err(not_allowed(setting, reason));
            }
        }
        match self.models.iter().find(|list| !list.admits(name)) {
            Some(list) => Err(not_allowed(&list.setting, format!("{} does not list it", list.setting))),
            None => Ok(()),
        }
    }
}

impl AllowedModels {
    /// Returns true if the list has the model. An effort in its name does not matter: `gpt-5-high` is `gpt-5`. A pattern
    /// such as `gpt-5-*` for other models would allow that, too.
    fn admits(&self, name: &ModelRef) -> bool {
        // A `*` also stands for the slashes in the names of models.
        let flat = |text: &str| text.replace('/', ":");
        let written = name.to_string();
        let (_, sent) = split_effort(&written);
        let (written, sent) = (flat(&written), flat(sent));
        let admits = |pattern: String| pattern == written || NamePattern::new(&pattern).matches(&sent);
        self.patterns.iter().any(|pattern| admits(flat(pattern)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ModelInfo, ModelRegistry};
    use super::*;

    #[test]
    fn a_user_cannot_lower_fixed_prices() {
        let flat = |price| Price { input: price, output: price, cached: price };
        let facts = ModelInfo { window: None, price: Some(flat(0.0)) };
        let price = |name: &str, stated: &[Option<f64>]| {
            let name = ModelRef::from(name);
            let list = |price: &Option<f64>| price.map(|price| (name.clone(), flat(price))).into_iter().collect();
            let policy = ModelPolicy { fixed_prices: stated.iter().map(list).collect(), ..ModelPolicy::default() };
            let models = ModelRegistry { facts: [(name.clone(), facts)].into(), policy, ..ModelRegistry::default() };
            models.info(&name, false).price.map(|price| price.input)
        };
        let (published, unpublished) = ("openai:gpt-4o", "openai:scripted");
        for (stated, of_published, of_other) in [
            (&[][..], Some(0.0), Some(0.0)),
            (&[None], Some(2.5), None),
            (&[Some(1.0)], Some(1.0), Some(1.0)),
            (&[Some(1.0), Some(0.0)], Some(1.0), Some(1.0)),
            (&[None, Some(0.0)], Some(2.5), None),
        ] {
            assert_eq!(price(published, stated), of_published, "{stated:?}");
            assert_eq!(price(unpublished, stated), of_other, "{stated:?}: the user states that the model is free");
        }
    }

    #[test]
    fn a_model_with_an_effort_costs_as_much_as_without() {
        let price = |name: &str, models: &ModelRegistry| models.info(&ModelRef::from(name), false).price;
        let published = ModelRegistry::default();
        assert!(price("openai:gpt-5-high", &published).is_some());
        assert_eq!(price("openai:gpt-5-high", &published), price("openai:gpt-5", &published));
        let stated = Price { input: 9.0, output: 9.0, cached: 9.0 };
        let fixed_prices = vec![[(ModelRef::from("openai:scripted"), stated)].into()];
        let policy = ModelPolicy { fixed_prices, ..ModelPolicy::default() };
        let models = ModelRegistry { policy, ..ModelRegistry::default() };
        assert_eq!(price("openai:scripted-high", &models), None, "its name is not of a family with efforts");
        let fixed_prices = vec![[(ModelRef::from("openai:gpt-5"), stated)].into()];
        let policy = ModelPolicy { fixed_prices, ..ModelPolicy::default() };
        let models = ModelRegistry { policy, ..ModelRegistry::default() };
        assert_eq!(price("openai:gpt-5-high", &models), Some(stated));
    }

    #[test]
    fn every_list_must_allow_the_model() {
        let providers = |names: &[(&str, Option<&str>)]| AllowedProviders {
            addresses: names.iter().map(|(name, at)| ((*name).to_owned(), at.map(str::to_owned))).collect(),
            setting: "providers".to_owned(),
        };
        let models = |patterns: &[&str]| AllowedModels {
            patterns: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
            setting: "models".to_owned(),
        };
        let policy = ModelPolicy {
            providers: vec![providers(&[("openai", None), ("own", Some("http://host/v1")), ("openrouter", None)])],
            models: vec![
                models(&["openai:gpt-*-mini", "openai:gpt-5", "openai:gpt-4-*", "own:*", "openrouter:*"]),
                models(&["*"]),
            ],
            fixed_prices: Vec::new(),
        };
        for (model, address, allowed) in [
            ("openai:gpt-5", None, true),
            ("openai:o3", None, false),
            ("openai:gpt-5-high", None, true),
            ("openai:gpt-5-mini-high", None, true),
            ("openai:gpt-4-turbo", None, true),
            ("openai:gpt-4-high", None, false),
            ("openai:gpt-5::gpt-6", None, false),
            ("openai:gpt-5", Some("https://built-in/v1/"), true),
            ("openai:gpt-5", Some("http://elsewhere/v1"), false),
            ("own:any", Some("http://HOST/v1/"), true),
            ("own:any", Some("http://elsewhere/v1"), false),
            ("own:any", None, false),
            ("openrouter:meta/llama", None, true),
            ("anthropic:claude", None, false),
            ("offline", None, true),
        ] {
            let complete = |address: Option<&str>| address.unwrap_or("https://built-in/v1").to_owned();
            let checked = policy.check(&ModelRef::from(model), address, complete);
            assert_eq!(checked.is_ok(), allowed, "{model} {address:?}");
        }
    }
}
