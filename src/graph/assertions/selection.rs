//! Finds the modes, agents and services that an assertion is about.

use super::AssertionCheck;
use super::reach::all_modes;
use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::graph::plan::Plan;
use crate::ids::{AgentName, ModeId, NamePattern, ServiceName, nearest};
use crate::manifest::{AgentSelector, ModeSelector, ServiceSelector, Transport, TransportName};

/// What a selector selects. Selected agents bring all their modes.
#[derive(Debug, Default)]
pub(super) struct Selection {
    pub(super) modes: Vec<ModeId>,
    pub(super) agents: Vec<AgentName>,
    pub(super) services: Vec<ServiceName>,
}

impl AssertionCheck<'_> {
    /// Returns what the selector of the assertion selects. `None` if there is a mistake, which is reported.
    pub(super) fn select(&mut self) -> Option<Selection> {
        let assertion = self.assertion;
        let selectors = [
            assertion.only.is_some(),
            assertion.mode.is_some(),
            assertion.modes.is_some(),
            assertion.agents.is_some(),
            assertion.services.is_some(),
        ];
        if selectors.iter().filter(|is_present| **is_present).count() != 1 {
            let problem = "an assertion has exactly one of `only`, `mode`, `modes`, `agents` and `services`";
            self.mistake(self.source.place(&self.path), problem, "keep one of them; write one assertion for each");
            return None;
        }
        if let Some(names) = &assertion.only {
            return self.modes_named("only", names);
        }
        if let Some(name) = &assertion.mode {
            return self.modes_named("mode", std::slice::from_ref(name));
        }
        match (&assertion.modes, &assertion.agents, &assertion.services) {
            (Some(ModeSelector::Names(names)), _, _) => self.modes_named("modes", names),
            (Some(ModeSelector::Group(group)), _, _) => self.modes_with_group(&group.group),
            (_, Some(agents), _) => self.agents(agents),
            (_, _, Some(services)) => self.services(services),
            (None, None, None) => None,
        }
    }

    fn modes_named(&mut self, field: &str, names: &[String]) -> Option<Selection> {
        let known: Vec<_> = all_modes(self.plan).iter().map(ToString::to_string).collect();
        let chosen = self.choose(field, "mode", names, &known)?;
        let modes = all_modes(self.plan).into_iter().filter(|mode| chosen.contains(&mode.to_string())).collect();
        Some(Selection { modes, ..Selection::default() })
    }

    fn modes_with_group(&mut self, group: &str) -> Option<Selection> {
        let pattern = NamePattern::new(group);
        let has_group = |mode: &ModeId| {
            let scope = self.plan.mode(mode).map(|(_, scope)| scope);
            scope.is_some_and(|scope| scope.rules().iter().any(|rule| pattern.matches(rule.group.as_str())))
        };
        let modes: Vec<_> = all_modes(self.plan).into_iter().filter(has_group).collect();
        if modes.is_empty() {
            let known = all_modes(self.plan).into_iter().flat_map(|mode| self.names_of(&mode, "groups"));
            let known: Vec<_> = known.collect();
            self.report_unknown(&["modes", "group"], "group", group, &known);
            return None;
        }
        Some(Selection { modes, ..Selection::default() })
    }

    fn agents(&mut self, selector: &AgentSelector) -> Option<Selection> {
        let agents: Vec<AgentName> = match selector {
            AgentSelector::Names(names) => {
                let known: Vec<_> = self.plan.agents().map(|agent| agent.manifest.name.to_string()).collect();
                let chosen = self.choose("agents", "agent", names, &known)?;
                chosen.into_iter().map(AgentName::new).collect()
            }
            AgentSelector::External(wanted) => {
                let is_wanted = |agent: &&crate::manifest::AgentEntry| agent.is_external() == wanted.external;
                self.plan.agents().filter(is_wanted).map(|agent| agent.manifest.name.clone()).collect()
            }
        };
        if agents.is_empty() {
            let at = self.source.place(&self.path.key("agents"));
            let help = "an assertion about nothing proves nothing: remove it, or load the manifests that it is about";
            self.found.push(Diagnostic::error("E141", at, "no agent is selected", help));
            return None;
        }
        let modes = all_modes(self.plan).into_iter().filter(|mode| agents.contains(&mode.agent)).collect();
        Some(Selection { modes, agents, services: Vec::new() })
    }

    fn services(&mut self, selector: &ServiceSelector) -> Option<Selection> {
        let services: Vec<ServiceName> = match selector {
            ServiceSelector::Names(names) => {
                let known: Vec<_> = self.plan.services().map(|service| service.manifest.name.to_string()).collect();
                let chosen = self.choose("services", "service", names, &known)?;
                chosen.into_iter().map(ServiceName::new).collect()
            }
            ServiceSelector::Transport(wanted) => services_with(self.plan, wanted.transport),
        };
        if services.is_empty() {
            let at = self.source.place(&self.path.key("services"));
            let help = "an assertion about nothing proves nothing: remove it, or load the manifests that it is about";
            self.found.push(Diagnostic::error("E141", at, "no service is selected", help));
            return None;
        }
        Some(Selection { services, ..Selection::default() })
    }

    /// Returns the known names that the written ones match. Each must match one.
    fn choose(&mut self, field: &str, noun: &str, written: &[String], known: &[String]) -> Option<Vec<String>> {
        let mut chosen = Vec::new();
        let mut is_complete = true;
        for (index, name) in written.iter().enumerate() {
            let pattern = NamePattern::new(name);
            let before = chosen.len();
            chosen.extend(known.iter().filter(|known| pattern.matches(known)).cloned());
            if chosen.len() == before {
                let at = match field {
                    "mode" => self.path.key(field),
                    _ => self.path.key(field).index(index),
                };
                self.report_unknown_at(self.source.place(&at), noun, name, known);
                is_complete = false;
            }
        }
        is_complete.then_some(chosen)
    }

    fn report_unknown(&mut self, fields: &[&str], noun: &str, name: &str, known: &[String]) {
        let path = fields.iter().fold(self.path.clone(), |path, field| path.key(*field));
        self.report_unknown_at(self.source.place(&path), noun, name, known);
    }

    pub(super) fn report_unknown_at(&mut self, at: SourceLocation, noun: &str, name: &str, known: &[String]) {
        let help = match nearest(name, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("`skein agents` and `skein services` list every {noun}"),
        };
        self.found.push(Diagnostic::error("E141", at, format!("no {noun} matches `{name}`"), help));
    }
}

fn services_with(plan: &Plan, wanted: TransportName) -> Vec<ServiceName> {
    let has_transport = |transport: &Transport| match transport {
        Transport::Builtin(_) => wanted == TransportName::Builtin,
        Transport::Stdio(_) => wanted == TransportName::Stdio,
        Transport::Http(_) => wanted == TransportName::Http,
    };
    let services = plan.services().filter(|service| has_transport(&service.manifest.transport));
    services.map(|service| service.manifest.name.clone()).collect()
}
