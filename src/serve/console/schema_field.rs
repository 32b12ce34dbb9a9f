//! One field of a form that a JSON Schema generates: how it is entered, shown and read.

use maud::{Markup, html};
use serde_json::Value;

use super::form::FormFields;
use super::transcript::display_text;

/// Begins the name of each field in the form.
const PREFIX: &str = "field.";

/// A field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaField {
    /// Where it is below the mapping of the form. Empty if it is the whole value of a named item.
    pub(super) path: Vec<String>,
    pub(super) hint: Option<String>,
    pub(super) input: FieldInput,
    pub(super) is_required: bool,
    /// The text of its value. Empty if the manifest does not have it.
    pub(super) value: String,
}

/// How a field is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldInput {
    Text,
    Number,
    Choice(Vec<String>),
    /// One word or line for each item.
    Lines,
}

/// What a form that was sent does with a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldChange {
    Unchanged,
    Removed,
    Set(Value),
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
    #[error("a new item of `{field}` is empty; fill it in, or remove it")]
    EmptyItem { field: String },
    #[error("an item of `{field}` has no name; name it, or remove it")]
    NoName { field: String },
    #[error("two items of `{field}` have the name `{name}`")]
    SameName { field: String, name: String },
    #[error("`{field}` has more than {limit} items; change it in the text")]
    TooMany { field: String, limit: usize },
    #[error("`{field}` has no item `{item}`; load the page again")]
    UnknownItem { field: String, item: String },
}

impl SchemaField {
    /// Returns the name in a form. `prefix` names the item that the field belongs to.
    pub(super) fn name(&self, prefix: &str) -> String {
        format!("{PREFIX}{prefix}{}", self.path.join("."))
    }

    /// Returns what the sent form does with the field. Fails if the value does not fit.
    pub(super) fn change(&self, prefix: &str, sent: &FormFields) -> Result<FieldChange, FormError> {
        let value = sent.get(&self.name(prefix)).map(|value| value.replace("\r\n", "\n"));
        match value.filter(|value| value.trim() != self.value.trim()) {
            None => Ok(FieldChange::Unchanged),
            Some(value) => Ok(self.parse(prefix, &value)?.map_or(FieldChange::Removed, FieldChange::Set)),
        }
    }

    /// Reads a value that was entered. `None` removes the field.
    fn parse(&self, prefix: &str, text: &str) -> Result<Option<Value>, FormError> {
        let field = || format!("{prefix}{}", self.path.join(".")).trim_end_matches('.').to_owned();
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

    pub(super) fn markup(&self, prefix: &str) -> Markup {
        let label = self.path.last().map_or("value", String::as_str);
        let name = self.name(prefix);
        let hint = format!("hint-{prefix}{}", self.path.join("-"));
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

impl FieldInput {
    /// Returns the text of a value in a form; empty if there is none. `None` if the input cannot show it.
    pub(super) fn text_of(&self, value: Option<&Value>) -> Option<String> {
        match (self, value) {
            (_, None | Some(Value::Null)) => Some(String::new()),
            (Self::Text, Some(Value::String(text))) => Some(text.clone()),
            // A browser would choose another option, and so remove the entry.
            (Self::Choice(options), Some(Value::String(text))) => options.contains(text).then(|| text.clone()),
            (Self::Choice(_), Some(Value::Bool(value))) => Some(value.to_string()),
            (Self::Number, Some(Value::Number(number))) => Some(number.to_string()),
            (Self::Lines, Some(Value::Array(items))) => {
                let lines: Option<Vec<&str>> =
                    items.iter().map(|item| item.as_str().filter(|text| !text.contains('\n'))).collect();
                lines.map(|lines| lines.join("\n"))
            }
            _ => None,
        }
    }
}
