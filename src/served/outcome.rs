//! The end of a turn as the result of a call.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;

use super::talks::Talk;
use super::turn::Ended;
use crate::agents::Ending;
use crate::tool::plain;

/// Nothing was done, and why.
pub(super) fn refused(problem: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(plain(&problem))])
}

/// `None` if the turn went away without a word, which is how it ends with the program.
pub(super) async fn of(talk: &Talk, ended: Option<Ended>) -> CallToolResult {
    let id = talk.live.id();
    let (reason, failed) = match ended {
        Some(Ok(end)) => reason(&end.ending, talk.asker.was_unheard()),
        Some(Err(error)) => ("error", Some(format!("{error}"))),
        None => ("cancelled", Some("skein is about to end".to_owned())),
    };
    let mode = talk.live.choice().mode;
    let text = talk.live.last_answer();
    let mut content = vec![ContentBlock::text(text.clone())];
    content.extend(failed.as_deref().map(|problem| ContentBlock::text(plain(problem))));
    content.extend(talk.notes().await.into_iter().map(|note| ContentBlock::text(plain(&note))));
    content.push(ContentBlock::text(format!("To go on with this, give `session`: {id}")));
    let mut result = if failed.is_some() { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = Some(json!({
        "session": id, "agent": mode.agent, "mode": mode.mode, "stop_reason": reason, "text": text,
    }));
    result
}

/// What it is called, and what to do if it is a failure.
fn reason(ending: &Ending, unheard: bool) -> (&'static str, Option<String>) {
    match ending {
        Ending::EndTurn => ("end_turn", None),
        Ending::MaxTokens => ("max_tokens", None),
        Ending::Refusal => ("refusal", None),
        Ending::Exhausted { why } => ("max_turn_requests", Some(format!("{why}; ask for less at once, or go on"))),
        Ending::Cancelled => ("cancelled", Some("it was cancelled".to_owned())),
        Ending::CallRefused { tool } => ("end_turn", Some(refusal(tool, unheard))),
        Ending::Failed { why } => ("error", Some(format!("{why}; go on with it when that works again"))),
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
