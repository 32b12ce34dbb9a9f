//! Compares sandbox profiles with an assertion.

use serde::Serialize;

use super::AssertionCheck;
use super::selection::Selection;
use crate::graph::sandboxes::is_sandboxed;
use crate::manifest::{ApprovalLevel, SandboxAssertion, SandboxField, SandboxValue, Transport};
use crate::sandbox::{OtherHosts, SandboxProfile};

/// A process that a selection runs.
struct SelectedProcess<'a> {
    /// For messages: `coding/backend`, `agent claude`.
    name: String,
    profile: Option<&'a SandboxProfile>,
}

impl AssertionCheck<'_> {
    pub(super) fn check_sandbox(&mut self, selection: &Selection, assertion: &SandboxAssertion) {
        let mut problems = Vec::new();
        for process in self.processes(selection) {
            let Some(profile) = process.profile.filter(|profile| is_sandboxed(Some(profile))) else {
                problems.push(format!("{} runs without a sandbox", process.name));
                continue;
            };
            if let SandboxAssertion::Fields(fields) = assertion {
                for (field, allowed) in fields {
                    problems.extend(self.field_problem(&process.name, profile, *field, allowed));
                }
            }
        }
        for problem in problems {
            self.counter_example("sandbox", problem);
        }
    }

    /// Returns the processes of the selection. A mode without commands and a service without a process have none.
    fn processes(&self, selection: &Selection) -> Vec<SelectedProcess<'_>> {
        let mut processes = Vec::new();
        let external = |name: &crate::ids::AgentName| self.plan.agent(name.as_str()).is_some_and(|it| it.is_external());
        let mut agents: Vec<_> =
            selection.agents.iter().chain(selection.modes.iter().map(|mode| &mode.agent)).collect();
        agents.sort();
        agents.dedup();
        for agent in agents.into_iter().filter(|agent| external(agent)) {
            processes.push(SelectedProcess {
                name: format!("the external agent {agent}"),
                profile: self.plan.agent_sandbox(agent),
            });
        }
        for mode in selection.modes.iter().filter(|mode| !external(&mode.agent)) {
            if let Some(profile) = self.plan.mode_sandbox(mode) {
                let name = format!("the shell of {mode}");
                processes.push(SelectedProcess { name, profile: Some(profile) });
            }
        }
        for name in &selection.services {
            let transport = self.plan.service(name.as_str()).map(|service| &service.manifest.transport);
            if matches!(transport, Some(Transport::Stdio(_))) {
                processes.push(SelectedProcess {
                    name: format!("the service {name}"),
                    profile: self.plan.service_sandbox(name),
                });
            }
        }
        processes
    }

    fn field_problem(
        &self,
        process: &str,
        profile: &SandboxProfile,
        field: SandboxField,
        allowed: &[SandboxValue],
    ) -> Option<String> {
        let is_allowed = |value: &str| allowed.iter().any(|known| known.as_str() == value);
        let name = field.as_str();
        let value = match field {
            SandboxField::Files => word(profile.files),
            SandboxField::Caches => word(profile.caches),
            SandboxField::Git => word(profile.git),
            SandboxField::Enforce => word(profile.enforce),
            SandboxField::Hosts => {
                let host = profile.network.allow.iter().find(|host| !is_allowed(host))?;
                return Some(format!("{process} reaches the host `{host}`"));
            }
            SandboxField::Network => {
                let otherwise = profile.network.otherwise;
                // At `auto`, every host is allowed without a question.
                if otherwise == OtherHosts::Ask && !is_allowed("on") && self.approvals.contains(&ApprovalLevel::Auto) {
                    return Some(format!(
                        "{process} has `network: ask`, which is `on` at the approval level auto; exclude auto with \
                         `approval` in this file"
                    ));
                }
                word(otherwise)
            }
        };
        (!is_allowed(&value)).then(|| format!("{process} has `{name}: {value}`"))
    }
}

/// Returns the word that a manifest has for this value.
fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}
