//! The end of a turn as the result of a call.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;

use super::sessions::OpenSession;
use super::turn::TurnResult;
use crate::agents::StopReason;
use crate::tool::strip_invisible;

/// Nothing was done, and why.
pub(super) fn refusal_result(problem: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(strip_invisible(&problem))])
}

/// `None` if the turn went away without a word, which is how it ends with the program.
pub(super) async fn of(talk: &OpenSession, ended: Option<TurnResult>) -> CallToolResult {
    let id = talk.session.id();
    let (reason, failed) = match ended {
        Some(Ok(end)) => reason(&end.ending, talk.asker.was_unavailable()),
        Some(Err(error)) => ("error", Some(format!("{error}"))),
        None => ("cancelled", Some("skein is about to end".to_owned())),
    };
    let mode = talk.session.choice().mode;
    let text = talk.session.last_answer();
    let mut content = vec![ContentBlock::text(text.clone())];
    content.extend(failed.as_deref().map(|problem| ContentBlock::text(strip_invisible(problem))));
    content.extend(talk.notes().await.into_iter().map(|note| ContentBlock::text(strip_invisible(&note))));
    content.push(ContentBlock::text(format!("To go on with this, give `session`: {id}")));
    let mut result = if failed.is_some() { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = Some(json!({
        "session": id, "agent": mode.agent, "mode": mode.mode, "stop_reason": reason, "text": text,
    }));
    result
}

/// What it is called, and what to do if it is a failure.
fn reason(ending: &StopReason, unheard: bool) -> (&'static str, Option<String>) {
    match ending {
        StopReason::EndTurn => ("end_turn", None),
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::Refusal => ("refusal", None),
        StopReason::Exhausted { why } => ("max_turn_requests", Some(format!("{why}; ask for less at once, or go on"))),
        StopReason::Cancelled => ("cancelled", Some("it was cancelled".to_owned())),
        StopReason::CallRefused { tool } => ("end_turn", Some(refusal(tool, unheard))),
        StopReason::Failed { why } => ("error", Some(format!("{why}; go on with it when that works again"))),
    }
}

fn refusal(tool: &str, unheard: bool) -> String {
    if !unheard {
        return format!("the call of {tool} was refused");
    }
    format!(
        "the call of {tool} needs consent, and this client cannot be asked (it has no elicitation): start \
         `skein mcp --agents` with `--approval auto`, or with `--allow RULE` for such calls alone"
    )
}
