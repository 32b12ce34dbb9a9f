//! Asks goose/judge whether the combined results of a turn answer its prompt.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Orchestrator;
use super::tasks::DELEGATE;
use crate::agents::ask_once;
use crate::conversation::{Content, Message, MessagePart};
use crate::session::Session;
use crate::tool::truncate;

const JUDGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of each result sent to the judge, and of its answer.
const MAX_RESULT: usize = 8_000;
const MAX_ANSWER: usize = 8_000;

/// The judge's assessment of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verification {
    pub verdict: VerificationResult,
    #[serde(default)]
    pub reason: String,
    /// Open points, or points on which results disagree.
    #[serde(default)]
    pub missing: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerificationResult {
    Complete,
    Incomplete,
    Conflict,
    Unsure,
}

/// Why an answer could not be assessed.
#[derive(Debug, thiserror::Error)]
pub enum VerificationError {
    #[error("there is no model of your own that could judge it")]
    NoJudge,
    #[error("the judge took too long")]
    Timeout,
    #[error("the judge did not answer")]
    NoAnswer,
    #[error("the judge did not answer as it should: {0}")]
    Format(#[from] serde_json::Error),
}

impl Orchestrator {
    /// Asks goose/judge to assess the last turn. Fails if there is no judge model, it does not answer in time or its
    /// answer is invalid.
    pub async fn verify(&self, session: &Session) -> Result<Verification, VerificationError> {
        let (provider, system) = session.judge().ok_or(VerificationError::NoJudge)?;
        let exchange = session.last_exchange();
        let task = exchange.first().map(|message| message.text()).unwrap_or_default();
        let results = results(&exchange);
        let answer = exchange.last().map(|message| message.text()).unwrap_or_default();
        let question =
            json!({"task": truncate(&task, MAX_RESULT), "results": results, "answer": truncate(&answer, MAX_RESULT)})
                .to_string();
        let asked = ask_once(provider.as_ref(), system, question, MAX_ANSWER);
        let said = tokio::time::timeout(JUDGE_TIMEOUT, asked).await.map_err(|_| VerificationError::Timeout)?;
        let (said, usage) = said.ok_or(VerificationError::NoAnswer)?;
        session.spend(usage);
        Ok(serde_json::from_str(said.trim())?)
    }
}

/// Returns the result of each delegated part.
fn results(exchange: &[Arc<Message>]) -> Vec<serde_json::Value> {
    let parts = exchange.iter().flat_map(|message| &message.parts);
    let results = parts.filter_map(|part| match part {
        MessagePart::ToolResult(result) if result.name == DELEGATE => {
            let text: Vec<_> = result.content.iter().map(Content::to_plain_text).collect();
            Some(json!({"failed": result.is_error, "result": truncate(&text.join("\n"), MAX_RESULT)}))
        }
        MessagePart::ToolResult(_) | MessagePart::ToolUse(_) | MessagePart::Content(_) | MessagePart::Thought(_) => {
            None
        }
    });
    results.collect()
}
