//! Changes the schema of a tool to one that every provider takes. A provider refuses a request with one schema that it
//! does not take, and with it every request of the mode.
//!
//! Invariant: only what the model sees changes. The broker checks calls against the schema of the service.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Keywords that Anthropic or OpenAI refuse at the root of a schema.
const REFUSED: [&str; 6] = ["allOf", "anyOf", "oneOf", "enum", "const", "not"];
/// Keywords whose value is one schema.
const WITH_SCHEMA: [&str; 4] = ["items", "additionalProperties", "contains", "not"];
/// Keywords whose value is a list of schemas.
const WITH_LIST: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value has schemas by name.
const WITH_NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// How deep the alternatives at the root may be nested, and how many references may follow one another there.
const MAX_DEPTH: usize = 4;
/// Bytes of the keywords that the model gets as text.
const MAX_TEXT: usize = 2000;

/// Returns true if a provider refuses the schema.
pub(super) fn is_refused(schema: &Map<String, Value>) -> bool {
    let is_object = schema.get("type").is_none_or(|kind| kind == "object");
    is_object
        && (!schema.contains_key("type")
            || !schema.contains_key("properties")
            || schema.contains_key("$ref")
            || REFUSED.iter().any(|key| schema.contains_key(*key))
            || lacks_items(schema))
}

/// Changes a schema that is refused. Returns the keywords that it no longer has, as text for the model.
pub(super) fn adapt(schema: &mut Map<String, Value>) -> Option<String> {
    let root = Value::Object(schema.clone());
    follow_references(schema, &root);
    let removed: Map<_, _> =
        REFUSED.iter().filter_map(|key| Some(((*key).to_owned(), schema.shift_remove(*key)?))).collect();
    let found = collect_properties(&removed, &root);
    schema.insert("type".to_owned(), json!("object"));
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        add_properties(properties, found);
    }
    if let Some(Value::Array(parts)) = removed.get("allOf") {
        let more = parts.iter().filter_map(|part| part["required"].as_array()).flatten();
        add_required(schema, more);
    }
    add_items(schema);
    schema.values_mut().for_each(drop_dangling);
    let text = Value::Object(removed.clone()).to_string();
    (!removed.is_empty() && text.len() <= MAX_TEXT).then_some(text)
}

/// Returns the part of the schema that a reference names.
fn resolve<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

/// Replaces a reference at the root by what it names.
fn follow_references(schema: &mut Map<String, Value>, root: &Value) {
    for _ in 0..MAX_DEPTH {
        let Some(reference) = schema.shift_remove("$ref") else { return };
        let Some(Value::Object(target)) = resolve(root, &reference) else { return };
        for (key, value) in target {
            match (schema.get_mut(key), value) {
                (Some(Value::Object(own)), Value::Object(more)) if key == "properties" => {
                    for (name, value) in more {
                        own.entry(name.clone()).or_insert_with(|| value.clone());
                    }
                }
                (Some(_), Value::Array(more)) if key == "required" => add_required(schema, more.iter()),
                (Some(_), _) => {}
                (None, value) => {
                    schema.insert(key.clone(), value.clone());
                }
            }
        }
    }
    schema.shift_remove("$ref");
}

/// Replaces references into the keywords that the root no longer has by a schema that takes every value.
fn drop_dangling(value: &mut Value) {
    let is_dangling = |reference: &str| {
        let path = reference.strip_prefix("#/").unwrap_or_default();
        REFUSED.contains(&path.split('/').next().unwrap_or_default())
    };
    match value {
        Value::Object(schema) if schema.get("$ref").and_then(Value::as_str).is_some_and(is_dangling) => {
            schema.shift_remove("$ref");
        }
        Value::Object(schema) => schema.values_mut().for_each(drop_dangling),
        Value::Array(list) => list.iter_mut().for_each(drop_dangling),
        _ => {}
    }
}

/// Finds the properties of all alternatives, level by level, and visits each part once: a part may refer to itself, and
/// many parts to the same one.
fn collect_properties(schema: &Map<String, Value>, root: &Value) -> Vec<(String, Value)> {
    let (mut level, mut seen, mut found) = (vec![schema], HashSet::new(), Vec::new());
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for part in level.into_iter().flat_map(alternatives) {
            let part = part.get("$ref").and_then(|reference| resolve(root, reference)).unwrap_or(part);
            let Value::Object(part) = part else { continue };
            if !seen.insert(std::ptr::from_ref(part)) {
                continue;
            }
            if let Some(Value::Object(properties)) = part.get("properties") {
                found.extend(properties.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            next.push(part);
        }
        level = next;
    }
    found
}

fn alternatives(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten()
}

/// Adds properties that the schema does not have. A property with several schemas may have any of them.
fn add_properties(properties: &mut Map<String, Value>, found: Vec<(String, Value)>) {
    let mut added: Map<String, Value> = Map::new();
    for (name, value) in found.into_iter().filter(|(name, _)| !properties.contains_key(name)) {
        let variants = added.entry(name).or_insert_with(|| json!([]));
        if let Value::Array(variants) = variants
            && !variants.contains(&value)
        {
            variants.push(value);
        }
    }
    for (name, variants) in added {
        let value = match variants {
            Value::Array(mut variants) if variants.len() == 1 => variants.remove(0),
            variants => json!({"anyOf": variants}),
        };
        properties.insert(name, value);
    }
}

fn add_required<'a>(schema: &mut Map<String, Value>, more: impl Iterator<Item = &'a Value>) {
    let more: Vec<_> = more.cloned().collect();
    if more.is_empty() {
        return;
    }
    let required = schema.entry("required").or_insert_with(|| json!([]));
    if let Value::Array(required) = required {
        for name in more {
            if !required.contains(&name) {
                required.push(name);
            }
        }
    }
}

/// Returns true if an array in the schema has no `items`, which OpenAI refuses.
fn lacks_items(schema: &Map<String, Value>) -> bool {
    is_open_array(schema) || {
        let one = WITH_SCHEMA.iter().filter_map(|key| schema.get(*key));
        let lists = WITH_LIST.iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
        let named = WITH_NAMES.iter().filter_map(|key| schema.get(*key)?.as_object()).flat_map(Map::values);
        one.chain(lists).chain(named).filter_map(Value::as_object).any(lacks_items)
    }
}

fn is_open_array(schema: &Map<String, Value>) -> bool {
    let is_array = match schema.get("type") {
        Some(Value::String(kind)) => kind == "array",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
        _ => false,
    };
    is_array && !schema.contains_key("items")
}

/// Adds `items` to each array in the schema that has none.
fn add_items(schema: &mut Map<String, Value>) {
    if is_open_array(schema) {
        schema.insert("items".to_owned(), json!({}));
    }
    for (key, value) in schema {
        let key = key.as_str();
        match value {
            Value::Object(one) if WITH_SCHEMA.contains(&key) => add_items(one),
            Value::Array(list) if WITH_LIST.contains(&key) => {
                list.iter_mut().filter_map(Value::as_object_mut).for_each(add_items);
            }
            Value::Object(named) if WITH_NAMES.contains(&key) => {
                named.values_mut().filter_map(Value::as_object_mut).for_each(add_items);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("a schema is an object") };
        map
    }

    #[test]
    fn a_refused_schema_becomes_one_that_is_taken() {
        let text = json!({"type": "string"});
        for (given, expected) in [
            (json!({}), json!({"type": "object", "properties": {}})),
            (json!({"type": "object"}), json!({"type": "object", "properties": {}})),
            (json!({"properties": {"a": text}}), json!({"properties": {"a": text}, "type": "object"})),
            (
                json!({"type": "object", "properties": {"a": text, "b": text},
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["c"]}}),
                json!({"type": "object", "properties": {"a": text, "b": text}}),
            ),
            (
                json!({"type": "object", "oneOf": [
                    {"properties": {"mode": {"const": "x"}, "a": text}, "required": ["mode"]},
                    {"properties": {"mode": {"const": "y"}, "a": text}},
                ]}),
                json!({"type": "object", "properties": {
                    "mode": {"anyOf": [{"const": "x"}, {"const": "y"}]}, "a": text}}),
            ),
            (
                json!({"type": "object", "properties": {"a": text}, "required": ["a"],
                    "allOf": [{"$ref": "#/$defs/more"}, {"required": ["a", "b"]}],
                    "$defs": {"more": {"anyOf": [{"properties": {"b": text, "a": {}}}]}}}),
                json!({"type": "object", "properties": {"a": text, "b": text}, "required": ["a", "b"],
                    "$defs": {"more": {"anyOf": [{"properties": {"b": text, "a": {}}}]}}}),
            ),
            (
                json!({"$ref": "#/$defs/root", "$defs": {"root": {"type": "object", "properties": {"a": text}}}}),
                json!({"type": "object", "properties": {"a": text},
                    "$defs": {"root": {"type": "object", "properties": {"a": text}}}}),
            ),
            (
                json!({"$ref": "#/$defs/a", "properties": {"b": text}, "required": ["b"], "$defs": {
                    "a": {"$ref": "#/$defs/root"},
                    "root": {"properties": {"a": text, "b": {}}, "required": ["a"]}}}),
                json!({"properties": {"b": text, "a": text}, "required": ["b", "a"], "$defs": {
                    "a": {"$ref": "#/$defs/root"},
                    "root": {"properties": {"a": text, "b": {}}, "required": ["a"]}}, "type": "object"}),
            ),
            (
                json!({"type": "object", "anyOf": [
                    {"anyOf": [{"anyOf": [{"anyOf": [{"$ref": "#/$defs/deep"}]}]}]}, {"$ref": "#/$defs/deep"}],
                    "$defs": {"deep": {"anyOf": [{"properties": {"a": text}}]}}}),
                json!({"type": "object", "properties": {"a": text},
                    "$defs": {"deep": {"anyOf": [{"properties": {"a": text}}]}}}),
            ),
            (
                json!({"type": "object", "anyOf": [
                    {"properties": {"filter": text}},
                    {"properties": {"other": {"$ref": "#/anyOf/0/properties/filter", "title": "t"}}}]}),
                json!({"type": "object", "properties": {"filter": text, "other": {"title": "t"}}}),
            ),
            (
                json!({"type": "object", "properties": {
                    "list": {"type": ["array", "null"]}, "type": {"type": "array", "items": {"type": "array"}}}}),
                json!({"type": "object", "properties": {
                    "list": {"type": ["array", "null"], "items": {}},
                    "type": {"type": "array", "items": {"type": "array", "items": {}}}}}),
            ),
        ] {
            let mut schema = map(given.clone());
            assert!(is_refused(&schema), "{given}");
            adapt(&mut schema);
            assert!(!is_refused(&schema), "{given}");
            assert_eq!(Value::Object(schema), expected, "{given}");
        }
    }

    #[test]
    fn a_schema_that_is_taken_does_not_change() {
        for schema in [
            json!({"type": "object", "properties": {}}),
            json!({"type": "string"}),
            json!({"type": "object", "properties": {
                "a": {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}], "default": {"type": "array"}}}}),
        ] {
            assert!(!is_refused(&map(schema.clone())), "{schema}");
        }
    }

    #[test]
    fn the_model_gets_what_was_removed_as_text() {
        let mut schema = map(json!({"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]}));
        assert_eq!(adapt(&mut schema).as_deref(), Some(r#"{"anyOf":[{"required":["a"]}]}"#));
        assert_eq!(adapt(&mut map(json!({"type": "object"}))), None);
        let long = vec![json!({"required": ["a"]}); 200];
        assert_eq!(adapt(&mut map(json!({"type": "object", "anyOf": long}))), None);
    }

    #[test]
    fn a_reference_to_itself_ends() {
        let mut schema = map(json!({"type": "object", "anyOf": [{"$ref": "#"}], "$ref": "#"}));
        adapt(&mut schema);
        assert_eq!(schema.get("properties"), Some(&json!({})));
    }

    #[test]
    fn many_references_to_one_part_are_followed_once() {
        // Each part leads to all of them: without a record of visits, 1,000⁴ parts.
        let references = vec![json!({"$ref": "#"}); 1000];
        let text = json!({"type": "string"});
        let mut schema = map(json!({"type": "object", "properties": {"a": text}, "anyOf": references}));
        adapt(&mut schema);
        assert_eq!(schema, map(json!({"type": "object", "properties": {"a": text}})));
    }
}
