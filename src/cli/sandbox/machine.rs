//! What the sandbox of this machine can enforce, for `skein check` and `skein doctor`.

use crate::cli::folders::Folders;
use crate::cli::output::CommandError;
use crate::graph::Plan;
use crate::sandbox::{
    Enforcement, ExplainedLine, Layers, LineEnforcement, ProtectedState, SandboxError, SandboxProfile, explain,
    probe_layers, protected_paths,
};

/// The layers of a machine, and the project in which they are needed.
#[derive(Debug, Clone)]
pub(in crate::cli) struct SandboxMachine {
    pub(in crate::cli) layers: Layers,
    pub(in crate::cli) protected: ProtectedState,
}

impl SandboxMachine {
    /// Finds the layers by using them. Fails if this program cannot be started again.
    pub(in crate::cli) fn probe(folders: &Folders) -> Result<Self, CommandError> {
        let (restriction, _) = super::test_settings()?;
        let program = super::super::runtime::own_program()?;
        let layers = probe_layers(&program, &folders.sandbox_caches()).map_err(|error: SandboxError| {
            let help = error.help();
            CommandError::work(error.to_string(), help)
        })?;
        let protected = match protected_paths(std::slice::from_ref(&folders.cwd)).as_slice() {
            [] => ProtectedState::Absent,
            _ => ProtectedState::Exist,
        };
        Ok(Self { layers: layers.restricted(&restriction), protected })
    }

    /// Returns the lines of a profile that this machine does not enforce.
    pub(in crate::cli) fn list_unenforced(&self, profile: &SandboxProfile) -> Vec<ExplainedLine> {
        let lines = explain(profile, &self.layers, self.protected);
        lines.into_iter().filter(ExplainedLine::is_unenforced).collect()
    }

    /// Returns why this machine cannot enforce a profile. `None` if it can.
    pub(in crate::cli) fn problem(&self, profile: &SandboxProfile) -> Option<String> {
        let lines = self.list_unenforced(profile);
        let reason = lines.iter().find_map(|line| match &line.enforcement {
            LineEnforcement::Missing { layer, reason } => Some(format!("no {layer}: {reason}")),
            LineEnforcement::By(_) | LineEnforcement::Nothing(_) => None,
        })?;
        Some(format!("{} ({reason})", show_lines(&lines)))
    }
}

/// Lists lines as in a manifest.
pub(in crate::cli) fn show_lines(lines: &[ExplainedLine]) -> String {
    lines.iter().map(|line| format!("`{}: {}`", line.field, line.value)).collect::<Vec<_>>().join(", ")
}

/// Returns true if a profile of the plan must be enforced, so that the machine matters.
pub(in crate::cli) fn needs_machine(plan: &Plan) -> bool {
    let required = |profile: Option<&SandboxProfile>| {
        profile.is_some_and(|profile| profile.is_applied() && profile.enforce == Enforcement::Required)
    };
    let modes = plan.agents().flat_map(|agent| {
        agent.modes.iter().map(|mode| crate::ids::ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone()))
    });
    modes.into_iter().any(|id| required(plan.mode_sandbox(&id)))
        || plan.agents().any(|agent| required(plan.agent_sandbox(&agent.manifest.name)))
        || plan.services().any(|service| required(plan.service_sandbox(&service.manifest.name)))
}
