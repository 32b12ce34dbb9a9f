//! Implements the commands of every front end: `/tools`, the prompts of bound MCP services as `/name one two three`,
//! and skills and recipes, also in a mode without them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::Session;
use crate::agents::Code;
use crate::broker::{Binding, Requester};
use crate::conversation::Content;
use crate::ids::ServiceName;
use crate::tool::ask::Asker;
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
use crate::tool::{CallContext, ServiceError};

/// The service that has skills, recipes and agent files.
const KNOWLEDGE: &str = "knowledge";
/// Key in `_meta` of a prompt with the JSON Schema of each argument, for the form that asks for it.
const ARGUMENTS: &str = "skein/arguments";

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
    /// The prompt belongs to the session's library, not to its mode.
    from_library: bool,
}

impl Session {
    /// Returns the port to the session's user.
    pub fn asker(&self) -> Arc<dyn Asker> {
        Arc::clone(&self.setup().host().asker)
    }

    /// Returns a binding with the user's skills and recipes, for commands in a mode without them. `None` if a profile
    /// leaves the service out.
    pub async fn library(&self) -> Option<Arc<Binding>> {
        self.setup().library().await
    }
}

/// Returns the prompts of the session's mode by the name that a user types. A mode without skills and recipes has them
/// as commands too, unless its external agent has a command of that name.
pub async fn prompts(session: &Session, binding: &Binding, taken: &[&str]) -> BTreeMap<String, ServicePrompt> {
    let mut all = service_prompts(binding, taken).await;
    // The library has the same items.
    if binding.has_whole(KNOWLEDGE) {
        return all;
    }
    let Some(library) = session.library().await else { return all };
    let external = session.external_session();
    for (name, mut of) in service_prompts(&library, taken).await {
        let hidden = all.contains_key(&name) || external.as_ref().is_some_and(|external| external.has_command(&name));
        if of.service.as_str() == KNOWLEDGE && !hidden {
            of.from_library = true;
            all.insert(name, of);
        }
    }
    all
}

/// Returns the prompts by the name that a user types. A prompt of a built-in service has its own name unless that is
/// `taken`. Other servers could use a misleading name, so their prompts start with the service's name.
async fn service_prompts(binding: &Binding, taken: &[&str]) -> BTreeMap<String, ServicePrompt> {
    let all = binding.prompts().await;
    let mut named = BTreeMap::new();
    for (listed, (service, prompt)) in &all {
        let own = prompt["name"].as_str().unwrap_or_default();
        let taken = taken.contains(&own) || all.contains_key(own) || named.contains_key(own);
        let name = if binding.has_built_in(service) && !taken { own } else { listed };
        let (listed, service, prompt) = (listed.clone(), service.clone(), prompt.clone());
        named.insert(name.to_owned(), ServicePrompt { listed, service, prompt, from_library: false });
    }
    named
}

/// Returns the content that the command sends to the model. Asks the user for missing arguments through `asker`. `None`
/// if there is no prompt of that name. Fails if an argument is missing all the same, or the service fails.
pub async fn prompt(
    session: &Session,
    binding: &Binding,
    taken: &[&str],
    (name, rest): (&str, &str),
    asker: &dyn Asker,
    cancel: &CancellationToken,
) -> Result<Option<Vec<Content>>, SlashCommandError> {
    let prompts = prompts(session, binding, taken).await;
    let Some(of) = prompts.get(name) else { return Ok(None) };
    let filled = complete(name, of, fill_in(&of.prompt, rest), asker).await?;
    let context = CallContext::new(Arc::clone(session.context())).with_cancel(cancel.clone());
    let library = if of.from_library { session.library().await } else { None };
    let source = library.as_deref().unwrap_or(binding);
    let said = source.get_prompt(&of.listed, filled, Requester::User, context).await;
    Ok(Some(contents(&said?)))
}

/// Asks the user for the arguments that are not filled in, if a required one is missing. Fails if it is missing still.
async fn complete(
    name: &str,
    of: &ServicePrompt,
    mut filled: Map<String, Value>,
    asker: &dyn Asker,
) -> Result<Map<String, Value>, SlashCommandError> {
    if missing(&of.prompt, &filled).is_empty() {
        return Ok(filled);
    }
    let question = Elicitation {
        by: of.service.to_string(),
        call: None,
        message: format!("/{name} needs these values"),
        kind: ElicitationKind::Fields(form(&of.prompt, &filled)),
    };
    if let ElicitationResponse::Accepted(answers) = asker.elicit(question).await {
        let is_empty = |value: &Value| value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty());
        for (argument, _) in arguments(&of.prompt) {
            let answer = answers.get(&argument).filter(|value| !is_empty(value));
            if let Some(answer) = answer.filter(|_| !filled.contains_key(&argument)) {
                filled.insert(argument, answer.clone());
            }
        }
    }
    let missing = missing(&of.prompt, &filled);
    if missing.is_empty() {
        return Ok(filled);
    }
    let missing = missing.iter().map(|argument| format!("`{argument}`")).collect();
    Err(SlashCommandError::MissingArguments { command: name.to_owned(), missing })
}

/// Returns the required arguments that are not filled in.
fn missing(prompt: &Value, filled: &Map<String, Value>) -> Vec<String> {
    arguments(prompt).filter(|(name, needed)| *needed && !filled.contains_key(name)).map(|(name, _)| name).collect()
}

/// Returns the form for the arguments that are not filled in, as a flat JSON Schema.
fn form(prompt: &Value, filled: &Map<String, Value>) -> Map<String, Value> {
    let described = prompt["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let open = |name: &str| !filled.contains_key(name);
    let mut properties = Map::new();
    for argument in described {
        let Some(name) = argument["name"].as_str().filter(|name| open(name)) else { continue };
        let mut field = Map::from_iter([("type".to_owned(), json!("string")), ("title".to_owned(), json!(name))]);
        if let Some(description) = argument["description"].as_str().filter(|text| !text.is_empty()) {
            field.insert("description".to_owned(), json!(description));
        }
        let about = &prompt["_meta"][ARGUMENTS][name];
        if about["enum"].as_array().is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string)) {
            field.insert("enum".to_owned(), about["enum"].clone());
        }
        if about["default"].is_string() {
            field.insert("default".to_owned(), about["default"].clone());
        }
        properties.insert(name.to_owned(), Value::Object(field));
    }
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), Value::Object(properties)),
        ("required".to_owned(), json!(missing(prompt, filled))),
    ])
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

/// Assigns one word to each argument, and the rest to the last one. A JSON object names the arguments instead.
fn fill_in(prompt: &Value, rest: &str) -> Map<String, Value> {
    if let Ok(Value::Object(named)) = serde_json::from_str(rest) {
        return named;
    }
    let wanted: Vec<_> = arguments(prompt).collect();
    let mut filled = Map::new();
    let mut rest = rest;
    for (at, (name, _)) in wanted.iter().enumerate() {
        let last = at + 1 == wanted.len();
        let (word, behind) = if last { (rest, "") } else { rest.split_once(char::is_whitespace).unwrap_or((rest, "")) };
        if !word.is_empty() {
            filled.insert(name.clone(), json!(word));
        }
        rest = behind.trim_start();
    }
    filled
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
#[path = "slash_tests.rs"]
mod tests;
