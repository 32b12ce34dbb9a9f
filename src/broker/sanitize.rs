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
    sanitize_shared_schema(&mut tool.input_schema);
    // Output schema and metadata are optional, so drop them if they are too large or invalid.
    tool.output_schema = tool.output_schema.filter(|schema| !too_large(schema) && check_schema(schema).is_ok());
    if let Some(schema) = &mut tool.output_schema {
        sanitize_shared_schema(schema);
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
    let is_long = serde_json::to_string(schema).is_ok_and(|text| text.len() > MAX_SCHEMA_BYTES);
    is_long || map_depth(schema) > MAX_SCHEMA_DEPTH
}

/// Sanitizes the texts in a schema. All bindings share a schema in which nothing changes: copies would be most of the
/// memory of a session.
fn sanitize_shared_schema(schema: &mut Arc<Map<String, Value>>) {
    if has_unsafe_text(schema) {
        sanitize_schema(Arc::make_mut(schema));
    }
}

/// Returns whether a model reads the text under this key like the description.
fn is_read_by_model(key: &str) -> bool {
    ["description", "title", "$comment"].contains(&key)
}

/// Returns whether [`sanitize_schema`] changes the schema.
fn has_unsafe_text(schema: &Map<String, Value>) -> bool {
    schema.iter().any(|(key, value)| match value {
        Value::String(text) if is_read_by_model(key) => sanitize_text(text) != *text,
        other => has_unsafe_schema(other),
    })
}

fn has_unsafe_schema(value: &Value) -> bool {
    match value {
        Value::Object(object) => has_unsafe_text(object),
        Value::Array(items) => items.iter().any(has_unsafe_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn sanitize_schema(schema: &mut Map<String, Value>) {
    for (key, value) in schema {
        match value {
            Value::String(text) if is_read_by_model(key) => *text = sanitize_text(text),
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
        Value::Object(object) => map_depth(object),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn map_depth(object: &Map<String, Value>) -> usize {
    1 + object.values().map(depth).max().unwrap_or(0)
}

/// Compiles the input schema. Never fetches anything: the crate is built without network and file access, so a schema
/// with a remote reference does not compile.
pub(super) fn validator(tool: &ToolSpec) -> Result<SchemaValidator, SchemaError> {
    SchemaValidator::new(&tool.input_schema)
}

/// Sanitizes a tool and compiles its schema, for the fuzzer. `None` if the tool cannot be used.
#[cfg(any(test, fuzzing))]
pub fn check_tool(tool: ToolSpec) -> Option<ToolSpec> {
    let tool = sanitize_tool(tool).ok()?;
    drop(validator(&tool));
    Some(tool)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(text: &str) -> Arc<Map<String, Value>> {
        let properties = json!({"path": {"type": "string", "description": text}});
        Arc::new(Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), properties)]))
    }

    #[test]
    fn bindings_share_a_schema_in_which_nothing_changes() {
        let clean = schema("Reads a file.");
        let mut kept = Arc::clone(&clean);
        sanitize_shared_schema(&mut kept);
        assert!(Arc::ptr_eq(&clean, &kept));
        let hidden = schema("Reads\u{200b} a file.");
        let mut changed = Arc::clone(&hidden);
        sanitize_shared_schema(&mut changed);
        assert_eq!((&changed, Arc::strong_count(&hidden)), (&clean, 1));
    }
}
