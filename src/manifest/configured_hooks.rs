//! Lists the hooks of all configs, each with its place.
//!
//! Invariant: a project's hooks only refuse. They exist only at events that can be refused.

use super::Layer;
use super::hooks::{HookCommand, HookEvent, HookMatcher};
use super::layers::Manifests;
use super::yaml::DocumentPath;
use crate::diagnostic::SourceLocation;

/// A hook with its event and its place.
#[derive(Debug, Clone)]
pub struct ConfiguredHook {
    pub event: HookEvent,
    pub matcher: HookMatcher,
    /// The matcher as written.
    pub matcher_text: Option<String>,
    pub command: HookCommand,
    /// The hook comes from a project, so it can only refuse.
    pub is_of_project: bool,
    pub place: SourceLocation,
}

impl Manifests {
    /// Returns the hooks of the user's config, a `--manifests` folder and a trusted project's config.
    pub fn hooks(&self) -> Vec<ConfiguredHook> {
        let mut found = Vec::new();
        for entry in &self.configs {
            let is_of_project = match entry.layer {
                Layer::User | Layer::Extra => false,
                Layer::Project => true,
                Layer::Builtin | Layer::Editor => continue,
            };
            for (event, groups) in entry.config.hooks.groups() {
                // Such a hook is an error that prevents a plan; this is a second safeguard.
                if is_of_project && !event.is_refusable() {
                    continue;
                }
                for (index, group) in groups.iter().enumerate() {
                    let at = DocumentPath::root().key("hooks").key(event.as_str()).index(index);
                    // An invalid matcher is an error, too. A hook that may refuse must not miss a call.
                    let matcher = HookMatcher::parse(group.matcher.as_deref()).unwrap_or(HookMatcher::All);
                    for (index, command) in group.hooks.iter().enumerate() {
                        found.push(ConfiguredHook {
                            event,
                            matcher: matcher.clone(),
                            matcher_text: group.matcher.clone(),
                            command: command.clone(),
                            is_of_project,
                            place: entry.source.place(&at.key("hooks").index(index)),
                        });
                    }
                }
            }
        }
        found
    }
}
