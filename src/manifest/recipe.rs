//! The types of a recipe, in the format that goose made: a task with parameters, and what it takes to run it. The
//! schema in `schemas/` is generated from these types, so the doc comments here are what an editor shows.
//!
//! Invariant: only text here. What is filled in, looked up or run is the business of `recipe` and of whoever runs it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::ServiceName;

/// A recipe: a task that can be run again with other values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Recipe")]
pub struct RecipeFile {
    /// Version of the format, as "1.0.0".
    #[serde(default = "first_version")]
    #[schemars(regex(pattern = r"^\d+\.\d+\.\d+$"))]
    pub version: String,
    /// What it is called.
    #[schemars(length(min = 1))]
    pub title: String,
    /// One sentence on what it does.
    #[schemars(length(min = 1))]
    pub description: String,
    /// How the agent is to work, with `{{ key }}` for a parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// What the agent is asked to do, with `{{ key }}` for a parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What differs from run to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub parameters: Vec<RecipeParameter>,
    /// Services that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub extensions: Vec<Extension>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<RecipeSettings>,
    /// What the answer must look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<RecipeResponse>,
    /// Other recipes that the agent may run as parts of this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub sub_recipes: Vec<SubRecipe>,
    /// How it is found out whether the work is done, and what happens if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Short requests to start with, for whoever shows the recipe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activities: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// What else the agent should know, one text each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<String>,
    /// Kept as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

fn first_version() -> String {
    "1.0.0".to_owned()
}

/// One value that whoever runs the recipe gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeParameter {
    pub key: ParameterKey,
    pub input_type: InputType,
    pub requirement: Requirement,
    /// What it is, for whoever is asked for it.
    pub description: String,
    /// Taken if no value is given. A `file` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Scalar>,
    /// The values that a `select` may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Scalar>,
}

/// At most 64 letters, digits and `_`, and no digit first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ParameterKey(#[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"))] pub String);

/// A `date` is written as 2026-01-31; of a `file` the path is given and the text filled in; a `select` has `options`.
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

/// A `user_prompt` is asked for at a terminal, and otherwise like one that is `required`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Requirement {
    Required,
    Optional,
    UserPrompt,
}

/// Text, a number, true or false. It is text wherever it is filled in.
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

/// A service that the recipe needs: one that Skein has (`builtin`, `platform`), a program (`stdio`) or a server
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
    /// Of `stdio`: the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables that the program gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// Variables of your environment that the program gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_keys: Vec<String>,
    /// Of `streamable_http`: the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Seconds that a call may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout: Option<u32>,
    /// Only these tools of it; all if left out or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub available_tools: Vec<String>,
    /// Of no meaning here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundled: Option<bool>,
    /// Of `frontend` and `inline_python`, which Skein does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Of `frontend`, which Skein does not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Of `inline_python`, which Skein does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Of `inline_python`, which Skein does not run.
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
    /// As it is written.
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

/// What runs it, unless the user says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goose_provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goose_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// How often the model may be asked in one turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_turns: Option<u32>,
}

/// The answer is JSON, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeResponse {
    /// A JSON Schema that the answer must fit.
    pub json_schema: Map<String, Value>,
}

/// Another recipe that the agent may run, as a tool `subrecipe__NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubRecipe {
    pub name: ServiceName,
    /// Its file, relative to this one.
    #[schemars(length(min = 1))]
    pub path: String,
    /// Parameters of it that this recipe decides; the agent gives the others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Scalar>,
    /// One run after the other, if the agent wants several at once.
    #[serde(default)]
    pub sequential_when_repeated: bool,
    /// What the agent reads about it; the sub-recipe's own description if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// When the work is done, and how often it is begun anew until it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// How often it is begun anew at most.
    #[schemars(range(min = 1, max = 100))]
    pub max_retries: u32,
    /// All of them must succeed.
    #[schemars(length(min = 1))]
    pub checks: Vec<Check>,
    /// A command that is run before it is begun anew, as one that cleans up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on_failure: Option<String>,
    /// How long a check may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: Option<u64>,
    /// How long `on_failure` may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub on_failure_timeout_seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    #[serde(rename = "type")]
    pub kind: CheckKind,
    /// For the shell; it succeeds if it exits with 0.
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
