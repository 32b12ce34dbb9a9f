//! Embeds the built-in manifests, prompts and router examples in the binary.

use std::path::Path;

use serde_json::Value;

macro_rules! embed {
    ($($file:literal),* $(,)?) => {
        [$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)))),*]
    };
}

/// Every file of `manifests/` and `agents/` apart from the example manifests; a test fails if one is missing here.
pub(super) const FILES: &[(&str, &str)] = &embed![
    "manifests/agents/coding.yaml",
    "manifests/agents/goose.yaml",
    "manifests/agents/orchestrator.yaml",
    "manifests/services/apps.yaml",
    "manifests/services/autovisualiser.yaml",
    "manifests/services/chatrecall.yaml",
    "manifests/services/computercontroller.yaml",
    "manifests/services/developer.yaml",
    "manifests/services/extensionmanager.yaml",
    "manifests/services/fetch.yaml",
    "manifests/services/knowledge.yaml",
    "manifests/services/memory.yaml",
    "manifests/services/summon.yaml",
    "manifests/services/todo.yaml",
    "manifests/services/tom.yaml",
    "manifests/services/tutorial.yaml",
    "agents/coding/architect.examples.txt",
    "agents/coding/architect.md",
    "agents/coding/backend.examples.txt",
    "agents/coding/backend.md",
    "agents/coding/devsecops.examples.txt",
    "agents/coding/devsecops.md",
    "agents/coding/frontend.examples.txt",
    "agents/coding/frontend.md",
    "agents/coding/pm.examples.txt",
    "agents/coding/pm.md",
    "agents/coding/qa.examples.txt",
    "agents/coding/qa.md",
    "agents/coding/security.examples.txt",
    "agents/coding/security.md",
    "agents/coding/sre.examples.txt",
    "agents/coding/sre.md",
    "agents/goose/analyst.examples.txt",
    "agents/goose/analyst.md",
    "agents/goose/app_iterator.examples.txt",
    "agents/goose/app_iterator.md",
    "agents/goose/app_maker.examples.txt",
    "agents/goose/app_maker.md",
    "agents/goose/assistant.examples.txt",
    "agents/goose/assistant.md",
    "agents/goose/judge.examples.txt",
    "agents/goose/judge.md",
    "agents/goose/planner.examples.txt",
    "agents/goose/planner.md",
    "agents/goose/recipe_maker.examples.txt",
    "agents/goose/recipe_maker.md",
    "agents/goose/specialist.examples.txt",
    "agents/goose/specialist.md",
    "agents/orchestrator/auto.examples.txt",
    "agents/orchestrator/auto.md",
];

/// The built-in manifests as JSON, one per line behind its path, because each start reads them and YAML is slow to
/// parse. A test compares them with the YAML, and writes them with `UPDATE_EXPECT=1`.
const VALUES: &str = include_str!("builtin_values.txt");

/// Returns the content of a built-in manifest. `None` if there is none at this path.
pub(super) fn value(path: &Path) -> Option<Value> {
    let mut lines = VALUES.lines().filter_map(|line| line.split_once(' '));
    let (_, json) = lines.find(|(known, _)| Path::new(known) == path)?;
    serde_json::from_str(json).ok()
}

/// The example manifests of external agents, which `skein agents add` writes, by the name that the user types.
static EXAMPLE_AGENTS: [ExampleAgent; 5] = [
    ExampleAgent {
        name: "claude",
        text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/examples/claude.yaml")),
        login: "log in once with `claude`, or set ANTHROPIC_API_KEY",
    },
    ExampleAgent {
        name: "codex",
        text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/examples/codex.yaml")),
        login: "log in once with `codex login`, or set OPENAI_API_KEY",
    },
    ExampleAgent {
        name: "gemini",
        text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/examples/gemini.yaml")),
        login: "set GEMINI_API_KEY, or log in once with `gemini`",
    },
    ExampleAgent {
        name: "opencode",
        text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/examples/opencode.yaml")),
        login: "log in once with `opencode auth login`, or name a provider in its settings",
    },
    ExampleAgent {
        name: "goose",
        text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/examples/goose.yaml")),
        login: "set it up once with `goose configure`",
    },
];

/// An external agent whose manifest ships with Skein as an example.
#[derive(Debug, Clone, Copy)]
pub struct ExampleAgent {
    pub name: &'static str,
    text: &'static str,
    /// The user's first step.
    pub login: &'static str,
}

impl ExampleAgent {
    /// Returns the example of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        EXAMPLE_AGENTS.iter().find(|example| example.name == name)
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        EXAMPLE_AGENTS.iter().map(|example| example.name)
    }

    /// Returns the manifest for the user's folder, without the comment that names the schema by its path in the source.
    pub fn manifest_text(&self) -> &'static str {
        match self.text.split_once('\n') {
            Some((first, rest)) if first.starts_with("# yaml-language-server:") => rest,
            _ => self.text,
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use crate::manifest::files::Root;
    use crate::manifest::yaml::{SourceFile, parse};

    #[test]
    fn the_values_are_those_of_the_yaml() {
        let mut lines = String::new();
        for found in Root::Builtin.manifests() {
            let value = parse(&SourceFile::new(found.file, found.text.unwrap())).unwrap();
            lines += &format!("{} {value}\n", found.path.display());
        }
        expect_file!["builtin_values.txt"].assert_eq(&lines);
    }
}
