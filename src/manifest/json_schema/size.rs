//! Measures a schema with its references followed: the number of steps to validate one value, if no part of the value
//! is visited twice.
//!
//! Invariant: a recursive reference counts once. A reference back to the same value would never end, so such a schema
//! is rejected.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// The maximum number of steps of a schema.
const MAX_STEPS: usize = 10_000;
/// The maximum nesting of schemas, with references followed. The crate compiles and validates recursively.
const MAX_HEIGHT: usize = 64;
/// The steps that a pattern counts for, because it takes time to compile.
const PATTERN: usize = 50;
/// The number of `enum` values and `required` names that count as one step.
const PER_STEP: usize = 8;
/// The factor for `unevaluated…`, which visits the other schemas of the same object again.
const UNEVALUATED: usize = 4;

/// Keywords whose schemas apply to parts of the value.
const TO_PARTS: [&str; 10] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose schemas apply to the value itself.
const IN_PLACE: [&str; 9] =
    ["allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"];
/// The keywords among these that map names to schemas.
const BY_NAME: [&str; 4] = ["dependencies", "dependentSchemas", "patternProperties", "properties"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Prefixes of the meta-schemas, which the crate provides.
const META_SCHEMAS: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];
/// The steps of a meta-schema, with its references followed.
const META_SCHEMA: usize = 1_000;

/// The reason why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("it is too large when its references are followed: more than {MAX_STEPS} steps")]
    TooLarge,
    #[error("its references are nested more than {MAX_HEIGHT} levels deep")]
    TooDeep,
    #[error("a reference leads back to itself without end")]
    Endless,
    #[error("it refers to `{0}`, which it does not hold")]
    Unresolved(String),
    #[error("{0}")]
    Invalid(String),
}

/// Returns the addresses of all schemas within a schema that values are validated against. Fails if that takes too many
/// steps, or if a reference is endless or unresolved.
pub(super) fn check(schema: &Value) -> Result<HashSet<Key>, SchemaError> {
    let mut sizes = Sizes { index: Index::new(schema), known: HashMap::new(), open: HashSet::new(), visited: vec![] };
    sizes.measure(schema, 0)?;
    let mut ended = HashSet::new();
    sizes.visited.iter().try_for_each(|schema| sizes.ends(schema, &mut ended, &mut HashSet::new()))?;
    Ok(sizes.visited.into_iter().map(key).collect())
}

/// Adds a keyword to those of the schemas within `value` whose addresses are in `all`.
pub(super) fn add_keyword(value: &mut Value, all: &HashSet<Key>, keyword: &str) {
    let is_schema = all.contains(&key(value));
    match value {
        Value::Object(object) => {
            object.values_mut().for_each(|inner| add_keyword(inner, all, keyword));
            // This may move the values of the object, so it comes after them.
            if is_schema {
                object.insert(keyword.to_owned(), Value::Bool(true));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| add_keyword(inner, all, keyword)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The address of a value within the schema, which does not move while it is measured.
pub(super) type Key = usize;

fn key(value: &Value) -> Key {
    std::ptr::from_ref(value) as usize
}

#[derive(Debug, Clone, Copy)]
struct Size {
    steps: usize,
    height: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Application {
    InPlace,
    Part,
}

struct Sizes<'a> {
    index: Index<'a>,
    known: HashMap<Key, Size>,
    /// The schemas on the path from the root to the current one.
    open: HashSet<Key>,
    visited: Vec<&'a Value>,
}

impl<'a> Sizes<'a> {
    fn measure(&mut self, schema: &'a Value, depth: usize) -> Result<Size, SchemaError> {
        let leaf = Size { steps: 1, height: 1 };
        let Value::Object(object) = schema else { return Ok(leaf) };
        if let Some(size) = self.known.get(&key(schema)) {
            return Ok(*size);
        }
        if depth > MAX_HEIGHT {
            return Err(SchemaError::TooDeep);
        }
        if !self.open.insert(key(schema)) {
            return Ok(leaf);
        }
        let mut size = Size { steps: 1 + literal_steps(object), height: 1 };
        for (_, inner) in self.index.inner(schema, object)? {
            let inner = self.measure(inner, depth + 1)?;
            size.steps = size.steps.saturating_add(inner.steps);
            size.height = size.height.max(inner.height + 1);
        }
        if object.contains_key("unevaluatedProperties") || object.contains_key("unevaluatedItems") {
            size.steps = size.steps.saturating_mul(UNEVALUATED);
        }
        if size.steps > MAX_STEPS {
            return Err(SchemaError::TooLarge);
        }
        if size.height > MAX_HEIGHT {
            return Err(SchemaError::TooDeep);
        }
        self.open.remove(&key(schema));
        self.known.insert(key(schema), size);
        self.visited.push(schema);
        Ok(size)
    }

    /// Fails if a schema applies itself to the same value again.
    fn ends(&self, schema: &'a Value, ended: &mut HashSet<Key>, open: &mut HashSet<Key>) -> Result<(), SchemaError> {
        let Value::Object(object) = schema else { return Ok(()) };
        if ended.contains(&key(schema)) {
            return Ok(());
        }
        // The longest path without a cycle can exceed the height that was measured from another start.
        if open.len() > MAX_HEIGHT * 2 || !open.insert(key(schema)) {
            return Err(SchemaError::Endless);
        }
        for (reach, inner) in self.index.inner(schema, object)? {
            if reach == Application::InPlace {
                self.ends(inner, ended, open)?;
            }
        }
        open.remove(&key(schema));
        ended.insert(key(schema));
        Ok(())
    }
}

fn literal_steps(schema: &Map<String, Value>) -> usize {
    let patterns = schema.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len)
        + usize::from(schema.contains_key("pattern"));
    let entries = |keyword: &str| schema.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
    if schema.get("$ref").and_then(Value::as_str).is_some_and(is_meta_schema) {
        return META_SCHEMA;
    }
    patterns * PATTERN + (entries("enum") + entries("required")) / PER_STEP
}

fn is_meta_schema(reference: &str) -> bool {
    META_SCHEMAS.iter().any(|prefix| reference.starts_with(prefix))
}

/// The possible targets of references.
struct Index<'a> {
    root: &'a Value,
    /// The enclosing schema with an `$id`, for each schema; missing if that is the root.
    resources: HashMap<Key, &'a Value>,
    /// Values by `$id`. Several may have the same one, because data may look like a schema.
    ids: HashMap<&'a str, Vec<&'a Value>>,
    /// Schemas by `$anchor` or `$dynamicAnchor`.
    anchors: HashMap<&'a str, Vec<&'a Value>>,
}

impl<'a> Index<'a> {
    fn new(root: &'a Value) -> Self {
        let mut index = Self { root, resources: HashMap::new(), ids: HashMap::new(), anchors: HashMap::new() };
        index.add(root, root);
        index
    }

    fn add(&mut self, value: &'a Value, mut resource: &'a Value) {
        match value {
            Value::Object(object) => {
                let id = object.get("$id").or_else(|| object.get("id")).and_then(Value::as_str);
                if let Some(id) = id {
                    self.ids.entry(id.trim_end_matches('#')).or_default().push(value);
                    if !id.starts_with('#') {
                        resource = value;
                    }
                }
                for name in ["$anchor", "$dynamicAnchor"] {
                    if let Some(anchor) = object.get(name).and_then(Value::as_str) {
                        self.anchors.entry(anchor).or_default().push(value);
                    }
                }
                self.resources.insert(key(value), resource);
                object.values().for_each(|inner| self.add(inner, resource));
            }
            Value::Array(items) => items.iter().for_each(|inner| self.add(inner, resource)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Returns the schemas that a schema applies, including referenced ones.
    fn inner(
        &self,
        schema: &Value,
        object: &'a Map<String, Value>,
    ) -> Result<Vec<(Application, &'a Value)>, SchemaError> {
        let mut inner = Vec::new();
        for (keyword, value) in object {
            let keyword = keyword.as_str();
            let reach = if TO_PARTS.contains(&keyword) {
                Application::Part
            } else if IN_PLACE.contains(&keyword) || REFERENCES.contains(&keyword) {
                Application::InPlace
            } else {
                continue;
            };
            match value {
                Value::String(reference) if REFERENCES.contains(&keyword) => {
                    inner.extend(self.find(schema, reference)?);
                }
                Value::Object(by_name) if BY_NAME.contains(&keyword) => {
                    inner.extend(by_name.values().map(|value| (reach, value)));
                }
                Value::Array(items) => inner.extend(items.iter().map(|value| (reach, value))),
                value => inner.push((reach, value)),
            }
        }
        Ok(inner)
    }

    /// Returns all schemas that a reference may mean.
    fn find(&self, from: &Value, reference: &str) -> Result<Vec<(Application, &'a Value)>, SchemaError> {
        let applied = |reach, found: Vec<&'a Value>| found.into_iter().map(|found| (reach, found)).collect();
        let unresolved = || SchemaError::Unresolved(reference.chars().take(100).collect());
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resources = match address {
            "" => vec![self.resources.get(&key(from)).copied().unwrap_or(self.root)],
            address => match self.ids.get(address) {
                Some(resources) => resources.clone(),
                // A meta-schema applies the schema that has this name, if there is one, to parts of the value.
                None if is_meta_schema(reference) => {
                    return Ok(applied(Application::Part, self.anchors.get("meta").cloned().unwrap_or_default()));
                }
                None => return Err(unresolved()),
            },
        };
        let found = if fragment.is_empty() {
            resources
        } else if fragment.starts_with('/') {
            let pointer = decode(fragment);
            let within = |resource| [resource, self.root].into_iter().find_map(|place| place.pointer(&pointer));
            resources.into_iter().filter_map(within).collect()
        } else {
            self.anchors.get(fragment).or_else(|| self.ids.get(&reference)).cloned().unwrap_or_default()
        };
        if found.is_empty() { Err(unresolved()) } else { Ok(applied(Application::InPlace, found)) }
    }
}

/// Percent-decodes a JSON pointer in a URI fragment.
fn decode(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        match after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(b'%');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: &Value) -> Result<(), SchemaError> {
        super::check(schema).map(drop)
    }

    #[test]
    fn every_schema_gets_a_keyword_and_other_values_do_not() {
        let mut schema = json!({
            "$ref": "#/x-a/b",
            "x-a": {"b": {"anyOf": [{"items": {"type": "string"}}, true]}, "unused": {}},
            "properties": {"const": {"const": {"type": "string"}}, "list": {"enum": [{"items": {}}]}},
        });
        let all = super::check(&schema).expect("valid");
        add_keyword(&mut schema, &all, "k");
        let expected = json!({
            "k": true,
            "$ref": "#/x-a/b",
            "x-a": {"b": {"k": true, "anyOf": [{"k": true, "items": {"k": true, "type": "string"}}, true]}, "unused": {}},
            "properties": {
                "const": {"k": true, "const": {"type": "string"}},
                "list": {"k": true, "enum": [{"items": {}}]},
            },
        });
        assert_eq!(schema, expected);
    }

    /// Fourteen definitions, each of which uses the next one twice.
    fn bomb(reference: impl Fn(usize) -> Value) -> Value {
        let mut schema =
            json!({"$defs": {"d14": {"type": "string", "$anchor": "a14"}}, "properties": {"x": reference(0)}});
        for nth in 0..14 {
            let mut twice = json!({"allOf": [reference(nth + 1), reference(nth + 1)]});
            twice["$anchor"] = json!(format!("a{nth}"));
            twice["$id"] = json!(format!("i{nth}"));
            schema["$defs"][format!("d{nth}")] = twice;
        }
        schema["$defs"]["d14"]["$id"] = json!("i14");
        schema
    }

    #[test]
    fn references_that_double_are_counted_each_time() {
        let references: [&dyn Fn(usize) -> Value; 5] = [
            &|nth| json!({"$ref": format!("i{nth}")}),
            &|nth| json!({"$ref": format!("#a{nth}")}),
            &|nth| json!({"$dynamicRef": format!("#a{nth}")}),
            &|nth| json!({"anyOf": [{"$ref": format!("i{nth}#")}, {"properties": {"x": {"$ref": format!("i{nth}")}}}]}),
            &|nth| json!({"items": {"$ref": format!("i{nth}#")}}),
        ];
        for reference in references {
            assert_eq!(check(&bomb(reference)), Err(SchemaError::TooLarge), "{}", reference(1));
        }
        let mut definitions = json!({"d20": {"type": "string"}});
        for nth in 0..20 {
            let next = json!({"$ref": format!("#/definitions/d{}", nth + 1)});
            definitions[format!("d{nth}")] = json!({"oneOf": [next.clone(), next]});
        }
        let schema = json!({"definitions": definitions, "$ref": "#/definitions/d0"});
        assert_eq!(check(&schema), Err(SchemaError::TooLarge));
        let anywhere = json!({"x-a": {"b%c": {"type": "string"}}, "$ref": "#/x-a/b%25c"});
        assert_eq!(check(&anywhere), Ok(()));
    }

    #[test]
    fn recursive_schemas_are_allowed_if_they_end() {
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "string"}}});
        assert_eq!(check(&tree), Ok(()));
        let named = json!({"properties": {"tree": {"$id": "T0", "items": {"$ref": "T0"}}}});
        assert_eq!(check(&named), Ok(()));
        for endless in [
            json!({"$ref": "#"}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
            json!({
                "$defs": {
                    "a": {"properties": {"c": {"$ref": "#/$defs/c"}}, "allOf": [{"$ref": "#/$defs/b"}]},
                    "b": {"anyOf": [{"$ref": "#/$defs/a"}]},
                    "c": {"allOf": [{"$ref": "#/$defs/b"}]},
                },
                "$ref": "#/$defs/a",
            }),
        ] {
            assert_eq!(check(&endless), Err(SchemaError::Endless), "{endless}");
        }
    }

    #[test]
    fn deep_chains_and_unknown_references_are_refused() {
        let mut definitions = json!({"d100": {}});
        for nth in 0..100 {
            definitions[format!("d{nth}")] = json!({"$ref": format!("#/$defs/d{}", nth + 1)});
        }
        assert_eq!(check(&json!({"$defs": definitions, "$ref": "#/$defs/d0"})), Err(SchemaError::TooDeep));
        for reference in ["http://127.0.0.1:1/x", "other.json", "#/$defs/none", "#none"] {
            let unresolved = SchemaError::Unresolved(reference.to_owned());
            assert_eq!(check(&json!({"properties": {"x": {"$ref": reference}}})), Err(unresolved));
        }
        assert_eq!(check(&json!({"$ref": "http://json-schema.org/draft-07/schema#"})), Ok(()));
        let patterns: Map<_, _> = (0..300).map(|nth| (format!("^{nth}"), json!({}))).collect();
        assert_eq!(check(&json!({"patternProperties": patterns})), Err(SchemaError::TooLarge));
        let unevaluated = (0..10).fold(json!({}), |inner, _| json!({"unevaluatedProperties": false, "allOf": [inner]}));
        assert_eq!(check(&unevaluated), Err(SchemaError::TooLarge));
    }
}
