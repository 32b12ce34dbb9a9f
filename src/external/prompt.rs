//! Converts prompts to the content types that an external agent supports.

use serde_json::{Value, json};

use crate::conversation::{Content, Message, MessagePart};

/// Content that an agent does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnsupportedContent {
    #[error("`{agent}` takes no images; leave it out")]
    Image { agent: String },
    #[error("`{agent}` takes no sound; leave it out")]
    Audio { agent: String },
}

/// Converts the prompt to ACP content blocks. Fails if the agent does not support its images or audio.
pub(super) fn blocks(prompt: Vec<Content>, agent: &str, takes: &Value) -> Result<Vec<Value>, UnsupportedContent> {
    let takes = |kind: &str| takes["promptCapabilities"][kind] == true;
    let block = |content: Content| match content {
        Content::Text(text) | Content::Injected(text) => Ok(json!({"type": "text", "text": text})),
        Content::Image { mime, data } if takes("image") => Ok(json!({"type": "image", "mimeType": mime, "data": data})),
        Content::Audio { mime, data } if takes("audio") => Ok(json!({"type": "audio", "mimeType": mime, "data": data})),
        Content::Image { .. } => Err(UnsupportedContent::Image { agent: agent.to_owned() }),
        Content::Audio { .. } => Err(UnsupportedContent::Audio { agent: agent.to_owned() }),
        Content::Resource(resource) if takes("embeddedContext") => {
            Ok(json!({"type": "resource", "resource": resource}))
        }
        Content::Resource(_) => Ok(json!({"type": "text", "text": content.to_plain_text()})),
        Content::Link(link) => {
            let mut link = link;
            link["type"] = json!("resource_link");
            Ok(link)
        }
    };
    prompt.into_iter().map(block).collect()
}

/// Renders a whole conversation as one text, for an agent that is used as a model.
pub(super) fn single_text(system: &str, messages: &[std::sync::Arc<Message>]) -> String {
    let said = |part: &MessagePart| match part {
        MessagePart::Content(content) => Some(content.to_plain_text()),
        MessagePart::ToolUse(call) => Some(format!("(called {} with {})", call.name, call.arguments)),
        MessagePart::ToolResult(result) => {
            let text: Vec<_> = result.content.iter().map(Content::to_plain_text).collect();
            Some(format!("({} answered: {})", result.name, text.join("\n")))
        }
        MessagePart::Thought(_) => None,
    };
    let text = |message: &Message| message.parts.iter().filter_map(said).collect::<Vec<_>>().join("\n");
    let talk = match messages {
        [only] => text(only),
        several => several
            .iter()
            .map(|message| format!("{:?}: {}", message.role, text(message)))
            .collect::<Vec<_>>()
            .join("\n\n"),
    };
    if system.trim().is_empty() { talk } else { format!("{}\n\n{talk}", system.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_does_not_take_is_said_or_put_in_words() {
        let image = || Content::Image { mime: "image/png".to_owned(), data: "aGk=".to_owned() };
        let file = || Content::Resource(json!({"uri": "file:///a", "text": "x"}));
        let all = json!({"promptCapabilities": {"image": true, "embeddedContext": true}});
        let taken = blocks(vec![image(), file()], "a", &all).unwrap();
        assert_eq!((&taken[0]["type"], &taken[1]["resource"]["uri"]), (&json!("image"), &json!("file:///a")));
        let refused = blocks(vec![image()], "a", &json!({})).unwrap_err().to_string();
        assert!(refused.contains("`a` takes no images"), "{refused}");
        let worded = blocks(vec![file()], "a", &json!({})).unwrap();
        assert_eq!(worded[0]["text"], "<resource uri=\"file:///a\">\nx\n</resource>");
    }
}
