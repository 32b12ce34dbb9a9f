//! The forms of sandbox settings in a file that differ from the types of the profile.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The forms of a `read` entry in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ReadForm {
    Path(String),
    Asked(AskedRead),
}

/// A path that opens only for commands that name one of the programs, after a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AskedRead {
    pub path: String,
    #[schemars(length(min = 1))]
    pub ask: Vec<String>,
}

/// The forms of `ports` in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PortForm {
    Word(PortWord),
    List(Vec<u16>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortWord {
    Ask,
    Off,
}
