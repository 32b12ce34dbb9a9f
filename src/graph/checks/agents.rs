//! Checks agents and modes: their dependencies, and the meaning of their tool groups.

use std::collections::{HashMap, HashSet};

use regex::RegexBuilder;

use super::values::ValueOrigin;
use super::{Checks, join_names};
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::graph::NotePolicy;
use crate::graph::scope::{GroupRule, GroupRuleKind, ToolScope};
use crate::ids::{ModeId, ModeSlug, ServiceName, nearest};
use crate::manifest::{
    A2aRuntime, AcpRuntime, AgentEntry, AgentRuntime, DelegateEntry, Dependency, DependencyKind, DocumentPath,
    GroupEntry, Layer, ModeEntry, Readiness, ServiceEntry, SourceFile, Transport, VariableName,
};
use crate::sandbox::{self, PROTECTED_EXAMPLES};

/// An agent's name that would make the address of its modes over HTTP that of a service.
const RESERVED: &str = "services";

/// The size limit of a compiled regex. A pattern for file names needs less; a larger one is a mistake or an attack.
const MAX_REGEX: usize = 256 * 1024;

impl<'a> Checks<'a> {
    pub(super) fn agents(&mut self) -> HashMap<ModeId, ToolScope> {
        let mut scopes = HashMap::new();
        for entry in self.manifests.agents.values() {
            self.agent(entry);
            let declared: HashSet<_> = entry.manifest.metadata.dependencies.iter().map(Dependency::name).collect();
            let mut slugs: HashMap<&ModeSlug, &ModeEntry> = HashMap::new();
            for mode in &entry.modes {
                let id = ModeId::new(entry.manifest.name.clone(), mode.mode.slug.clone());
                if let Some(first) = slugs.insert(&mode.mode.slug, mode) {
                    let diagnostic = Diagnostic::error(
                        "E101",
                        mode.source.place(&mode.path.key("slug")),
                        format!("the agent has two modes `{}`", mode.mode.slug),
                        "keep one of them, or give one another slug",
                    );
                    self.found.push(
                        diagnostic.with_related(first.source.place(&first.path.key("slug")), "defined here first"),
                    );
                }
                let services = self.dependencies(&id, mode, &declared);
                let scope = self.tool_groups(&id, mode, &services);
                scopes.insert(id, scope);
            }
        }
        scopes
    }

    fn agent(&mut self, entry: &'a AgentEntry) {
        let manifest = &entry.manifest;
        if manifest.name.as_str() == RESERVED {
            let problem = format!("an agent cannot be called `{RESERVED}`: `skein serve` uses the name for services");
            self.error("E107", entry.source.place(&DocumentPath::root().key("name")), problem, "choose another name");
        }
        for (index, dependency) in manifest.metadata.dependencies.iter().enumerate() {
            let at = DocumentPath::root().key("metadata").key("dependencies").index(index);
            self.dependency(
                &format!("agent `{}`", manifest.name),
                &manifest.name,
                dependency,
                &entry.source,
                &at,
                entry.layer,
            );
        }
        match &manifest.runtime {
            Some(AgentRuntime::Acp(acp)) => self.runtime(entry, acp),
            Some(AgentRuntime::A2a(a2a)) => self.remote(entry, a2a),
            None => {}
        }
        if let Some(mode) = &manifest.default_mode {
            let id = ModeId::new(manifest.name.clone(), mode.clone());
            self.check_mode_reference(&id, || entry.source.place(&DocumentPath::root().key("default_mode")));
        }
        self.delegates(&manifest.delegates, &entry.source);
    }

    /// Checks that the agents and modes of `delegates` exist.
    pub(super) fn delegates(&mut self, delegates: &[DelegateEntry], source: &SourceFile) {
        for (index, delegate) in delegates.iter().enumerate() {
            let at = || {
                let path = DocumentPath::root().key("delegates").index(index);
                source.place(&match delegate {
                    DelegateEntry::Pattern(_) => path,
                    DelegateEntry::Detailed(_) => path.key("to"),
                })
            };
            match delegate.pattern().split_once('/') {
                Some(("*", "*")) => {}
                Some((agent, "*")) if self.manifests.agents.contains_key(agent) => {}
                Some((agent, "*")) => {
                    let help = self.agent_help(agent);
                    self.error("E104", at(), format!("there is no agent `{agent}`"), help);
                }
                _ => {
                    if let Ok(id) = delegate.pattern().parse::<ModeId>() {
                        self.check_mode_reference(&id, at);
                    }
                }
            }
        }
    }

    fn remote(&mut self, entry: &AgentEntry, a2a: &A2aRuntime) {
        let origin = ValueOrigin {
            who: format!("agent `{}`", entry.manifest.name),
            source: &entry.source,
            path: DocumentPath::root().key("runtime").key("a2a"),
        };
        self.placeholder(&origin, &origin.path.key("url"), &a2a.url);
        self.secrets(&origin, "headers", &a2a.headers);
    }

    fn runtime(&mut self, entry: &AgentEntry, acp: &AcpRuntime) {
        let mut origin = ValueOrigin {
            who: format!("agent `{}`", entry.manifest.name),
            source: &entry.source,
            path: DocumentPath::root().key("runtime").key("acp"),
        };
        if let Some(command) = &acp.command {
            self.placeholder(&origin, &origin.path.key("command"), command);
        }
        self.process(&origin, &acp.args, &acp.env);
        self.working_directory(&origin, acp.cwd.as_deref());
        for (index, VariableName(name)) in acp.inherit.iter().enumerate() {
            self.loader(name, || entry.source.place(&origin.path.key("inherit").index(index)));
        }
        let packages = [("npx", &acp.npx), ("uvx", &acp.uvx)];
        let packages = packages.into_iter().filter_map(|(key, package)| Some((key, package.as_ref()?)));
        let packages = packages.map(|(key, package)| (key, &package.args, &package.env));
        for (key, args, env) in packages.chain(acp.cargo.iter().map(|cargo| ("cargo", &cargo.args, &cargo.env))) {
            origin.path = DocumentPath::root().key("runtime").key("acp").key(key);
            self.process(&origin, args, env);
        }
    }

    /// Returns the services of a mode's dependencies that exist and that it may use.
    fn dependencies(
        &mut self,
        id: &ModeId,
        mode: &'a ModeEntry,
        declared: &HashSet<&ServiceName>,
    ) -> Vec<&'a ServiceName> {
        let mut services = Vec::new();
        for (index, dependency) in mode.mode.dependencies.iter().enumerate() {
            let at = mode.path.key("dependencies").index(index);
            let name = dependency.name();
            let usable =
                self.dependency(&format!("mode `{}`", id.mode), &id.agent, dependency, &mode.source, &at, mode.layer);
            if !usable {
                continue;
            }
            // An internal mode stays when its agent is overridden, so the built-in file's declarations apply to it.
            if !declared.contains(name) && !mode.mode.internal {
                self.error(
                    "E105",
                    mode.source.place(&at),
                    format!("mode `{}` asks for `{name}`, which its agent does not declare", id.mode),
                    format!("add `{name}` to metadata.dependencies of agent `{}`", id.agent),
                );
            }
            let planned = self.manifests.services.get(name).filter(|entry| entry.manifest.status == Readiness::Planned);
            if planned.is_some() && !dependency.optional() {
                self.found.push(Diagnostic::warning(
                    "W210",
                    mode.source.place(&at),
                    format!("mode `{}` depends on `{name}`, which is only planned, so it cannot be entered", id.mode),
                    format!("write {{name: {name}, optional: true}}, or remove the dependency"),
                ));
            }
            services.push(name);
        }
        services
    }

    /// Returns true if the graph can use the dependency: it exists or is optional.
    fn dependency(
        &mut self,
        who: &str,
        agent: &crate::ids::AgentName,
        dependency: &'a Dependency,
        source: &SourceFile,
        at: &DocumentPath,
        layer: Layer,
    ) -> bool {
        let name = dependency.name();
        if dependency.kind() != DependencyKind::Tool {
            let problem = format!("{who} names `{name}` as an agent or model; that is kept and grants nothing");
            let help = "agents are reached through `delegates`, services with `type: tool`".to_owned();
            self.note("N303", || source.place(at), problem, help);
            return false;
        }
        match self.manifests.services.get(name) {
            None if dependency.optional() => {
                let help = self.service_help(name.as_str());
                self.found.push(Diagnostic::warning(
                    "W203",
                    source.place(at),
                    format!("{who} may use service `{name}`, which no manifest defines"),
                    help,
                ));
                true
            }
            None => {
                let help = self.service_help(name.as_str());
                self.error(
                    "E103",
                    source.place(at),
                    format!("{who} needs service `{name}`, which no manifest defines"),
                    help,
                );
                false
            }
            Some(service) => {
                let owner = service.manifest.owner.as_ref();
                if owner.is_some_and(|owner| owner != agent || layer != Layer::Builtin) {
                    let problem = format!("{who} asks for `{name}`, which belongs to the orchestrator alone");
                    self.error(
                        "E108",
                        source.place(at),
                        problem,
                        "remove it; routing and delegation are the orchestrator's work",
                    );
                    return false;
                }
                self.asked_for.insert(name);
                true
            }
        }
    }

    fn tool_groups(&mut self, id: &ModeId, mode: &'a ModeEntry, needs: &[&'a ServiceName]) -> ToolScope {
        let mut understood = true;
        let needs_of_mode = needs.iter().map(|name| (*name).clone()).collect();
        let mut scope = ToolScope { needs: needs_of_mode, ..ToolScope::default() };
        for (index, entry) in mode.mode.tool_groups.iter().enumerate() {
            let at = mode.path.key("tool_groups").index(index);
            let files = match entry.files() {
                None => None,
                Some(pattern) => match RegexBuilder::new(pattern).size_limit(MAX_REGEX).build() {
                    Ok(regex) => Some(regex),
                    Err(error) => {
                        understood = false;
                        let place = mode.source.place(&at.key("files"));
                        let help = "`*.md` as a regular expression is `\\.md$`; single quotes keep the backslash";
                        self.error("E114", place, format!("not a regular expression: {}", reason(&error)), help);
                        continue;
                    }
                },
            };
            if entry.group().as_str() == "none" {
                continue;
            }
            match self.meaning(id, entry, needs, || mode.source.place(&at)) {
                Some(kind) => scope.rules.push(GroupRule { group: entry.group().clone(), kind, files }),
                None => understood = false,
            }
        }
        self.read_and_fetch(id, mode);
        self.edit_power(id, mode);
        if understood {
            self.admits_something(id, mode, &scope);
        }
        scope
    }

    /// Resolves the name of a group for a mode with these dependencies; reports a name without a meaning.
    fn meaning(
        &mut self,
        id: &ModeId,
        entry: &GroupEntry,
        needs: &[&'a ServiceName],
        at: impl FnOnce() -> SourceLocation,
    ) -> Option<GroupRuleKind> {
        let group = entry.group();
        let declares = |service: &&&ServiceName| {
            self.manifests.services.get(**service).is_some_and(|entry| entry.manifest.groups.contains_key(group))
        };
        if needs.iter().any(|service| declares(&service)) {
            Some(GroupRuleKind::Declared)
        } else if needs.iter().any(|service| service.as_str() == group.as_str()) {
            Some(GroupRuleKind::Service)
        } else if group.as_str() == "mcp" {
            Some(GroupRuleKind::Mcp)
        } else {
            let help = self.group_help(group.as_str(), needs);
            let problem =
                format!("mode `{}` lists the group `{group}`, which no service it depends on declares", id.mode);
            self.error("E106", at(), problem, help);
            None
        }
    }

    fn group_help(&self, group: &str, needs: &[&ServiceName]) -> String {
        if let Some(service) = self.manifests.services.get(group) {
            return match &service.manifest.owner {
                Some(owner) => format!("`{group}` belongs to the {owner}; remove it"),
                None => format!("add `{group}` to the mode's dependencies"),
            };
        }
        if self.declared_groups.contains(group) {
            let declaring = self
                .manifests
                .services
                .values()
                .filter(|service| service.manifest.groups.keys().any(|name| name.as_str() == group));
            let names = join_names(declaring.map(|service| service.manifest.name.as_str()));
            return format!("add a service that declares it to the mode's dependencies: {names}");
        }
        let mut known: Vec<&str> = vec!["none", "mcp"];
        for service in needs {
            known.push(service.as_str());
            let declared =
                self.manifests.services.get(*service).into_iter().flat_map(|entry| entry.manifest.groups.keys());
            known.extend(declared.map(crate::ids::GroupName::as_str));
        }
        let mut seen = HashSet::new();
        known.retain(|name| seen.insert(*name));
        match nearest(group, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("this mode can list: {}", join_names(known.into_iter())),
        }
    }

    /// Notes that file contents can leave in the URLs that a mode fetches.
    fn read_and_fetch(&mut self, id: &ModeId, mode: &'a ModeEntry) {
        let groups = &mode.mode.tool_groups;
        let position = |name: &str| groups.iter().position(|entry| entry.group().as_str() == name);
        let (Some(_), Some(position)) = (position("read"), position("fetch")) else { return };
        let at = || mode.source.place(&mode.path.key("tool_groups").index(position));
        let problem =
            format!("mode `{}` has `read` and `fetch`: file contents can leave in a URL to an allowed host", id.mode);
        let help = "Skein asks per host; narrow it with host rules, as `{host: \"*.example.com\", then: deny}`";
        self.note("N306", at, problem, help.to_owned());
    }

    /// Notes that an edit of a protected path can run programs in a mode without a shell. A shell can run them anyway.
    fn edit_power(&mut self, id: &ModeId, mode: &'a ModeEntry) {
        let groups = &mode.mode.tool_groups;
        // Each `files` is compiled here once more, only for a note.
        if self.notes == NotePolicy::LeaveOut || groups.iter().any(|entry| entry.group().as_str() == "command") {
            return;
        }
        for (position, entry) in groups.iter().enumerate().filter(|(_, entry)| entry.group().as_str() == "edit") {
            let pattern = entry.files().map(|files| RegexBuilder::new(files).size_limit(MAX_REGEX).build());
            // An invalid pattern is reported elsewhere.
            let Ok(pattern) = pattern.transpose() else { continue };
            let reaches = |path: &&&str| pattern.as_ref().is_none_or(|pattern| pattern.is_match(path));
            let Some(path) = PROTECTED_EXAMPLES.iter().find(reaches) else { continue };
            let reason = sandbox::find_protected_name(path).map_or("", |(_, reason)| reason);
            let at = || mode.source.place(&mode.path.key("tool_groups").index(position));
            let problem = format!("`edit` of mode `{}` reaches protected paths such as `{path}`: {reason}", id.mode);
            let help = "Skein asks before each write of such a path; narrow `files` to leave them out";
            self.note("N305", at, problem, help.to_owned());
        }
    }

    /// Warns about a service that starts although the mode can use none of its tools.
    fn admits_something(&mut self, id: &ModeId, mode: &'a ModeEntry, scope: &ToolScope) {
        for (index, dependency) in mode.mode.dependencies.iter().enumerate() {
            let Some(service) = self.manifests.services.get(dependency.name()) else { continue };
            // A service that a profile leaves out does not start.
            if !service.enabled || !scope.needs.contains(&service.manifest.name) || admits_any(scope, service) {
                continue;
            }
            let at = mode.source.place(&mode.path.key("dependencies").index(index));
            let groups = service.manifest.groups.keys().map(crate::ids::GroupName::as_str);
            self.found.push(Diagnostic::warning(
                "W201",
                at,
                format!(
                    "mode `{}` starts `{}`, but none of its groups admits a tool of it",
                    id.mode,
                    dependency.name()
                ),
                format!(
                    "list `{}` or one of its groups ({}), or drop the dependency",
                    dependency.name(),
                    join_names(groups)
                ),
            ));
        }
    }
}

/// Returns the last line of the parser's message; the lines before it repeat the pattern.
pub(super) fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "it grows too large".to_owned(),
        _ => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default().trim();
            last.strip_prefix("error: ").unwrap_or(last).to_owned()
        }
    }
}

fn admits_any(scope: &ToolScope, service: &ServiceEntry) -> bool {
    // A built-in service without groups has no tools to admit.
    let without_tools =
        service.manifest.groups.is_empty() && matches!(service.manifest.transport, Transport::Builtin(_));
    without_tools
        || scope.rules().iter().any(|rule| match rule.kind {
            GroupRuleKind::Declared => service.manifest.groups.contains_key(&rule.group),
            GroupRuleKind::Service => rule.group.as_str() == service.manifest.name.as_str(),
            GroupRuleKind::Mcp => service.is_in_mcp(),
            GroupRuleKind::Required => false,
        })
}
