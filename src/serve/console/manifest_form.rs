//! A form for a manifest, which its JSON Schema generates. A change of a field changes one entry of the text, and all
//! other lines stay as they are.
//!
//! Fields with text, numbers, choices and lists of words are in the form. Others can be changed only in the text.

use maud::{Markup, html};
use serde_json::Value;

use super::form::FormFields;
use super::transcript::display_text;
use crate::manifest::{DocumentKind, edit_entry};

/// The depth of mappings that are in the form.
const MAX_DEPTH: usize = 4;
/// References that are followed to the definition of a field.
const MAX_REFERENCES: usize = 8;
/// Fields that a form does not change: they identify the format.
const FIXED_FIELDS: [&str; 2] = ["version", "kind"];
/// Begins the name of each field in the form.
const PREFIX: &str = "field.";

/// A field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaField {
    path: Vec<String>,
    hint: Option<String>,
    input: FieldInput,
    is_required: bool,
    /// The text of its value. Empty if the manifest does not have it.
    value: String,
}

/// How a field is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldInput {
    Text,
    Number,
    Choice(Vec<String>),
    /// One word or line for each item.
    Lines,
}

/// The fields of a manifest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SchemaForm {
    pub(super) fields: Vec<SchemaField>,
    /// Fields that only the text has.
    pub(super) others: Vec<String>,
}

/// Why a form cannot be applied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormError {
    #[error("`{field}` must be a whole number, not `{value}`")]
    NoNumber { field: String, value: String },
    #[error("`{field}` must be one of {options}, not `{value}`")]
    NoChoice { field: String, value: String, options: String },
    #[error("`{field}` cannot be changed without changing other lines; change it in the text")]
    Unsafe { field: String },
}

impl SchemaForm {
    /// Returns the form of a document.
    pub(super) fn of(kind: DocumentKind, document: &Value) -> Self {
        let schema = kind.json_schema();
        let mut form = Self::default();
        FieldCollector { root: schema, form: &mut form }.collect(
            &FieldSchema::of(schema, schema),
            Some(document),
            &[],
            true,
        );
        form
    }

    /// Returns the text with the changes of a form that was sent. Fails if a value does not fit, or if a change would
    /// change other lines too.
    pub(super) fn apply(&self, text: &str, sent: &FormFields) -> Result<String, FormError> {
        let mut text = text.to_owned();
        for field in &self.fields {
            let Some(value) = sent.get(&field.name()).map(|value| value.replace("\r\n", "\n")) else { continue };
            if value.trim() == field.value.trim() {
                continue;
            }
            let path: Vec<&str> = field.path.iter().map(String::as_str).collect();
            let value = field.parse(&value)?;
            let edited = edit_entry(&text, &path, value.as_ref());
            text = edited.ok_or_else(|| FormError::Unsafe { field: field.path.join(".") })?;
        }
        Ok(text)
    }

    pub(super) fn markup(&self) -> Markup {
        let mut groups: Vec<(&[String], Vec<&SchemaField>)> = Vec::new();
        for field in &self.fields {
            let group = field.path.split_last().map(|(_, group)| group).unwrap_or_default();
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, fields)) => fields.push(field),
                None => groups.push((group, vec![field])),
            }
        }
        html! {
            @for (group, fields) in &groups {
                fieldset class="stack" {
                    legend { @if group.is_empty() { "The manifest" } @else { code { (group.join(".")) } } }
                    @for field in fields { (field.markup()) }
                }
            }
        }
    }
}

impl SchemaField {
    fn name(&self) -> String {
        format!("{PREFIX}{}", self.path.join("."))
    }

    /// Reads a value that was entered. `None` removes the field.
    fn parse(&self, text: &str) -> Result<Option<Value>, FormError> {
        let field = || self.path.join(".");
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(match &self.input {
            FieldInput::Text => Value::from(text),
            FieldInput::Number => match text.parse::<i64>() {
                Ok(number) => Value::from(number),
                Err(_) => return Err(FormError::NoNumber { field: field(), value: text.to_owned() }),
            },
            FieldInput::Choice(options) if !options.iter().any(|option| option == text) => {
                return Err(FormError::NoChoice {
                    field: field(),
                    value: text.to_owned(),
                    options: options.join(", "),
                });
            }
            FieldInput::Choice(_) => match text {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                text => Value::from(text),
            },
            FieldInput::Lines => text.lines().map(str::trim).filter(|line| !line.is_empty()).collect(),
        }))
    }

    fn markup(&self) -> Markup {
        let label = self.path.last().map(String::as_str).unwrap_or_default();
        let (name, hint) = (self.name(), format!("hint-{}", self.path.join("-")));
        let described = self.hint.as_ref().map(|_| hint.as_str());
        html! {
            label {
                (label) @if self.is_required { " (required)" }
                @match &self.input {
                    FieldInput::Choice(options) => {
                        select name=(name) aria-describedby=[described] {
                            option value="" selected[self.value.is_empty()] { "not set" }
                            @for option in options {
                                option value=(option) selected[*option == self.value] { (option) }
                            }
                        }
                    }
                    FieldInput::Text if !self.value.contains('\n') => {
                        input name=(name) value=(self.value) spellcheck="false" aria-describedby=[described];
                    }
                    FieldInput::Number => {
                        input name=(name) value=(self.value) inputmode="numeric" aria-describedby=[described];
                    }
                    FieldInput::Text | FieldInput::Lines => {
                        // A parser of HTML drops the first line break.
                        textarea name=(name) spellcheck="false" aria-describedby=[described] { "\n" (self.value) }
                    }
                }
            }
            @if let Some(text) = &self.hint {
                p class="hint" id=(hint) {
                    (display_text(text)) @if self.input == FieldInput::Lines { " One item on each line." }
                }
            } @else if self.input == FieldInput::Lines { p class="hint" { "One item on each line." } }
        }
    }
}

/// The schema of a field behind its references, with the description nearest to the field.
struct FieldSchema<'a> {
    schema: &'a Value,
    hint: Option<&'a str>,
}

impl<'a> FieldSchema<'a> {
    fn of(root: &'a Value, schema: &'a Value) -> Self {
        let mut at = Self { schema, hint: description(schema) };
        for _ in 0..MAX_REFERENCES {
            let Some(next) = next_schema(root, at.schema) else { break };
            at = Self { schema: next, hint: at.hint.or_else(|| description(next)) };
        }
        at
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

/// Collects the fields of a schema.
struct FieldCollector<'a, 'b> {
    root: &'a Value,
    form: &'b mut SchemaForm,
}

impl<'a> FieldCollector<'a, '_> {
    fn collect(&mut self, schema: &FieldSchema<'a>, document: Option<&Value>, path: &[String], is_required: bool) {
        if path.len() < MAX_DEPTH
            && let Some(properties) = self.properties(schema, document)
        {
            for (name, property, is_required) in properties {
                if path.is_empty() && FIXED_FIELDS.contains(&name) {
                    continue;
                }
                let path = [path, &[name.to_owned()]].concat();
                let value = document.and_then(|document| document.get(name));
                self.collect(&FieldSchema::of(self.root, property), value, &path, is_required);
            }
            return;
        }
        let input = self.input(schema);
        match input.and_then(|input| Some((value_text(&input, document)?, input))) {
            Some((value, input)) => {
                let hint = schema.hint.map(|hint| hint.replace('\n', " "));
                self.form.fields.push(SchemaField { path: path.to_vec(), hint, input, is_required, value });
            }
            None => self.form.others.push(path.join(".")),
        }
    }

    /// Returns the properties of a mapping, with whether each is required. Of several forms of a mapping, returns those
    /// of the form that the document has. `None` if it is no mapping with known fields.
    fn properties(
        &self,
        schema: &FieldSchema<'a>,
        document: Option<&Value>,
    ) -> Option<Vec<(&'a str, &'a Value, bool)>> {
        if let Some(properties) = schema.schema["properties"].as_object() {
            let required = schema.schema["required"].as_array();
            let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|known| known == name));
            return Some(properties.iter().map(|(name, value)| (name.as_str(), value, is_required(name))).collect());
        }
        let branches = schema.schema["oneOf"].as_array()?;
        let branches: Option<Vec<_>> = branches.iter().map(|branch| branch["properties"].as_object()).collect();
        let all: Vec<_> = branches?.into_iter().flatten().collect();
        let is_there = |name: &str| document.is_some_and(|document| document.get(name).is_some());
        let is_chosen = all.iter().any(|(name, _)| is_there(name));
        let shown = all.into_iter().filter(|(name, _)| !is_chosen || is_there(name));
        Some(shown.map(|(name, value)| (name.as_str(), value, false)).collect())
    }

    fn input(&self, schema: &FieldSchema<'a>) -> Option<FieldInput> {
        if let Some(options) = schema.options() {
            return Some(FieldInput::Choice(options));
        }
        if schema.has_type("string") {
            return Some(FieldInput::Text);
        }
        if schema.has_type("integer") {
            return Some(FieldInput::Number);
        }
        let items = schema.schema.get("items").filter(|_| schema.has_type("array"))?;
        FieldSchema::of(self.root, items).has_type("string").then_some(FieldInput::Lines)
    }
}

/// Returns the text of a value in a form; empty if there is none. `None` if the input cannot show it.
fn value_text(input: &FieldInput, value: Option<&Value>) -> Option<String> {
    match (input, value) {
        (_, None | Some(Value::Null)) => Some(String::new()),
        (FieldInput::Text | FieldInput::Choice(_), Some(Value::String(text))) => Some(text.clone()),
        (FieldInput::Choice(_), Some(Value::Bool(value))) => Some(value.to_string()),
        (FieldInput::Number, Some(Value::Number(number))) => Some(number.to_string()),
        (FieldInput::Lines, Some(Value::Array(items))) => {
            let lines: Option<Vec<&str>> =
                items.iter().map(|item| item.as_str().filter(|text| !text.contains('\n'))).collect();
            lines.map(|lines| lines.join("\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SERVICE: &str = "version: 1\nkind: service\nname: web\n# mine\ndescription: Reads.\ntransport:\n  stdio:\n    \
                           command: serve\n    args: [a, b]\n";

    fn form() -> SchemaForm {
        let transport = json!({"stdio": {"command": "serve", "args": ["a", "b"]}});
        let document =
            json!({"version": 1, "kind": "service", "name": "web", "description": "Reads.", "transport": transport});
        SchemaForm::of(DocumentKind::Service, &document)
    }

    fn field(path: &str) -> SchemaField {
        form().fields.into_iter().find(|field| field.path.join(".") == path).unwrap_or_else(|| panic!("{path}"))
    }

    fn apply(sent: &str) -> Result<String, FormError> {
        form().apply(SERVICE, &FormFields::parse(sent.as_bytes()))
    }

    #[test]
    fn the_schema_gives_each_field_its_input() {
        assert_eq!((field("name").input, field("name").is_required), (FieldInput::Text, true));
        assert_eq!(field("description").hint.as_deref(), Some("One sentence on what the service offers."));
        let choice = |words: [&str; 2]| FieldInput::Choice(words.map(str::to_owned).to_vec());
        assert_eq!(field("status").input, choice(["ready", "planned"]));
        assert_eq!((field("restart.max").input, field("timeouts.call").input), (FieldInput::Number, FieldInput::Text));
        let args = field("transport.stdio.args");
        assert_eq!((args.input, args.value.as_str()), (FieldInput::Lines, "a\nb"));
        let form = form();
        assert!(!form.fields.iter().any(|field| field.path.join(".").starts_with("transport.http")), "another form");
        assert!(form.others.contains(&"groups".to_owned()), "{:?}", form.others);
        assert!(!form.fields.iter().any(|field| field.path == ["kind"]));
    }

    #[test]
    fn only_what_was_changed_changes_in_the_text() {
        let same = "field.name=web&field.status=&field.transport.stdio.args=a%0D%0Ab";
        assert_eq!(apply(same).as_deref(), Ok(SERVICE));
        let new = apply("field.description=Reads+more.&field.restart.max=2&field.status=planned").unwrap();
        let added = "status: \"planned\"\nrestart:\n  max: 2\n";
        assert_eq!(new, format!("{}{added}", SERVICE.replace("Reads.", "\"Reads more.\"")));
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused() {
        let number = FormError::NoNumber { field: "restart.max".to_owned(), value: "many".to_owned() };
        assert_eq!(apply("field.restart.max=many"), Err(number));
        assert!(matches!(apply("field.status=odd"), Err(FormError::NoChoice { .. })));
    }

    #[test]
    fn values_are_escaped() {
        let form = SchemaForm::of(DocumentKind::Service, &json!({"name": "\"><script>", "title": "a\n</textarea><b>"}));
        let page = form.markup().into_string();
        assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
    }
}
