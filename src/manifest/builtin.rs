//! The manifests and prompts that are compiled into the binary.

macro_rules! embed {
    ($($file:literal),* $(,)?) => {
        [$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)))),*]
    };
}

/// Every file of `manifests/` and `agents/` but the examples; a test fails when one is missing here.
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
    "agents/coding/architect.md",
    "agents/coding/backend.md",
    "agents/coding/devsecops.md",
    "agents/coding/frontend.md",
    "agents/coding/pm.md",
    "agents/coding/qa.md",
    "agents/coding/security.md",
    "agents/coding/sre.md",
    "agents/goose/app_iterator.md",
    "agents/goose/app_maker.md",
    "agents/goose/assistant.md",
    "agents/goose/judge.md",
    "agents/goose/planner.md",
    "agents/goose/recipe_maker.md",
    "agents/goose/specialist.md",
    "agents/orchestrator/auto.md",
];
