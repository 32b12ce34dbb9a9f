//! Defines the types of a recipe in goose's format: a task with parameters, and what it needs to run. The schema in
//! `schemas/` is generated from these types, so an editor shows these doc comments as help.
//!
//! Invariant: these types only hold text. `recipe` and its callers fill in, resolve and run it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::ServiceName;

/// A recipe: a task that can run again with other values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Recipe")]
pub struct RecipeFile {
    /// Version of the format, as "1.0.0".
    #[serde(default = "first_version")]
    #[schemars(regex(pattern = r"^\d+\.\d+\.\d+$"))]
    pub version: String,
    /// The display name.
    #[schemars(length(min = 1))]
    pub title: String,
    /// One sentence on what it does.
    #[schemars(length(min = 1))]
    pub description: String,
    /// Instructions for the agent, with `{{ key }}` for a parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The task for the agent, with `{{ key }}` for a parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The values that differ from run to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub parameters: Vec<RecipeParameter>,
    /// Services that the recipe needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub extensions: Vec<Extension>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<RecipeSettings>,
    /// The required form of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<RecipeResponse>,
    /// Other recipes that the agent may run as parts of this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub sub_recipes: Vec<SubRecipe>,
    /// Checks whether the work is done, and retries if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Short requests to start with, for programs that show the recipe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activities: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// Additional context for the agent, one text each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<String>,
    /// Kept unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

fn first_version() -> String {
    "1.0.0".to_owned()
}

/// A value that the user gives when the recipe runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeParameter {
    pub key: ParameterKey,
    pub input_type: InputType,
    pub requirement: Requirement,
    /// An explanation for the user who enters the value.
    pub description: String,
    /// The value to use if none is given. A `file` has no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Scalar>,
    /// The possible values of a `select`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Scalar>,
}

/// At most 64 letters, digits and `_`, and no digit first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ParameterKey(#[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"))] pub String);

/// A `date` is written as 2026-01-31. For a `file`, the user gives the path, and Skein fills in the text. A `select`
/// has `options`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputType {
    String,
    Number,
    Boolean,
    Date,
    File,
    Select,
}

/// A `user_prompt` is asked for at a terminal, and otherwise acts like `required`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Requirement {
    Required,
    Optional,
    UserPrompt,
}

/// Text, a number, true or false, filled in as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scalar(Value);

impl Scalar {
    pub fn text(&self) -> String {
        match &self.0 {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

impl JsonSchema for Scalar {
    fn schema_name() -> Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "number", "boolean"], "description": "text, a number, true or false"})
    }
}

/// A service that the recipe needs: a built-in one (`builtin`, `platform`), a program (`stdio`) or a server
/// (`streamable_http`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    #[serde(rename = "type")]
    pub kind: ExtensionKind,
    #[schemars(length(min = 1))]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The program of `stdio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables for the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Variables that the program inherits from your environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_keys: Vec<String>,
    /// The address of `streamable_http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The maximum time of a call in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout: Option<u32>,
    /// The tools to use; all if left out or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub available_tools: Vec<String>,
    /// Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundled: Option<bool>,
    /// For `frontend` and `inline_python`, which Skein does not support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// For `frontend`, which Skein does not support.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// For `inline_python`, which Skein does not support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// For `inline_python`, which Skein does not support.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExtensionKind {
    Stdio,
    StreamableHttp,
    Builtin,
    Platform,
    Sse,
    Frontend,
    InlinePython,
}

impl ExtensionKind {
    /// Returns the name used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            ExtensionKind::Stdio => "stdio",
            ExtensionKind::StreamableHttp => "streamable_http",
            ExtensionKind::Builtin => "builtin",
            ExtensionKind::Platform => "platform",
            ExtensionKind::Sse => "sse",
            ExtensionKind::Frontend => "frontend",
            ExtensionKind::InlinePython => "inline_python",
        }
    }
}

/// The model and limits, unless the user overrides them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goose_provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goose_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The maximum number of model requests in one turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_turns: Option<u32>,
}

/// Requires an answer that is JSON and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeResponse {
    /// A JSON Schema that the answer must match.
    pub json_schema: Map<String, Value>,
}

/// Another recipe that the agent may run, as the tool `subrecipe__NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubRecipe {
    pub name: ServiceName,
    /// Its file, relative to this one.
    #[schemars(length(min = 1))]
    pub path: String,
    /// Parameters that this recipe sets; the agent sets the others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Scalar>,
    /// Run one after the other if the agent starts several at once.
    #[serde(default)]
    pub sequential_when_repeated: bool,
    /// The description for the agent; the sub-recipe's description if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Checks that decide whether the work is done, and the limits for retries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// The maximum number of retries; each starts from scratch.
    #[schemars(range(min = 1, max = 100))]
    pub max_retries: u32,
    /// All of these must succeed.
    #[schemars(length(min = 1))]
    pub checks: Vec<Check>,
    /// A command that runs before each retry, for example to clean up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on_failure: Option<String>,
    /// The maximum time of a check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: Option<u64>,
    /// The maximum time of `on_failure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub on_failure_timeout_seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    #[serde(rename = "type")]
    pub kind: CheckKind,
    /// A shell command that succeeds if it exits with 0.
    #[schemars(length(min = 1))]
    pub command: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    Shell,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Author {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
}
