//! Reports the profiles that a machine cannot enforce. The caller knows the machine; nothing here does IO.

use super::plan::Plan;
use crate::diagnostic::{self, Diagnostic, SourceLocation};
use crate::ids::ModeId;
use crate::manifest::DocumentPath;
use crate::sandbox::{Enforcement, SandboxProfile};

/// Warns about each profile that is `required` although the machine cannot enforce it. `missing` returns the reason, or
/// `None` if the machine can enforce the profile. The diagnostics are sorted by location.
pub fn check_machine(plan: &Plan, missing: impl Fn(&SandboxProfile) -> Option<String>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut report = |who: String, profile: Option<&SandboxProfile>, at: SourceLocation| {
        let required = profile.filter(|profile| profile.enforce == Enforcement::Required);
        let Some(reason) = required.and_then(&missing) else { return };
        found.push(Diagnostic::warning(
            "W209",
            at,
            format!("this machine cannot enforce the sandbox of {who}: {reason}"),
            "its processes do not start; write `enforce: preferred`, pass `--sandbox preferred`, or see `skein doctor`",
        ));
    };
    for agent in plan.agents() {
        let name = &agent.manifest.name;
        let at = agent.source.key_place(&DocumentPath::root().key("runtime").key("acp").key("sandbox"));
        report(format!("agent `{name}`"), plan.agent_sandbox(name), at);
        for mode in &agent.modes {
            let id = ModeId::new(name.clone(), mode.mode.slug.clone());
            // The profile of a mode without `sandbox` comes from the config.
            let at = match mode.mode.sandbox {
                Some(_) => mode.source.key_place(&mode.path.key("sandbox")),
                None => mode.source.place(&mode.path.key("slug")),
            };
            report(format!("mode `{id}`"), plan.mode_sandbox(&id), at);
        }
    }
    for service in plan.services() {
        let name = &service.manifest.name;
        let at = match service.manifest.sandbox {
            Some(_) => service.source.key_place(&service.path.key("sandbox")),
            None => service.name_place(),
        };
        report(format!("service `{name}`"), plan.service_sandbox(name), at);
    }
    diagnostic::sort(&mut found);
    found
}
