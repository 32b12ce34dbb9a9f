//! One turn: from the prompt to its stop reason.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;

use super::commands::{self, Meant};
use super::connection::{Connection, Open, Place, Running};
use super::updates::Updates;
use super::{content, errors, outside};
use crate::agents::{Ending, Notifier, Status, TurnEnd};
use crate::orchestrator::Wish;
use crate::session::PromptError;

/// Runs the turn that `running` stands for. `place` is its place among the session's requests.
pub(super) async fn prompt(
    connection: &Connection,
    open: &Arc<Open>,
    running: &Running,
    place: Place,
    blocks: Vec<acp::ContentBlock>,
) -> Result<acp::PromptResponse, acp::Error> {
    let prompt = content::prompt(blocks)?;
    let updates = Arc::new(connection.updates(open));
    let ready = async {
        let order = place.reached().await;
        open.enter().await.map_err(|error| errors::failed(error.to_string()))?;
        connection.tell(open);
        outside::attend(connection, open);
        if let Some(update) = commands::changed(open).await {
            updates.send(update);
        }
        commands::understand(open, prompt, running.cancel()).await.map(|meant| (order, meant))
    };
    let (order, meant) = tokio::select! {
        biased;
        () = running.cancel().cancelled() => return Ok(acp::PromptResponse::new(acp::StopReason::Cancelled)),
        ready = ready => ready?,
    };
    let (prompt, typed) = match meant {
        Meant::Prompt(prompt) => (prompt, true),
        Meant::Said(prompt) => (prompt, false),
        Meant::Answer(text) => return Ok(answered(&updates, text)),
        Meant::Listed(text, links) => {
            let response = answered(&updates, text);
            links.iter().for_each(|link| updates.show_piece(link));
            return Ok(response);
        }
        Meant::Compact => {
            let front = Arc::clone(&updates) as Arc<dyn Notifier>;
            let shortened = open.live.compact(front, running.cancel()).await;
            return match shortened {
                _ if running.cancel().is_cancelled() => Ok(acp::PromptResponse::new(acp::StopReason::Cancelled)),
                Ok(count) => Ok(answered(
                    &updates,
                    format!("The model is shown the first {count} messages in short from now on."),
                )),
                Err(PromptError::NotCompacted(why)) => Ok(answered(&updates, format!("Nothing was changed: {why}."))),
                Err(error) => Err(errors::prompt(&error)),
            };
        }
    };
    let begun = open.live.begin().map_err(|error| errors::prompt(&error))?;
    // The turn has its mode; a switch that follows is for the next turn.
    drop(order);
    let front = Arc::clone(&updates) as Arc<dyn Notifier>;
    let wish = Wish { typed, plan_only: false };
    let ended = connection.front.orchestrator.prompt(begun, prompt, wish, front, running.cancel()).await;
    if let Ok(TurnEnd { ending: Ending::Exhausted { why }, .. }) = &ended {
        updates.notice(acp::NoticeSeverity::Warning, why);
    }
    answer(ended)
}

/// An answer of our own, in which no model took part.
fn answered(updates: &Updates, text: String) -> acp::PromptResponse {
    updates.status(Status::Text(text));
    acp::PromptResponse::new(acp::StopReason::EndTurn)
}

fn answer(ended: Result<TurnEnd, PromptError>) -> Result<acp::PromptResponse, acp::Error> {
    let end = ended.map_err(|error| errors::prompt(&error))?;
    let reason = match end.ending {
        Ending::EndTurn | Ending::CallRefused { .. } => acp::StopReason::EndTurn,
        Ending::MaxTokens => acp::StopReason::MaxTokens,
        Ending::Exhausted { .. } => acp::StopReason::MaxTurnRequests,
        Ending::Refusal => acp::StopReason::Refusal,
        Ending::Cancelled => acp::StopReason::Cancelled,
        Ending::Failed { why } => return Err(errors::failed(why)),
    };
    Ok(acp::PromptResponse::new(reason))
}
