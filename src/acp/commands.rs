//! Lists and parses slash commands: the prompts of bound MCP services, skills and recipes, the commands of an external
//! agent, and built-in ones.

use std::sync::{Arc, Weak};

use agent_client_protocol::v1::schema as acp;
use futures::FutureExt as _;
use serde_json::Value;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

use super::connection::ClientSession;
use super::restore::{self, REDO, REDO_ABOUT, REDO_HINT, UNDO, UNDO_ABOUT, UNDO_HINT};
use super::updates::Updates;
use super::{errors, external};
use crate::broker::Binding;
use crate::conversation::Content;
use crate::lesson::CheckVariables;
use crate::session::attachments;
use crate::session::slash::{self, SlashCommandError};
use crate::session::tutorial::{TUTORIAL, TUTORIAL_ABOUT, TUTORIAL_HINT};
use crate::tool::ask::{Asker, NoAsker};

const ATTACH: &str = "A link to one of these in a prompt attaches what it holds:\n";
const NO_RESOURCES: &str = "The services of this mode list nothing to attach.";
const TOOLS: &str = "tools";
const COMPACT: &str = "compact";
const RESOURCES: &str = "resources";
const BUILTIN_COMMANDS: [&str; 6] = [TOOLS, COMPACT, RESOURCES, TUTORIAL, UNDO, REDO];

/// Enters the session's mode, and returns an update with every command. Remembers it as the one sent last.
pub(super) async fn update(open: &ClientSession) -> acp::SessionUpdate {
    update_and_subscribe(open).await.0
}

/// Does the same as [`update`], and also returns what reports the next change of a list, for [`watch`].
pub(super) async fn update_and_subscribe(open: &ClientSession) -> (acp::SessionUpdate, ListChanges) {
    let entered = open.enter().await.ok();
    let changes = subscribe(entered.as_deref());
    let update = list(open, entered.as_deref()).await;
    open.set_commands(&update);
    (acp::SessionUpdate::AvailableCommandsUpdate(update), changes)
}

/// What reports that a service has changed one of its lists.
pub(super) type ListChanges = Vec<Receiver<u64>>;

/// Returns what reports changes of lists from now on. Call it before the lists are read, so that no change is missed.
fn subscribe(binding: Option<&Binding>) -> ListChanges {
    binding.map(Binding::list_changes).unwrap_or_default()
}

/// Returns every command of the session's mode. A mode without a binding could not be entered, and has only built-in
/// commands; the next prompt reports the error.
async fn list(open: &ClientSession, binding: Option<&Binding>) -> acp::AvailableCommandsUpdate {
    let mut commands = vec![acp::AvailableCommand::new(TOOLS, "List the tools of this mode, and what it does without")];
    if open.session.external_session().is_none() {
        let about = "Replace the older part of this session by a summary for the model";
        commands.push(acp::AvailableCommand::new(COMPACT, about));
    }
    for (name, about, hint) in [(UNDO, UNDO_ABOUT, UNDO_HINT), (REDO, REDO_ABOUT, REDO_HINT)] {
        if !is_of_external(open, name) {
            commands.push(with_hint(acp::AvailableCommand::new(name, about), hint.to_owned()));
        }
    }
    if let Some(binding) = binding {
        if !attachments::links(binding).await.is_empty() {
            let what = "List what the services of this mode have to read, as links to attach to a prompt";
            commands.push(acp::AvailableCommand::new(RESOURCES, what));
        }
        if !is_of_external(open, TUTORIAL) {
            commands.push(with_hint(acp::AvailableCommand::new(TUTORIAL, TUTORIAL_ABOUT), TUTORIAL_HINT.to_owned()));
        }
        let prompts = slash::prompts(&open.session, binding, &BUILTIN_COMMANDS).await;
        commands.extend(prompts.iter().map(|(name, of)| command(name, of.service.as_str(), &of.prompt)));
    }
    commands.extend(external::commands_of(open, &commands));
    acp::AvailableCommandsUpdate::new(commands)
}

/// Returns the current commands if they differ from those sent last, and remembers them: prompts may come from files,
/// which change. `binding` is that of the session's mode, if it is entered. `None` if nothing changed, if no commands were
/// sent before, or if another mode was chosen meanwhile, whose commands are sent with it.
pub(super) async fn update_if_changed(open: &ClientSession, binding: Option<&Binding>) -> Option<acp::SessionUpdate> {
    open.commands()?;
    let now = list(open, binding).await;
    if binding.is_some_and(|binding| *binding.mode() != open.session.choice().mode) {
        return None;
    }
    // A prompt and `watch` may list the commands at the same time. Only one of them sends a change.
    open.set_commands(&now).then_some(acp::SessionUpdate::AvailableCommandsUpdate(now))
}

/// Sends changed commands to the client, also between turns, when a service reports that its lists have changed.
/// `changes` are those of the commands that were sent last. Runs until the session is closed.
pub(super) async fn watch(open: Weak<ClientSession>, updates: Arc<Updates>, mut changes: ListChanges) {
    let signs = open.upgrade().map(|open| (open.closed.clone(), Arc::clone(&open.commands_changed)));
    let Some((closed, retold)) = signs else { return };
    loop {
        let changed = changes.iter_mut().map(|changes| {
            let changed = async {
                // The service has ended and will not report changes.
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            changed.boxed()
        });
        let nothing = std::iter::once(futures::future::pending::<()>().boxed());
        let changed = futures::future::select_all(changed.chain(nothing));
        tokio::select! {
            () = closed.cancelled() => return,
            // Another mode has other services.
            () = retold.notified() => {}
            _ = changed => {}
        }
        // Boxed, because this task waits most of the time and would keep room for a large future.
        let Some(next) = Box::pin(send_changes(&open, &updates)).await else { return };
        changes = next;
    }
}

/// Sends the commands if they have changed. Returns what reports the next change of a list. `None` if the session is
/// closed. Does not keep it open.
async fn send_changes(open: &Weak<ClientSession>, updates: &Updates) -> Option<ListChanges> {
    let now = open.upgrade()?;
    let entered = now.enter().await.ok();
    let changes = subscribe(entered.as_deref());
    if let Some(update) = update_if_changed(&now, entered.as_deref()).await {
        updates.send(update);
    }
    Some(changes)
}

fn command(name: &str, service: &str, prompt: &Value) -> acp::AvailableCommand {
    let said = prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or("A prompt");
    let command = acp::AvailableCommand::new(name, format!("{said} ({service})"));
    match slash::hint(prompt) {
        Some(hint) => with_hint(command, hint),
        None => command,
    }
}

/// Returns true if the session's external agent has its own command of that name.
fn is_of_external(open: &ClientSession, name: &str) -> bool {
    open.session.external_session().is_some_and(|external| external.has_command(name))
}

fn with_hint(command: acp::AvailableCommand, hint: String) -> acp::AvailableCommand {
    command.input(acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint)))
}

fn command_error(error: SlashCommandError) -> acp::Error {
    let problem = error.to_string();
    if error.is_misuse() { errors::invalid_params(problem) } else { errors::internal_error(problem) }
}

/// A prompt after slash commands were parsed.
pub(super) enum ParsedPrompt {
    /// Goes to the model as the user typed it.
    Prompt(Vec<Content>),
    /// Goes to the model as a service filled it in.
    ServicePrompt(Vec<Content>),
    /// Answered with this text, without the model.
    Answer(String),
    /// Answered with this text, followed by this content, without the model.
    AnswerWithContent(String, Vec<Content>),
    /// Compacts the history.
    Compact,
}

/// Returns true if a prompt begins like a slash command, which may exist or not.
pub(super) fn is_command(prompt: &[Content]) -> bool {
    prompt.first().and_then(Content::as_text).is_some_and(|text| text.trim_start().starts_with('/'))
}

/// Parses a slash command at the start of a prompt, and attaches linked resources. A prompt without a known command
/// goes to the model unchanged. Checks of lessons run with the variables `checks`. Fails if the arguments of a command
/// do not fit or its service fails.
pub(super) async fn parse_prompt(
    open: &ClientSession,
    prompt: Vec<Content>,
    checks: &CheckVariables,
    cancel: &CancellationToken,
) -> Result<ParsedPrompt, acp::Error> {
    let binding = open.session.binding().await.map_err(|error| errors::internal_error(error.to_string()))?;
    let session = open.session.context();
    let prompt = attachments::attach_resources(&binding, session, prompt, cancel).await.map_err(command_error)?;
    let Some(line) = prompt.first().and_then(Content::as_text).and_then(|text| text.trim_start().strip_prefix('/'))
    else {
        return Ok(ParsedPrompt::Prompt(prompt));
    };
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match name {
        TOOLS => return Ok(ParsedPrompt::Answer(slash::tools(&binding))),
        // An external agent compacts its own history and may have a command of that name.
        COMPACT if open.session.external_session().is_none() => return Ok(ParsedPrompt::Compact),
        RESOURCES => {
            let links = attachments::links(&binding).await;
            let said = if links.is_empty() { NO_RESOURCES } else { ATTACH };
            return Ok(ParsedPrompt::AnswerWithContent(said.to_owned(), links));
        }
        UNDO | REDO if !is_of_external(open, name) => {
            return restore::run(&open.session, name, rest).await.map(ParsedPrompt::Answer);
        }
        TUTORIAL if !is_of_external(open, TUTORIAL) => {
            let answer = open.session.tutorial(rest, checks).await;
            return answer.map(ParsedPrompt::Answer).map_err(|error| {
                let problem = error.to_string();
                if error.is_misuse() { errors::invalid_params(problem) } else { errors::internal_error(problem) }
            });
        }
        _ => {}
    }
    // A client without forms cannot be asked for a value, so the error names the missing ones.
    let asker: Arc<dyn Asker> = if open.viewer.features().forms { open.session.asker() } else { Arc::new(NoAsker) };
    let line = (name, rest.trim());
    let said = slash::prompt(&open.session, &binding, &BUILTIN_COMMANDS, line, asker.as_ref(), cancel).await;
    let mut content = match said.map_err(command_error)? {
        Some(content) => content,
        None => return Ok(ParsedPrompt::Prompt(prompt)),
    };
    content.extend(prompt.into_iter().skip(1));
    Ok(ParsedPrompt::ServicePrompt(content))
}
