//! The JSON Schema of a field: what it stands for, which input it needs, and what its items are.

use serde_json::Value;

use super::schema_field::FieldInput;

/// References that are followed to the definition of a field.
const MAX_REFERENCES: usize = 8;

/// The schema of a field behind its references, with the description nearest to the field.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldSchema<'a> {
    root: &'a Value,
    schema: &'a Value,
    hint: Option<&'a str>,
}

/// What a field with items consists of.
#[derive(Debug, Clone, Copy)]
pub(super) struct ItemSchema<'a> {
    pub(super) item: FieldSchema<'a>,
    pub(super) order: ItemOrder<'a>,
}

/// What identifies the items of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemOrder<'a> {
    /// Their order. An item may be written as the text of this field alone.
    Ordered(Option<&'a str>),
    /// Names that the manifest chooses.
    Named,
}

impl<'a> FieldSchema<'a> {
    /// Returns the schema of a whole document.
    pub(super) fn of_document(root: &'a Value) -> Self {
        Self::behind(root, root)
    }

    fn behind(root: &'a Value, schema: &'a Value) -> Self {
        let mut at = Self { root, schema, hint: description(schema) };
        for _ in 0..MAX_REFERENCES {
            let Some(next) = next_schema(root, at.schema) else { break };
            at = Self { root, schema: next, hint: at.hint.or_else(|| description(next)) };
        }
        at
    }

    /// Returns the description on one line.
    pub(super) fn hint(&self) -> Option<String> {
        self.hint.map(|hint| hint.replace('\n', " "))
    }

    /// Returns the properties of a mapping, with whether each is required. Of several forms of a mapping, returns those
    /// of the form that the document has. `None` if it is no mapping with known fields.
    pub(super) fn properties(&self, document: Option<&Value>) -> Option<Vec<(&'a str, Self, bool)>> {
        let behind = |schema: &'a Value| Self::behind(self.root, schema);
        if let Some(properties) = self.schema["properties"].as_object() {
            let required = self.schema["required"].as_array();
            let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|known| known == name));
            let named = |(name, value): (&'a String, &'a Value)| (name.as_str(), behind(value), is_required(name));
            return Some(properties.iter().map(named).collect());
        }
        let branches = self.schema["oneOf"].as_array()?;
        let branches: Option<Vec<_>> = branches.iter().map(|branch| branch["properties"].as_object()).collect();
        let all: Vec<_> = branches?.into_iter().flatten().collect();
        let is_there = |name: &str| document.is_some_and(|document| document.get(name).is_some());
        let is_chosen = all.iter().any(|(name, _)| is_there(name));
        let shown = all.into_iter().filter(|(name, _)| !is_chosen || is_there(name));
        Some(shown.map(|(name, value)| (name.as_str(), behind(value), false)).collect())
    }

    /// Returns how the field is entered. `None` if it has no input.
    pub(super) fn input(&self) -> Option<FieldInput> {
        if let Some(options) = self.options() {
            return Some(FieldInput::Choice(options));
        }
        if self.has_type("string") {
            return Some(FieldInput::Text);
        }
        if self.has_type("integer") {
            return Some(FieldInput::Number);
        }
        let items = self.schema.get("items").filter(|_| self.has_type("array"))?;
        Self::behind(self.root, items).has_type("string").then_some(FieldInput::Lines)
    }

    /// Returns what its items are. `None` if it has none, or if they are no mappings and have no names.
    pub(super) fn items(&self) -> Option<ItemSchema<'a>> {
        if self.has_type("array") {
            return self.items_of_array();
        }
        let is_open = self.has_type("object") && self.schema.get("properties").is_none();
        let value = is_open.then(|| self.value_schema())??;
        Some(ItemSchema { item: Self::behind(self.root, value), order: ItemOrder::Named })
    }

    fn items_of_array(&self) -> Option<ItemSchema<'a>> {
        let item = Self::behind(self.root, self.schema.get("items")?);
        if item.schema["properties"].is_object() {
            return Some(ItemSchema { item, order: ItemOrder::Ordered(None) });
        }
        let branches = item.schema["anyOf"].as_array()?.iter().map(|branch| Self::behind(self.root, branch));
        let (mappings, others): (Vec<_>, Vec<_>) = branches.partition(|branch| branch.schema["properties"].is_object());
        let ([mapping], [short]) = (mappings.as_slice(), others.as_slice()) else { return None };
        // The short form sets the first field that the long one needs.
        let main = mapping.schema["required"].get(0).and_then(Value::as_str).filter(|_| short.has_type("string"))?;
        Some(ItemSchema { item: *mapping, order: ItemOrder::Ordered(Some(main)) })
    }

    /// Returns the schema of the values of a mapping whose keys are names.
    fn value_schema(&self) -> Option<&'a Value> {
        if let Some(value) = self.schema.get("additionalProperties").filter(|value| value.is_object()) {
            return Some(value);
        }
        let mut patterns = self.schema["patternProperties"].as_object()?.values();
        patterns.next().filter(|_| patterns.next().is_none())
    }

    /// Returns whether the type is this one, or this one or nothing.
    fn has_type(&self, name: &str) -> bool {
        match &self.schema["type"] {
            Value::String(only) => only == name,
            Value::Array(types) => types.iter().any(|known| known == name),
            _ => false,
        }
    }

    /// Returns the values to choose from. `None` if it is no choice.
    fn options(&self) -> Option<Vec<String>> {
        if let Some(options) = self.schema["enum"].as_array() {
            return options.iter().filter(|option| !option.is_null()).map(text_of).collect();
        }
        if self.has_type("boolean") {
            return Some(["true", "false"].map(str::to_owned).to_vec());
        }
        let branches = self.schema["oneOf"].as_array()?;
        branches.iter().map(|branch| branch.get("const").and_then(text_of)).collect()
    }
}

fn description(schema: &Value) -> Option<&str> {
    schema["description"].as_str()
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns the schema that this one stands for: a reference, a single part, or something or nothing.
fn next_schema<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    if let Some(reference) = schema["$ref"].as_str() {
        return root.pointer(reference.strip_prefix('#')?);
    }
    if let Some([only]) = schema["allOf"].as_array().map(Vec::as_slice) {
        return Some(only);
    }
    let mut branches = schema["anyOf"].as_array()?.iter().filter(|branch| branch["type"] != "null");
    branches.next().filter(|_| branches.next().is_none())
}
