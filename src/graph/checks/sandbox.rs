//! Checks sandbox settings: their hosts and paths, the limits of project manifests, and where a profile can stand.

use super::join_names;
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::graph::sandboxes::{SandboxProfiles, is_sandboxed};
use crate::ids::{ModeId, nearest};
use crate::manifest::{
    AgentEntry, AgentRuntime, ConfigEntry, DocumentPath, Layer, Manifests, ModeEntry, ServiceEntry, ServiceSharing,
    SourceFile, Transport,
};
use crate::sandbox::{
    CacheAccess, FileAccess, HostEntry, HostEntryError, HostSettings, NetworkSettings, OtherHosts, SandboxProfile,
    SandboxSettings, WritePath, is_below_root, is_relative, overlaps_hidden,
};

/// Reports the problems of all sandbox settings, and notes what a shell can write.
pub(in crate::graph) fn check_sandboxes(
    manifests: &Manifests,
    profiles: &SandboxProfiles,
    found: &mut Vec<Diagnostic>,
) {
    for agent in manifests.agents.values() {
        if let Some(AgentRuntime::Acp(acp)) = &agent.manifest.runtime
            && let Some(settings) = &acp.sandbox
        {
            let at = DocumentPath::root().key("runtime").key("acp").key("sandbox");
            SettingsCheck { source: &agent.source, at, found }.manifest(settings, agent.layer);
        }
        for mode in &agent.modes {
            check_mode(agent, mode, found);
        }
    }
    for service in manifests.services.values() {
        check_service(service, profiles, found);
    }
    for config in &manifests.configs {
        check_config(config, manifests, found);
    }
}

fn check_mode(agent: &AgentEntry, mode: &ModeEntry, found: &mut Vec<Diagnostic>) {
    if let Some(settings) = &mode.mode.sandbox {
        let at = mode.path.key("sandbox");
        if agent.is_external() {
            let (problem, help) = match agent.manifest.runtime {
                Some(AgentRuntime::A2a(_)) => ("Skein starts no process for it", "remove it; the agent is remote"),
                _ => ("all its modes share one process", "move it to `runtime.acp.sandbox`"),
            };
            let problem = format!("mode `{}` of an external agent has a `sandbox`, but {problem}", mode.mode.slug);
            found.push(Diagnostic::error("E131", mode.source.key_place(&at), problem, help));
        }
        SettingsCheck { source: &mode.source, at, found }.manifest(settings, mode.layer);
    }
}

/// Notes for each mode what its shell can write that the mode may not edit.
pub(in crate::graph) fn note_shells(manifests: &Manifests, profiles: &SandboxProfiles, found: &mut Vec<Diagnostic>) {
    for agent in manifests.agents.values() {
        for mode in &agent.modes {
            let id = ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone());
            note_shell(&id, mode, profiles.modes.get(&id), found);
        }
    }
}

fn note_shell(id: &ModeId, mode: &ModeEntry, profile: Option<&SandboxProfile>, found: &mut Vec<Diagnostic>) {
    let groups = &mode.mode.tool_groups;
    let Some(position) = groups.iter().position(|entry| entry.group().as_str() == "command") else { return };
    let reason = if groups.iter().any(|entry| entry.files().is_some()) {
        "`command` next to a `files` rule"
    } else if !groups.iter().any(|entry| entry.group().as_str() == "edit") {
        "`command` without `edit`"
    } else {
        return;
    };
    let (effect, help) = match profile {
        Some(profile) if is_sandboxed(Some(profile)) => (
            format!("its shell {}", profile.writes()),
            "`sandbox` of the mode decides what its shell may do".to_owned(),
        ),
        _ => ("its shell can still write files".to_owned(), "no sandbox applies: `approval` decides".to_owned()),
    };
    found.push(Diagnostic::note(
        "N301",
        mode.source.place(&mode.path.key("tool_groups").index(position)),
        format!("mode `{}` has {reason}: {effect}", id.mode),
        help,
    ));
}

fn check_service(service: &ServiceEntry, profiles: &SandboxProfiles, found: &mut Vec<Diagnostic>) {
    let name = &service.manifest.name;
    let at = service.path.key("sandbox");
    if let Some(settings) = &service.manifest.sandbox {
        if !matches!(service.manifest.transport, Transport::Stdio(_)) {
            found.push(Diagnostic::error(
                "E131",
                service.source.key_place(&at),
                format!("service `{name}` has a `sandbox`, but Skein starts no process for it"),
                "remove it; only `stdio` services have a process",
            ));
        }
        SettingsCheck { source: &service.source, at: at.clone(), found }.manifest(settings, service.layer);
    }
    let shared = service.manifest.scope == Some(ServiceSharing::Shared);
    if let Some(profile) = profiles.services.get(name).filter(|profile| shared && profile.is_per_root()) {
        let diagnostic = Diagnostic::error(
            "E132",
            service.source.place(&service.path.key("scope")),
            format!("service `{name}` is shared, but its sandbox depends on the session: {}", session_part(profile)),
            "remove `scope: shared`, so that each session has its own process",
        );
        found.push(diagnostic.with_related(service.source.key_place(&at), "the sandbox"));
    }
}

/// Names the part of a profile that depends on the session.
fn session_part(profile: &SandboxProfile) -> String {
    if profile.files == FileAccess::Workspace {
        return "`files: workspace`".to_owned();
    }
    if profile.network.otherwise == OtherHosts::Ask {
        return "`network` asks".to_owned();
    }
    let write = profile.write.iter().filter(|entry| **entry == WritePath::GitIgnored || is_relative(entry.as_str()));
    let read = profile.read.iter().map(|entry| entry.path.as_str());
    let hide = profile.hide.iter().map(String::as_str);
    let others = read.chain(hide).filter(|path| is_relative(path));
    write.map(WritePath::as_str).chain(others).next().map_or_else(String::new, |path| format!("`{path}`"))
}

fn check_config(config: &ConfigEntry, manifests: &Manifests, found: &mut Vec<Diagnostic>) {
    let Some(sandbox) = &config.config.sandbox else { return };
    let at = DocumentPath::root().key("sandbox");
    SettingsCheck { source: &config.source, at: at.clone(), found }.all(&sandbox.all);
    if let Some(settings) = &sandbox.client_services {
        SettingsCheck { source: &config.source, at: at.key("client_services"), found }.all(settings);
    }
    let modes = || {
        let agents = manifests.agents.values();
        agents.flat_map(|agent| agent.modes.iter().map(|mode| format!("{}/{}", agent.manifest.name, mode.mode.slug)))
    };
    for (name, settings) in &sandbox.modes {
        let at = at.key("modes").key(name);
        if !modes().any(|known| known == *name) {
            let names: Vec<_> = modes().collect();
            let help = match nearest(name, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are: {}", join_names(names.iter().map(String::as_str))),
            };
            found.push(Diagnostic::error(
                "E104",
                config.source.key_place(&at),
                format!("there is no mode `{name}`"),
                help,
            ));
        }
        SettingsCheck { source: &config.source, at, found }.all(settings);
    }
}

/// Names at the end of sockets through which a process leaves every sandbox.
const POWERFUL_SOCKETS: [(&str, &str); 5] = [
    ("docker.sock", "starts containers with all rights"),
    ("podman.sock", "starts containers"),
    ("containerd.sock", "starts containers with all rights"),
    ("bus", "starts programs through the session bus"),
    ("system_bus_socket", "controls services of the system"),
];

/// Checks the settings at one location.
struct SettingsCheck<'a, 'f> {
    source: &'a SourceFile,
    at: DocumentPath,
    found: &'f mut Vec<Diagnostic>,
}

impl SettingsCheck<'_, '_> {
    /// Checks the settings of a manifest. Those of a project have limits.
    fn manifest(&mut self, settings: &SandboxSettings, layer: Layer) {
        self.all(settings);
        if layer == Layer::Project {
            self.project(settings);
        }
    }

    fn all(&mut self, settings: &SandboxSettings) {
        for (at, host) in self.hosts(settings) {
            if let Err(error) = HostEntry::parse(&host) {
                let help = match &error {
                    HostEntryError::AddressPort(_) => format!("write the port, as in `{host}:443`"),
                    HostEntryError::Pattern(_) => {
                        "for example `docs.rs`, `*.example.com:443`, `127.0.0.1:5432` or `registries`".to_owned()
                    }
                };
                self.found.push(Diagnostic::error("E129", self.source.place(&at), error.to_string(), help));
            }
        }
        let write = settings.write.iter().flatten().map(WritePath::as_str);
        self.paths("write", write);
        self.paths("read", settings.read.iter().flatten().map(|entry| entry.path.as_str()));
        self.paths("hide", settings.hide.iter().flatten().map(String::as_str));
        self.paths("sockets", settings.sockets.iter().flatten().map(String::as_str));
        for (index, socket) in settings.sockets.iter().flatten().enumerate() {
            let name = socket.rsplit('/').next().unwrap_or_default();
            let Some((_, power)) = POWERFUL_SOCKETS.iter().find(|(listed, _)| *listed == name) else { continue };
            self.found.push(Diagnostic::warning(
                "W208",
                self.source.place(&self.at.key("sockets").index(index)),
                format!("`{socket}` opens the sandbox: a process that reaches it {power}"),
                "leave it out, and run single commands with `unsandboxed`",
            ));
        }
    }

    /// Returns the locations and texts of all hosts.
    fn hosts(&self, settings: &SandboxSettings) -> Vec<(DocumentPath, String)> {
        let at = self.at.key("network");
        let listed = |at: &DocumentPath, hosts: &[String]| -> Vec<_> {
            hosts.iter().enumerate().map(|(index, host)| (at.index(index), host.clone())).collect()
        };
        match &settings.network {
            None | Some(NetworkSettings::Word(_)) => Vec::new(),
            Some(NetworkSettings::List(hosts)) => listed(&at, hosts),
            Some(NetworkSettings::Hosts(HostSettings { allow, deny, .. })) => {
                let mut hosts = listed(&at.key("allow"), allow.as_deref().unwrap_or_default());
                hosts.extend(listed(&at.key("deny"), deny.as_deref().unwrap_or_default()));
                hosts
            }
        }
    }

    /// Reports paths that cannot be expanded.
    fn paths<'p>(&mut self, field: &str, paths: impl Iterator<Item = &'p str>) {
        for (index, path) in paths.enumerate() {
            let (problem, help) = if path.is_empty() || path.contains(char::is_control) {
                (format!("an entry of `{field}` is no path"), "write a path, or remove the entry".to_owned())
            } else if path.contains("${") {
                let help = "`~` is your home; other variables do not work in paths";
                (format!("`{path}` contains a variable"), help.to_owned())
            } else if path.starts_with('~') && path != "~" && !path.starts_with("~/") {
                (format!("`{path}` names the home of another user"), "write its whole path, or `~/…`".to_owned())
            } else if field == "sockets" && (is_relative(path) || path.contains('*')) {
                (format!("the socket `{path}` is no whole path"), "write it from `/` or `~/`, without `*`".to_owned())
            } else {
                continue;
            };
            let at = self.at.key(field).index(index);
            self.found.push(Diagnostic::error("E133", self.source.place(&at), problem, help));
        }
    }

    /// Reports what the manifest of a project must not open. Your own manifests may.
    fn project(&mut self, settings: &SandboxSettings) {
        if settings.files == Some(FileAccess::Full) {
            self.refuse(self.source.place(&self.at.key("files")), "`files: full`", "write `files: workspace`");
        }
        for (index, entry) in settings.write.iter().flatten().enumerate() {
            if *entry != WritePath::GitIgnored && !is_below_root(entry.as_str()) {
                let at = self.source.place(&self.at.key("write").index(index));
                self.refuse(at, &format!("a path outside the project (`{}`)", entry.as_str()), "name a path below it");
            }
        }
        for (index, entry) in settings.read.iter().flatten().enumerate().filter(|(_, it)| overlaps_hidden(&it.path)) {
            let at = self.source.place(&self.at.key("read").index(index));
            let what = format!("a path that may be hidden (`{}`)", entry.path);
            self.refuse(at, &what, "name a path below the project, or one without credentials");
        }
        let otherwise = settings.network.as_ref().and_then(|network| network.parts().otherwise);
        if otherwise == Some(OtherHosts::On) {
            let at = self.source.place(&self.at.key("network"));
            self.refuse(at, "all hosts", "list the hosts, or write `ask`");
        }
        for (field, used) in [
            ("sockets", settings.sockets.iter().flatten().next().is_some()),
            ("devices", settings.devices.iter().flatten().next().is_some()),
            ("caches", settings.caches == Some(CacheAccess::Shared)),
        ] {
            if used {
                let at = self.source.key_place(&self.at.key(field));
                let what = if field == "caches" { "your caches".to_owned() } else { format!("`{field}`") };
                self.refuse(at, &what, "remove it");
            }
        }
    }

    fn refuse(&mut self, at: SourceLocation, what: &str, help: &str) {
        let help = format!("{help}; your own manifests and config may open more");
        self.found.push(Diagnostic::error("E130", at, format!("a project's manifest cannot open {what}"), help));
    }
}
