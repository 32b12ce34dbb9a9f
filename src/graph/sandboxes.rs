//! Computes the effective sandbox profile of each mode, service and external agent.
//!
//! Invariant: a mode without a profile runs no commands. A program without a profile is `unsandboxed`. If managed
//! settings require a sandbox, every program has a profile.

use std::collections::HashMap;

use super::scope::ToolScope;
use crate::ids::{AgentName, GroupName, ModeId, ServiceName};
use crate::manifest::{AgentEntry, AgentRuntime, Layer, Manifests, ModeEntry, SandboxConfig, ServiceEntry, Transport};
use crate::sandbox::{
    CommandPower, Enforcement, FileAccess, ProfileOwner, ProfileSources, SandboxProfile, SandboxSettings,
};

/// The processes that have a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    /// The commands of a mode.
    Command,
    /// A stdio service.
    Service,
    ExternalAgent,
}

/// Returns true if a sandbox limits a process with this profile.
pub fn is_sandboxed(profile: Option<&SandboxProfile>) -> bool {
    profile.is_some_and(SandboxProfile::is_applied)
}

/// The effective profiles of a plan.
#[derive(Debug, Default)]
pub(super) struct SandboxProfiles {
    pub(super) modes: HashMap<ModeId, SandboxProfile>,
    pub(super) services: HashMap<ServiceName, SandboxProfile>,
    pub(super) agents: HashMap<AgentName, SandboxProfile>,
    /// The profile of services that clients provide.
    pub(super) clients: Option<SandboxProfile>,
}

impl SandboxProfiles {
    pub(super) fn resolve(manifests: &Manifests, scopes: &HashMap<ModeId, ToolScope>) -> Self {
        let sources = ConfigSources::of(manifests);
        let mut profiles = Self { clients: sources.of_clients(), ..Self::default() };
        for agent in manifests.agents.values() {
            let name = &agent.manifest.name;
            if let Some(AgentRuntime::Acp(acp)) = &agent.manifest.runtime
                && let Some(profile) = sources.of_program(acp.sandbox.as_ref(), agent.layer)
            {
                profiles.agents.insert(name.clone(), profile);
            }
            for mode in &agent.modes {
                let id = ModeId::new(name.clone(), mode.mode.slug.clone());
                let power = scopes.get(&id).and_then(|scope| command_power(manifests, scope));
                if let Some(profile) = sources.of_mode(&id, agent, mode, power) {
                    profiles.modes.insert(id, profile);
                }
            }
        }
        for service in manifests.services.values() {
            if let Some(profile) = sources.of_service(service, profiles.clients.as_ref()) {
                profiles.services.insert(service.manifest.name.clone(), profile);
            }
        }
        profiles
    }

    /// Returns the profile of a service that is not among the manifests. `None` if it states none.
    pub(super) fn of_added_service(manifests: &Manifests, service: &ServiceEntry) -> Option<SandboxProfile> {
        let sources = ConfigSources::of(manifests);
        sources.of_service(service, sources.of_clients().as_ref())
    }
}

/// The tool groups of built-in services that decide the default.
const COMMAND: &str = "command";
const EDIT: &str = "edit";

/// Returns whether a mode runs commands, and whether it may edit all files. `None` if it runs none. Looks at the tools
/// in scope, because a mode may list the whole service instead of the group.
fn command_power(manifests: &Manifests, scope: &ToolScope) -> Option<CommandPower> {
    let builtin = manifests.services.values().filter(|service| {
        matches!(service.manifest.transport, Transport::Builtin(_)) && service.layer != Layer::Editor
    });
    let mut commands = false;
    let mut edits_all = false;
    for service in builtin {
        let tools = |group: &str| service.manifest.groups.get(&GroupName::new(group)).into_iter().flatten();
        commands |= tools(COMMAND).any(|tool| scope.admits(service, tool.as_str()).is_ok());
        edits_all |= tools(EDIT)
            .any(|tool| scope.admits(service, tool.as_str()).is_ok_and(|admission| admission.files().is_empty()));
    }
    match (commands, edits_all) {
        (false, _) => None,
        (true, true) => Some(CommandPower::EditsAll),
        (true, false) => Some(CommandPower::EditsLess),
    }
}

/// The settings of configs and the flag.
struct ConfigSources<'a> {
    user: Vec<&'a SandboxConfig>,
    project: Vec<&'a SandboxConfig>,
    /// The general settings that also apply to programs.
    user_programs: Vec<SandboxSettings>,
    project_programs: Vec<SandboxSettings>,
    flag: Option<Enforcement>,
    /// The loosest enforcement, if managed settings limit processes. Otherwise a flag would lift these limits.
    loosest: Option<Enforcement>,
    /// The profile of programs that state none. `None` if they run without a sandbox.
    unstated: Option<SandboxProfile>,
}

impl<'a> ConfigSources<'a> {
    fn of(manifests: &'a Manifests) -> Self {
        // `--manifests` is the user's word, too.
        let user = [Layer::User, Layer::Extra].into_iter().flat_map(|layer| manifests.sandbox_configs(layer));
        let user: Vec<_> = user.collect();
        // Managed settings only tighten, as a project's do.
        let project: Vec<_> =
            manifests.sandbox_configs(Layer::Project).chain(manifests.managed.sandbox_configs()).collect();
        let programs = |configs: &[&SandboxConfig]| configs.iter().map(|config| config.all.for_programs()).collect();
        Self {
            user_programs: programs(&user),
            project_programs: programs(&project),
            user,
            project,
            flag: manifests.sandbox_flag,
            loosest: manifests.managed.sandbox_configs().next().map(|_| Enforcement::Preferred),
            unstated: manifests.managed.sandbox_requirement().map(|_| SandboxProfile::of_unstated_program()),
        }
    }

    fn resolve(&self, sources: &ProfileSources<'_>) -> Option<SandboxProfile> {
        let profile = sources.resolve()?;
        let enforce = self.loosest.map_or(profile.enforce, |loosest| profile.enforce.min(loosest));
        Some(SandboxProfile { enforce, ..profile })
    }

    fn of_mode(
        &self,
        id: &ModeId,
        agent: &AgentEntry,
        mode: &ModeEntry,
        power: Option<CommandPower>,
    ) -> Option<SandboxProfile> {
        // All modes of an external agent share its process, so such a statement is an error.
        let stated = mode.mode.sandbox.as_ref().filter(|_| !agent.is_external());
        let name = id.to_string();
        let of_mode = |configs: &[&'a SandboxConfig]| -> Vec<&'a SandboxSettings> {
            let all = configs.iter().map(|config| &config.all);
            all.chain(configs.iter().filter_map(|config| config.modes.get(&name))).collect()
        };
        self.resolve(&ProfileSources {
            owner: ProfileOwner::Mode,
            default: power.map(SandboxProfile::of_commands),
            builtin: stated.filter(|_| mode.layer == Layer::Builtin),
            manifest: stated.filter(|_| mode.layer != Layer::Builtin),
            user: of_mode(&self.user),
            flag: self.flag,
            project: of_mode(&self.project),
        })
    }

    fn of_program(&self, stated: Option<&SandboxSettings>, layer: Layer) -> Option<SandboxProfile> {
        self.resolve(&ProfileSources {
            owner: ProfileOwner::Program,
            default: self.unstated.clone().filter(|_| stated.is_none()),
            builtin: stated.filter(|_| layer == Layer::Builtin),
            manifest: stated.filter(|_| layer != Layer::Builtin),
            user: self.user_programs.iter().collect(),
            flag: self.flag,
            project: self.project_programs.iter().collect(),
        })
    }

    fn of_service(&self, service: &ServiceEntry, clients: Option<&SandboxProfile>) -> Option<SandboxProfile> {
        if !matches!(service.manifest.transport, Transport::Stdio(_)) {
            return None;
        }
        if service.is_of_client() {
            return clients.cloned();
        }
        let profile = self.of_program(service.manifest.sandbox.as_ref(), service.layer)?;
        if service.manifest.sandbox.is_none() && service.manifest.is_shared_by_all() {
            // A process that all principals share has no folder of a session.
            return Some(SandboxProfile { files: FileAccess::None, ..profile });
        }
        Some(profile)
    }

    /// Returns the profile of services that clients provide. A project can state one where the user does not, because a
    /// sandbox is narrower than none.
    fn of_clients(&self) -> Option<SandboxProfile> {
        let of = |configs: &[&'a SandboxConfig]| -> Vec<&'a SandboxSettings> {
            configs.iter().filter_map(|config| config.client_services.as_ref()).collect()
        };
        let mut stated = of(&self.user);
        let tighter = of(&self.project);
        if stated.is_empty() {
            // It also tightens the result, so that a flag does not turn off what an administrator requires.
            stated.extend(tighter.first().copied());
        }
        let mut profile = self.of_program(stated.first().copied(), Layer::User)?;
        profile = tighter.iter().fold(profile, |profile, settings| settings.tighten(&profile));
        Some(profile)
    }
}
