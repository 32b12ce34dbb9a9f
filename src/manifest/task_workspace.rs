//! Decides where a delegated task works.

use super::delegate::{DelegateEntry, TaskWorkspace};
use super::{Layer, Manifests};
use crate::ids::{AgentName, ModeId};

impl Manifests {
    /// Returns where a task works that `agent` delegates to `mode`. The first entry that covers the mode decides: of the
    /// user's config, of the project's config, of the agent's manifest.
    pub fn task_workspace(&self, agent: &AgentName, mode: &ModeId) -> TaskWorkspace {
        let of_configs = [Layer::User, Layer::Project].into_iter().flat_map(|layer| {
            let configs = self.configs.iter().filter(move |entry| entry.layer == layer);
            configs.flat_map(|entry| &entry.config.delegates)
        });
        let of_manifest = self.agents.get(agent).into_iter().flat_map(|entry| &entry.manifest.delegates);
        let mut entries = of_configs.chain(of_manifest);
        entries.find(|entry| entry.covers(agent, mode)).map(DelegateEntry::workspace).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Root, load_selected};
    use super::*;

    fn workspace(user: &str, project: &str, mode: &str) -> TaskWorkspace {
        let root = |path: &str, text: &str| Root::Snapshot {
            files: [(path.into(), format!("version: 1\n{text}").into_bytes())].into(),
            shown: String::new(),
        };
        let layers = [
            (Layer::Builtin, Root::Builtin),
            (Layer::User, root("config.yaml", user)),
            (Layer::Project, root(".skein/config.yaml", project)),
        ];
        let (manifests, found) = load_selected(&layers, None);
        assert!(found.is_empty(), "{found:?}");
        let agent = AgentName::new("orchestrator");
        manifests.task_workspace(&agent, &mode.parse().unwrap())
    }

    #[test]
    fn the_first_entry_that_covers_a_mode_decides() {
        use TaskWorkspace::{Shared, Worktree};
        let all = "delegates: [{to: '*/*', workspace: worktree}]\n";
        let coding = "delegates: [{to: coding/pm}, {to: coding/*, workspace: worktree}]\n";
        let shared = "delegates: [{to: coding/backend, workspace: shared}]\n";
        for (user, project, mode, expected) in [
            ("", "", "coding/backend", Shared),
            (all, "", "goose/assistant", Worktree),
            (coding, "", "coding/backend", Worktree),
            (coding, "", "coding/pm", Shared),
            (coding, "", "goose/assistant", Shared),
            ("", coding, "coding/backend", Worktree),
            (coding, shared, "coding/backend", Worktree),
            (shared, coding, "coding/backend", Shared),
            ("delegates: [coding/backend]\n", coding, "coding/backend", Shared),
        ] {
            assert_eq!(workspace(user, project, mode), expected, "{user:?} {project:?} {mode}");
        }
    }
}
