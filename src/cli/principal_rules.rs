//! The rules that a principal keeps with "always in this project": those of `local` in the user's config, others in the
//! store. Rules that an administrator writes to a config in the principal's folder apply too.

use std::sync::{Arc, Mutex, PoisonError};

use super::folders::Folders;
use super::output::CommandError;
use super::rule_store::UserConfig;
use super::store_failure::store_failure;
use super::workspace;
use crate::broker::{RuleStore, RuleStoreError};
use crate::diagnostic::SourceLocation;
use crate::manifest::{Layer, PermissionRule};
use crate::permissions::{RuleOrigin, SourcedRule};
use crate::principal::Principal;
use crate::store::{ConsentStore, StoreError, StorePlace, StoredConsent};

/// The rules of all principals. The store is opened when it is first needed.
#[derive(Debug)]
pub(super) struct PrincipalRules {
    place: StorePlace,
    consents: Mutex<Option<ConsentStore>>,
}

impl PrincipalRules {
    pub(super) fn new(place: &StorePlace) -> Arc<Self> {
        Arc::new(Self { place: place.clone(), consents: Mutex::default() })
    }

    /// Returns the rules of a principal in the store. `None` for `local`, whose rules are in the user's config.
    fn consents(&self, principal: &Principal) -> Result<Option<ConsentStore>, StoreError> {
        if principal.is_local() {
            return Ok(None);
        }
        let mut known = self.consents.lock().unwrap_or_else(PoisonError::into_inner);
        let consents = match known.take() {
            Some(consents) => consents,
            None => self.place.consents()?,
        };
        Ok(Some(known.insert(consents).of(principal.clone())))
    }

    /// Returns the rules that apply to the principal of the folders. Fails if they cannot be read.
    pub(super) fn rules(&self, folders: &Folders) -> Result<Vec<SourcedRule>, CommandError> {
        let mut rules = workspace::principal_rules(folders)?;
        let consents = self.consents(&folders.principal).map_err(|error| store_failure(&error))?;
        let stored = consents.map(|consents| consents.list()).transpose().map_err(|error| store_failure(&error))?;
        for consent in stored.unwrap_or_default() {
            rules.push(self.parse(&consent, &folders.principal)?);
        }
        Ok(rules)
    }

    fn parse(
        &self,
        StoredConsent { id, rule }: &StoredConsent,
        owner: &Principal,
    ) -> Result<SourcedRule, CommandError> {
        let rule: PermissionRule = serde_json::from_str(rule).map_err(|error| {
            let problem = format!("rule {id} of `{owner}` in {} cannot be read: {error}", self.place);
            CommandError::work(problem, format!("remove it with `skein principal rules {owner} --remove {id}`"))
        })?;
        let place = SourceLocation { file: format!("rule {id} in {}", self.place), span: None };
        Ok(SourcedRule { rule, origin: RuleOrigin::Config { layer: Layer::User, place } })
    }

    /// Returns the rules in the store, to find out whether they change. `None` for `local`, or if they cannot be read.
    pub(super) fn trace(&self, principal: &Principal) -> Option<Vec<StoredConsent>> {
        let consents = self.consents(principal).ok().flatten()?;
        consents.list().inspect_err(|error| tracing::warn!(%error, "the rules of a principal cannot be read")).ok()
    }

    /// Returns where the principal of the folders keeps a new rule.
    pub(super) fn store(self: &Arc<Self>, folders: &Folders) -> Arc<dyn RuleStore> {
        if folders.principal.is_local() {
            return Arc::new(UserConfig { folder: folders.rule_config() });
        }
        Arc::new(PrincipalRuleStore { rules: Arc::clone(self), principal: folders.principal.clone() })
    }
}

/// Keeps the rules of a principal in the store.
struct PrincipalRuleStore {
    rules: Arc<PrincipalRules>,
    principal: Principal,
}

impl RuleStore for PrincipalRuleStore {
    fn keep(&self, rule: &PermissionRule) -> Result<(), RuleStoreError> {
        let text = serde_json::to_string(rule).map_err(RuleStoreError::new)?;
        match self.rules.consents(&self.principal).map_err(RuleStoreError::new)? {
            Some(consents) => consents.keep(&text).map_err(RuleStoreError::new),
            None => Err(RuleStoreError::new("the store has no rules")),
        }
    }
}
