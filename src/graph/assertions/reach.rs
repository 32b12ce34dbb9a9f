//! Follows what a mode reaches: services it depends on, services they require, and modes it delegates to.

use std::collections::HashSet;
use std::fmt;

use crate::graph::plan::Plan;
use crate::graph::scope::ToolScope;
use crate::ids::{ModeId, NamePattern, ServiceName, nearest};
use crate::manifest::{ReachAssertion, Transport};

/// What an assertion says about reaching.
pub(super) struct ReachTarget {
    kind: TargetKind,
    name: String,
    pattern: NamePattern,
    follows_delegation: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetKind {
    Service,
    Tool,
    Group,
}

/// A mistake in `reach`.
pub(super) struct ReachMistake {
    pub(super) text: String,
    pub(super) help: String,
}

impl fmt::Display for ReachTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = match self.kind {
            TargetKind::Service => "service",
            TargetKind::Tool => "tool",
            TargetKind::Group => "group",
        };
        write!(f, "the {noun} {}", self.name)
    }
}

impl ReachTarget {
    /// Fails if not exactly one thing is named, or nothing in the plan has this name.
    pub(super) fn new(plan: &Plan, reach: &ReachAssertion) -> Result<Self, ReachMistake> {
        let (kind, name) = match (&reach.service, &reach.tool, &reach.group) {
            (Some(service), None, None) => (TargetKind::Service, service),
            (None, Some(tool), None) => (TargetKind::Tool, tool),
            (None, None, Some(group)) => (TargetKind::Group, group),
            _ => {
                return Err(ReachMistake {
                    text: "`reach` names exactly one of `service`, `tool` and `group`".to_owned(),
                    help: "write one assertion for each".to_owned(),
                });
            }
        };
        let pattern = NamePattern::new(name);
        let known = names_in_plan(plan, kind);
        if !known.iter().any(|known| pattern.matches(known)) {
            let help = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`skein services` lists services with their groups and tools".to_owned(),
            };
            return Err(ReachMistake { text: format!("nothing in the plan has the name `{name}`"), help });
        }
        Ok(Self { kind, name: name.clone(), pattern, follows_delegation: reach.delegation })
    }

    /// Returns the way from a mode to the target, if there is one.
    pub(super) fn path_from(&self, plan: &Plan, mode: &ModeId) -> Option<Vec<String>> {
        if let Some(path) = self.path_inside(plan, mode) {
            return Some(path);
        }
        // A delegated session cannot delegate again, so one step is enough.
        let delegates = if self.follows_delegation { plan.delegates(&mode.agent) } else { Vec::new() };
        delegates.iter().find_map(|delegate| {
            let path = self.path_inside(plan, delegate)?;
            Some([mode.to_string()].into_iter().chain(path).collect())
        })
    }

    /// Returns the way without delegation.
    fn path_inside(&self, plan: &Plan, mode: &ModeId) -> Option<Vec<String>> {
        let (_, scope) = plan.mode(mode)?;
        match self.kind {
            TargetKind::Group => {
                let rule = scope.rules().iter().find(|rule| self.pattern.matches(rule.group.as_str()))?;
                Some(vec![mode.to_string(), rule.group.to_string()])
            }
            TargetKind::Tool => {
                let tool = tools_of(plan, scope).into_iter().find(|tool| self.pattern.matches(tool))?;
                Some(vec![mode.to_string(), tool])
            }
            TargetKind::Service => self.service_path(plan, mode, scope),
        }
    }

    /// Searches breadth-first, so that the path is the shortest.
    fn service_path(&self, plan: &Plan, mode: &ModeId, scope: &ToolScope) -> Option<Vec<String>> {
        let bound = plan.services().filter(|service| scope.binds(service));
        let mut paths: Vec<Vec<ServiceName>> = bound.map(|service| vec![service.manifest.name.clone()]).collect();
        let mut seen: HashSet<ServiceName> = paths.iter().flatten().cloned().collect();
        let mut next = 0;
        while let Some(path) = paths.get(next).cloned() {
            next += 1;
            let last = path.last()?;
            if self.pattern.matches(last.as_str()) {
                return Some([mode.to_string()].into_iter().chain(path.iter().map(ToString::to_string)).collect());
            }
            for required in plan.requirements(last).filter(|required| seen.insert((*required).clone())) {
                paths.push(path.iter().chain([required]).cloned().collect());
            }
        }
        None
    }
}

/// Returns every mode of the plan, internal ones too.
pub(super) fn all_modes(plan: &Plan) -> Vec<ModeId> {
    let of_agent = |agent: &crate::manifest::AgentEntry| {
        let name = agent.manifest.name.clone();
        agent.modes.iter().map(move |entry| ModeId::new(name.clone(), entry.mode.slug.clone())).collect::<Vec<_>>()
    };
    plan.agents().flat_map(of_agent).collect()
}

/// Returns the declared tools that a scope admits, as `service__tool`.
pub(super) fn tools_of(plan: &Plan, scope: &ToolScope) -> Vec<String> {
    let mut tools = Vec::new();
    for service in plan.services() {
        let declared: HashSet<_> = service.manifest.groups.values().flatten().collect();
        let admitted = declared.into_iter().filter(|tool| scope.admits(service, tool.as_str()).is_ok());
        tools.extend(admitted.map(|tool| format!("{}__{tool}", service.manifest.name)));
    }
    tools.sort();
    tools
}

/// Returns true if a third-party service may have a tool of this name. Such a service can have tools that its manifest
/// does not list, and it must run to list them.
pub(super) fn may_be_undeclared(plan: &Plan, name: &str) -> bool {
    let pattern = match name.split_once("__") {
        Some((service, _)) => NamePattern::new(service),
        // A glob may cover the name of the service.
        None if name.contains(['*', '?', '[', '{']) => NamePattern::new("*"),
        None => return false,
    };
    let mut others = plan.services().filter(|service| !matches!(service.manifest.transport, Transport::Builtin(_)));
    others.any(|service| pattern.matches(service.manifest.name.as_str()))
}

/// Returns every name that a mode can list as a group. The name of a service stands for all its tools.
pub(super) fn group_names(plan: &Plan) -> Vec<String> {
    let mut names = names_in_plan(plan, TargetKind::Group);
    names.extend(names_in_plan(plan, TargetKind::Service));
    names.extend(["none", "mcp"].map(str::to_owned));
    names
}

/// Returns the services, the declared tools or the groups of the plan.
pub(super) fn names_in_plan(plan: &Plan, kind: TargetKind) -> Vec<String> {
    match kind {
        TargetKind::Service => plan.services().map(|service| service.manifest.name.to_string()).collect(),
        TargetKind::Tool => {
            let tools = plan.services().flat_map(|service| {
                let name = &service.manifest.name;
                service.manifest.groups.values().flatten().map(move |tool| format!("{name}__{tool}"))
            });
            tools.collect()
        }
        TargetKind::Group => {
            let declared = plan.services().flat_map(|service| service.manifest.groups.keys());
            let listed = all_modes(plan).into_iter().filter_map(|mode| {
                let (_, scope) = plan.mode(&mode)?;
                Some(scope.rules().iter().map(|rule| rule.group.to_string()).collect::<Vec<_>>())
            });
            declared.map(ToString::to_string).chain(listed.flatten()).collect()
        }
    }
}
