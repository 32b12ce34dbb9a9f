//! Validates agent, service, config, profile, recipe, assertion and managed files against JSON Schemas. These are
//! generated from the types and checked in under `schemas/`, so that Skein and an editor's language server use the same
//! text.
//!
//! Invariant: messages use the terms of YAML authors, never those of JSON Schema.

use std::sync::LazyLock;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::paths::LocationSegment;
use jsonschema::{JsonType, ValidationError, Validator};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::assertions::AssertionFile;
use super::config::{Config, Profile};
use super::managed_config::ManagedConfig;
use super::model::{AgentManifest, ServiceManifest};
use super::recipe::RecipeFile;
use super::yaml::{DocumentPath, SourceFile};
use crate::diagnostic::{Diagnostic, mask_keys};
use crate::ids::nearest;

/// The kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    Agent,
    Service,
    Config,
    Profile,
    Recipe,
    Assertions,
    Managed,
}

impl DocumentKind {
    pub const ALL: [DocumentKind; 7] = [
        DocumentKind::Agent,
        DocumentKind::Service,
        DocumentKind::Config,
        DocumentKind::Profile,
        DocumentKind::Recipe,
        DocumentKind::Assertions,
        DocumentKind::Managed,
    ];

    /// Returns the name of the schema's file under `schemas/`.
    pub fn file_name(self) -> &'static str {
        match self {
            DocumentKind::Agent => "agent.schema.json",
            DocumentKind::Service => "service.schema.json",
            DocumentKind::Config => "config.schema.json",
            DocumentKind::Profile => "profile.schema.json",
            DocumentKind::Recipe => "recipe.schema.json",
            DocumentKind::Assertions => "assertions.schema.json",
            DocumentKind::Managed => "managed.schema.json",
        }
    }

    /// Returns the schema as it is under `schemas/`.
    pub fn json_schema(self) -> &'static Value {
        &self.schema().schema
    }

    fn schema(self) -> &'static CompiledSchema {
        static AGENT: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/agent.schema.json")));
        static SERVICE: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/service.schema.json")));
        static CONFIG: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/config.schema.json")));
        static PROFILE: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/profile.schema.json")));
        static RECIPE: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/recipe.schema.json")));
        static ASSERTIONS: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/assertions.schema.json")));
        static MANAGED: LazyLock<CompiledSchema> =
            LazyLock::new(|| CompiledSchema::new(include_str!("../../schemas/managed.schema.json")));
        match self {
            DocumentKind::Agent => &AGENT,
            DocumentKind::Service => &SERVICE,
            DocumentKind::Config => &CONFIG,
            DocumentKind::Profile => &PROFILE,
            DocumentKind::Recipe => &RECIPE,
            DocumentKind::Assertions => &ASSERTIONS,
            DocumentKind::Managed => &MANAGED,
        }
    }
}

struct CompiledSchema {
    schema: Value,
    validator: Validator,
}

impl CompiledSchema {
    #[expect(clippy::expect_used, reason = "the text is compiled in and a test builds them all")]
    fn new(text: &str) -> Self {
        let schema: Value = serde_json::from_str(text).expect("a checked-in schema is JSON");
        let validator = jsonschema::draft7::new(&schema).expect("a checked-in schema is a JSON Schema");
        Self { schema, validator }
    }
}

/// Generates the schema from the types; the file in `schemas/` must be equal.
pub fn generate(kind: DocumentKind) -> Value {
    // YAML language servers support draft 7 best.
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema: Value = match kind {
        DocumentKind::Agent => generator.into_root_schema_for::<AgentManifest>(),
        DocumentKind::Service => generator.into_root_schema_for::<ServiceManifest>(),
        DocumentKind::Config => generator.into_root_schema_for::<Config>(),
        DocumentKind::Profile => generator.into_root_schema_for::<Profile>(),
        DocumentKind::Recipe => generator.into_root_schema_for::<RecipeFile>(),
        DocumentKind::Assertions => generator.into_root_schema_for::<AssertionFile>(),
        DocumentKind::Managed => generator.into_root_schema_for::<ManagedConfig>(),
    }
    .into();
    // A profile in a config has no version, so it is not in the type.
    if kind == DocumentKind::Profile
        && let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut)
    {
        let version =
            json!({"type": "integer", "minimum": 1, "maximum": 1, "description": "Format version of this file: 1."});
        fields.insert("version".to_owned(), version);
    }
    schema
}

/// The name of the type of an empty value.
const NOTHING: &str = "nothing";
/// The maximum number of errors reported per file.
const MAX_FOUND: usize = 100;

/// Returns the schema violations of a document.
pub(super) fn validate(kind: DocumentKind, value: &Value, source: &SourceFile) -> Vec<Diagnostic> {
    let checked = kind.schema();
    let mut found = Vec::new();
    for error in checked.validator.iter_errors(value) {
        explain(&error, &checked.schema, source, &mut found);
        if found.len() >= MAX_FOUND {
            break;
        }
    }
    found
}

fn explain(error: &ValidationError<'_>, schema: &Value, source: &SourceFile, found: &mut Vec<Diagnostic>) {
    let path = path_of(error);
    let field = if path == DocumentPath::root() { "the document".to_owned() } else { format!("`{path}`") };
    let here = || source.place(&path);
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let known = field_names(error, schema);
            for name in unexpected.iter().take(MAX_FOUND) {
                let at = source.key_place(&path.key(name));
                // If no fields are known, the author chooses the keys: groups, roles.
                found.push(if known.is_empty() {
                    let problem = format!("`{name}` is not a name that can stand in {field}");
                    Diagnostic::error("E013", at, problem, "write lower-case words joined by - or _")
                } else {
                    let help = match nearest(name, known.iter().copied()) {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => format!("known fields: {}", known.join(", ")),
                    };
                    Diagnostic::error("E011", at, format!("unknown field `{name}`"), help)
                });
            }
        }
        ValidationErrorKind::Required { property } => {
            found.push(missing_field(&path, property.as_str().unwrap_or_default(), source));
        }
        ValidationErrorKind::Type { kind } => {
            let help = form(error, schema).map(|form| format!("write {form}"));
            let help = help.unwrap_or_else(|| type_help(&path, &type_text(kind), error.instance()));
            found.push(wrong_type(error.instance(), &type_text(kind), source, &path, help));
        }
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            explain_choice(error, context, schema, source, found);
        }
        ValidationErrorKind::OneOfMultipleValid { .. } => {
            let fields = alternatives(error, schema);
            let given = |name: &&&str| error.instance().get(**name).is_some();
            let given: Vec<_> = fields.iter().filter(given).map(|name| format!("`{name}`")).collect();
            found.push(Diagnostic::error(
                "E013",
                here(),
                format!("{field} must have exactly one of the fields {}", fields.join(", ")),
                format!("keep one of {}", given.join(", ")),
            ));
        }
        ValidationErrorKind::Enum { options } => found.push(choice_error(error, options, source, &path)),
        ValidationErrorKind::Constant { expected_value } => {
            found.push(choice_error(error, &Value::Array(vec![expected_value.as_ref().clone()]), source, &path));
        }
        ValidationErrorKind::Pattern { pattern } => {
            let form = form(error, schema).unwrap_or_else(|| format!("text that matches {pattern}"));
            found.push(Diagnostic::error(
                "E013",
                here(),
                format!("{} is not a valid value of {field}", value_text(error.instance(), &path)),
                format!("write {form}"),
            ));
        }
        kind => {
            let (problem, help) = match kind {
                ValidationErrorKind::MinLength { .. } => {
                    (format!("{field} must not be empty"), "write some text".to_owned())
                }
                ValidationErrorKind::MinItems { .. } => {
                    (format!("{field} must not be an empty list"), "add an entry".to_owned())
                }
                ValidationErrorKind::MaxLength { limit } => {
                    let length = error.instance().as_str().unwrap_or_default().chars().count();
                    (format!("{field} has {length} characters"), format!("write at most {limit}"))
                }
                ValidationErrorKind::Minimum { limit } => {
                    (format!("{field} must not be less than {limit}"), format!("write {limit} or more"))
                }
                ValidationErrorKind::Maximum { limit } => {
                    (format!("{field} must not be more than {limit}"), format!("write {limit} or less"))
                }
                _ => (format!("{field}: {}", error.masked()), "change the value so that it fits".to_owned()),
            };
            found.push(Diagnostic::error("E013", here(), problem, help));
        }
    }
}

/// Returns the diagnostic for a required field that the mapping at `path` lacks.
pub(super) fn missing_field(path: &DocumentPath, name: &str, source: &SourceFile) -> Diagnostic {
    let whole = if *path == DocumentPath::root() { String::new() } else { format!(" in `{path}`") };
    let problem = format!("the field `{name}` is missing{whole}");
    Diagnostic::error("E012", source.place(path), problem, missing_help(name))
}

/// Explains a value that matches none of several forms. Assumes that the author meant the closest form, which is the
/// one whose errors are deepest in the document.
fn explain_choice(
    error: &ValidationError<'_>,
    branches: &[Vec<ValidationError<'static>>],
    schema: &Value,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) {
    let path = path_of(error);
    let depth = |error: &ValidationError<'_>| error.instance_path().iter().count();
    let root = depth(error);
    let of_another_type = |branch: &&Vec<ValidationError<'static>>| {
        branch.iter().any(|e| depth(e) == root && matches!(e.kind(), ValidationErrorKind::Type { .. }))
    };
    let fitting: Vec<_> = branches.iter().filter(|branch| !of_another_type(branch)).collect();
    let deepest = fitting.iter().max_by_key(|branch| branch.iter().map(depth).max());
    match (fitting.as_slice(), deepest) {
        ([], _) => {
            let mut forms: Vec<_> = branches
                .iter()
                .flatten()
                .filter_map(|e| match e.kind() {
                    ValidationErrorKind::Type { kind } => Some(type_text(kind)),
                    _ => None,
                })
                // Optional fields are "T or null" in the schema; the message omits the null.
                .filter(|form| form != NOTHING)
                .collect();
            forms.dedup();
            let forms = forms.join(" or ");
            let form = branches.iter().flatten().find_map(|e| form(e, schema)).map(|form| format!("write {form}"));
            let help = form.unwrap_or_else(|| type_help(&path, &forms, error.instance()));
            found.push(wrong_type(error.instance(), &forms, source, &path, help));
        }
        (branches, _)
            if branches.iter().all(|branch| is_value_error(branch) && branch.iter().all(|e| depth(e) == root)) =>
        {
            let options: Vec<_> = branches.iter().flat_map(|branch| branch.iter()).flat_map(values_of).collect();
            found.push(choice_error(error, &Value::Array(options), source, &path));
        }
        ([only], _) => only.iter().for_each(|e| explain(e, schema, source, found)),
        (_, Some(branch)) if branch.iter().any(|e| depth(e) > root) => {
            branch.iter().for_each(|e| explain(e, schema, source, found));
        }
        _ => {
            // Several mappings that differ in the one field that each requires: transport, runtime.
            let mut fields: Vec<_> = branches
                .iter()
                .flatten()
                .flat_map(|e| match e.kind() {
                    ValidationErrorKind::Required { property } => property.as_str().into_iter().collect(),
                    ValidationErrorKind::AdditionalProperties { .. } => field_names(e, schema),
                    _ => Vec::new(),
                })
                .collect();
            fields.dedup();
            // A field that is allowed next to them is not a misspelling.
            let beside = field_names(error, schema);
            let mut keys = error.instance().as_object().into_iter().flat_map(|object| object.keys());
            let given = keys.find(|key| !beside.contains(&key.as_str()));
            let help = match given.and_then(|given| nearest(given, fields.iter().copied())) {
                Some(near) if given.is_some_and(|given| given != near) => format!("did you mean `{near}`?"),
                _ => format!("write exactly one of: {}", fields.join(", ")),
            };
            found.push(Diagnostic::error(
                "E013",
                source.place(&path),
                format!("`{path}` must have exactly one of the fields {}", fields.join(", ")),
                help,
            ));
        }
    }
}

/// Returns true if the value is merely not one of the branch's values. Enums with a description of each value have one
/// branch per value.
fn is_value_error(branch: &[ValidationError<'static>]) -> bool {
    branch.iter().all(|e| matches!(e.kind(), ValidationErrorKind::Constant { .. } | ValidationErrorKind::Enum { .. }))
}

fn values_of(error: &ValidationError<'_>) -> Vec<Value> {
    match error.kind() {
        ValidationErrorKind::Constant { expected_value } => vec![expected_value.as_ref().clone()],
        ValidationErrorKind::Enum { options } => options.as_array().cloned().unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn choice_error(error: &ValidationError<'_>, options: &Value, source: &SourceFile, path: &DocumentPath) -> Diagnostic {
    let options: Vec<_> = options
        .as_array()
        .into_iter()
        .flatten()
        .map(|option| option.as_str().map_or_else(|| option.to_string(), str::to_owned))
        .collect();
    let given = error.instance().as_str().unwrap_or_default();
    let help = match nearest(given, options.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write one of: {}", options.join(", ")),
    };
    Diagnostic::error(
        "E013",
        source.place(path),
        format!("{} is not one of the values of `{path}`: {}", value_text(error.instance(), path), options.join(", ")),
        help,
    )
}

fn path_of(error: &ValidationError<'_>) -> DocumentPath {
    error.instance_path().iter().fold(DocumentPath::root(), |path, segment| match segment {
        LocationSegment::Property(key) => path.key(key.to_string()),
        LocationSegment::Index(index) => path.index(index),
    })
}

/// Returns the schema object that contains the failed keyword.
fn parent_schema<'a>(error: &ValidationError<'_>, schema: &'a Value) -> Option<&'a Value> {
    let pointer = error.schema_path().as_str();
    schema.pointer(&pointer[..pointer.rfind('/')?])
}

fn field_names<'a>(error: &ValidationError<'_>, schema: &'a Value) -> Vec<&'a str> {
    let properties =
        parent_schema(error, schema).and_then(|object| object.get("properties")).and_then(Value::as_object);
    properties.into_iter().flat_map(|properties| properties.keys().map(String::as_str)).collect()
}

/// Returns the fields of which a mapping must have exactly one.
fn alternatives<'a>(error: &ValidationError<'_>, schema: &'a Value) -> Vec<&'a str> {
    let branches = schema.pointer(error.schema_path().as_str()).and_then(Value::as_array);
    let required = branches.into_iter().flatten().filter_map(|branch| branch.get("required")?.get(0)?.as_str());
    required.collect()
}

/// Returns the form that a text must have: the description next to its pattern. `None` if there is no pattern.
fn form(error: &ValidationError<'_>, schema: &Value) -> Option<String> {
    let object = parent_schema(error, schema)?;
    object.get("pattern")?;
    let description = object.get("description")?.as_str()?.trim_end_matches('.');
    let mut letters = description.chars();
    let first = letters.next()?;
    Some(first.to_lowercase().chain(letters).collect())
}

fn wrong_type(value: &Value, expected: &str, source: &SourceFile, path: &DocumentPath, help: String) -> Diagnostic {
    let field = if *path == DocumentPath::root() { "the document".to_owned() } else { format!("`{path}`") };
    // A missing value has no text to point at.
    let at = if value.is_null() { source.key_place(path) } else { source.place(path) };
    Diagnostic::error("E010", at, format!("{field} must be {expected}, not {}", value_text(value, path)), help)
}

fn type_help(path: &DocumentPath, expected: &str, value: &Value) -> String {
    match value {
        _ if path.to_string() == "transport" => missing_help("transport").replacen("add", "write", 1),
        Value::Number(_) | Value::Bool(_) if expected == "text" && path.hides_value(&value.to_string()) => {
            "put it in quotes".to_owned()
        }
        Value::Number(_) | Value::Bool(_) if expected == "text" => format!("put it in quotes: \"{value}\""),
        Value::String(text) if expected.starts_with("a list") && path.hides_value(text) => {
            "write a list: `[…]`".to_owned()
        }
        Value::String(text) if expected.starts_with("a list") => format!("write a list: `[{}]`", mask_keys(text)),
        _ => format!("write {expected} here"),
    }
}

fn missing_help(field: &str) -> String {
    match field {
        "version" => "add `version: 1`".to_owned(),
        "kind" => "add `kind: agent` or `kind: service`".to_owned(),
        "transport" => "add `transport: {stdio: {command: …}}` or `transport: {http: {url: …}}`".to_owned(),
        _ => format!("add `{field}: …`"),
    }
}

fn type_text(kind: &TypeKind) -> String {
    let name = |json_type: JsonType| match json_type {
        JsonType::Array => "a list",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "a whole number",
        JsonType::Null => NOTHING,
        JsonType::Number => "a number",
        JsonType::Object => "a mapping",
        JsonType::String => "text",
    };
    match kind {
        TypeKind::Single(json_type) => name(*json_type).to_owned(),
        // Optional fields are "T or null" in the schema; the message omits the null.
        TypeKind::Multiple(types) => {
            types.iter().filter(|t| *t != JsonType::Null).map(name).collect::<Vec<_>>().join(" or ")
        }
    }
}

/// Describes a value. Quotes it only if it is not a secret.
fn value_text(value: &Value, path: &DocumentPath) -> String {
    let hides = |text: &str| path.hides_value(text);
    match value {
        Value::String(text) if hides(text) => "this text".to_owned(),
        Value::Number(number) if hides(&number.to_string()) => "a number".to_owned(),
        Value::Null => "empty".to_owned(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(text) => {
            let text = mask_keys(text);
            let is_long = text.chars().count() > 60;
            format!("\"{}{}\"", text.chars().take(60).collect::<String>(), if is_long { "…" } else { "" })
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
