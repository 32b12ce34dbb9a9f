//! Questions that a run asks its client, and the answers that they accept.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::oneshot;

use super::run_error::RunError;
use crate::tool::ask::PermissionResponse;
use crate::tool::elicit::ElicitationResponse;

/// What a question says.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::serve) struct QuestionMessage {
    pub(in crate::serve) text: String,
    /// Describes the question to programs.
    pub(in crate::serve) details: Value,
    /// The number of the question in its run.
    pub(in crate::serve) number: u64,
}

impl QuestionMessage {
    /// Returns about the bytes of memory of its content.
    pub(super) fn size(&self) -> usize {
        self.text.len() + self.details.to_string().len()
    }
}

/// A question that the client has not answered.
pub(super) struct RunQuestion {
    pub(super) message: Arc<QuestionMessage>,
    pub(super) options: QuestionOptions,
    /// The asker of the turn waits for it.
    pub(super) answer: oneshot::Sender<QuestionAnswer>,
}

/// The answer of a client.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum QuestionAnswer {
    Permission(PermissionResponse),
    /// The id of an option of an external agent.
    Choice(String),
    Elicitation(ElicitationResponse),
}

/// The answers that a question accepts.
pub(super) struct QuestionOptions {
    words: Vec<(String, QuestionAnswer)>,
    /// The names of the fields, if the answer may be a JSON object.
    fields: Option<Vec<String>>,
}

impl QuestionOptions {
    pub(super) fn new(words: Vec<(String, QuestionAnswer)>) -> Self {
        Self { words, fields: None }
    }

    /// Also accepts a JSON object with these fields.
    #[must_use]
    pub(super) fn with_fields(self, fields: Vec<String>) -> Self {
        Self { fields: Some(fields), ..self }
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.words.iter().map(|(word, _)| word.as_str()).collect()
    }

    /// Returns what the text means. Fails if the question does not accept it.
    pub(super) fn read(&self, text: &str) -> Result<QuestionAnswer, RunError> {
        let text = text.trim();
        if let Some((_, answer)) = self.words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)) {
            return Ok(answer.clone());
        }
        let words = self.names().join("`, `");
        let Some(fields) = &self.fields else {
            return Err(RunError::Invalid(format!("the answer must be one of `{words}`")));
        };
        match serde_json::from_str(text) {
            Ok(Value::Object(values)) => {
                let unknown = values.keys().find(|name| !fields.contains(name)).cloned();
                match unknown {
                    Some(name) => Err(RunError::Invalid(format!("the question has no field `{name}`"))),
                    None => Ok(QuestionAnswer::Elicitation(ElicitationResponse::Accepted(values))),
                }
            }
            _ => {
                let problem = format!("the answer must be a JSON object with the fields, or one of `{words}`");
                Err(RunError::Invalid(problem))
            }
        }
    }
}
