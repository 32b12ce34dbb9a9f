//! Converts the messages of a conversation to those of a request.
//!
//! A provider refuses a conversation with a part that it does not take, and with it every later request. So each part
//! becomes one that the provider takes.

use genai::chat::{CacheControl, ChatMessage, ChatRole, ContentPart, ToolCall, ToolResponse};
use serde_json::{Map, Value, json};

use super::ModelRequest;
use super::media::content_part;
use super::request_rules::RequestRules;
use crate::conversation::{Content, Message, MessagePart, Role};

/// Maximum length of a tool name that every provider accepts.
const MAX_NAME: usize = 64;
/// Stands for a message without any text or media. Without the message, the roles would not alternate.
const NO_TEXT: &str = "(no text)";
/// Stands for the thoughts of an answer without any, such as one of another model. Moonshot takes an empty text for a
/// missing one.
const NO_THOUGHT: &str = " ";
/// Characters that the model sees again of arguments that are not a JSON object.
const MAX_WRONG_ARGUMENTS: usize = 1000;

/// Converts the system prompt and the messages of a request.
pub(super) fn chat_history(request: &ModelRequest, rules: &RequestRules) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        // Tools and system prompt stay the same while messages change, so the provider caches them separately.
        messages.push(ChatMessage::system(request.system.to_string()).with_options(CacheControl::Ephemeral));
    }
    for message in request.messages.iter().flat_map(|message| chat_messages(message, rules)) {
        match messages.last_mut() {
            // Some models expect alternating roles, so consecutive user messages are merged, such as a summary and a
            // prompt.
            Some(last) if last.role == ChatRole::User && message.role == ChatRole::User => {
                last.content.extend(message.content);
            }
            // Mistral refuses what the user says after results, such as their images, before the model has answered.
            Some(last) if rules.is_mistral && last.role == ChatRole::Tool && message.role == ChatRole::User => {
                messages.push(ChatMessage::assistant(NO_TEXT));
                messages.push(message);
            }
            _ => messages.push(message),
        }
    }
    // Later requests repeat all messages up to this one, so the provider may cache them.
    if let Some(last) = messages.last_mut() {
        last.options = Some(CacheControl::Ephemeral.into());
    }
    messages
}

/// Converts a message. Tool results become a separate message; their images follow in a user message. Blank texts stay
/// out: Anthropic refuses a conversation with one, and with it every later request.
fn chat_messages(message: &Message, rules: &RequestRules) -> Vec<ChatMessage> {
    let role = match message.role {
        Role::User => ChatRole::User,
        Role::Assistant => ChatRole::Assistant,
    };
    let mut parts = Vec::new();
    let mut results = Vec::new();
    let mut thoughts = Vec::new();
    for part in &message.parts {
        match part {
            MessagePart::Content(Content::Text(text) | Content::Injected(text)) if text.trim().is_empty() => {}
            // No dialect has media in the messages of a model. Without them, such a message would be empty.
            MessagePart::Content(content) if role == ChatRole::Assistant => {
                parts.push(ContentPart::Text(content.to_plain_text()));
            }
            MessagePart::Content(content) => parts.push(content_part(content, rules)),
            MessagePart::Thought(text) => thoughts.push(text.as_str()),
            MessagePart::ToolUse(call) => {
                let is_first = !parts.iter().any(ContentPart::is_tool_call);
                parts.push(ContentPart::ToolCall(ToolCall {
                    call_id: rules.write_id(&call.id),
                    fn_name: sendable_name(&call.name),
                    fn_arguments: sendable(&call.arguments),
                    thought_signatures: rules.find_signature(call, is_first).map(|signature| vec![signature]),
                }));
            }
            MessagePart::ToolResult(result) => {
                let text: Vec<_> = result.content.iter().filter_map(Content::as_text).collect();
                let text = if result.is_error { format!("error: {}", text.join("\n")) } else { text.join("\n") };
                let mut response = ToolResponse::new(rules.write_id(&result.id), text);
                response.fn_name = Some(sendable_name(&result.name));
                results.push(ContentPart::ToolResponse(response));
                let others = result.content.iter().filter(|content| content.as_text().is_none());
                parts.extend(others.map(|content| content_part(content, rules)));
            }
        }
    }
    if role == ChatRole::User && parts.is_empty() && results.is_empty() {
        parts.push(ContentPart::Text(NO_TEXT.to_owned()));
    }
    if rules.wants_thoughts && role == ChatRole::Assistant && !parts.is_empty() {
        let thoughts = thoughts.join("\n");
        let thoughts = if thoughts.trim().is_empty() { NO_THOUGHT.to_owned() } else { thoughts };
        parts.insert(0, ContentPart::ReasoningContent(thoughts));
    }
    // Some providers require the results of one answer's calls in one message.
    let results = (!results.is_empty()).then(|| ChatMessage::tool(results));
    let said = (!parts.is_empty()).then(|| ChatMessage::new(role, parts));
    results.into_iter().chain(said).collect()
}

/// Converts arguments that are not a JSON object into one. Providers reject a conversation with such a call, and with
/// it every later request. The model has already received an error for the call.
fn sendable(arguments: &Value) -> Value {
    match arguments {
        Value::Object(_) => arguments.clone(),
        Value::Null => Value::Object(Map::new()),
        other => {
            let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            json!({"not_a_json_object": text.chars().take(MAX_WRONG_ARGUMENTS).collect::<String>()})
        }
    }
}

/// Replaces characters that providers reject in a tool name. A model may call a made-up name that contains them.
fn sendable_name(name: &str) -> String {
    // Each request contains the names of all calls so far, and nearly all of them are plain.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = name.chars().take(MAX_NAME).map(plain).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use genai::adapter::AdapterKind;

    use super::*;
    use crate::conversation::{ToolResult, ToolUse};

    fn rules(dialect: AdapterKind) -> RequestRules {
        RequestRules::new(dialect, "provider:model", "model", "")
    }

    #[test]
    fn what_is_said_beside_a_prompt_is_sent_before_it_as_text() {
        let message = Message::user(vec![Content::Injected("beside".to_owned()), Content::text("hello")]);
        let [sent] = chat_messages(&message, &rules(AdapterKind::OpenAI)).try_into().expect("one message");
        assert_eq!(sent.content.texts(), ["beside", "hello"]);
    }

    #[test]
    fn mistral_gets_an_answer_between_results_and_a_prompt() {
        let (id, name) = ("toolu_01".to_owned(), "read".to_owned());
        let call = ToolUse::new(id.clone(), name.clone(), json!({}));
        let image = Content::Image { mime: "image/png".to_owned(), data: "aGk=".to_owned() };
        let result = ToolResult { id, name, content: vec![Content::text("x"), image], is_error: false };
        let message = |role, part| Arc::new(Message { role, parts: vec![part] });
        let messages = vec![
            message(Role::User, MessagePart::Content(Content::text("look"))),
            message(Role::Assistant, MessagePart::ToolUse(call)),
            message(Role::User, MessagePart::ToolResult(result)),
            message(Role::User, MessagePart::Content(Content::text("and?"))),
        ];
        let request = ModelRequest { system: "".into(), tools: Arc::from([]), messages };
        let roles = |dialect| {
            let sent = chat_history(&request, &rules(dialect));
            sent.iter().map(|message| message.role.to_string().to_lowercase()).collect::<Vec<_>>()
        };
        assert_eq!(roles(AdapterKind::Mistral), ["user", "assistant", "tool", "assistant", "user"]);
        assert_eq!(roles(AdapterKind::OpenAI), ["user", "assistant", "tool", "user"]);
        let sent = chat_history(&request, &rules(AdapterKind::Mistral));
        let (calls, results) = (sent[1].content.tool_calls(), sent[2].content.tool_responses());
        assert_eq!(calls[0].call_id, results[0].call_id);
        assert_eq!(calls[0].call_id.len(), 9);
    }

    #[test]
    fn every_answer_has_thoughts_for_who_requires_them() {
        let answer = |thoughts: &[&str], texts: &[&str]| {
            let thoughts = thoughts.iter().map(|text| MessagePart::Thought((*text).to_owned()));
            let texts = texts.iter().map(|text| MessagePart::Content(Content::text(*text)));
            Message { role: Role::Assistant, parts: thoughts.chain(texts).collect() }
        };
        let sent = |message: &Message, dialect| {
            let sent = chat_messages(message, &rules(dialect));
            let parts = sent.iter().flat_map(|message| message.content.parts());
            parts.filter_map(ContentPart::as_reasoning_content).map(str::to_owned).collect::<Vec<_>>()
        };
        for (message, expected) in [
            (answer(&["so"], &["yes"]), vec!["so"]),
            (answer(&["so", "then"], &["yes"]), vec!["so\nthen"]),
            (answer(&[], &["yes"]), vec![NO_THOUGHT]),
            (answer(&[""], &["yes"]), vec![NO_THOUGHT]),
            // A message with nothing but thoughts would be refused.
            (answer(&["so"], &[]), vec![]),
            (Message::user(vec![Content::text("hello")]), vec![]),
        ] {
            assert_eq!(sent(&message, AdapterKind::DeepSeek), expected);
            assert_eq!(sent(&message, AdapterKind::OpenAI), Vec::<String>::new());
        }
    }

    #[test]
    fn media_of_a_model_are_sent_as_text() {
        let image = || Content::Image { mime: "image/png".to_owned(), data: "aGk=".to_owned() };
        let answer = Message { role: Role::Assistant, parts: vec![MessagePart::Content(image())] };
        for dialect in [AdapterKind::Anthropic, AdapterKind::Gemini, AdapterKind::OpenAI] {
            let [sent] = chat_messages(&answer, &rules(dialect)).try_into().expect("one message");
            assert_eq!(sent.content.texts(), ["(image/png)"], "{dialect}");
            let [sent] = chat_messages(&Message::user(vec![image()]), &rules(dialect)).try_into().expect("one message");
            assert_eq!(sent.content.texts(), Vec::<&str>::new(), "{dialect}");
        }
    }

    #[test]
    fn blank_texts_are_not_sent() {
        let message = |role, texts: &[&str]| {
            let parts = texts.iter().map(|text| MessagePart::Content(Content::text(*text))).collect();
            Arc::new(Message { role, parts })
        };
        let messages = vec![
            message(Role::User, &["one", "", " \n"]),
            message(Role::Assistant, &["two", ""]),
            message(Role::User, &["  "]),
            message(Role::Assistant, &["three"]),
            message(Role::User, &["four"]),
            message(Role::Assistant, &["\n"]),
            message(Role::User, &["five"]),
        ];
        let request = ModelRequest { system: "".into(), tools: Arc::from([]), messages };
        let sent = chat_history(&request, &rules(AdapterKind::Anthropic));
        let sent: Vec<_> = sent.iter().map(|message| (message.role.clone(), message.content.texts())).collect();
        let expected = [
            (ChatRole::User, vec!["one"]),
            (ChatRole::Assistant, vec!["two"]),
            (ChatRole::User, vec![NO_TEXT]),
            (ChatRole::Assistant, vec!["three"]),
            (ChatRole::User, vec!["four", "five"]),
        ];
        assert_eq!(sent, expected);
    }
}
