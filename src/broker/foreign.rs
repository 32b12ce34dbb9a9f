//! What foreign servers say about their tools is data: capped, cleaned, and never allowed to reach out. The
//! same limits go for all services; built-in ones keep them by themselves.

use std::sync::Arc;

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

use crate::tool::{ToolSpec, is_hidden, plain};

const MAX_DESCRIPTION: usize = 4_096;
const MAX_SCHEMA_BYTES: usize = 64 * 1024;
const MAX_SCHEMA_DEPTH: usize = 32;
const MAX_REGEX: usize = 256 * 1024;
/// Of one thing that is wrong with arguments, in bytes.
const MAX_COMPLAINT: usize = 300;

/// The tool with harmless text, or why it is not offered.
pub(super) fn clean(mut tool: ToolSpec) -> Result<ToolSpec, String> {
    if tool.name.as_str().chars().any(|c| c.is_control() || c.is_whitespace() || is_hidden(c)) {
        return Err("its name holds characters that do not show".to_owned());
    }
    if too_large(&tool.input_schema) {
        return Err("its input schema is too large or too deep".to_owned());
    }
    clean_schema(Arc::make_mut(&mut tool.input_schema));
    // What comes with it is for those who want more; a tool can do without.
    tool.output_schema = tool.output_schema.filter(|schema| !too_large(schema));
    if let Some(schema) = &mut tool.output_schema {
        clean_schema(Arc::make_mut(schema));
    }
    tool.meta = tool.meta.filter(|meta| meta.to_string().len() <= MAX_SCHEMA_BYTES);
    tool.description = clean_text(&tool.description);
    tool.title = tool.title.map(|title| clean_text(&title));
    Ok(tool)
}

/// Without control, zero-width and bidirectional characters, and not longer than anyone reads.
pub(super) fn clean_text(text: &str) -> String {
    let mut clean = plain(text);
    if clean.len() > MAX_DESCRIPTION {
        let mut end = MAX_DESCRIPTION;
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
        clean.push('…');
    }
    clean
}

fn too_large(schema: &Map<String, Value>) -> bool {
    let schema = Value::Object(schema.clone());
    schema.to_string().len() > MAX_SCHEMA_BYTES || depth(&schema) > MAX_SCHEMA_DEPTH
}

/// A model reads what a schema says about the arguments just as it reads the description.
fn clean_schema(schema: &mut Map<String, Value>) {
    for (key, value) in schema {
        match value {
            Value::String(text) if ["description", "title", "$comment"].contains(&key.as_str()) => {
                *text = clean_text(text);
            }
            other => clean_schemas(other),
        }
    }
}

fn clean_schemas(value: &mut Value) {
    match value {
        Value::Object(object) => clean_schema(object),
        Value::Array(items) => items.iter_mut().for_each(clean_schemas),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(object) => 1 + object.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// What judges the arguments of a call. Nothing is ever fetched for it: the crate is built without network and
/// file access, so a schema that points elsewhere does not compile.
pub(super) fn validator(tool: &ToolSpec) -> Result<Validator, String> {
    let schema = Value::Object(tool.input_schema.as_ref().clone());
    jsonschema::options()
        // This engine takes time in proportion to its input, whatever the pattern.
        .with_pattern_options(PatternOptions::regex().size_limit(MAX_REGEX).dfa_size_limit(MAX_REGEX))
        .build(&schema)
        .map_err(|error| format!("its input schema cannot be used: {error}"))
}

/// An error without what was given, if that is long: whoever gave it has it.
fn said(error: &ValidationError<'_>) -> String {
    let whole = error.to_string();
    if whole.len() <= MAX_COMPLAINT { whole } else { head(&error.masked().to_string()) }
}

fn head(text: &str) -> String {
    if text.len() <= MAX_COMPLAINT {
        return text.to_owned();
    }
    let end = (0..=MAX_COMPLAINT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// What is wrong with the arguments, in words a model can act on.
pub(super) fn complaints(validator: &Validator, arguments: &Map<String, Value>) -> Option<String> {
    let arguments = Value::Object(arguments.clone());
    let errors: Vec<_> = validator
        .iter_errors(&arguments)
        .take(5)
        .map(|error| match error.instance_path().as_str() {
            "" => said(&error),
            path => format!("{}: {}", head(path), said(&error)),
        })
        .collect();
    if errors.is_empty() { None } else { Some(errors.join("; ")) }
}
