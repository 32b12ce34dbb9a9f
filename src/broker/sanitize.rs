//! Sanitizes and limits the text and schemas that third-party services send about their tools. The same limits apply to
//! built-in services, which already meet them.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::manifest::{SchemaError, SchemaValidator, check_schema};
use crate::tool::{ToolSpec, is_hidden, strip_invisible};

const MAX_DESCRIPTION: usize = 4_096;
const MAX_SCHEMA_BYTES: usize = 64 * 1024;
const MAX_SCHEMA_DEPTH: usize = 32;

/// Why the description of a tool cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ToolSpecError {
    #[error("its name holds characters that do not show")]
    InvisibleName,
    #[error("its input schema is too large or too deep")]
    SchemaTooLarge,
}

/// Sanitizes a tool's text and schemas. Fails if its name has invisible characters or its input schema is too large.
pub(super) fn sanitize_tool(mut tool: ToolSpec) -> Result<ToolSpec, ToolSpecError> {
    if tool.name.as_str().chars().any(|c| c.is_control() || c.is_whitespace() || is_hidden(c)) {
        return Err(ToolSpecError::InvisibleName);
    }
    if too_large(&tool.input_schema) {
        return Err(ToolSpecError::SchemaTooLarge);
    }
    sanitize_schema(Arc::make_mut(&mut tool.input_schema));
    // Output schema and metadata are optional, so drop them if they are too large or invalid.
    tool.output_schema = tool.output_schema.filter(|schema| !too_large(schema) && check_schema(schema).is_ok());
    if let Some(schema) = &mut tool.output_schema {
        sanitize_schema(Arc::make_mut(schema));
    }
    tool.meta = tool.meta.filter(|meta| meta.to_string().len() <= MAX_SCHEMA_BYTES);
    tool.description = sanitize_text(&tool.description);
    tool.title = tool.title.map(|title| sanitize_text(&title));
    Ok(tool)
}

/// Removes control, zero-width and bidirectional characters, and truncates to [`MAX_DESCRIPTION`] bytes.
pub(super) fn sanitize_text(text: &str) -> String {
    let mut clean = strip_invisible(text);
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

/// Sanitizes the texts in a schema, which a model reads like the description.
fn sanitize_schema(schema: &mut Map<String, Value>) {
    for (key, value) in schema {
        match value {
            Value::String(text) if ["description", "title", "$comment"].contains(&key.as_str()) => {
                *text = sanitize_text(text);
            }
            other => sanitize_schemas(other),
        }
    }
}

fn sanitize_schemas(value: &mut Value) {
    match value {
        Value::Object(object) => sanitize_schema(object),
        Value::Array(items) => items.iter_mut().for_each(sanitize_schemas),
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

/// Compiles the input schema. Never fetches anything: the crate is built without network and file access, so a schema
/// with a remote reference does not compile.
pub(super) fn validator(tool: &ToolSpec) -> Result<SchemaValidator, SchemaError> {
    SchemaValidator::new(&tool.input_schema)
}
