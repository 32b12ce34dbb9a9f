//! Defines a separate type for each kind of name in manifests, so that a mode cannot be passed as a service.
//!
//! Invariant: a name is only text here. The schema checks its form; the graph checks that it refers to something.

mod call_label;
mod model_ref;
mod name_pattern;

pub use call_label::call_label;
pub use model_ref::ModelRef;
pub use name_pattern::NamePattern;

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Begins the name of a git worktree that Skein makes for a task.
pub const TASK_WORKTREE_PREFIX: &str = "skein-task";

/// Returns an id with this prefix that nothing outside the process can predict: the keys of the standard library's
/// hasher come from the system's random source.
///
/// ```
/// assert_ne!(skein::ids::random_id("call"), skein::ids::random_id("call"));
/// ```
pub fn random_id(prefix: &str) -> String {
    format!("{prefix}-{:016x}", random_number())
}

/// Returns a UUID of version 4 that nothing outside the process can predict.
///
/// ```
/// assert_eq!(skein::ids::random_uuid().len(), 36);
/// ```
pub fn random_uuid() -> String {
    let bits = (u128::from(random_number()) << 64) | u128::from(random_number());
    // The version is in the highest bits of the third group, the variant in those of the fourth.
    let cleared = bits & !(0xf_u128 << 76) & !(0b11_u128 << 62);
    let bits = cleared | (0x4_u128 << 76) | (0b10_u128 << 62);
    let digits = format!("{bits:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Returns an agent's or a mode's name in the form of RFC 1123, which the Agent Communication Protocol requires.
///
/// ```
/// assert_eq!(skein::ids::rest_name("my_agent"), "my-agent");
/// ```
pub fn rest_name(name: &str) -> String {
    name.replace('_', "-").to_lowercase()
}

fn random_number() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static ISSUED: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(ISSUED.fetch_add(1, Ordering::Relaxed))
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $pattern:expr, $max:literal, $about:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "description": $about,
                    "pattern": $pattern,
                    "maxLength": $max,
                })
            }
        }
    )*};
}

/// Pattern for names of agents, modes, services and groups. Words are joined by a single `_` or `-`, so the `__`
/// between service and tool is never ambiguous.
pub const NAME_PATTERN: &str = "^[a-z][a-z0-9]*([_-][a-z0-9]+)*$";

names! {
    /// An agent, as in `coding`.
    AgentName: NAME_PATTERN, 32, "lower-case words joined by - or _";
    /// A mode within its agent, as in `backend`.
    ModeSlug: NAME_PATTERN, 32, "lower-case words joined by - or _";
    /// A service, as in `developer`.
    ServiceName: NAME_PATTERN, 32, "lower-case words joined by - or _";
    /// A tool group, as in `read`.
    GroupName: NAME_PATTERN, 32, "lower-case words joined by - or _";
    /// The name that a service gives to another service it requires.
    RoleName: NAME_PATTERN, 32, "lower-case words joined by - or _";
    /// A tool as its service names it, as in `read_file`.
    ToolName: "^[^\\s\\p{Cc}]+$", 128, "the tool's name as its service lists it";
}

/// A mode, always written as `agent/mode`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModeId {
    pub agent: AgentName,
    pub mode: ModeSlug,
}

impl ModeId {
    pub fn new(agent: AgentName, mode: ModeSlug) -> Self {
        Self { agent, mode }
    }
}

impl fmt::Display for ModeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.agent, self.mode)
    }
}

impl Serialize for ModeId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text that does not name a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not of the form agent/mode")]
pub struct ModeIdError {
    text: String,
}

impl FromStr for ModeId {
    type Err = ModeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((agent, mode)) if !agent.is_empty() && !mode.is_empty() && !mode.contains('/') => {
                Ok(Self::new(AgentName::new(agent), ModeSlug::new(mode)))
            }
            _ => Err(ModeIdError { text: text.to_owned() }),
        }
    }
}

/// The model providers that need no settings. `llm` knows their endpoints.
pub const PROVIDERS: [&str; 9] =
    ["openai", "anthropic", "google", "ollama", "openrouter", "groq", "deepseek", "mistral", "xai"];

/// Returns the known name most similar to `wanted`. `None` if none is similar enough to be a typo.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(wanted, name), name))
        .filter(|(distance, name)| *distance <= 1 + wanted.len().max(name.len()) / 4)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_a_typo_and_refuses_a_stranger() {
        let known = ["developer", "memory", "fetch"];
        assert_eq!(nearest("develper", known), Some("developer"));
        assert_eq!(nearest("memroy", known), Some("memory"));
        assert_eq!(nearest("kubernetes", known), None);
    }

    #[test]
    fn a_mode_id_reads_back_what_it_prints() {
        let id: ModeId = "coding/backend".parse().expect("well formed");
        assert_eq!(id.to_string(), "coding/backend");
        for bad in ["coding", "/backend", "coding/", "a/b/c"] {
            assert!(bad.parse::<ModeId>().is_err(), "{bad}");
        }
    }
}
