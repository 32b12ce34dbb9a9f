//! Lists the built-in providers: their dialects, addresses and keys.

use genai::adapter::AdapterKind;

use super::ProviderInfo;

/// A built-in provider.
pub(super) struct KnownProvider {
    pub(super) name: &'static str,
    pub(super) kind: AdapterKind,
    pub(super) base: &'static str,
    /// Environment variable that holds the key; empty if the provider needs none.
    pub(super) key: &'static str,
    pub(super) base_variable: Option<&'static str>,
}

pub(super) const KNOWN: [KnownProvider; 9] = [
    KnownProvider {
        name: "openai",
        kind: AdapterKind::OpenAI,
        base: "https://api.openai.com/v1/",
        key: "OPENAI_API_KEY",
        base_variable: Some("OPENAI_BASE_URL"),
    },
    KnownProvider {
        name: "anthropic",
        kind: AdapterKind::Anthropic,
        base: "https://api.anthropic.com/v1/",
        key: "ANTHROPIC_API_KEY",
        base_variable: Some("ANTHROPIC_BASE_URL"),
    },
    KnownProvider {
        name: "google",
        kind: AdapterKind::Gemini,
        base: "https://generativelanguage.googleapis.com/v1beta/",
        key: "GEMINI_API_KEY",
        base_variable: None,
    },
    KnownProvider {
        name: "ollama",
        kind: AdapterKind::OpenAI,
        base: "http://localhost:11434/v1/",
        key: "",
        base_variable: Some("OLLAMA_HOST"),
    },
    KnownProvider {
        name: "openrouter",
        kind: AdapterKind::OpenAI,
        base: "https://openrouter.ai/api/v1/",
        key: "OPENROUTER_API_KEY",
        base_variable: None,
    },
    KnownProvider {
        name: "groq",
        kind: AdapterKind::Groq,
        base: "https://api.groq.com/openai/v1/",
        key: "GROQ_API_KEY",
        base_variable: None,
    },
    KnownProvider {
        name: "deepseek",
        kind: AdapterKind::DeepSeek,
        base: "https://api.deepseek.com/v1/",
        key: "DEEPSEEK_API_KEY",
        base_variable: None,
    },
    KnownProvider {
        name: "mistral",
        kind: AdapterKind::Mistral,
        base: "https://api.mistral.ai/v1/",
        key: "MISTRAL_API_KEY",
        base_variable: None,
    },
    KnownProvider {
        name: "xai",
        kind: AdapterKind::Xai,
        base: "https://api.x.ai/v1/",
        key: "XAI_API_KEY",
        base_variable: None,
    },
];

/// Template for a provider that exists only in the user's settings.
pub(super) const OWN: KnownProvider =
    KnownProvider { name: "", kind: AdapterKind::OpenAI, base: "", key: "", base_variable: None };

pub(super) fn builtin_providers() -> Vec<ProviderInfo> {
    let key = |known: &KnownProvider| Some(known.key.to_owned()).filter(|key| !key.is_empty());
    KNOWN.iter().map(|it| ProviderInfo { name: it.name.to_owned(), base: it.base.to_owned(), key: key(it) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_providers_are_those_that_names_are_checked_against() {
        assert_eq!(KNOWN.map(|known| known.name), crate::ids::PROVIDERS);
    }
}
