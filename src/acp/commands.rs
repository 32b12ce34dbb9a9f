//! Slash commands: the prompts of bound MCP services, and a few of our own.

use std::collections::BTreeMap;

use agent_client_protocol::v1::schema as acp;
use serde_json::{Map, Value, json};

use super::connection::Open;
use super::errors;
use crate::broker::Binding;
use crate::conversation::Content;
use crate::graph::Plan;
use crate::ids::ServiceName;
use crate::manifest::Transport;
use crate::tool::CallContext;

const TOOLS: &str = "tools";
const COMPACT: &str = "compact";

/// Every command of the mode the session is in.
pub(super) async fn update(open: &Open) -> acp::SessionUpdate {
    let mut commands = vec![
        acp::AvailableCommand::new(TOOLS, "List the tools of this mode, and what it does without"),
        acp::AvailableCommand::new(COMPACT, "Show the model the older part of this talk as a summary from now on"),
    ];
    // A mode that cannot be entered has no commands of its own; the next prompt will say why.
    if let Ok(binding) = open.enter().await {
        let named = named(open.plan(), binding.prompts().await);
        commands.extend(named.iter().map(|(name, of)| command(name, of.service.as_str(), &of.prompt)));
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

/// A prompt of a service, and what the binding calls it.
struct Named {
    listed: String,
    service: ServiceName,
    prompt: Value,
}

/// The prompts by the name a user types. Those of a built-in service go by their own name where it is free; a foreign
/// server could take a name that means something else, so its own begin with the service's.
fn named(plan: &Plan, prompts: BTreeMap<String, (ServiceName, Value)>) -> BTreeMap<String, Named> {
    let mut named = BTreeMap::new();
    for (listed, (service, prompt)) in prompts {
        let entry = plan.service(service.as_str());
        let builtin = entry.is_some_and(|entry| matches!(entry.manifest.transport, Transport::Builtin(_)));
        let own = prompt["name"].as_str().unwrap_or_default().to_owned();
        let free = builtin && ![TOOLS, COMPACT].contains(&own.as_str()) && !named.contains_key(&own);
        let name = if free { own } else { listed.clone() };
        named.insert(name, Named { listed, service, prompt });
    }
    named
}

fn command(name: &str, service: &str, prompt: &Value) -> acp::AvailableCommand {
    let said = prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or("A prompt");
    let command = acp::AvailableCommand::new(name, format!("{said} ({service})"));
    match hint(prompt) {
        Some(hint) => command.input(acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint))),
        None => command,
    }
}

fn hint(prompt: &Value) -> Option<String> {
    let names: Vec<_> =
        arguments(prompt).map(|(name, needed)| if needed { name } else { format!("[{name}]") }).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

fn arguments(prompt: &Value) -> impl Iterator<Item = (String, bool)> {
    let arguments = prompt["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
    arguments.iter().filter_map(|argument| Some((argument["name"].as_str()?.to_owned(), argument["required"] == true)))
}

/// What a prompt turned out to be.
pub(super) enum Meant {
    /// For the model, filled in if it was the name of an MCP prompt.
    Prompt(Vec<Content>),
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
        TOOLS => return Ok(Meant::Answer(tools(&binding))),
        COMPACT => return Ok(Meant::Compact),
        _ => {}
    }
    let named = named(open.plan(), binding.prompts().await);
    let Some(of) = named.get(name) else { return Ok(Meant::Prompt(prompt)) };
    let filled = fill_in(&of.prompt, rest.trim())?;
    let context = CallContext::new(std::sync::Arc::clone(open.live.session()));
    let said =
        binding.get_prompt(&of.listed, filled, context).await.map_err(|error| errors::failed(error.to_string()))?;
    let mut content = contents(&said);
    content.extend(prompt.into_iter().skip(1));
    Ok(Meant::Prompt(content))
}

/// `/name one two three`: each argument a word, the last one all the rest. A JSON object names them.
fn fill_in(prompt: &Value, rest: &str) -> Result<Map<String, Value>, acp::Error> {
    if let Ok(Value::Object(named)) = serde_json::from_str(rest) {
        return Ok(named);
    }
    let wanted: Vec<_> = arguments(prompt).collect();
    let mut filled = Map::new();
    let mut missing = Vec::new();
    let mut rest = rest;
    for (at, (name, needed)) in wanted.iter().enumerate() {
        let last = at + 1 == wanted.len();
        let (word, behind) = if last { (rest, "") } else { rest.split_once(char::is_whitespace).unwrap_or((rest, "")) };
        if !word.is_empty() {
            filled.insert(name.clone(), json!(word));
        } else if *needed {
            missing.push(format!("`{name}`"));
        }
        rest = behind.trim_start();
    }
    if !missing.is_empty() {
        let (command, missing) = (prompt["name"].as_str().unwrap_or_default(), missing.join(" and "));
        return Err(errors::invalid_params(format!("/{command} needs {missing}: write it behind the command")));
    }
    Ok(filled)
}

/// What an MCP prompt says, as one prompt of the user.
fn contents(said: &Value) -> Vec<Content> {
    let messages = said["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let content = messages.iter().map(|message| {
        let content = &message["content"];
        let text = |key: &str| content[key].as_str().unwrap_or_default().to_owned();
        match content["type"].as_str() {
            Some("text") => Content::Text(text("text")),
            Some("image") => Content::Image { mime: text("mimeType"), data: text("data") },
            Some("resource") => Content::Resource(content["resource"].clone()),
            Some("resource_link") => Content::Link(content.clone()),
            _ => Content::Text(content.to_string()),
        }
    });
    content.collect()
}

fn tools(binding: &Binding) -> String {
    let mut text = format!("**{}**, approval `{}`\n\n", binding.mode(), binding.approval().as_str());
    if binding.tools().is_empty() {
        text.push_str("This mode has no tools.\n");
    }
    for (name, tool) in binding.tools() {
        let description = tool.spec.description.lines().next().unwrap_or_default();
        text.push_str(&format!("- `{name}`: {description}\n"));
    }
    for absent in binding.absent().iter().filter(|absent| absent.is_missed()) {
        text.push_str(&format!("\nThe service {} is not there: {}\n", absent.service, absent.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_the_arguments_in_order_and_the_last_takes_the_rest() {
        let prompt = json!({"name": "mail", "arguments": [{"name": "to", "required": true}, {"name": "text"}]});
        assert_eq!(
            json!(fill_in(&prompt, "ann see you at noon").unwrap()),
            json!({"to": "ann", "text": "see you at noon"})
        );
        assert_eq!(json!(fill_in(&prompt, "ann").unwrap()), json!({"to": "ann"}));
        assert_eq!(json!(fill_in(&prompt, r#"{"text": "x"}"#).unwrap()), json!({"text": "x"}));
        assert!(fill_in(&prompt, "").unwrap_err().message.contains("/mail needs `to`"));
        assert_eq!(hint(&prompt).as_deref(), Some("to [text]"));
    }
}
