//! Checks services: their requirements, their declared groups, and the values they start with.

use super::Checks;
use super::values::ValueOrigin;
use crate::diagnostic::Diagnostic;
use crate::manifest::{Readiness, Requires, ServiceEntry, Transport};

/// Names with a special meaning in a mode's `tool_groups`.
const RESERVED: [&str; 2] = ["none", "mcp"];

impl<'a> Checks<'a> {
    pub(super) fn services(&mut self) {
        for entry in self.manifests.services.values() {
            let name = &entry.manifest.name;
            if RESERVED.contains(&name.as_str()) {
                let problem = format!("a service cannot be called `{name}`: the name is reserved for a group");
                self.error("E107", entry.source.place(&entry.path.key("name")), problem, "choose another name");
            }
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
                Some(target) => {
                    self.asked_for.insert(required);
                    if target.manifest.status == Readiness::Planned {
                        self.found.push(Diagnostic::warning(
                            "W210",
                            entry.source.place(&at),
                            format!("service `{name}` requires `{required}`, which is only planned"),
                            "remove it, or give the role to another service",
                        ));
                    }
                }
            }
        }
    }

    fn groups(&mut self, entry: &'a ServiceEntry) {
        for group in entry.manifest.groups.keys() {
            self.declared_groups.insert(group.as_str());
            let at = || entry.source.key_place(&entry.path.key("groups").key(group.as_str()));
            if RESERVED.contains(&group.as_str()) {
                let problem = format!("`{group}` is no group a service can declare: the name is reserved");
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

    fn values(&mut self, entry: &'a ServiceEntry) {
        let origin = ValueOrigin {
            who: format!("service `{}`", entry.manifest.name),
            source: &entry.source,
            path: entry.transport_path(),
        };
        if entry.manifest.settings.is_some() && !matches!(entry.manifest.transport, Transport::Builtin(_)) {
            let at = entry.source.key_place(&entry.path.key("settings"));
            let problem = format!("`settings` are read by built-in services, and `{}` is none", entry.manifest.name);
            self.error("E120", at, problem, "hand values over with `args`, `env` or `headers`");
        }
        match &entry.manifest.transport {
            Transport::Builtin(_) => {}
            Transport::Stdio(stdio) => {
                self.placeholder(&origin, &origin.path.key("command"), &stdio.command);
                self.process(&origin, &stdio.args, &stdio.env);
                self.working_directory(&origin, stdio.cwd.as_deref());
            }
            Transport::Http(http) => {
                self.placeholder(&origin, &origin.path.key("url"), &http.url);
                self.secrets(&origin, "headers", &http.headers);
            }
        }
    }
}
