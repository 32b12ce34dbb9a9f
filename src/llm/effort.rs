//! Splits the effort off the name of a model: `gpt-5-high` asks `gpt-5` with a high effort.

use genai::chat::ReasoningEffort;

/// How the names of models begin that take an effort. The names of others may end with such a word, as `qwen3-max` does.
const FAMILIES: [&str; 9] = ["claude-", "deepseek-", "gemini-", "gemma-4", "gpt-", "grok-", "o1", "o3", "o4"];

/// The end of the name of a model that has another one with the word `max`.
const CODEX: &str = "-codex";

/// Returns the effort and the name that the provider knows. `None` if the name has no effort.
pub(super) fn split_effort(model: &str) -> (Option<ReasoningEffort>, &str) {
    // A name may have those of a provider and a company before it: `openrouter:openai/gpt-5-high`.
    let name = model.rsplit(['/', ':']).next().unwrap_or(model);
    if !FAMILIES.iter().any(|family| name.starts_with(family)) {
        return (None, model);
    }
    match ReasoningEffort::from_model_name(model) {
        (Some(ReasoningEffort::Max), rest) if rest.ends_with(CODEX) => (None, model),
        split => split,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_known_families_have_an_effort() {
        for (model, name) in [
            ("gpt-5-high", "gpt-5"),
            ("openrouter:openai/gpt-5.2-none", "openrouter:openai/gpt-5.2"),
            ("o3-low", "o3"),
            ("claude-opus-4-8-max", "claude-opus-4-8"),
            ("gemini-3-pro-minimal", "gemini-3-pro"),
        ] {
            let (effort, rest) = split_effort(model);
            assert!(effort.is_some() && rest == name, "{model}: {effort:?} {rest}");
        }
        for model in [
            "gpt-5",
            "gpt-5.1-codex-max",
            "deepseek-r1-zero",
            "qwen/qwen3-max",
            "mistral-medium",
            "my-model-low",
            "ollama:qwen3-max",
        ] {
            let (effort, rest) = split_effort(model);
            assert!(effort.is_none() && rest == model, "{model}: {effort:?} {rest}");
        }
    }
}
