//! Embeds the built-in manifests, prompts and router examples in the binary.

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
