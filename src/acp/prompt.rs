//! Runs a turn of an ACP session, from the prompt to its stop reason.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;
use tokio_util::sync::CancellationToken;

use super::commands::{self, ParsedPrompt};
use super::connection::{ClientConnection, ClientSession};
use super::shared_session::{RequestTicket, RunningTurn};
use super::stop_reason::stop_reason;
use super::updates::Updates;
use super::{content, errors, options};
use crate::agents::{Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::conversation::Content;
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
    let given = prompt.clone();
    let updates = Arc::clone(&open.viewer);
    let ready = async {
        let order = place.wait().await;
        let (projects, roots) = (&connection.server.projects, SessionRoots::of(open.session.context()));
        // The session keeps the modes of the token that opened it.
        let grant = open.session.sessions().grant();
        let loaded = load_project(projects, &roots.cwd, roots.files, grant).await;
        if open.shared.reload(loaded).await {
            options::refresh_updates(open).await.into_iter().for_each(|update| updates.send(update));
        }
        open.enter().await.map_err(|error| errors::enter(&error))?;
        connection.show_pending_notices(open);
        options::watch_external(connection, open);
        let parsed = commands::parse_prompt(open, prompt, &connection.server.checks, running.cancel()).await;
        Ok::<_, acp::Error>((order, parsed))
    };
    let (order, parsed) = tokio::select! {
        biased;
        () = running.cancel().cancelled() => {
            if !commands::is_command(&given) {
                store_cancelled(connection, open, running, given).await;
            }
            return Ok(acp::PromptResponse::new(acp::StopReason::Cancelled));
        }
        ready = ready => ready?,
    };
    // The search of folders for commands must not delay the first request to the model. An external agent may end during
    // its turn, and its commands with it.
    let asks_model = matches!(parsed, Ok(ParsedPrompt::Prompt(_) | ParsedPrompt::ServicePrompt(_)));
    let commands_later = asks_model && open.session.external_session().is_none();
    if !commands_later {
        send_changed_commands(open, running.cancel()).await;
    }
    if running.cancel().is_cancelled()
        && let Ok(ParsedPrompt::Prompt(prompt) | ParsedPrompt::ServicePrompt(prompt)) = parsed
    {
        store_cancelled(connection, open, running, prompt).await;
        return Ok(acp::PromptResponse::new(acp::StopReason::Cancelled));
    }
    let (prompt, typed) = match parsed? {
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
    let answered = live.begin(connection.id, open.session.event_count());
    let showing = LiveTurnGuard(Arc::clone(&live));
    let front = live as Arc<dyn Notifier>;
    let prompt_options = PromptOptions { from_user: typed, plan_only: false };
    let turn = async {
        let turn = connection.server.orchestrator.prompt(pending, prompt, prompt_options, front, running.cancel());
        let ended = turn.await;
        // A turn that failed has no answer.
        answered.cancel();
        ended
    };
    let commands = async {
        if commands_later {
            answered.cancelled().await;
            send_changed_commands(open, running.cancel()).await;
        }
    };
    let (ended, ()) = tokio::join!(turn, commands);
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

/// Sends the commands to the client if they have changed, unless the prompt is cancelled first.
async fn send_changed_commands(open: &ClientSession, cancel: &CancellationToken) {
    let changed = async {
        // The mode is entered, or another one was chosen meanwhile.
        let binding = open.session.binding().await.ok();
        commands::update_if_changed(open, binding.as_deref()).await
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        changed = changed => changed.into_iter().for_each(|update| open.viewer.send(update)),
    }
}

/// Stores a prompt that was cancelled before its turn began, and shows it to the other viewers. Does nothing if the
/// client may not begin a turn.
async fn store_cancelled(
    connection: &ClientConnection,
    open: &ClientSession,
    running: &RunningTurn,
    prompt: Vec<Content>,
) {
    let Ok(pending) = open.session.begin_for(&open.grant) else { return };
    let live = Arc::clone(open.session.live());
    live.begin(connection.id, open.session.event_count());
    let showing = LiveTurnGuard(Arc::clone(&live));
    if let Some(title) = pending.name_after(&prompt) {
        live.status(StatusUpdate::Title(title));
    }
    // Boxed, because every prompt would keep room for it.
    let ended = Box::pin(pending.run(prompt.into(), live, running.cancel())).await;
    showing.end(&ended);
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
    updates.show_answer(text);
    acp::PromptResponse::new(acp::StopReason::EndTurn)
}

fn answer(ended: Result<TurnEnd, PromptError>) -> Result<acp::PromptResponse, acp::Error> {
    let end = ended.map_err(|error| errors::prompt(&error))?;
    let reason = stop_reason(&end.ending).map_err(|failure| errors::internal_error(failure.0))?;
    Ok(acp::PromptResponse::new(reason))
}
