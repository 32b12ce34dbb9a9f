//! Names a model. Flags, configs and stored sessions contain text; everything else uses [`ModelRef`].
//!
//! Invariant: the text of a reference is the text that it was parsed from.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::AgentName;

/// A model, as users write it: `offline`, `replay:FILE`, `acp:AGENT` or `provider:model`.
///
/// Like every name in this module it may refer to nothing: `graph` and `llm` know the providers.
///
/// ```
/// use skein::ids::ModelRef;
/// let model = ModelRef::from("openai:gpt-5");
/// assert_eq!(model, ModelRef::Hosted { provider: "openai".into(), model: "gpt-5".into() });
/// assert_eq!(model.to_string(), "openai:gpt-5");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ModelRef {
    /// No model: the user calls tools by name.
    Offline,
    /// A file with recorded answers.
    Replay(PathBuf),
    /// An external agent that is used as a model.
    External(AgentName),
    /// A model of a provider.
    Hosted { provider: String, model: String },
    /// Text of no known form. It refers to no model.
    Malformed(String),
}

impl ModelRef {
    /// The names before the colon that no provider can have, except `acp`.
    pub const RESERVED: [&str; 2] = ["offline", "replay"];

    pub fn is_offline(&self) -> bool {
        matches!(self, Self::Offline)
    }

    /// Returns true if the model may take small decisions. `offline` decides nothing, and an external agent is too
    /// slow.
    pub fn can_advise(&self) -> bool {
        !matches!(self, Self::Offline | Self::External(_))
    }

    /// Returns the provider of the model. `None` if no provider answers for it.
    pub fn provider(&self) -> Option<&str> {
        match self {
            Self::Hosted { provider, .. } => Some(provider),
            Self::Offline | Self::Replay(_) | Self::External(_) | Self::Malformed(_) => None,
        }
    }

    /// Returns the external agent that is used as a model. `None` if the model is not one.
    pub fn external_agent(&self) -> Option<&AgentName> {
        match self {
            Self::External(agent) => Some(agent),
            Self::Offline | Self::Replay(_) | Self::Hosted { .. } | Self::Malformed(_) => None,
        }
    }
}

impl From<&str> for ModelRef {
    fn from(text: &str) -> Self {
        match text.split_once(':').filter(|(_, rest)| !rest.is_empty()) {
            Some(("replay", file)) => Self::Replay(file.into()),
            Some(("acp", agent)) => Self::External(AgentName::new(agent)),
            Some((provider, model)) => Self::Hosted { provider: provider.to_owned(), model: model.to_owned() },
            None if text == "offline" => Self::Offline,
            None => Self::Malformed(text.to_owned()),
        }
    }
}

impl From<String> for ModelRef {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<ModelRef> for String {
    fn from(model: ModelRef) -> Self {
        model.to_string()
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offline => f.write_str("offline"),
            Self::Replay(file) => write!(f, "replay:{}", file.display()),
            Self::External(agent) => write!(f, "acp:{agent}"),
            Self::Hosted { provider, model } => write!(f, "{provider}:{model}"),
            Self::Malformed(text) => f.write_str(text),
        }
    }
}

impl JsonSchema for ModelRef {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ModelRef".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_recognized() {
        assert_eq!(ModelRef::from("offline"), ModelRef::Offline);
        assert_eq!(ModelRef::from("replay:a/b.jsonl"), ModelRef::Replay("a/b.jsonl".into()));
        assert_eq!(ModelRef::from("acp:claude"), ModelRef::External(AgentName::new("claude")));
        let hosted = ModelRef::Hosted { provider: "ollama".to_owned(), model: "qwen3:8b".to_owned() };
        assert_eq!(ModelRef::from("ollama:qwen3:8b"), hosted);
        for text in ["", "gpt-5", "openai:", "acp:", "replay:"] {
            assert_eq!(ModelRef::from(text), ModelRef::Malformed(text.to_owned()));
        }
    }

    #[test]
    fn a_reference_prints_what_it_was_parsed_from() {
        for text in ["offline", "replay:/tmp/a b.jsonl", "acp:x", "openai:a:b", "offline:x", ":x", "x", "acp:", ""] {
            let model = ModelRef::from(text);
            assert_eq!(model.to_string(), text);
            let json = serde_json::to_value(&model).unwrap();
            assert_eq!(json, text);
            assert_eq!(serde_json::from_value::<ModelRef>(json).unwrap(), model);
        }
    }

    #[test]
    fn only_a_language_model_takes_small_decisions() {
        let advisers: Vec<_> = ["offline", "acp:x", "replay:f", "openai:a"]
            .into_iter()
            .filter(|name| ModelRef::from(*name).can_advise())
            .collect();
        assert_eq!(advisers, ["replay:f", "openai:a"]);
    }
}
