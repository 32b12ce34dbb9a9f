//! Runs a turn of an ACP session, from the prompt to its stop reason.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;

use super::commands::{self, ParsedPrompt};
use super::connection::{ClientConnection, ClientSession};
use super::shared_session::{RequestTicket, RunningTurn};
use super::stop_reason::stop_reason;
use super::updates::Updates;
use super::{content, errors, options};
use crate::agents::{Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::orchestrator::PromptOptions;
use crate::project::load_project;
use crate::session::{LiveSession, PromptError, SessionRoots, TurnFailure, name_session};

/// Runs the turn of `running` when `place`, its ticket among the session's requests, comes up. Fails if the prompt is
/// invalid, its mode cannot be entered or the turn fails.
pub(super) async fn prompt(
    connection: &ClientConnection,
    open: &Arc<ClientSession>,
    running: &RunningTurn,
    place: RequestTicket,
    blocks: Vec<acp::ContentBlock>,
) -> Result<acp::PromptResponse, acp::Error> {
    let prompt = content::prompt(blocks)?;
    let updates = Arc::clone(&open.viewer);
    let ready = async {
        let order = place.wait().await;
        let (projects, roots) = (&connection.server.projects, SessionRoots::of(open.session.context()));
        // The session keeps the modes of the token that opened it.
        let grant = open.session.sessions().grant();
        // Both read folders, and usually nothing has changed there. Changed files must not wait for a mode that cannot be
        // entered.
        let is_entered = open.session.is_bound();
        let commands = async { if is_entered { commands::update_if_changed(open).await } else { None } };
        let (loaded, mut commands) = tokio::join!(load_project(projects, &roots.cwd, roots.files, grant), commands);
        let is_new = open.shared.reload(loaded).await;
        if is_new {
            options::refresh_updates(open).await.into_iter().for_each(|update| updates.send(update));
        }
        open.enter().await.map_err(|error| errors::enter(&error))?;
        connection.show_pending_notices(open);
        options::watch_external(connection, open);
        if is_new || !is_entered {
            commands = commands::update_if_changed(open).await.or(commands);
        }
        if let Some(update) = commands {
            updates.send(update);
        }
        let checks = &connection.server.checks;
        commands::parse_prompt(open, prompt, checks, running.cancel()).await.map(|meant| (order, meant))
    };
    let (order, meant) = tokio::select! {
        biased;
        () = running.cancel().cancelled() => return Ok(acp::PromptResponse::new(acp::StopReason::Cancelled)),
        ready = ready => ready?,
    };
    let (prompt, typed) = match meant {
        ParsedPrompt::Prompt(prompt) => (prompt, true),
        ParsedPrompt::ServicePrompt(prompt) => (prompt, false),
        ParsedPrompt::Answer(text) => return Ok(answer_with_text(&updates, text)),
        ParsedPrompt::AnswerWithContent(text, links) => {
            let response = answer_with_text(&updates, text);
            links.iter().for_each(|link| updates.show_piece(link));
            return Ok(response);
        }
        ParsedPrompt::Compact => {
            let front = Arc::clone(&updates) as Arc<dyn Notifier>;
            let shortened = open.session.compact(front, running.cancel()).await;
            return match shortened {
                _ if running.cancel().is_cancelled() => Ok(acp::PromptResponse::new(acp::StopReason::Cancelled)),
                Ok(count) => Ok(answer_with_text(
                    &updates,
                    format!("The model is shown the first {count} messages in short from now on."),
                )),
                Err(PromptError::NotCompacted(why)) => {
                    Ok(answer_with_text(&updates, format!("Nothing was changed: {why}.")))
                }
                Err(error) => Err(errors::prompt(&error)),
            };
        }
    };
    let pending = open.session.begin_for(&open.grant).map_err(|error| errors::prompt(&error))?;
    // The turn has its mode; a later switch applies to the next turn.
    drop(order);
    let live = Arc::clone(open.session.live());
    live.begin(connection.id, open.session.event_count());
    let showing = LiveTurnGuard(Arc::clone(&live));
    let front = live as Arc<dyn Notifier>;
    let prompt_options = PromptOptions { from_user: typed, plan_only: false };
    let ended = connection.server.orchestrator.prompt(pending, prompt, prompt_options, front, running.cancel()).await;
    showing.end(&ended);
    if let Ok(TurnEnd { ending: StopReason::EndTurn, .. }) = &ended
        && let Some(naming) = name_session(&open.session)
    {
        let updates = Arc::clone(&updates);
        connection.spawn(async move {
            if let Some(title) = naming.await {
                updates.status(StatusUpdate::Title(title));
            }
        });
    }
    if let Ok(TurnEnd { ending: StopReason::Exhausted { why }, .. }) = &ended {
        updates.notice(acp::NoticeSeverity::Warning, why);
    }
    answer(ended)
}

/// Ends the turn for the viewers of the session, also if the turn is dropped.
struct LiveTurnGuard(Arc<LiveSession>);

impl LiveTurnGuard {
    fn end(self, ended: &Result<TurnEnd, PromptError>) {
        match ended {
            Ok(end) => self.0.end(Ok(end)),
            Err(error) => self.0.end(Err(&TurnFailure(error.to_string()))),
        }
    }
}

impl Drop for LiveTurnGuard {
    fn drop(&mut self) {
        // Does nothing if the turn has ended.
        self.0.end(Err(&TurnFailure("the turn was interrupted".to_owned())));
    }
}

/// Sends an answer that Skein gives without a model.
fn answer_with_text(updates: &Updates, text: String) -> acp::PromptResponse {
    updates.status(StatusUpdate::Text(text));
    acp::PromptResponse::new(acp::StopReason::EndTurn)
}

fn answer(ended: Result<TurnEnd, PromptError>) -> Result<acp::PromptResponse, acp::Error> {
    let end = ended.map_err(|error| errors::prompt(&error))?;
    let reason = stop_reason(&end.ending).map_err(|failure| errors::internal_error(failure.0))?;
    Ok(acp::PromptResponse::new(reason))
}
