//! Shows the form of an elicitation, and reads its answer.
//!
//! Invariant: an answer has only fields of the form, each with a value of its type.

use maud::{Markup, html};
use serde_json::{Map, Number, Value};

use super::form::FormFields;
use super::transcript::display_text;

/// Returns the input elements of a flat JSON Schema of type `object`.
pub(super) fn inputs(schema: &Map<String, Value>) -> Markup {
    html! {
        @for (name, field) in properties(schema) {
            @let label = display_text(field["title"].as_str().unwrap_or(name));
            label {
                (label)
                @if let Some(about) = field["description"].as_str() { span class="hint" { (display_text(about)) } }
                (input(name, field, is_required(schema, name)))
            }
        }
    }
}

fn input(name: &str, field: &Value, required: bool) -> Markup {
    let key = format!("field:{name}");
    let default = match &field["default"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let choices = choices(field);
    html! {
        @if !choices.is_empty() {
            select name=(key) required[required] {
                @if !required { option value="" { "–" } }
                @for (value, title) in &choices {
                    option value=(value) selected[*value == default] { (display_text(title)) }
                }
            }
        } @else if field["type"] == "boolean" {
            input type="checkbox" name=(key) value="true" checked[default == "true"];
        } @else if field["type"] == "number" || field["type"] == "integer" {
            input type="number" step=(if field["type"] == "integer" { "1" } else { "any" }) name=(key) value=(default) required[required];
        } @else {
            input type="text" name=(key) value=(default) required[required];
        }
    }
}

/// Returns the values of a field with fixed choices, and their titles. Empty if any value fits.
fn choices(field: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(options) = field["oneOf"].as_array() {
        let option = |option: &Value| {
            let value = text(&option["const"])?;
            Some((value.clone(), text(&option["title"]).unwrap_or(value)))
        };
        return options.iter().filter_map(option).collect();
    }
    let titles = field["enumNames"].as_array();
    let values = field["enum"].as_array().into_iter().flatten().filter_map(text);
    let title = |index: usize| titles.and_then(|titles| text(titles.get(index)?));
    values.enumerate().map(|(index, value)| (value.clone(), title(index).unwrap_or(value))).collect()
}

/// Reads the values of a form. `None` if a required one is missing, or one does not fit its type.
pub(super) fn read(schema: &Map<String, Value>, form: &FormFields) -> Option<Map<String, Value>> {
    let mut values = Map::new();
    for (name, field) in properties(schema) {
        let text = form.get(&format!("field:{name}")).filter(|text| !text.is_empty());
        let value = match (text, field["type"].as_str()) {
            (text, Some("boolean")) => Some(Value::Bool(text == Some("true"))),
            (Some(text), Some("integer")) => Some(Value::from(text.trim().parse::<i64>().ok()?)),
            (Some(text), Some("number")) => Some(Value::Number(Number::from_f64(text.trim().parse().ok()?)?)),
            (Some(text), _) => {
                let choices = choices(field);
                let fits = choices.is_empty() || choices.iter().any(|(value, _)| value == text);
                Some(Value::from(fits.then_some(text)?))
            }
            (None, _) if is_required(schema, name) => return None,
            (None, _) => None,
        };
        values.extend(value.map(|value| (name.clone(), value)));
    }
    Some(values)
}

fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn is_required(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Map<String, Value> {
        let schema = json!({"type": "object", "required": ["name", "size"], "properties": {
            "name": {"type": "string", "title": "<b>Name</b>"},
            "size": {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "sure": {"type": "boolean"},
        }});
        schema.as_object().cloned().unwrap()
    }

    fn values(form: &str) -> Option<Value> {
        read(&schema(), &FormFields::parse(form.as_bytes())).map(Value::Object)
    }

    #[test]
    fn an_answer_has_the_types_of_its_form() {
        let answer = values("field:name=Ana&field:size=m&field:count=3&field:share=0.5&field:sure=true&field:other=1");
        let expected = json!({"name": "Ana", "size": "m", "count": 3, "share": 0.5, "sure": true});
        assert_eq!(answer, Some(expected));
        assert_eq!(values("field:name=Ana&field:size=s"), Some(json!({"name": "Ana", "size": "s", "sure": false})));
        for wrong in ["", "field:name=Ana", "field:name=A&field:size=x", "field:name=A&field:size=s&field:count=x"] {
            assert_eq!(values(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_form_shows_titles_as_text() {
        let shown = inputs(&schema()).into_string();
        assert!(shown.contains("&lt;b&gt;Name&lt;/b&gt;") && shown.contains(">Medium</option>"), "{shown}");
    }
}
