//! Checks that an answer is JSON that matches a schema.

use serde_json::{Map, Value};

use crate::manifest::SchemaValidator;

/// The schema that an answer must match.
#[derive(Debug, Clone)]
pub struct ResponseSchema {
    schema: Value,
    validator: SchemaValidator,
}

impl ResponseSchema {
    pub fn new(schema: &Map<String, Value>) -> Result<Self, String> {
        let validator = SchemaValidator::new(schema).map_err(|error| error.to_string())?;
        let schema = Value::Object(schema.clone());
        Ok(Self { schema, validator })
    }

    /// Returns the instructions for the model.
    pub fn instructions(&self) -> String {
        format!(
            "When the work is done, answer with JSON that fits the schema below, and with nothing else: no sentence \
             before or after it, no code fence.\n\n{:#}",
            self.schema
        )
    }

    /// Parses an answer, or returns its problems. Blocks briefly.
    pub fn read(&self, answer: &str) -> Result<Value, String> {
        let value: Value = serde_json::from_str(bare(answer)).map_err(|error| format!("it is no JSON: {error}"))?;
        let wrong = self.validator.validate(value.clone()).map_err(|failure| failure.to_string())?;
        if wrong.is_empty() { Ok(value) } else { Err(wrong.join("; ")) }
    }
}

/// Removes a code fence. Models often add one despite the instructions.
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

    fn form(schema: &Value) -> Result<ResponseSchema, String> {
        ResponseSchema::new(schema.as_object().unwrap())
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
        let mut definitions = json!({"d30": {}});
        for nth in 0..30 {
            let next = json!({"$ref": format!("#/$defs/d{}", nth + 1)});
            definitions[format!("d{nth}")] = json!({"allOf": [next.clone(), next]});
        }
        let error = form(&json!({"$defs": definitions, "$ref": "#/$defs/d0"})).expect_err("two to the power of 30");
        assert_eq!(error, "it is too large when its references are followed: more than 10000 steps");
    }
}
