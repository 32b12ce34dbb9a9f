//! Reads managed settings: limits of an administrator that users, projects, flags and variables cannot loosen.
//!
//! Invariant: several managed files apply together, and each of them only narrows what the others leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::approval::ApprovalLevel;
use super::budget::BudgetConfig;
use super::config::SandboxConfig;
use super::managed_config::{ManagedConfig, ManagedName, ManagedProvider, ModelPrice};
use super::managed_exclusion::{ListRule, ListVerdict, ManagedExclusion, ManagedSetting, judge};
use super::schema::DocumentKind;
use super::yaml::{DocumentPath, SourceFile};
use super::{Layer, complete};
use crate::diagnostic::Diagnostic;
use crate::ids::{ModeId, ModelRef, NamePattern};
use crate::sandbox::StatedEnforcement;

/// The agent that only routes and delegates. It is part of Skein and always there.
const ORCHESTRATOR: &str = "orchestrator";

/// A request that a managed setting refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagedRefusal {
    #[error("the approval level `{}` is looser than `{}`, which {setting} sets", .level.as_str(), .loosest.as_str())]
    Approval { level: ApprovalLevel, loosest: ApprovalLevel, setting: ManagedSetting },
}

/// The text of a managed file. `file` is its displayed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedFile {
    pub file: String,
    pub text: String,
}

/// A managed file whose settings are valid.
#[derive(Debug, Clone)]
pub struct ManagedEntry {
    pub config: ManagedConfig,
    pub source: Arc<SourceFile>,
    /// `None` if every agent is allowed.
    agents: Option<Vec<ListRule>>,
    /// `None` if every service is allowed.
    services: Option<Vec<ListRule>>,
}

impl ManagedEntry {
    fn new(config: ManagedConfig, source: Arc<SourceFile>) -> Self {
        let agent = |name: &str| match name.contains('/') || name == "*" {
            true => NamePattern::new(name),
            false => NamePattern::new(&format!("{name}/*")),
        };
        let agent_rules = |names: &Vec<ManagedName>| names.iter().map(|name| ListRule::new(name, agent)).collect();
        let service_rules =
            |names: &Vec<ManagedName>| names.iter().map(|name| ListRule::new(name, NamePattern::new)).collect();
        let agents = config.agents.as_ref().map(agent_rules);
        let services = config.services.as_ref().map(service_rules);
        Self { config, source, agents, services }
    }

    /// Returns the location of a top-level key.
    pub fn setting(&self, key: &'static str) -> ManagedSetting {
        ManagedSetting { key, place: self.source.key_place(&DocumentPath::root().key(key)) }
    }

    /// Returns why a list excludes a definition in this layer and file. `None` if it is allowed.
    fn exclusion(
        &self,
        key: &'static str,
        list: Option<&[ListRule]>,
        name: &str,
        (layer, file): (Layer, &str),
    ) -> Option<ManagedExclusion> {
        let replaced_in = match judge(list, name, layer) {
            ListVerdict::Admitted => return None,
            ListVerdict::Replaced => Some(file.to_owned()),
            ListVerdict::NotListed => None,
        };
        Some(ManagedExclusion { setting: self.setting(key), replaced_in })
    }
}

/// The managed files that apply. Empty: nothing is managed.
#[derive(Debug, Clone, Default)]
pub struct ManagedLayer {
    entries: Vec<ManagedEntry>,
}

impl ManagedLayer {
    /// Reads the files. Reports each one that is invalid, which prevents a plan.
    pub(super) fn read(files: &[ManagedFile], found: &mut Vec<Diagnostic>) -> Self {
        let mut entries = Vec::new();
        for ManagedFile { file, text } in files {
            let source = SourceFile::new(file.clone(), text.clone());
            let mut value = match super::yaml::parse(&source) {
                Ok(value) => value,
                Err(diagnostic) => {
                    found.push(*diagnostic);
                    continue;
                }
            };
            if let Some(object) = value.as_object_mut() {
                complete::complete_version(object, &source, found);
            }
            let config = super::read_as(DocumentKind::Managed, value, &source, found);
            entries.extend(config.map(|config| ManagedEntry::new(config, source)));
        }
        Self { entries }
    }

    /// Returns true if both layers were read from the same texts.
    pub fn has_files_of(&self, other: &Self) -> bool {
        let text = |entry: &ManagedEntry| (entry.source.file.clone(), entry.source.text.clone());
        self.entries.iter().map(text).eq(other.entries.iter().map(text))
    }

    pub fn entries(&self) -> &[ManagedEntry] {
        &self.entries
    }

    /// Returns the loosest level that is allowed, and the setting. `None` if all levels are allowed.
    pub fn approval(&self) -> Option<(ApprovalLevel, ManagedSetting)> {
        let levels = self.entries.iter().filter_map(|entry| Some((entry.config.approval?, entry)));
        let strictest = levels.reduce(|one, other| if one.0.stricter(other.0) == one.0 { one } else { other });
        strictest.map(|(level, entry)| (level, entry.setting("approval")))
    }

    /// Returns the level, or the loosest one that is allowed if the level is looser.
    #[must_use]
    pub fn tighten(&self, level: ApprovalLevel) -> ApprovalLevel {
        self.entries.iter().filter_map(|entry| entry.config.approval).fold(level, ApprovalLevel::stricter)
    }

    /// Fails if the level is looser than allowed.
    pub fn check_approval(&self, level: ApprovalLevel) -> Result<(), ManagedRefusal> {
        match self.approval() {
            Some((loosest, setting)) if level.stricter(loosest) != level => {
                Err(ManagedRefusal::Approval { level, loosest, setting })
            }
            _ => Ok(()),
        }
    }

    /// Returns the sections `sandbox`.
    pub fn sandbox_configs(&self) -> impl Iterator<Item = &SandboxConfig> {
        self.entries.iter().filter_map(|entry| entry.config.sandbox.as_ref())
    }

    /// Returns the setting that forbids commands without a sandbox. `None` if none does.
    pub fn sandbox_requirement(&self) -> Option<ManagedSetting> {
        let requires = |entry: &&ManagedEntry| {
            let sandbox = entry.config.sandbox.as_ref();
            sandbox.is_some_and(|sandbox| sandbox.all.enforce == Some(StatedEnforcement::Required))
        };
        self.entries.iter().find(requires).map(|entry| entry.setting("sandbox"))
    }

    /// Returns true if some agents or modes are not allowed.
    pub fn limits_agents(&self) -> bool {
        self.entries.iter().any(|entry| entry.agents.is_some())
    }

    /// Returns the setting that does not allow a mode that this layer and file define. `None` if all do.
    pub fn mode_refusal(&self, id: &ModeId, definition: (Layer, &str)) -> Option<ManagedExclusion> {
        if id.agent.as_str() == ORCHESTRATOR {
            return None;
        }
        let name = id.to_string();
        self.entries.iter().find_map(|entry| entry.exclusion("agents", entry.agents.as_deref(), &name, definition))
    }

    /// Returns the setting that does not allow a service that this layer and file define. `None` if all do.
    pub fn service_refusal(&self, name: &str, definition: (Layer, &str)) -> Option<ManagedExclusion> {
        self.entries.iter().find_map(|entry| entry.exclusion("services", entry.services.as_deref(), name, definition))
    }

    /// Returns the prices of each file that limits the cost. A file without such a limit cannot lower the prices of
    /// another one.
    pub fn price_lists(&self) -> impl Iterator<Item = &BTreeMap<ModelRef, ModelPrice>> {
        let limits_cost = |config: &BudgetConfig| {
            let limits = [config.turn, config.session, config.principal.map(|budget| budget.limits())];
            limits.into_iter().flatten().any(|limits| limits.cost.is_some())
        };
        let limiting = self.entries.iter().filter(move |entry| entry.config.limits.as_ref().is_some_and(limits_cost));
        limiting.map(|entry| &entry.config.prices)
    }

    /// Returns each list of the only hosts, with its setting.
    pub fn host_lists(&self) -> impl Iterator<Item = (&[String], ManagedSetting)> {
        self.entries.iter().filter_map(|entry| Some((entry.config.hosts.as_deref()?, entry.setting("hosts"))))
    }

    /// Returns each list of the only providers, with its setting.
    pub fn provider_lists(&self) -> impl Iterator<Item = (&[ManagedProvider], ManagedSetting)> {
        self.entries.iter().filter_map(|entry| Some((entry.config.providers.as_deref()?, entry.setting("providers"))))
    }

    /// Returns each list of the only models, with its setting.
    pub fn model_lists(&self) -> impl Iterator<Item = (&[String], ManagedSetting)> {
        self.entries.iter().filter_map(|entry| Some((entry.config.models.as_deref()?, entry.setting("models"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AgentName, ModeSlug};

    /// Where the manifests of Skein itself are.
    const SHIPPED: (Layer, &str) = (Layer::Builtin, "manifests/shipped.yaml");

    fn layer(texts: &[&str]) -> ManagedLayer {
        let file = |(at, text): (usize, &&str)| ManagedFile {
            file: format!("managed{at}.yaml"),
            text: format!("version: 1\n{text}\n"),
        };
        let files: Vec<_> = texts.iter().enumerate().map(file).collect();
        let mut found = Vec::new();
        let layer = ManagedLayer::read(&files, &mut found);
        assert!(found.is_empty(), "{found:?}");
        layer
    }

    #[test]
    fn the_strictest_of_several_files_counts() {
        let layer = layer(&["approval: smart", "approval: read-only", "approval: ask"]);
        let (level, setting) = layer.approval().unwrap();
        assert_eq!((level, setting.location().as_str()), (ApprovalLevel::ReadOnly, "managed1.yaml:2"));
        for wanted in ApprovalLevel::ALL {
            let allowed = matches!(wanted, ApprovalLevel::ReadOnly | ApprovalLevel::Deny);
            assert_eq!(layer.check_approval(wanted).is_ok(), allowed, "{wanted:?}");
            assert_eq!(layer.tighten(wanted) == wanted, allowed, "{wanted:?}");
        }
    }

    #[test]
    fn an_agent_alone_stands_for_its_modes() {
        let layer = layer(&["agents: [coding, goose/planner]", "agents: ['*']"]);
        for (agent, mode, allowed) in [
            ("coding", "backend", true),
            ("goose", "planner", true),
            ("goose", "assistant", false),
            ("other", "coding", false),
            ("orchestrator", "auto", true),
        ] {
            let id = ModeId::new(AgentName::new(agent), ModeSlug::new(mode));
            assert_eq!(layer.mode_refusal(&id, SHIPPED).is_none(), allowed, "{id}");
        }
    }

    #[test]
    fn every_file_must_allow_a_service() {
        let layer = layer(&["services: [developer, 'git*']", "services: ['*'] "]);
        let refusal = |name: &str| layer.service_refusal(name, SHIPPED);
        assert!(refusal("developer").is_none() && refusal("github").is_none());
        let exclusion = refusal("memory").unwrap();
        assert_eq!(exclusion.to_string(), "the managed setting `services` (managed0.yaml:2) does not list it");
    }

    #[test]
    fn a_plain_name_stands_for_what_skein_ships() {
        let others = [Layer::User, Layer::Project, Layer::Extra, Layer::Editor].map(|layer| (layer, "own.yaml"));
        let plain = layer(&["services: [memory, '*']", "agents: [coding, '*']"]);
        let id = ModeId::new(AgentName::new("coding"), ModeSlug::new("backend"));
        assert!(plain.service_refusal("memory", SHIPPED).is_none() && plain.mode_refusal(&id, SHIPPED).is_none());
        for definition in others {
            let exclusion = plain.service_refusal("memory", definition).unwrap();
            let expected = "the managed setting `services` (managed0.yaml:2) allows it only as Skein defines it, \
                            not as own.yaml does";
            assert_eq!(exclusion.to_string(), expected);
            assert_eq!(plain.mode_refusal(&id, definition).unwrap().setting.key, "agents");
        }
        let explicit = layer(&["services: [memory, {name: 'mem*', from: user}]\nagents: [{name: coding, from: user}]"]);
        for definition in others.into_iter().chain([SHIPPED]) {
            assert!(explicit.service_refusal("memory", definition).is_none(), "{definition:?}");
            assert!(explicit.mode_refusal(&id, definition).is_none(), "{definition:?}");
        }
        let both = layer(&["services: [{name: memory, from: user}]", "services: [memory]"]);
        assert!(both.service_refusal("memory", others[0]).is_some(), "each file counts");
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        assert!(layer(&["services: []"]).service_refusal("developer", SHIPPED).is_some());
        assert!(layer(&[""]).service_refusal("developer", SHIPPED).is_none());
    }

    #[test]
    fn a_file_without_a_limit_of_cost_states_no_prices() {
        let prices = "prices: {'own:a': {input: 1, output: 2}}";
        let limited = format!("limits: {{session: {{cost: 1 USD}}}}\n{prices}");
        let layer = layer(&[limited.as_str(), prices, "limits: {turn: {tokens: 500k}}"]);
        let lists: Vec<_> = layer.price_lists().collect();
        assert_eq!(lists.len(), 1);
        assert_eq!(lists[0].get(&ModelRef::from("own:a")), Some(&ModelPrice { input: 1.0, output: 2.0, cached: None }));
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let file = ManagedFile { file: "managed.yaml".to_owned(), text: "version: 1\naproval: ask\n".to_owned() };
        let mut found = Vec::new();
        assert!(ManagedLayer::read(&[file], &mut found).entries().is_empty());
        assert!(crate::diagnostic::has_errors(&found), "{found:?}");
    }
}
