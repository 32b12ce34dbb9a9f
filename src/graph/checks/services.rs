//! Rules about services: what they require, the groups they declare, the values they hand to a process.

use std::collections::BTreeMap;

use super::Checks;
use crate::diagnostic::Diagnostic;
use crate::manifest::{Path, Requires, ServiceEntry, Transport};

/// Group names that have a meaning of their own.
const RESERVED_GROUPS: [&str; 2] = ["none", "mcp"];

impl<'a> Checks<'a> {
    pub(super) fn services(&mut self) {
        for entry in self.manifests.services.values() {
            self.requires(entry);
            self.groups(entry);
            self.values(entry);
        }
    }

    fn requires(&mut self, entry: &'a ServiceEntry) {
        let name = &entry.manifest.name;
        for (index, (role, required)) in entry.manifest.requires.roles().into_iter().enumerate() {
            let at = entry.path.key("requires");
            let at = match &entry.manifest.requires {
                Requires::Services(_) => at.index(index),
                Requires::Roles(_) => at.key(role.as_str()),
            };
            match self.manifests.services.get(required) {
                None => {
                    let help = self.service_help(required.as_str());
                    let problem = format!("service `{name}` requires `{required}`, which no manifest defines");
                    self.error("E103", entry.source.place(&at), problem, help);
                }
                Some(target) if target.manifest.owner.is_some() && target.manifest.owner != entry.manifest.owner => {
                    let problem = format!("service `{name}` requires `{required}`, which belongs to the orchestrator");
                    self.error("E108", entry.source.place(&at), problem, "remove it");
                }
                Some(_) => {
                    self.asked_for.insert(required);
                }
            }
        }
    }

    fn groups(&mut self, entry: &'a ServiceEntry) {
        for group in entry.manifest.groups.keys() {
            self.declared_groups.insert(group.as_str());
            let at = || entry.source.key_place(&entry.path.key("groups").key(group.as_str()));
            if RESERVED_GROUPS.contains(&group.as_str()) {
                let problem = format!("`{group}` is no group a service can declare: it has a meaning of its own");
                self.error("E107", at(), problem, "choose another name for the group");
            } else if group.as_str() != entry.manifest.name.as_str()
                && self.manifests.services.contains_key(group.as_str())
            {
                let problem =
                    format!("service `{}` declares a group named like the service `{group}`", entry.manifest.name);
                self.error(
                    "E107",
                    at(),
                    problem,
                    "choose another name: a mode that lists it would not know which is meant",
                );
            }
        }
    }

    /// `${env:NAME}` is the one placeholder, and the one place for secrets.
    fn values(&mut self, entry: &'a ServiceEntry) {
        let at = entry.path.key("transport");
        match &entry.manifest.transport {
            Transport::Builtin(_) => {}
            Transport::Stdio(stdio) => {
                let at = at.key("stdio");
                for (index, argument) in stdio.args.iter().enumerate() {
                    self.placeholder(entry, &at.key("args").index(index), argument);
                }
                self.secrets(entry, &at.key("env"), &stdio.env);
            }
            Transport::Http(http) => {
                let at = at.key("http");
                self.placeholder(entry, &at.key("url"), &http.url);
                self.secrets(entry, &at.key("headers"), &http.headers);
            }
        }
    }

    fn secrets(&mut self, entry: &ServiceEntry, at: &Path, values: &BTreeMap<String, String>) {
        for (name, value) in values {
            self.placeholder(entry, &at.key(name), value);
            if looks_secret(name) && !value.is_empty() && !value.contains("${env:") {
                let mut place = entry.source.key_place(&at.key(name));
                if let Some(span) = &mut place.span {
                    // The line is shown up to the key, so that the report does not repeat the secret.
                    span.text = span.text.chars().take(span.column - 1 + span.width).chain(": …".chars()).collect();
                }
                self.found.push(Diagnostic::warning(
                    "W202",
                    place,
                    format!(
                        "`{name}` of service `{}` looks like a secret written into the manifest",
                        entry.manifest.name
                    ),
                    format!("keep it in the environment and write `{name}: ${{env:NAME}}`"),
                ));
            }
        }
    }

    fn placeholder(&mut self, entry: &ServiceEntry, at: &Path, value: &str) {
        for part in value.split("${").skip(1) {
            let inside = part.split('}').next().unwrap_or_default();
            let name = inside.strip_prefix("env:").unwrap_or_default();
            let named = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
            if !named || !part.contains('}') {
                let problem = format!("`${{{inside}}}` is not a placeholder");
                self.error("E119", entry.source.place(at), problem, "write `${env:NAME}` for an environment variable");
            }
        }
    }
}

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["token", "secret", "password", "passwd", "api_key", "apikey", "authorization", "access_key", "private_key"]
        .iter()
        .any(|word| name.contains(word))
}
