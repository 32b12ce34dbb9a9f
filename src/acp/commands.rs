//! Slash commands: the prompts of bound MCP services, and a few of our own.

use agent_client_protocol::v1::schema as acp;
use serde_json::Value;

use super::connection::Open;
use super::errors;
use crate::conversation::Content;
use crate::session::slash::{self, Misused};

const TOOLS: &str = "tools";
const COMPACT: &str = "compact";
const OURS: [&str; 2] = [TOOLS, COMPACT];

/// Every command of the mode the session is in.
pub(super) async fn update(open: &Open) -> acp::SessionUpdate {
    let mut commands = vec![
        acp::AvailableCommand::new(TOOLS, "List the tools of this mode, and what it does without"),
        acp::AvailableCommand::new(COMPACT, "Show the model the older part of this talk as a summary from now on"),
    ];
    // A mode that cannot be entered has no commands of its own; the next prompt will say why.
    if let Ok(binding) = open.enter().await {
        let prompts = slash::prompts(&binding, &OURS).await;
        commands.extend(prompts.iter().map(|(name, of)| command(name, of.service.as_str(), &of.prompt)));
    }
    let update = acp::AvailableCommandsUpdate::new(commands);
    open.told_commands(&update);
    acp::SessionUpdate::AvailableCommandsUpdate(update)
}

/// The same if it is no longer what the client was told: prompts may come from files, which change.
pub(super) async fn changed(open: &Open) -> Option<acp::SessionUpdate> {
    let told = open.commands_told()?;
    let now = update(open).await;
    (now != acp::SessionUpdate::AvailableCommandsUpdate(told)).then_some(now)
}

fn command(name: &str, service: &str, prompt: &Value) -> acp::AvailableCommand {
    let said = prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or("A prompt");
    let command = acp::AvailableCommand::new(name, format!("{said} ({service})"));
    match slash::hint(prompt) {
        Some(hint) => command.input(acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint))),
        None => command,
    }
}

/// What a prompt turned out to be.
pub(super) enum Meant {
    /// For the model, as the user typed it.
    Prompt(Vec<Content>),
    /// For the model, as a service filled it in.
    Said(Vec<Content>),
    /// Answered without it.
    Answer(String),
    /// The talk is to be made shorter.
    Compact,
}

/// Looks for a command at the beginning of a prompt. What is none of ours goes to the model as it is.
pub(super) async fn understand(open: &Open, prompt: Vec<Content>) -> Result<Meant, acp::Error> {
    let Some(line) = prompt.first().and_then(Content::as_text).and_then(|text| text.trim_start().strip_prefix('/'))
    else {
        return Ok(Meant::Prompt(prompt));
    };
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let binding = open.live.binding().await.map_err(|error| errors::failed(error.to_string()))?;
    match name {
        TOOLS => return Ok(Meant::Answer(slash::tools(&binding))),
        COMPACT => return Ok(Meant::Compact),
        _ => {}
    }
    let said = slash::prompt(&binding, open.live.session(), &OURS, name, rest.trim()).await;
    let mut content = match said {
        Ok(Some(content)) => content,
        Ok(None) => return Ok(Meant::Prompt(prompt)),
        Err(Misused::Arguments(problem)) => return Err(errors::invalid_params(problem)),
        Err(Misused::Service(problem)) => return Err(errors::failed(problem)),
    };
    content.extend(prompt.into_iter().skip(1));
    Ok(Meant::Said(content))
}
