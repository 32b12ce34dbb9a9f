//! Checks the rules for a set of manifests, one function each, and reports violations with help.

mod agents;
mod hooks;
mod managed_settings;
mod profiles;
mod sandbox;
mod serve;
mod services;
mod values;

use std::collections::{BTreeSet, HashMap, HashSet};

use super::NotePolicy;
use super::scope::ToolScope;
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::ids::{AgentName, ModeId, ModelRef, PROVIDERS, ServiceName, nearest, rest_name};
use crate::manifest::{
    ConfigEntry, DocumentPath, Layer, ManagedProvider, Manifests, PermissionRule, RuleEffect, SourceFile, Transport,
};
use crate::network::HostPattern;

pub(super) use sandbox::{check_sandboxes, note_shells};

/// Runs all checks, and resolves the tool groups of each mode.
pub(super) fn check(
    manifests: &Manifests,
    notes: NotePolicy,
    found: &mut Vec<Diagnostic>,
) -> HashMap<ModeId, ToolScope> {
    let mut checks = Checks { manifests, notes, found, asked_for: HashSet::new(), declared_groups: BTreeSet::new() };
    checks.services();
    let scopes = checks.agents();
    for config in &manifests.configs {
        checks.config(config);
    }
    for entry in manifests.managed.entries() {
        checks.check_managed(entry);
    }
    if let Some((profile, source)) = manifests.profile_file() {
        checks.profile(&source.file, profile, &DocumentPath::root(), source, Layer::User);
    }
    checks.check_unused_services();
    checks.check_rest_names();
    scopes
}

struct Checks<'a> {
    manifests: &'a Manifests,
    notes: NotePolicy,
    found: &'a mut Vec<Diagnostic>,
    asked_for: HashSet<&'a ServiceName>,
    /// Every group that any service declares, to distinguish a typo from a missing dependency.
    declared_groups: BTreeSet<&'a str>,
}

impl<'a> Checks<'a> {
    fn error(&mut self, code: &'static str, at: SourceLocation, problem: impl Into<String>, help: impl Into<String>) {
        self.found.push(Diagnostic::error(code, at, problem, help));
    }

    /// Adds a note and looks up its place, unless notes are left out.
    fn note(&mut self, code: &'static str, at: impl FnOnce() -> SourceLocation, problem: String, help: String) {
        if self.notes == NotePolicy::Report {
            self.found.push(Diagnostic::note(code, at(), problem, help));
        }
    }

    /// Returns help for a service name that no manifest defines.
    fn service_help(&self, wanted: &str) -> String {
        let free = || self.manifests.services.values().filter(|entry| entry.manifest.owner.is_none());
        let names = || free().map(|entry| entry.manifest.name.as_str());
        match nearest(wanted, names()) {
            Some(near) => format!("did you mean `{near}`? defined: {}", join_names(names())),
            None => format!("defined: {}; `skein new service {wanted}` writes a manifest", join_names(names())),
        }
    }

    /// Returns help for an agent that no manifest defines.
    fn agent_help(&self, wanted: &str) -> String {
        let names = || self.manifests.agents.keys().map(AgentName::as_str);
        match nearest(wanted, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("defined: {}", join_names(names())),
        }
    }

    /// Returns help for a mode that its agent does not have, or whose agent does not exist.
    fn mode_help(&self, wanted: &ModeId) -> String {
        let Some(agent) = self.manifests.agents.get(&wanted.agent) else {
            return self.agent_help(wanted.agent.as_str());
        };
        let offered = || agent.modes.iter().filter(|mode| !mode.mode.internal).map(|mode| mode.mode.slug.as_str());
        match nearest(wanted.mode.as_str(), offered()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("modes of `{}`: {}", wanted.agent, join_names(offered())),
        }
    }

    /// Reports every service that nothing starts.
    fn check_unused_services(&mut self) {
        let anyone_lists_mcp = self.manifests.agents.values().any(|agent| {
            agent.modes.iter().any(|mode| mode.mode.tool_groups.iter().any(|group| group.group().as_str() == "mcp"))
        });
        for (name, entry) in &self.manifests.services {
            let asked = self.asked_for.contains(name) || (anyone_lists_mcp && entry.user_installed());
            if !asked {
                let problem = format!("no mode depends on the service `{name}`");
                let help = "list it in a mode's dependencies to use it".to_owned();
                self.note("N302", || entry.name_place(), problem, help);
            }
        }
    }

    /// Reports every agent or mode whose name in the REST API is taken. The first one has the name.
    fn check_rest_names(&mut self) {
        let mut names: HashMap<String, (String, &SourceFile, DocumentPath)> = HashMap::new();
        for entry in self.manifests.agents.values() {
            let own = &entry.manifest.name;
            let modes: Vec<_> = entry.modes.iter().filter(|mode| !mode.mode.internal).collect();
            if modes.is_empty() {
                continue;
            }
            let agent = (rest_name(own.as_str()), own.to_string(), &*entry.source, DocumentPath::root().key("name"));
            let modes = modes.into_iter().map(|mode| {
                let slug = &mode.mode.slug;
                let name = format!("{}-{}", rest_name(own.as_str()), rest_name(slug.as_str()));
                (name, format!("{own}/{slug}"), &*mode.source, mode.path.key("slug"))
            });
            for (name, id, source, at) in std::iter::once(agent).chain(modes) {
                let Some((first, first_source, first_at)) = names.get(&name) else {
                    names.insert(name, (id, source, at));
                    continue;
                };
                // Two modes of one agent with one slug are an error already.
                if *first != id {
                    let problem = format!("`{id}` has the name `{name}` in the REST API, which `{first}` has already");
                    let help = "rename one of them, or else only the first one can be run over REST";
                    let diagnostic = Diagnostic::warning("W211", source.place(&at), problem, help);
                    self.found.push(diagnostic.with_related(first_source.place(first_at), "named here first"));
                }
            }
        }
    }

    fn config(&mut self, entry: &'a ConfigEntry) {
        let config = &entry.config;
        let source = &entry.source;
        self.models(entry);
        self.permissions(entry);
        self.serve(entry);
        self.store(entry);
        self.hooks(entry);
        self.delegates(&config.delegates, source);
        // A project may also name one of the user's profiles.
        let users =
            self.manifests.configs.iter().filter(|other| other.layer == Layer::User && entry.layer > Layer::User);
        let names = || users.clone().flat_map(|other| other.config.profiles.keys()).chain(config.profiles.keys());
        if let Some(profile) = config.profile.as_ref().filter(|name| !names().any(|known| known == *name)) {
            let names = || names().map(String::as_str);
            let help = match nearest(profile, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("add it under `profiles`; defined: {}", join_names(names())),
            };
            let at = source.place(&DocumentPath::root().key("profile"));
            self.error("E104", at, format!("there is no profile `{profile}`"), help);
        }
        for (index, name) in config.disabled_services.iter().enumerate() {
            self.check_disabled_name(name, &DocumentPath::root().key("disabled_services").index(index), source);
        }
        for (name, profile) in &config.profiles {
            let at = DocumentPath::root().key("profiles").key(name);
            self.profile(name, profile, &at, source, entry.layer);
        }
    }

    /// Checks permission rules. The author of a project must not decide which calls run without asking.
    fn permissions(&mut self, entry: &ConfigEntry) {
        for (index, rule) in entry.config.permissions.iter().enumerate() {
            self.host_rule(entry, index, rule);
            if let Some(tool) = &rule.tool
                && let Some(near) = self.misspelt_tool(tool)
            {
                let at = entry.source.place(&DocumentPath::root().key("permissions").index(index).key("tool"));
                let problem = format!("there is no tool `{tool}`, so the rule speaks of nothing"); // wordcheck: ok
                self.found.push(Diagnostic::warning("W206", at, problem, near));
            }
            if rule.then == RuleEffect::Allow && entry.layer == Layer::Project {
                self.error(
                    "E123",
                    entry.source.place(&DocumentPath::root().key("permissions").index(index).key("then")),
                    match (&rule.tool, &rule.host) {
                        (Some(tool), _) => format!("a project's config cannot allow calls of `{tool}`"),
                        (None, host) => {
                            let host = host.as_deref().unwrap_or_default();
                            format!("a project's config cannot allow the host `{host}`")
                        }
                    },
                    "move the rule to your own config.yaml, outside the project; a project's rules deny and ask",
                );
            }
        }
    }

    /// Reports an invalid host pattern, and a host rule with arguments.
    fn host_rule(&mut self, entry: &ConfigEntry, index: usize, rule: &PermissionRule) {
        let Some(host) = &rule.host else { return };
        let at = DocumentPath::root().key("permissions").index(index);
        if let Err(problem) = HostPattern::parse(host) {
            let help = "for example `docs.rs`, `*.example.com` or `127.0.0.1:8080`";
            self.error("E128", entry.source.place(&at.key("host")), problem.to_string(), help);
        }
        if !rule.arguments.is_empty() {
            let place = entry.source.key_place(&at.key("arguments"));
            self.error(
                "E128",
                place,
                "a host rule has no `arguments`".to_owned(),
                "remove them, or write `tool` instead",
            );
        }
    }

    /// Returns the likely correct spelling of a rule's tool. `None` if the tool may exist: the tools of a service that
    /// is not built in are unknown before it runs, and a `*` may match future tools.
    fn misspelt_tool(&self, rule: &str) -> Option<String> {
        let (service, tool) = rule.split_once("__").filter(|_| !rule.contains(['*', '/']))?;
        let Some(entry) = self.manifests.services.values().find(|entry| entry.manifest.name.as_str() == service) else {
            let near = nearest(service, self.manifests.services.keys().map(|name| name.as_str()))?;
            return Some(format!("did you mean `{near}__{tool}`?"));
        };
        let tools: BTreeSet<_> = entry.manifest.groups.values().flatten().map(|tool| tool.as_str()).collect();
        let known = matches!(entry.manifest.transport, Transport::Builtin(_)) && !tools.is_empty();
        if !known || tools.contains(tool) {
            return None;
        }
        Some(match nearest(tool, tools.iter().copied()) {
            Some(near) => format!("did you mean `{service}__{near}`?"),
            None => format!("tools of `{service}`: {}", join_names(tools.into_iter())),
        })
    }

    /// Checks models and providers. Only the user may decide where API keys are sent and which models count as free.
    fn models(&mut self, entry: &ConfigEntry) {
        let (config, source) = (&entry.config, &entry.source);
        for (field, used) in [
            ("models", !config.models.is_empty()),
            ("providers", !config.providers.is_empty()),
            ("notifications", config.notifications.is_some()),
        ] {
            if used && entry.layer == Layer::Project {
                self.error(
                    "E122",
                    source.key_place(&DocumentPath::root().key(field)),
                    format!("a project's config cannot set `{field}`"),
                    "move it to your own config.yaml, outside the project; a project chooses models by name",
                );
            }
        }
        for (name, provider) in &config.providers {
            let at = source.key_place(&DocumentPath::root().key("providers").key(name));
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let is_name = name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(plain);
            if !is_name || ModelRef::RESERVED.contains(&name.as_str()) {
                let help = "use lower-case letters, digits and `-`, and neither `offline` nor `replay`";
                self.error("E013", at, format!("`{name}` cannot be the name of a provider"), help);
            } else if provider.base_url.is_none() && !PROVIDERS.contains(&name.as_str()) {
                let help = "add `base_url`, such as http://localhost:1234/v1; only a built-in provider needs none";
                self.error("E013", at, format!("the provider `{name}` has no address"), help);
            }
        }
        let unnamed = |name: &&ModelRef| matches!(name, ModelRef::Offline | ModelRef::Malformed(_));
        for name in config.models.keys().filter(unnamed) {
            let at = source.key_place(&DocumentPath::root().key("models").key(name.to_string()));
            self.error("E013", at, format!("`{name}` is not the name of a model"), "write `provider:model`");
        }
    }

    /// Returns the problem with a model reference, and help. Only the provider knows its models, so they are not
    /// checked.
    fn model_problem(&self, model: &ModelRef) -> Option<(String, String)> {
        let own = || self.manifests.configs.iter().flat_map(|entry| entry.config.providers.keys()).map(String::as_str);
        let managed = || self.manifests.managed.provider_lists().flat_map(|(list, _)| list).map(ManagedProvider::name);
        let known = || PROVIDERS.into_iter().chain(["replay"]).chain(own()).chain(managed());
        match model {
            ModelRef::Offline | ModelRef::Replay(_) => None,
            ModelRef::Malformed(name) => {
                Some((format!("`{name}` is not the name of a model"), "write `provider:model`".to_owned()))
            }
            ModelRef::External(agent) => {
                let found = self.manifests.agents.get(agent).is_some_and(|entry| entry.manifest.runtime.is_some());
                let problem = format!("there is no external agent `{agent}`");
                (!found).then(|| (problem, "name one that has a `runtime`".to_owned()))
            }
            ModelRef::Hosted { provider, .. } if known().any(|name| name == provider) => None,
            ModelRef::Hosted { provider, .. } => {
                let help = match nearest(provider, known()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("there are: {}; others have an address under `providers`", join_names(known())),
                };
                Some((format!("there is no provider `{provider}`"), help))
            }
        }
    }

    /// Reports a referenced mode that does not exist or is internal.
    fn check_mode_reference(&mut self, id: &ModeId, at: impl FnOnce() -> SourceLocation) {
        let agent = self.manifests.agents.get(&id.agent);
        match agent.and_then(|agent| agent.modes.iter().find(|mode| mode.mode.slug == id.mode)) {
            None => {
                let help = self.mode_help(id);
                self.error("E104", at(), format!("there is no mode `{id}`"), help);
            }
            Some(mode) if mode.mode.internal => self.error(
                "E109",
                at(),
                format!("`{id}` is an internal mode and cannot be asked for"),
                "choose a mode that `skein agents` does not mark as internal",
            ),
            Some(_) => {}
        }
    }
}

/// Joins names for a help line: all if there are few, otherwise the first ones.
fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let mut names: Vec<_> = names.take(SHOWN + 1).collect();
    if names.is_empty() {
        return "nothing".to_owned();
    }
    if names.len() > SHOWN {
        names[SHOWN] = "…";
    }
    names.join(", ")
}
