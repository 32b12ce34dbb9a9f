//! Implements the commands of every front end: `/tools`, and the prompts of bound MCP services as `/name one two
//! three`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::agents::Code;
use crate::broker::{Binding, Requester};
use crate::conversation::Content;
use crate::ids::ServiceName;
use crate::tool::{CallContext, ServiceError, SessionContext};

/// The reason why a command failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SlashCommandError {
    #[error("/{command} needs {}: write it behind the command", .missing.join(" and "))]
    MissingArguments { command: String, missing: Vec<String> },
    #[error("`{uri}` has {size} bytes of text, and at most {limit} can be attached: ask for a part of it instead")]
    AttachmentTooLarge { uri: String, size: usize, limit: usize },
    #[error("`{uri}` could not be attached: {source}")]
    Attachment { uri: String, source: ServiceError },
    /// The service of the command failed.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl SlashCommandError {
    /// Returns true if the user must change the input, and false if a service failed.
    pub fn is_misuse(&self) -> bool {
        match self {
            Self::MissingArguments { .. } | Self::AttachmentTooLarge { .. } => true,
            Self::Attachment { .. } | Self::Service(_) => false,
        }
    }
}

/// A prompt of a service, with its name in the binding.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicePrompt {
    listed: String,
    pub service: ServiceName,
    pub prompt: Value,
}

/// Returns the prompts by the name that a user types. A prompt of a built-in service has its own name unless that is
/// `taken`. Other servers could use a misleading name, so their prompts start with the service's name.
pub async fn prompts(binding: &Binding, taken: &[&str]) -> BTreeMap<String, ServicePrompt> {
    let all = binding.prompts().await;
    let mut named = BTreeMap::new();
    for (listed, (service, prompt)) in &all {
        let own = prompt["name"].as_str().unwrap_or_default();
        let taken = taken.contains(&own) || all.contains_key(own) || named.contains_key(own);
        let name = if binding.has_built_in(service) && !taken { own } else { listed };
        let (listed, service, prompt) = (listed.clone(), service.clone(), prompt.clone());
        named.insert(name.to_owned(), ServicePrompt { listed, service, prompt });
    }
    named
}

/// Returns the content that the command sends to the model. `None` if no service has a prompt of that name. Fails if an
/// argument is missing or the service fails.
pub async fn prompt(
    binding: &Binding,
    session: &Arc<SessionContext>,
    taken: &[&str],
    name: &str,
    rest: &str,
    cancel: &CancellationToken,
) -> Result<Option<Vec<Content>>, SlashCommandError> {
    let prompts = prompts(binding, taken).await;
    let Some(of) = prompts.get(name) else { return Ok(None) };
    let filled = fill_in(&of.prompt, rest)?;
    let context = CallContext::new(Arc::clone(session)).with_cancel(cancel.clone());
    let said = binding.get_prompt(&of.listed, filled, Requester::User, context).await;
    Ok(Some(contents(&said?)))
}

/// Returns the argument names to show after the command, optional ones in brackets. `None` if it takes no arguments.
pub fn hint(prompt: &Value) -> Option<String> {
    let names: Vec<_> =
        arguments(prompt).map(|(name, needed)| if needed { name } else { format!("[{name}]") }).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

fn arguments(prompt: &Value) -> impl Iterator<Item = (String, bool)> {
    let arguments = prompt["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
    arguments.iter().filter_map(|argument| Some((argument["name"].as_str()?.to_owned(), argument["required"] == true)))
}

/// Assigns one word to each argument, and the rest to the last one. A JSON object names the arguments instead. Fails if
/// a required argument is missing.
fn fill_in(prompt: &Value, rest: &str) -> Result<Map<String, Value>, SlashCommandError> {
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
        let command = prompt["name"].as_str().unwrap_or_default().to_owned();
        return Err(SlashCommandError::MissingArguments { command, missing });
    }
    Ok(filled)
}

/// Converts the messages of an MCP prompt to one user prompt.
fn contents(said: &Value) -> Vec<Content> {
    let messages = said["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let content = messages.iter().map(|message| {
        let content = &message["content"];
        let text = |key: &str| content[key].as_str().unwrap_or_default().to_owned();
        match content["type"].as_str() {
            Some("text") => Content::Text(text("text")),
            Some("image") => Content::Image { mime: text("mimeType"), data: text("data") },
            Some("audio") => Content::Audio { mime: text("mimeType"), data: text("data") },
            Some("resource") => Content::Resource(content["resource"].clone()),
            Some("resource_link") => Content::Link(content.clone()),
            _ => Content::Text(content.to_string()),
        }
    });
    content.collect()
}

/// Lists the tools of the mode and its missing services, in Markdown.
pub fn tools(binding: &Binding) -> String {
    let mut text = format!("**{}**, approval `{}`\n\n", binding.mode(), binding.approval().as_str());
    if binding.tools().is_empty() {
        text.push_str("This mode has no tools.\n");
    }
    for (name, tool) in binding.tools() {
        let description = tool.spec.description.lines().next().unwrap_or_default();
        text.push_str(&format!("- `{name}`: {description}\n"));
    }
    if Code::of(binding).is_some() {
        text.push_str("\nA model calls these from code that it writes (`code_execution`).\n");
    }
    for absent in binding.missing_services().iter().filter(|absent| absent.is_expected()) {
        text.push_str(&format!("\nService `{}` is unavailable: {}\n", absent.service, absent.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_arguments_and_the_last_takes_the_rest() {
        let prompt = json!({"name": "mail", "arguments": [{"name": "to", "required": true}, {"name": "text"}]});
        assert_eq!(
            json!(fill_in(&prompt, "ann see you at noon").unwrap()),
            json!({"to": "ann", "text": "see you at noon"})
        );
        assert_eq!(json!(fill_in(&prompt, "ann").unwrap()), json!({"to": "ann"}));
        assert_eq!(json!(fill_in(&prompt, r#"{"text": "x"}"#).unwrap()), json!({"text": "x"}));
        assert!(fill_in(&prompt, "").unwrap_err().to_string().contains("/mail needs `to`"));
        assert_eq!(hint(&prompt).as_deref(), Some("to [text]"));
    }
}
