//! Collects the limits of cost, tokens, requests and time that apply: those of managed files, configs and profiles.
//!
//! Invariant: every stated limit counts, so a project or a profile can only add a stricter one.

use super::budget::{BudgetConfig, BudgetLimits, BudgetPeriod};
use super::profile::ActiveProfiles;
use super::yaml::{DocumentPath, SourceFile};
use super::{Layer, Manifests};

/// Limits of one scope, and the place that states them.
#[derive(Debug, Clone, PartialEq)]
pub struct StatedBudget {
    pub scope: BudgetScope,
    pub limits: BudgetLimits,
    /// The setting and its place, for messages.
    pub source: String,
    /// True if a managed file states them.
    pub is_managed: bool,
}

/// The work that limits cover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetScope {
    Turn,
    Session,
    /// All sessions with this profile, of one principal.
    Profile {
        name: String,
        period: BudgetPeriod,
    },
    /// All sessions of one principal.
    Principal(BudgetPeriod),
}

/// Returns all limits that apply.
pub(super) fn collect(manifests: &Manifests, active: &ActiveProfiles) -> Vec<StatedBudget> {
    let mut stated = Vec::new();
    for entry in manifests.managed.entries() {
        let setting = entry.setting("limits").to_string();
        let limits = entry.config.limits.iter().flat_map(|config| of_config(config, |_| setting.clone()));
        stated.extend(limits.map(|stated| StatedBudget { is_managed: true, ..stated }));
    }
    let layers = [Layer::User, Layer::Project, Layer::Extra];
    for entry in manifests.configs.iter().filter(|entry| layers.contains(&entry.layer)) {
        let source = |key: &str| place(&entry.source, key);
        stated.extend(entry.config.limits.iter().flat_map(|config| of_config(config, source)));
    }
    for (name, profile) in &active.profiles {
        stated.extend(profile.limits.iter().map(|budget| StatedBudget {
            scope: BudgetScope::Profile { name: name.clone(), period: budget.per },
            limits: budget.limits(),
            source: format!("`limits` of the profile `{name}`"),
            is_managed: false,
        }));
    }
    stated
}

fn of_config(config: &BudgetConfig, source: impl Fn(&str) -> String) -> Vec<StatedBudget> {
    let stated = |scope, limits, key| StatedBudget { scope, limits, source: source(key), is_managed: false };
    let turn = config.turn.map(|limits| stated(BudgetScope::Turn, limits, "turn"));
    let session = config.session.map(|limits| stated(BudgetScope::Session, limits, "session"));
    let principal =
        config.principal.map(|budget| stated(BudgetScope::Principal(budget.per), budget.limits(), "principal"));
    [turn, session, principal].into_iter().flatten().collect()
}

fn place(source: &SourceFile, key: &str) -> String {
    let place = source.key_place(&DocumentPath::root().key("limits").key(key));
    match &place.span {
        Some(span) => format!("`limits.{key}` in {}:{}", place.file, span.line),
        None => format!("`limits.{key}` in {}", place.file),
    }
}
