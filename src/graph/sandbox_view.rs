//! Shows the effective sandbox profiles of a plan, as text and as JSON.

use serde_json::{Value, json};

use super::plan::Plan;
use super::sandboxes::{ProcessKind, is_sandboxed};
use crate::ids::ModeId;
use crate::manifest::Transport;
use crate::sandbox::{Enforcement, SandboxProfile};

/// Describes the sandbox of a process in words, or states that no sandbox applies.
pub fn profile_text(kind: ProcessKind, profile: Option<&SandboxProfile>) -> String {
    describe(kind, profile, SandboxProfile::to_string)
}

fn describe(kind: ProcessKind, profile: Option<&SandboxProfile>, words: fn(&SandboxProfile) -> String) -> String {
    match profile {
        None if kind == ProcessKind::Command => "runs no commands".to_owned(),
        None => "unsandboxed".to_owned(),
        Some(profile) if profile.enforce == Enforcement::Off => "unsandboxed (--sandbox off)".to_owned(),
        Some(profile) => words(profile),
    }
}

/// Returns the profile as JSON, with the fields of a manifest and `applied`. `null` if there is none.
pub fn profile_json(profile: Option<&SandboxProfile>) -> Value {
    let mut value = json!(profile);
    if let Some(fields) = value.as_object_mut() {
        fields.insert("applied".to_owned(), json!(is_sandboxed(profile)));
    }
    value
}

/// Returns the processes with the same summary of their sandbox, and the summary: modes that run commands, external agents and stdio
/// services.
pub fn profile_groups(plan: &Plan) -> Vec<(Vec<String>, String)> {
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    let summary = |kind, profile| describe(kind, profile, SandboxProfile::summary);
    let mut add = |name: String, text: String| match groups.iter_mut().find(|(_, known)| *known == text) {
        Some((names, _)) => names.push(name),
        None => groups.push((vec![name], text)),
    };
    for agent in plan.agents() {
        let name = &agent.manifest.name;
        if agent.is_external() {
            add(format!("agent {name}"), summary(ProcessKind::ExternalAgent, plan.agent_sandbox(name)));
        }
        for mode in &agent.modes {
            let id = ModeId::new(name.clone(), mode.mode.slug.clone());
            if let Some(profile) = plan.mode_sandbox(&id) {
                add(id.to_string(), summary(ProcessKind::Command, Some(profile)));
            }
        }
    }
    for service in plan.services().filter(|service| matches!(service.manifest.transport, Transport::Stdio(_))) {
        let name = &service.manifest.name;
        add(format!("service {name}"), summary(ProcessKind::Service, plan.service_sandbox(name)));
    }
    groups
}

#[cfg(test)]
#[path = "sandbox_view_tests.rs"]
mod tests;
