//! Checks services: their requirements, their declared groups, and the values they start with.

use super::Checks;
use super::values::ValueOrigin;
use crate::diagnostic::Diagnostic;
use crate::ids::RoleName;
use crate::manifest::{DocumentPath, Layer, Readiness, Requires, ServiceEntry, ServiceSharing, Transport};
use crate::network::RemoteHost;

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
            if entry.manifest.calls_for_session() {
                self.requirement_addresses(entry);
            }
            self.principal_sharing(entry);
            self.groups(entry);
            self.values(entry);
        }
    }

    fn requires(&mut self, entry: &'a ServiceEntry) {
        let name = &entry.manifest.name;
        for (index, (role, required)) in entry.manifest.requires.roles().into_iter().enumerate() {
            let at = requires_path(entry, index, &role);
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

    /// Checks that the program of a service can use the addresses of the services that it requires.
    fn requirement_addresses(&mut self, entry: &'a ServiceEntry) {
        let name = &entry.manifest.name;
        if entry.manifest.scope == Some(ServiceSharing::Shared) {
            let problem =
                format!("service `{name}` is shared, but requires others, and each call belongs to a session");
            let help = "remove `scope: shared`, so that each session has its own connection";
            self.error("E132", entry.source.place(&entry.path.key("scope")), problem, help);
        }
        let roles = entry.manifest.requires.roles();
        // The roles `a-b` and `a_b` would have one variable and one header.
        let plain = |role: &RoleName| role.as_str().replace('-', "_");
        for (index, (role, _)) in roles.iter().enumerate() {
            if let Some((other, _)) = roles[..index].iter().find(|(other, _)| plain(other) == plain(role)) {
                let at = entry.source.place(&requires_path(entry, index, role));
                let problem = format!("the roles `{other}` and `{role}` of service `{name}` have the same variable");
                self.error("E150", at, problem, "rename one of the roles");
            }
        }
        if let Transport::Http(http) = &entry.manifest.transport
            && !http.url.contains("${")
            && !RemoteHost::of_url(&http.url).is_some_and(|host| host.is_loopback())
        {
            let problem = format!(
                "service `{name}` requires others, but its server is not on this machine, so it cannot reach them"
            );
            let help = "run the server at 127.0.0.1, or remove `requires`";
            self.error("E150", entry.source.place(&entry.transport_path().key("url")), problem, help);
        }
    }

    /// Checks `shared_by: all`: a process with data of several principals is a decision of the user.
    fn principal_sharing(&mut self, entry: &'a ServiceEntry) {
        let (manifest, name) = (&entry.manifest, &entry.manifest.name);
        let at = || entry.source.place(&entry.path.key("shared_by"));
        if manifest.shared_by.is_some() && !matches!(entry.layer, Layer::Builtin | Layer::User) {
            let problem = format!("service `{name}` sets `shared_by`, which only your own manifests may do");
            self.error("E151", at(), problem, "remove it, or move the manifest to your config folder");
            return;
        }
        if !manifest.is_shared_by_all() {
            return;
        }
        if matches!(manifest.transport, Transport::Builtin(_)) {
            let problem = format!("built-in service `{name}` keeps the data of each principal apart");
            self.error("E151", at(), problem, "remove `shared_by: all`");
        } else if manifest.sharing() == ServiceSharing::Session {
            let problem = format!("service `{name}` has an instance for each session, so principals cannot share it");
            let help =
                "remove `shared_by: all`, or what makes it depend on the session: `scope`, `sandbox` or `requires`";
            self.error("E151", at(), problem, help);
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

/// Returns where a manifest names a required service.
fn requires_path(entry: &ServiceEntry, index: usize, role: &RoleName) -> DocumentPath {
    let at = entry.path.key("requires");
    match &entry.manifest.requires {
        Requires::Services(_) => at.index(index),
        Requires::Roles(_) => at.key(role.as_str()),
    }
}
