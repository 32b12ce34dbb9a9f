//! Converts a JSON Schema to a TypeScript type, which is short and which models read best.

use std::cell::Cell;

use serde_json::{Map, Value};

/// Approximate maximum bytes of a type. References and repeated parts make a type much longer than its schema.
const MAX_TYPE: usize = 64 * 1024;
/// Maximum depth of a type. Deeper parts become `unknown`.
const MAX_DEPTH: usize = 6;

/// Returns the type of values that match the schema. Parts without a TypeScript equivalent become `unknown`.
pub(super) fn of(schema: &Map<String, Value>) -> String {
    TypePrinter { root: schema, left: Cell::new(MAX_TYPE) }.object_or(schema, 0)
}

struct TypePrinter<'a> {
    root: &'a Map<String, Value>,
    /// Bytes that are left for the type.
    left: Cell<usize>,
}

/// Minimum bytes that a nested type is counted with.
const VALUE_COST: usize = 8;

impl TypePrinter<'_> {
    /// Subtracts `bytes` from those that are left. Returns false if fewer are left, which then sets the rest to zero.
    fn spend(&self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Returns a constant as JSON, or `unknown` if it does not fit.
    fn constant(&self, value: &Value) -> String {
        let text = value.to_string();
        if self.spend(text.len()) { text } else { "unknown".to_owned() }
    }

    fn value(&self, schema: &Value, depth: usize) -> String {
        match schema {
            Value::Object(schema) if depth < MAX_DEPTH && self.spend(VALUE_COST) => self.object_or(schema, depth),
            _ => "unknown".to_owned(),
        }
    }

    fn object_or(&self, schema: &Map<String, Value>, depth: usize) -> String {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self
                .resolve_reference(reference)
                .map_or_else(|| "unknown".to_owned(), |of| self.value(of, depth + 1));
        }
        if let Some(constant) = schema.get("const") {
            return self.constant(constant);
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return join_unique(values.iter().map(|value| self.constant(value)), " | ");
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(either) = schema.get(key).and_then(Value::as_array) {
                return join_unique(either.iter().map(|one| self.value(one, depth + 1)), " | ");
            }
        }
        if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
            return join_unique(all.iter().map(|one| self.value(one, depth + 1)), " & ");
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.type_by_name(name, schema, depth),
            Some(Value::Array(names)) => join_unique(
                names.iter().filter_map(Value::as_str).map(|name| self.type_by_name(name, schema, depth)),
                " | ",
            ),
            _ if schema.contains_key("properties") => self.object(schema, depth),
            _ => "unknown".to_owned(),
        }
    }

    fn type_by_name(&self, name: &str, schema: &Map<String, Value>, depth: usize) -> String {
        match name {
            "string" | "boolean" | "null" => name.to_owned(),
            "number" | "integer" => "number".to_owned(),
            "array" => {
                let of = schema.get("items").map_or_else(|| "unknown".to_owned(), |items| self.value(items, depth + 1));
                if of.contains([' ', '\n']) { format!("Array<{of}>") } else { format!("{of}[]") }
            }
            "object" => self.object(schema, depth),
            _ => "unknown".to_owned(),
        }
    }

    fn object(&self, schema: &Map<String, Value>, depth: usize) -> String {
        let properties =
            schema.get("properties").and_then(Value::as_object).filter(|properties| !properties.is_empty());
        let Some(properties) = properties else {
            return match schema.get("additionalProperties") {
                Some(of @ Value::Object(_)) => format!("Record<string, {}>", self.value(of, depth + 1)),
                Some(Value::Bool(false)) => "{}".to_owned(),
                _ => "Record<string, unknown>".to_owned(),
            };
        };
        let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut text = "{\n".to_owned();
        for (name, of) in properties {
            let needed = required.iter().any(|required| required == name);
            if !self.spend(name.len() + VALUE_COST) {
                break;
            }
            if let Some(about) = about(of).filter(|about| self.spend(about.len())) {
                text.push_str(&format!("  /** {about} */\n"));
            }
            let mark = if needed { "" } else { "?" };
            let of = self.value(of, depth + 1).replace('\n', "\n  ");
            text.push_str(&format!("  {}{mark}: {of};\n", property(name)));
        }
        text.push('}');
        text
    }

    /// Resolves a reference within the schema. `None` for any other reference.
    fn resolve_reference(&self, reference: &str) -> Option<&Value> {
        let mut parts = reference.strip_prefix("#/")?.split('/');
        let mut found = self.root.get(parts.next()?)?;
        for part in parts {
            found = found.get(part)?;
        }
        Some(found)
    }
}

/// Returns the description and default of a value on one line that cannot end a comment.
fn about(schema: &Value) -> Option<String> {
    let said = schema["description"].as_str().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let default = schema.get("default").filter(|default| !default.is_null()).map(|value| format!("Default: {value}"));
    let parts: Vec<_> = said.into_iter().chain(default).filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(" ").replace("*/", "* /"))
}

fn property(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let usable = name.chars().all(plain) && !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
    if usable { name.to_owned() } else { Value::from(name).to_string() }
}

fn join_unique(types: impl Iterator<Item = String>, by: &str) -> String {
    let mut each: Vec<String> = Vec::new();
    for one in types {
        if !each.contains(&one) {
            each.push(one);
        }
    }
    if each.is_empty() { "unknown".to_owned() } else { each.join(by) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn typed(schema: Value) -> String {
        let Value::Object(schema) = schema else { panic!("a schema is an object") };
        of(&schema)
    }

    #[test]
    fn a_schema_becomes_a_type() {
        let shown = typed(json!({
            "type": "object",
            "required": ["path", "steps"],
            "$defs": {"step": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}},
            "properties": {
                "path": {"type": "string", "description": "Where\n  it is. */"},
                "depth": {"type": ["integer", "null"], "default": 3},
                "how": {"enum": ["fast", "slow"]},
                "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
                "tags": {"type": "array", "items": {"type": "string"}},
                "extra-part": {"type": "object", "additionalProperties": {"type": "number"}},
                "any": {},
            },
        }));
        let expected = r#"{
  /** Where it is. * / */
  path: string;
  /** Default: 3 */
  depth?: number | null;
  how?: "fast" | "slow";
  steps: Array<{
    text: string;
  }>;
  tags?: string[];
  "extra-part"?: Record<string, number>;
  any?: unknown;
}"#;
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_type_has_a_limit_however_often_its_parts_are_repeated() {
        let long = "d".repeat(4_000);
        let again: Map<_, _> =
            (0..900).map(|nth| (format!("p{nth}"), json!({"$ref": "#", "description": long}))).collect();
        let shown = typed(json!({"type": "object", "properties": again}));
        assert!(shown.len() < 3 * MAX_TYPE, "{}", shown.len());
    }

    #[test]
    fn a_schema_that_goes_round_in_circles_ends() {
        let shown = typed(
            json!({"type": "object", "properties": {"next": {"$ref": "#"}, "more": {"$ref": "#/properties/more"}}}),
        );
        assert!(shown.contains("unknown") && shown.len() < 1_000, "{shown}");
        assert_eq!(typed(json!({})), "unknown");
        assert_eq!(typed(json!({"type": "object"})), "Record<string, unknown>");
    }
}
