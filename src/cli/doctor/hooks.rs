//! Lists the hooks that run in this folder, each with its place.

use serde::Serialize;

use crate::manifest::{ConfiguredHook, Manifests};

/// A hook as `skein doctor` shows it.
#[derive(Debug, Serialize)]
pub(super) struct HookLine {
    event: &'static str,
    /// `None` if the hook runs for all.
    matcher: Option<String>,
    command: String,
    /// The hook comes from the project, so it only refuses.
    project: bool,
    place: String,
}

/// Returns the hooks of all configs that are in use.
pub(super) fn list(manifests: &Manifests) -> Vec<HookLine> {
    let line = |hook: ConfiguredHook| HookLine {
        event: hook.event.as_str(),
        matcher: hook.matcher_text,
        command: hook.command.command,
        project: hook.is_of_project,
        place: hook.place.to_string(),
    };
    manifests.hooks().into_iter().map(line).collect()
}

impl std::fmt::Display for HookLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let matcher = self.matcher.as_deref().map(|matcher| format!(" {matcher}")).unwrap_or_default();
        let power = if self.project { ", of the project: it only refuses" } else { "" };
        write!(f, "hook: {}{matcher}: {} ({}{power})", self.event, self.command, self.place)
    }
}
