//! Checks that an answer is JSON that matches a schema.

use serde_json::{Map, Value};

use crate::manifest::{SchemaError, SchemaValidator, ValidationFailure};

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("it is no JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    #[error(transparent)]
    Validation(#[from] ValidationFailure),
    #[error("{}", .0.join("; "))]
    Mismatch(Vec<String>),
}

/// The schema that an answer must match.
#[derive(Debug, Clone)]
pub struct ResponseSchema {
    schema: Value,
    validator: SchemaValidator,
}

impl ResponseSchema {
    pub fn new(schema: &Map<String, Value>) -> Result<Self, SchemaError> {
        let validator = SchemaValidator::new(schema)?;
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
    pub fn read(&self, answer: &str) -> Result<Value, AnswerError> {
        let value: Value = serde_json::from_str(bare(answer)).map_err(AnswerError::NotJson)?;
        let wrong = self.validator.validate(value.clone())?;
        if wrong.is_empty() { Ok(value) } else { Err(AnswerError::Mismatch(wrong)) }
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

    fn form(schema: &Value) -> Result<ResponseSchema, SchemaError> {
        ResponseSchema::new(schema.as_object().unwrap())
    }

    #[test]
    fn an_answer_is_json_that_fits_with_or_without_a_fence() {
        let form =
            form(&json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}})).unwrap();
        for answer in ["{\"n\": 1}", "  {\"n\": 1}\n", "```json\n{\"n\": 1}\n```", "```\n{\"n\": 1}\n```"] {
            assert_eq!(form.read(answer).unwrap(), json!({"n": 1}), "{answer}");
        }
        assert!(matches!(form.read("It is 1."), Err(AnswerError::NotJson(_))));
        assert_eq!(form.read("{\"n\": \"x\"}").unwrap_err().to_string(), "/n: \"x\" is not of type \"integer\"");
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
        assert_eq!(error.to_string(), "it is too large when its references are followed: more than 10000 steps");
    }
}
