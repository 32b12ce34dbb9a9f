//! The default provider, which has no language model. It understands a few plain requests and calls every tool in scope
//! by name, in the same exchange as any model. Its answers say that no model is configured.

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde_json::{Map, Value, json};

use super::{LlmError, ModelRequest, ModelStop, OfferedTool, Provider, StreamEvent};
use crate::conversation::{MessagePart, ToolResult, ToolUse, Usage};
use crate::ids::{ModelRef, nearest};
use crate::text::{code_span, fence};

/// The beginning of the help text.
const HELP: &str = "No language model is configured, so this is the offline stand-in:";

/// Returns true if an answer contains the help text of the offline provider. It is about no subject, so searches leave
/// it out.
pub fn is_offline_help(answer: &str) -> bool {
    answer.contains(HELP)
}

/// A provider without a model, which maps plain requests to tool calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct OfflineProvider;

impl Provider for OfflineProvider {
    fn name(&self) -> &ModelRef {
        &ModelRef::Offline
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let mut events = match next_move(&request) {
            OfflineReply::Say(text) => vec![StreamEvent::Text(text)],
            OfflineReply::Call(tool) => vec![StreamEvent::ToolUse(tool)],
        };
        events.push(StreamEvent::Done { stop: ModelStop::Finished, usage: Usage::default() });
        stream::iter(events.into_iter().map(Ok)).boxed()
    }
}

enum OfflineReply {
    Say(String),
    Call(ToolUse),
}

fn next_move(request: &ModelRequest) -> OfflineReply {
    let Some(last) = request.messages.last() else { return OfflineReply::Say(about(&request.tools)) };
    let results: Vec<_> = last.parts.iter().filter_map(result).collect();
    if !results.is_empty() {
        return OfflineReply::Say(results.iter().map(|result| report(result)).collect::<Vec<_>>().join("\n\n"));
    }
    match understand(last.text().trim(), &request.tools) {
        Ok((name, arguments)) => {
            // The number of messages grows with every request. The exchange replaces an id that occurs twice.
            let id = format!("offline-{}", request.messages.len());
            OfflineReply::Call(ToolUse::new(id, name, Value::Object(arguments)))
        }
        Err(unclear) => OfflineReply::Say(unclear.to_string()),
    }
}

fn result(part: &MessagePart) -> Option<&ToolResult> {
    match part {
        MessagePart::ToolResult(result) => Some(result),
        MessagePart::Content(_) | MessagePart::Thought(_) | MessagePart::ToolUse(_) => None,
    }
}

fn report(result: &ToolResult) -> String {
    let text: Vec<_> =
        result.content.iter().map(|content| content.as_text().unwrap_or("(content that is not text)")).collect();
    // Clients render answers as Markdown.
    let text = fence(&text.join("\n"));
    if result.is_error { format!("{} failed:\n\n{text}", code_span(&result.name)) } else { text }
}

/// Why a request is not a call. The message is the answer.
#[derive(Debug, thiserror::Error)]
enum UnclearRequest {
    #[error("{about}")]
    Unknown { about: String },
    #[error("`{verb}` needs the tool {tool}, which this mode does not have.\n\n{about}")]
    MissingTool { verb: String, tool: &'static str, about: String },
    #[error("There is no tool `{name}` in this mode.{near}\n\n{about}")]
    UnknownTool { name: String, near: String, about: String },
    #[error("The arguments of /{name} are not a JSON object: {arguments}")]
    NotJson { name: String, arguments: String },
    #[error("/{name} takes a JSON object: /{name} {{…}}")]
    NeedsJson { name: String },
}

/// Returns the tool and the arguments that a request means.
fn understand(text: &str, tools: &[OfferedTool]) -> Result<(String, Map<String, Value>), UnclearRequest> {
    if let Some(command) = text.strip_prefix('/') {
        return slash(command, tools);
    }
    let (verb, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let or_here = if rest.is_empty() { "." } else { rest };
    let plain: Option<(&'static str, Value)> = match verb.to_lowercase().trim_end_matches(':') {
        "list" | "ls" => Some(("developer__list_dir", json!({"path": or_here}))),
        "read" | "show" | "cat" if !rest.is_empty() => Some(("developer__read_file", json!({"path": rest}))),
        "search" | "grep" | "find" if !rest.is_empty() => {
            Some(("developer__search", json!({"pattern": rest, "literal": true})))
        }
        "run" if !rest.is_empty() => Some(("developer__shell", json!({"command": rest}))),
        "remember" if !rest.is_empty() => Some(("memory__remember", json!({"text": rest, "scope": "project"}))),
        "recall" if rest.is_empty() => Some(("memory__recall", json!({}))),
        "recall" => Some(("memory__recall", json!({"query": rest}))),
        "todo" if rest.is_empty() => Some(("todo__list_todos", json!({}))),
        "todo" => Some(("todo__set_todos", json!({"items": steps(rest)}))),
        "plan" if !rest.is_empty() => Some(("developer__update_plan", json!({"steps": steps(rest)}))),
        _ => None,
    };
    match plain {
        Some((name, Value::Object(arguments))) if tools.iter().any(|tool| tool.name == name) => {
            Ok((name.to_owned(), arguments))
        }
        Some((tool, _)) => Err(UnclearRequest::MissingTool { verb: verb.to_owned(), tool, about: about(tools) }),
        None => Err(UnclearRequest::Unknown { about: about(tools) }),
    }
}

/// Parses `/developer.shell {"command": "ls"}`, `/developer__shell {...}` or `/shell ls`. Plain text becomes the tool's
/// first required argument, or else its first text argument.
fn slash(command: &str, tools: &[OfferedTool]) -> Result<(String, Map<String, Value>), UnclearRequest> {
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let full = name.replacen('.', "__", 1);
    let named =
        |tool: &&OfferedTool| tool.name == full || tool.name.split_once("__").is_some_and(|(_, short)| short == name);
    let Some(tool) = tools.iter().find(named) else {
        let near = nearest(&full, tools.iter().map(|tool| tool.name.as_str()));
        let near = near.map(|near| format!(" Did you mean /{near}?")).unwrap_or_default();
        return Err(UnclearRequest::UnknownTool { name: name.to_owned(), near, about: about(tools) });
    };
    let rest = rest.trim();
    let arguments = match serde_json::from_str::<Value>(rest) {
        Ok(Value::Object(arguments)) => arguments,
        _ if rest.is_empty() => Map::new(),
        Ok(_) | Err(_) if rest.starts_with('{') => {
            return Err(UnclearRequest::NotJson { name: name.to_owned(), arguments: rest.to_owned() });
        }
        _ => {
            let required = tool.schema.get("required").and_then(Value::as_array).and_then(|required| required.first());
            let properties = tool.schema.get("properties").and_then(Value::as_object);
            let any = properties.and_then(|properties| properties.iter().find(|(_, kind)| kind["type"] == "string"));
            let Some(first) = required.and_then(Value::as_str).or(any.map(|(name, _)| name.as_str())) else {
                return Err(UnclearRequest::NeedsJson { name: name.to_owned() });
            };
            [(first.to_owned(), json!(rest))].into_iter().collect()
        }
    };
    Ok((tool.name.clone(), arguments))
}

/// Splits text at `;` and line breaks into pending steps.
fn steps(text: &str) -> Vec<Value> {
    let parts = text.split([';', '\n']).map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| json!({"text": part, "status": "pending"})).collect()
}

fn about(tools: &[OfferedTool]) -> String {
    let mut text =
        format!("{HELP} it calls tools by name and understands a few words. Everything else works as with a model.\n");
    let has = |name: &str| tools.iter().any(|tool| tool.name == name);
    let words = [
        ("developer__list_dir", "list [FOLDER]"),
        ("developer__read_file", "read FILE"),
        ("developer__search", "search TEXT"),
        ("developer__shell", "run COMMAND"),
        ("developer__update_plan", "plan STEP; STEP"),
        ("memory__remember", "remember TEXT"),
        ("memory__recall", "recall [WORDS]"),
        ("todo__set_todos", "todo [ITEM; ITEM]"),
    ];
    let words: Vec<_> = words.iter().filter(|(tool, _)| has(tool)).map(|(_, form)| code_span(form)).collect();
    if !words.is_empty() {
        text.push_str(&format!("\nTry: {}\n", words.join(", ")));
    }
    if tools.is_empty() {
        text.push_str("\nThis mode has no tools.");
    } else {
        let names: Vec<_> =
            tools.iter().map(|tool| code_span(&format!("/{}", tool.name.replacen("__", ".", 1)))).collect();
        text.push_str(&format!("\nOr call a tool: {}", names.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Content, Message};
    use std::sync::Arc;

    fn tools() -> Vec<OfferedTool> {
        let tool = |name: &str, required: Value| OfferedTool {
            name: name.to_owned(),
            description: String::new(),
            schema: Arc::new(json!({"required": required}).as_object().cloned().unwrap()),
        };
        vec![
            tool("developer__shell", json!(["command"])),
            tool("developer__list_dir", json!(["path"])),
            tool("x__y", json!([])),
        ]
    }

    fn called(text: &str) -> (String, Value) {
        let (name, arguments) = understand(text, &tools()).unwrap();
        (name, Value::Object(arguments))
    }

    fn answer(text: &str) -> String {
        understand(text, &tools()).unwrap_err().to_string()
    }

    #[test]
    fn plain_words_and_slash_forms_become_calls() {
        let ls = ("developer__shell".to_owned(), json!({"command": "ls -la"}));
        assert_eq!(called("run ls -la"), ls);
        assert_eq!(called("/developer.shell {\"command\": \"ls -la\"}"), ls);
        assert_eq!(called("/shell ls -la"), ls);
        assert_eq!(called("list"), ("developer__list_dir".to_owned(), json!({"path": "."})));
        assert_eq!(called("/x.y"), ("x__y".to_owned(), json!({})));
    }

    #[test]
    fn what_is_not_understood_is_answered_honestly() {
        assert!(answer("write me a poem").contains("No language model is configured"));
        assert!(is_offline_help(&answer("write me a poem")) && is_offline_help(&answer("/shel ls")));
        assert!(!is_offline_help(&answer("/shell {broken")));
        assert!(answer("/shel ls").contains("There is no tool `shel`"));
        assert!(answer("remember the milk").contains("memory__remember, which this mode does not have"));
        assert!(answer("/shell {broken").contains("not a JSON object"));
    }

    #[test]
    fn results_are_told_as_they_are() {
        let result =
            ToolResult { id: "1".into(), name: "x__y".into(), content: vec![Content::text("no")], is_error: true };
        let message = Message { role: crate::conversation::Role::User, parts: vec![MessagePart::ToolResult(result)] };
        let messages = vec![std::sync::Arc::new(message)];
        let request = ModelRequest { system: "".into(), tools: tools().into(), messages };
        let OfflineReply::Say(text) = next_move(&request) else { panic!("it speaks") };
        assert_eq!(text, "`x__y` failed:\n\n```\nno\n```");
    }
}
