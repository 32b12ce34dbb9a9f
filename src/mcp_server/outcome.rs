//! Converts the end of a turn to the result of a tool call.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;

use super::sessions::OpenSession;
use super::turn::TurnResult;
use crate::agents::StopReason;
use crate::tool::strip_invisible;

/// Returns an error result for a call that started no turn.
pub(super) fn refusal_result(problem: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(strip_invisible(&problem))])
}

/// Returns the result of a turn. `ended` is `None` if the turn was dropped, which happens when the program ends.
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
    content.push(ContentBlock::text(format!("To continue, give `session`: {id}")));
    let mut result = if failed.is_some() { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = Some(json!({
        "session": id, "agent": mode.agent, "mode": mode.mode, "stop_reason": reason, "text": text,
    }));
    result
}

/// Returns the name of a stop reason. For a failure, also returns the error and how to continue.
fn reason(ending: &StopReason, unheard: bool) -> (&'static str, Option<String>) {
    match ending {
        StopReason::EndTurn => ("end_turn", None),
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::Refusal => ("refusal", None),
        StopReason::Exhausted { why } => {
            ("max_turn_requests", Some(format!("{why}; ask for less at once, or continue")))
        }
        StopReason::Cancelled => ("cancelled", Some("it was cancelled".to_owned())),
        StopReason::CallRefused { tool } => ("end_turn", Some(refusal(tool, unheard))),
        StopReason::Failed { why, .. } => ("error", Some(format!("{why}; continue when that works again"))),
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
