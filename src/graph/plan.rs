//! Holds the plan: checked manifests, their graph, and the resolved scope of each mode.

use std::collections::{BTreeMap, HashMap};

use super::nodes::{EdgeKind, Node, ServiceGraph};
use super::sandboxes::{SandboxProfiles, is_sandboxed};
use super::scope::ToolScope;
use crate::ids::{AgentName, ModeId, ServiceName};
use crate::manifest::{AgentEntry, ApprovalLevel, Layer, Manifests, ModeEntry, ServiceEntry, Transport};
use crate::sandbox::SandboxProfile;

/// A resolved, immutable set of manifests in which every name exists.
#[derive(Debug)]
pub struct Plan {
    manifests: Manifests,
    graph: ServiceGraph,
    scopes: HashMap<ModeId, ToolScope>,
    /// The number of levels that must run before each service can start.
    heights: HashMap<ServiceName, usize>,
    profiles: SandboxProfiles,
}

/// A service that a mode starts, directly or because another service requires it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredService {
    pub service: ServiceName,
    /// True if the mode works without it.
    pub optional: bool,
}

impl Plan {
    pub(super) fn new(
        manifests: Manifests,
        graph: ServiceGraph,
        scopes: HashMap<ModeId, ToolScope>,
        profiles: SandboxProfiles,
    ) -> Self {
        let heights = graph.service_heights();
        Self { manifests, graph, scopes, heights, profiles }
    }

    /// Returns a plan without agents and services.
    pub fn empty() -> Self {
        Self::new(Manifests::default(), ServiceGraph::default(), HashMap::new(), SandboxProfiles::default())
    }

    pub fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    pub fn graph(&self) -> &ServiceGraph {
        &self.graph
    }

    pub fn agents(&self) -> impl Iterator<Item = &AgentEntry> {
        self.manifests.agents.values()
    }

    pub fn services(&self) -> impl Iterator<Item = &ServiceEntry> {
        self.manifests.services.values()
    }

    pub fn agent(&self, name: &str) -> Option<&AgentEntry> {
        self.manifests.agents.get(name)
    }

    /// Returns the modes that a user may choose, by agent.
    pub fn selectable_modes(&self) -> impl Iterator<Item = (&AgentEntry, Vec<&ModeEntry>)> {
        self.agents().filter_map(|agent| {
            let modes: Vec<_> = agent.modes.iter().filter(|entry| !entry.mode.internal).collect();
            (!modes.is_empty()).then_some((agent, modes))
        })
    }

    /// Returns whether the mode exists and a user may choose it.
    pub fn is_selectable(&self, id: &ModeId) -> bool {
        self.mode(id).is_some_and(|(entry, _)| !entry.mode.internal)
    }

    pub fn service(&self, name: &str) -> Option<&ServiceEntry> {
        self.manifests.services.get(name)
    }

    pub fn mode(&self, id: &ModeId) -> Option<(&ModeEntry, &ToolScope)> {
        let entry = self.agent(id.agent.as_str())?.modes.iter().find(|entry| entry.mode.slug == id.mode)?;
        Some((entry, self.scopes.get(id)?))
    }

    /// Returns the default approval level of a mode: the user's config, else the mode's own. A project's config and
    /// modes can only make it stricter.
    pub fn approval(&self, mode: &ModeEntry) -> ApprovalLevel {
        let configured = |layer| {
            let configs = self.manifests.configs.iter().filter(move |entry| entry.layer == layer);
            configs.filter_map(|entry| entry.config.approval).next()
        };
        let of_mode = mode.mode.approval.unwrap_or(ApprovalLevel::Ask);
        let of_project = [configured(Layer::Project), (mode.layer == Layer::Project).then_some(of_mode)];
        let base = match (configured(Layer::User), mode.layer) {
            (Some(user), _) => user,
            (None, Layer::Project) => ApprovalLevel::Ask,
            (None, Layer::Builtin | Layer::User | Layer::Extra | Layer::Editor) => of_mode,
        };
        of_project.into_iter().flatten().fold(base, ApprovalLevel::stricter)
    }

    /// Returns the effective sandbox profile of the commands of a mode. `None` if the mode runs none.
    pub fn mode_sandbox(&self, id: &ModeId) -> Option<&SandboxProfile> {
        self.profiles.modes.get(id)
    }

    /// Returns whether the user's config opens this path for the commands of a mode.
    pub fn user_reads(&self, id: &ModeId, path: &str) -> bool {
        let name = id.to_string();
        let configs = [Layer::User, Layer::Extra].into_iter().flat_map(|layer| self.manifests.sandbox_configs(layer));
        let mut settings = configs.flat_map(|config| [Some(&config.all), config.modes.get(&name)]).flatten();
        settings.any(|settings| settings.read.iter().flatten().any(|entry| entry.path == path))
    }

    /// Returns the effective sandbox profile of a stdio service. `None` if it runs without a sandbox or has no process.
    pub fn service_sandbox(&self, service: &ServiceName) -> Option<&SandboxProfile> {
        self.profiles.services.get(service)
    }

    /// Returns the effective sandbox profile of a service of the plan or of a client, or of one that a session added.
    /// `None` if it runs without a sandbox or has no process.
    pub fn sandbox_of_service(&self, service: &ServiceEntry) -> Option<SandboxProfile> {
        let name = &service.manifest.name;
        match &service.manifest.transport {
            Transport::Stdio(_) if service.is_of_client() => self.client_sandbox().cloned(),
            Transport::Stdio(_) if self.service(name.as_str()).is_some() => self.service_sandbox(name).cloned(),
            Transport::Stdio(_) => SandboxProfiles::of_added_service(&self.manifests, service),
            Transport::Builtin(_) | Transport::Http(_) => None,
        }
    }

    /// Returns the effective sandbox profile of an external agent. `None` if it runs without a sandbox.
    pub fn agent_sandbox(&self, agent: &AgentName) -> Option<&SandboxProfile> {
        self.profiles.agents.get(agent)
    }

    /// Returns the sandbox profile of stdio services that clients provide. `None` if they run without a sandbox.
    pub fn client_sandbox(&self) -> Option<&SandboxProfile> {
        self.profiles.clients.as_ref()
    }

    /// Returns true for an external agent whose process no sandbox limits. Its mode limits its requests to Skein, but
    /// not what its process does by itself. Front ends therefore show it as `unfenced`.
    pub fn is_unfenced(&self, agent: &AgentEntry) -> bool {
        agent.is_external() && !is_sandboxed(self.agent_sandbox(&agent.manifest.name))
    }

    /// Returns the services that a session in this mode needs, in start order. The services of one level start in
    /// parallel, after all lower levels.
    pub fn start_levels(&self, id: &ModeId) -> Vec<Vec<RequiredService>> {
        let mut reached: BTreeMap<ServiceName, bool> = BTreeMap::new();
        let direct = self.graph.from(&Node::Mode(id.clone())).filter_map(|(edge, node)| match (&edge.kind, node) {
            (EdgeKind::Needs { optional }, Node::Service(service)) => Some((service.clone(), *optional)),
            _ => None,
        });
        // A service that a profile leaves out starts only if another one requires it.
        let is_on = |service: &ServiceName| self.service(service.as_str()).is_none_or(|entry| entry.enabled);
        let mut pending: Vec<_> = direct.filter(|(service, _)| is_on(service)).collect();
        if self.mode(id).is_some_and(|(_, scope)| scope.lists_mcp()) {
            let brought = self.services().filter(|service| service.is_in_mcp());
            pending.extend(brought.map(|service| (service.manifest.name.clone(), true)));
        }
        while let Some((service, optional)) = pending.pop() {
            match reached.get_mut(&service) {
                // A service that is required once and optional elsewhere is required.
                Some(known) if *known && !optional => *known = false,
                Some(_) => continue,
                None => {
                    reached.insert(service.clone(), optional);
                }
            }
            pending.extend(self.requirements(&service).map(|required| (required.clone(), optional)));
        }
        let mut levels: Vec<Vec<RequiredService>> = Vec::new();
        for (service, optional) in reached {
            let height = self.heights.get(&service).copied().unwrap_or_default();
            if levels.len() <= height {
                levels.resize_with(height + 1, Vec::new);
            }
            levels[height].push(RequiredService { service, optional });
        }
        levels
    }

    /// Returns the services that a service requires.
    pub(super) fn requirements(&self, service: &ServiceName) -> impl Iterator<Item = &ServiceName> {
        self.graph.from(&Node::Service(service.clone())).filter_map(|(_, node)| match node {
            Node::Service(required) => Some(required),
            _ => None,
        })
    }

    /// Returns the modes an agent may delegate to; never an internal one.
    pub fn delegates(&self, agent: &AgentName) -> Vec<ModeId> {
        let patterns =
            self.graph.from(&Node::Agent(agent.clone())).filter_map(|(edge, node)| match (&edge.kind, node) {
                (EdgeKind::Delegates { pattern }, Node::Agent(target)) => Some((pattern, target)),
                _ => None,
            });
        let mut modes = Vec::new();
        for (pattern, target) in patterns {
            let wanted = pattern.split_once('/').map_or("", |(_, mode)| mode);
            let entry = &self.manifests.agents[target];
            for mode in entry.modes.iter().filter(|entry| !entry.mode.internal) {
                if wanted == "*" || wanted == mode.mode.slug.as_str() {
                    modes.push(ModeId::new(target.clone(), mode.mode.slug.clone()));
                }
            }
        }
        modes
    }
}
