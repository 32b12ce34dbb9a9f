//! Converts between the messages of the Agent Communication Protocol and those of Skein.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::runs::RunPart;
use super::errors::RestError;
use crate::clock;
use crate::conversation::Content;

const PLAIN_TEXT: &str = "text/plain";

/// A message of a client.
#[derive(Debug, Deserialize)]
pub(super) struct InputMessage {
    #[serde(default = "user_role")]
    role: String,
    parts: Vec<InputPart>,
}

/// A part of a client's message. Unknown fields are ignored.
#[derive(Debug, Deserialize)]
struct InputPart {
    name: Option<String>,
    content_type: Option<String>,
    content: Option<String>,
    content_encoding: Option<InputEncoding>,
    content_url: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum InputEncoding {
    #[default]
    Plain,
    Base64,
}

fn user_role() -> String {
    "user".to_owned()
}

impl InputMessage {
    /// Returns the text of all parts.
    pub(super) fn text(&self) -> String {
        self.parts.iter().filter_map(|part| part.content.as_deref()).collect()
    }

    fn has_known_role(&self) -> bool {
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        matches!(&*self.role, "user" | "agent") || self.role.strip_prefix("agent/").is_some_and(is_name)
    }
}

/// Converts the input of a run to a prompt. A client may pass on the output of another agent, so messages of agents are
/// part of the prompt too. Fails if there is nothing in it, or a part cannot be used.
pub(super) fn prompt(input: &[InputMessage]) -> Result<Vec<Content>, RestError> {
    let mut prompt = Vec::new();
    for message in input {
        if !message.has_known_role() {
            let problem = format!("the role `{}` is neither `user`, `agent` nor `agent/NAME`", message.role);
            return Err(RestError::invalid(problem));
        }
        for part in &message.parts {
            prompt.extend(part.to_content()?);
        }
    }
    if prompt.is_empty() {
        return Err(RestError::invalid("`input` has no content"));
    }
    Ok(prompt)
}

impl InputPart {
    /// Converts the part. `None` if it only has metadata. Fails if its type or encoding is not supported.
    fn to_content(&self) -> Result<Option<Content>, RestError> {
        let kind = self.content_type.as_deref().unwrap_or(PLAIN_TEXT);
        let mime = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let data = match (&self.content, &self.content_url) {
            (Some(_), Some(_)) => {
                return Err(RestError::invalid("a part has either `content` or `content_url`, not both"));
            }
            (None, None) => return Ok(None),
            (None, Some(url)) => {
                let name = self.name.as_deref().unwrap_or(url);
                return Ok(Some(Content::Link(json!({"name": name, "uri": url, "mimeType": mime}))));
            }
            (Some(data), None) => data.clone(),
        };
        match self.content_encoding.unwrap_or_default() {
            InputEncoding::Plain => Ok(Some(Content::Text(data))),
            InputEncoding::Base64 if mime.starts_with("image/") => Ok(Some(Content::Image { mime, data })),
            InputEncoding::Base64 if mime.starts_with("audio/") => Ok(Some(Content::Audio { mime, data })),
            InputEncoding::Base64 => {
                let problem = format!("`{mime}` is not accepted as base64; send text with the encoding `plain`");
                Err(RestError::invalid(problem))
            }
        }
    }
}

/// Returns a part with plain text.
pub(super) fn text_part(text: &str) -> Value {
    json!({"content_type": PLAIN_TEXT, "content": text, "content_encoding": "plain"})
}

/// Returns a part with a JSON value.
pub(super) fn json_part(value: &Value) -> Value {
    json!({"content_type": "application/json", "content": value.to_string(), "content_encoding": "plain"})
}

/// Returns a message of an agent. `completed_at` is `None` while the agent writes it.
pub(super) fn agent_message(agent: &str, parts: &[Value], created_at: u64, completed_at: Option<u64>) -> Value {
    json!({
        "role": format!("agent/{agent}"),
        "parts": parts,
        "created_at": clock::iso(created_at),
        "completed_at": completed_at.map(clock::iso),
    })
}

/// Returns a part of an agent's message.
pub(super) fn part(part: &RunPart) -> Value {
    match part {
        RunPart::Text(text) => text_part(text),
        RunPart::Media { mime, data } => json!({"content_type": mime, "content": data, "content_encoding": "base64"}),
        RunPart::Thought(text) => trajectory(json!({"message": text})),
        RunPart::Call { tool, arguments } => trajectory(json!({"tool_name": tool, "tool_input": object(arguments)})),
        RunPart::CallResult { tool, text, is_error } => {
            trajectory(json!({"tool_name": tool, "tool_output": {"text": text, "is_error": is_error}}))
        }
    }
}

/// Returns a part without content that describes what the agent did.
fn trajectory(mut metadata: Value) -> Value {
    metadata["kind"] = "trajectory".into();
    json!({"content_type": PLAIN_TEXT, "content": null, "metadata": metadata})
}

/// Returns the value if it is an object, which the protocol requires.
fn object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { json!({"value": value}) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(input: Value) -> Option<Vec<Content>> {
        prompt(&serde_json::from_value::<Vec<InputMessage>>(input).unwrap()).ok()
    }

    #[test]
    fn input_becomes_one_prompt() {
        let input = json!([
            {"role": "agent/coding", "parts": [{"content": "a"}, {"content": null, "metadata": {}}]},
            {"parts": [
                {"content_type": "image/png", "content": "AAAA", "content_encoding": "base64"},
                {"content_url": "https://example.org/x", "name": "x"},
            ]},
        ]);
        let link = json!({"name": "x", "uri": "https://example.org/x", "mimeType": "text/plain"});
        let image = Content::Image { mime: "image/png".to_owned(), data: "AAAA".to_owned() };
        assert_eq!(converted(input), Some(vec![Content::text("a"), image, Content::Link(link)]));
    }

    #[test]
    fn input_that_cannot_be_used_is_refused() {
        for input in [
            json!([]),
            json!([{"parts": []}]),
            json!([{"role": "system", "parts": [{"content": "a"}]}]),
            json!([{"parts": [{"content": "a", "content_url": "https://example.org"}]}]),
            json!([{"parts": [{"content_type": "video/mp4", "content": "AA", "content_encoding": "base64"}]}]),
        ] {
            assert_eq!(converted(input.clone()), None, "{input}");
        }
    }

    #[test]
    fn calls_become_trajectories() {
        let call = RunPart::Call { tool: "notes__add".to_owned(), arguments: json!({"text": "x"}) };
        let metadata = json!({"tool_name": "notes__add", "tool_input": {"text": "x"}, "kind": "trajectory"});
        assert_eq!(part(&call)["metadata"], metadata);
        assert_eq!(part(&RunPart::Text("ok".to_owned())), text_part("ok"));
    }
}
