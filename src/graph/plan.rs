//! Holds the plan: checked manifests, their graph, and the resolved scope of each mode.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::nodes::{EdgeKind, Node, ServiceGraph};
use super::sandboxes::{SandboxProfiles, is_sandboxed};
use super::scope::ToolScope;
use crate::ids::{AgentName, ModeId, NamePattern, ServiceName};
use crate::manifest::{
    AgentEntry, ApprovalLevel, Layer, ManagedExclusion, Manifests, ModeEntry, ServiceEntry, Transport,
};
use crate::sandbox::SandboxProfile;

/// A resolved, immutable set of manifests in which every name exists. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plan {
    manifests: Arc<Manifests>,
    graph: Arc<ServiceGraph>,
    scopes: Arc<HashMap<ModeId, ToolScope>>,
    /// The number of levels that must run before each service can start.
    heights: Arc<HashMap<ServiceName, usize>>,
    profiles: Arc<SandboxProfiles>,
    /// The modes of a limited plan. Empty: all.
    mode_limit: Arc<[NamePattern]>,
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
        Self {
            heights: Arc::new(graph.service_heights()),
            manifests: Arc::new(manifests),
            graph: Arc::new(graph),
            scopes: Arc::new(scopes),
            profiles: Arc::new(profiles),
            mode_limit: [].into(),
        }
    }

    /// Returns the same plan in which other modes than these do not exist, except for the internal ones that Skein
    /// itself uses. Empty: all modes.
    #[must_use]
    pub fn restrict_to(&self, mode_globs: &[String]) -> Self {
        Self { mode_limit: mode_globs.iter().map(|glob| NamePattern::new(glob)).collect(), ..self.clone() }
    }

    /// Returns the globs to which the plan is limited. Empty: all modes exist.
    pub fn mode_globs(&self) -> impl Iterator<Item = &str> {
        self.mode_limit.iter().map(NamePattern::text)
    }

    /// Returns whether both plans have the same manifests and the same modes.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.manifests, &other.manifests) && self.mode_globs().eq(other.mode_globs())
    }

    fn admits(&self, agent: &AgentEntry, mode: &ModeEntry) -> bool {
        if mode.mode.internal || !self.is_limited() {
            return true;
        }
        let id = ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone());
        let name = id.to_string();
        let in_limit = self.mode_limit.is_empty() || self.mode_limit.iter().any(|pattern| pattern.matches(&name));
        in_limit && self.manifests.managed.mode_refusal(&id, definition(agent)).is_none()
    }

    /// Returns true if some modes of the manifests do not exist in this plan.
    fn is_limited(&self) -> bool {
        !self.mode_limit.is_empty() || self.manifests.managed.limits_agents()
    }

    /// Returns why managed settings exclude the mode. `None` if the manifests do not have it, or it is allowed.
    pub fn mode_refusal(&self, id: &ModeId) -> Option<ManagedExclusion> {
        let agent = self.manifests.agents.get(id.agent.as_str())?;
        let mode = agent.modes.iter().find(|entry| entry.mode.slug == id.mode)?;
        self.manifests.managed.mode_refusal(id, definition(agent)).filter(|_| !mode.mode.internal)
    }

    /// Returns why managed settings exclude all modes of the agent. `None` if the manifests do not have it, or one of its
    /// modes is allowed.
    pub fn agent_refusal(&self, name: &str) -> Option<ManagedExclusion> {
        let agent = self.manifests.agents.get(name)?;
        let offered = agent.modes.iter().filter(|mode| !mode.mode.internal);
        let ids = offered.map(|mode| ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone()));
        let refusal = |id: ModeId| self.manifests.managed.mode_refusal(&id, definition(agent));
        let refusals: Option<Vec<_>> = ids.map(refusal).collect();
        refusals?.into_iter().next()
    }

    /// Returns whether a user may choose the mode.
    fn is_offered(&self, agent: &AgentEntry, mode: &ModeEntry) -> bool {
        !mode.mode.internal && self.admits(agent, mode)
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

    /// Returns the agents. A limited plan has only those with a mode that a user may choose.
    pub fn agents(&self) -> impl Iterator<Item = &AgentEntry> {
        self.manifests.agents.values().filter(move |agent| self.has(agent))
    }

    /// Returns the modes of an agent that exist in this plan, also internal ones.
    pub fn modes_of<'a>(&'a self, agent: &'a AgentEntry) -> impl Iterator<Item = &'a ModeEntry> {
        agent.modes.iter().filter(move |mode| self.admits(agent, mode))
    }

    /// Returns the default mode of an agent. If a limited plan does not have it, returns the agent's first mode that a
    /// user may choose.
    pub fn default_mode(&self, agent: &AgentEntry) -> Option<ModeId> {
        let default = agent.default_mode()?;
        if self.mode(&default).is_some() {
            return Some(default);
        }
        let first = agent.modes.iter().find(|mode| self.is_offered(agent, mode));
        first.map(|mode| ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone()))
    }

    fn has(&self, agent: &AgentEntry) -> bool {
        !self.is_limited() || agent.modes.iter().any(|mode| self.is_offered(agent, mode))
    }

    pub fn services(&self) -> impl Iterator<Item = &ServiceEntry> {
        self.manifests.services.values()
    }

    /// Returns the modes that a user may choose and that use the service.
    pub fn users(&self, service: &ServiceEntry) -> Vec<ModeId> {
        let mut users = Vec::new();
        for (agent, modes) in self.selectable_modes() {
            for entry in modes {
                let id = ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone());
                if self.mode(&id).is_some_and(|(_, scope)| scope.binds(service)) {
                    users.push(id);
                }
            }
        }
        users
    }

    /// Returns whether a service is part of the plan. A plan that is limited to some modes has only their services.
    pub fn reaches(&self, service: &ServiceEntry) -> bool {
        self.mode_limit.is_empty() || !self.users(service).is_empty()
    }

    pub fn agent(&self, name: &str) -> Option<&AgentEntry> {
        self.manifests.agents.get(name).filter(|agent| self.has(agent))
    }

    /// Returns the modes that a user may choose, by agent.
    pub fn selectable_modes(&self) -> impl Iterator<Item = (&AgentEntry, Vec<&ModeEntry>)> {
        self.agents().filter_map(move |agent| {
            let modes: Vec<_> = agent.modes.iter().filter(|entry| self.is_offered(agent, entry)).collect();
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
        let agent = self.manifests.agents.get(id.agent.as_str())?;
        let entry = agent.modes.iter().find(|entry| entry.mode.slug == id.mode)?;
        self.admits(agent, entry).then_some((entry, self.scopes.get(id)?))
    }

    /// Returns the default approval level of a mode: the user's config, else the mode's own. A project's config and
    /// modes, and managed settings, can only make it stricter.
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
        let level = of_project.into_iter().flatten().fold(base, ApprovalLevel::stricter);
        self.manifests.managed.tighten(level)
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
            for mode in entry.modes.iter().filter(|mode| self.is_offered(entry, mode)) {
                if wanted == "*" || wanted == mode.mode.slug.as_str() {
                    modes.push(ModeId::new(target.clone(), mode.mode.slug.clone()));
                }
            }
        }
        modes
    }
}

/// Returns the layer and the file that define an agent.
fn definition(agent: &AgentEntry) -> (Layer, &str) {
    (agent.layer, agent.source.file.as_str())
}
