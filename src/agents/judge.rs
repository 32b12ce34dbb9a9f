//! The judge of `smart`: a model without tools that reads one call and says whether it changes anything.
//!
//! Invariant: whatever is not a plain "read_only" means that a person is asked. Nothing is remembered: each call is
//! judged by itself.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::json;

use crate::broker::{Judge, Question};
use crate::conversation::{Content, Message};
use crate::llm::{ModelStop, Provider, Request, StreamEvent};

/// A person is asked sooner than that they wait longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a call that a judge is shown; a longer one is not judged at all, since its end may be what matters.
const MAX_CALL: usize = 16_000;
/// Bytes of an answer. One that is longer is no verdict.
const MAX_ANSWER: usize = 2_000;

/// A model as the judge.
pub struct ModelJudge {
    pub provider: Arc<dyn Provider>,
    /// The prompt of goose/judge.
    pub system: Arc<str>,
}

impl std::fmt::Debug for ModelJudge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelJudge").field("provider", &self.provider.name()).finish_non_exhaustive()
    }
}

impl Judge for ModelJudge {
    fn finds_read_only<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            // As JSON, so that no argument can look like the end of the arguments.
            let call = json!({"tool": question.tool, "title": question.title, "arguments": question.arguments});
            let call = json!({"call": call}).to_string();
            if call.len() > MAX_CALL {
                return false;
            }
            match tokio::time::timeout(PATIENCE, self.answer(call)).await {
                Ok(Some(answer)) => is_read_only(&answer),
                Ok(None) => false,
                Err(_) => {
                    tracing::warn!(model = self.provider.name(), "the judge took too long");
                    false
                }
            }
        })
    }
}

impl ModelJudge {
    /// All that the model says, if it comes to its end.
    async fn answer(&self, call: String) -> Option<String> {
        let messages = vec![Arc::new(Message::user(vec![Content::text(call)]))];
        let request = Request { system: Arc::clone(&self.system), tools: Arc::default(), messages };
        let mut stream = self.provider.stream(request);
        let mut answer = String::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(StreamEvent::Text(text)) => answer.push_str(&text),
                Ok(StreamEvent::Thought(_)) => {}
                Ok(StreamEvent::Done { stop: ModelStop::Finished, .. }) => return Some(answer),
                Ok(StreamEvent::ToolUse(_) | StreamEvent::Done { .. }) => return None,
                Err(error) => {
                    tracing::warn!(%error, "the judge failed");
                    return None;
                }
            }
            if answer.len() > MAX_ANSWER {
                return None;
            }
        }
        None
    }
}

/// What a judge says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    verdict: String,
    #[serde(rename = "reason", default)]
    _reason: String,
}

/// Exactly one object, with the verdict and its reason, once each, and nothing else.
fn is_read_only(answer: &str) -> bool {
    let answer = answer.trim();
    let said = serde_json::from_str::<Said>(answer).is_ok_and(|said| said.verdict == "read_only");
    // A list would do for a struct, too.
    said && answer.starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_verdict_counts() {
        for answer in [r#"{"verdict":"read_only","reason":"It lists."}"#, " {\"verdict\": \"read_only\"}\n"] {
            assert!(is_read_only(answer), "{answer}");
        }
        for answer in [
            "",
            "read_only",
            r#"{"verdict":"unsure","reason":"read_only"}"#,
            r#"{"verdict":"writes"}"#,
            r#"{"verdict":"read_only","also":"x"}"#,
            r#"{"verdict":"writes"} {"verdict":"read_only"}"#,
            "```json\n{\"verdict\":\"read_only\"}\n```",
            r#"Sure: {"verdict":"read_only"}"#,
            r#"["read_only"]"#,
            r#"{"verdict":["read_only"]}"#,
            r#"{"verdict":"writes","verdict":"read_only"}"#,
            r#"{"verdict":"read_only","verdict":"read_only"}"#,
            r#"{"verdict":"read_only","reason":["It lists."]}"#,
        ] {
            assert!(!is_read_only(answer), "{answer}");
        }
    }
}
