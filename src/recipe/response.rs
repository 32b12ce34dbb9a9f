//! The form that an answer must have: JSON that fits a schema.

use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

/// Of a pattern once it is compiled.
const MAX_REGEX: usize = 1 << 20;
/// So much of what is wrong helps; more only costs.
const MAX_COMPLAINTS: usize = 5;
const MAX_COMPLAINT: usize = 300;

/// What an answer is held against.
#[derive(Debug)]
pub struct Form {
    schema: Value,
    validator: Validator,
}

impl Form {
    pub fn new(schema: &Map<String, Value>) -> Result<Self, String> {
        let schema = Value::Object(schema.clone());
        let validator = jsonschema::options()
            // This engine takes time in proportion to its input, whatever the pattern.
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_REGEX).dfa_size_limit(MAX_REGEX))
            .build(&schema)
            .map_err(|error| error.to_string())?;
        Ok(Self { schema, validator })
    }

    /// What the model is told.
    pub fn told(&self) -> String {
        format!(
            "When the work is done, answer with JSON that fits the schema below, and with nothing else: no sentence \
             before or after it, no code fence.\n\n{:#}",
            self.schema
        )
    }

    /// The answer as JSON, or what is wrong with it.
    pub fn read(&self, answer: &str) -> Result<Value, String> {
        let value = serde_json::from_str(bare(answer)).map_err(|error| format!("it is no JSON: {error}"))?;
        let wrong: Vec<_> = self
            .validator
            .iter_errors(&value)
            .take(MAX_COMPLAINTS)
            .map(|error| {
                let said: String = error.to_string().chars().take(MAX_COMPLAINT).collect();
                match error.instance_path().as_str() {
                    "" => said,
                    path => format!("{path}: {said}"),
                }
            })
            .collect();
        if wrong.is_empty() { Ok(value) } else { Err(wrong.join("; ")) }
    }
}

/// Models like to put JSON between fences, whatever they are told.
fn bare(answer: &str) -> &str {
    let answer = answer.trim();
    let fenced = answer.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let inner = fenced.map(|rest| rest.strip_prefix("json").unwrap_or(rest).trim());
    inner.unwrap_or(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn form(schema: &Value) -> Result<Form, String> {
        Form::new(schema.as_object().unwrap())
    }

    #[test]
    fn an_answer_is_json_that_fits_with_or_without_a_fence() {
        let form =
            form(&json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}})).unwrap();
        for answer in ["{\"n\": 1}", "  {\"n\": 1}\n", "```json\n{\"n\": 1}\n```", "```\n{\"n\": 1}\n```"] {
            assert_eq!(form.read(answer), Ok(json!({"n": 1})), "{answer}");
        }
        assert!(form.read("It is 1.").unwrap_err().starts_with("it is no JSON: "));
        assert_eq!(form.read("{\"n\": \"x\"}").unwrap_err(), "/n: \"x\" is not of type \"integer\"");
    }

    #[test]
    fn what_is_no_schema_or_lies_elsewhere_is_refused() {
        assert!(form(&json!({"type": "objekt"})).is_err());
        assert!(form(&json!({"$ref": "http://127.0.0.1:1/schema.json"})).is_err());
    }
}
