//! Converts content of messages and tool results between ACP's types and Skein's.

use agent_client_protocol::v1::schema as acp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::errors;
use crate::conversation::{Content, image_type};
use crate::text::fence;

/// Converts a prompt from ACP. Fails if it is empty, has only blank text, or has content of a kind that Skein did not
/// advertise. Also fails if an image is not base64: a model would refuse it, and with it every later prompt of the
/// session.
pub(super) fn prompt(blocks: Vec<acp::ContentBlock>) -> Result<Vec<Content>, acp::Error> {
    if blocks.is_empty() {
        return Err(errors::invalid_params("the prompt is empty: give at least one content block"));
    }
    let is_blank =
        |block: &acp::ContentBlock| matches!(block, acp::ContentBlock::Text(text) if text.text.trim().is_empty());
    if blocks.iter().all(is_blank) {
        return Err(errors::invalid_params("the prompt is empty: its text is blank"));
    }
    blocks.into_iter().map(content).collect()
}

fn content(block: acp::ContentBlock) -> Result<Content, acp::Error> {
    match block {
        acp::ContentBlock::Text(text) => Ok(Content::Text(text.text)),
        acp::ContentBlock::Image(image) => {
            let bytes = STANDARD.decode(&image.data).ok().filter(|bytes| !bytes.is_empty());
            let not_base64 = || errors::invalid_params("the prompt has an image whose `data` is not base64");
            // A provider refuses an image of another type than declared.
            let mime = image_type(&bytes.ok_or_else(not_base64)?).map_or(image.mime_type, str::to_owned);
            Ok(Content::Image { mime, data: image.data })
        }
        acp::ContentBlock::ResourceLink(link) => Ok(Content::Link(json!(link))),
        acp::ContentBlock::Resource(resource) => Ok(Content::Resource(json!(resource.resource))),
        _ => Err(errors::invalid_params("the prompt holds content of a kind that was not advertised")),
    }
}

/// Converts a part of a message or tool result to an ACP block.
pub(super) fn block(content: &Content) -> acp::ContentBlock {
    match content {
        Content::Text(text) | Content::Injected(text) => acp::ContentBlock::Text(acp::TextContent::new(text.clone())),
        Content::Image { mime, data } => acp::ContentBlock::Image(acp::ImageContent::new(data.clone(), mime.clone())),
        Content::Audio { mime, data } => acp::ContentBlock::Audio(acp::AudioContent::new(data.clone(), mime.clone())),
        Content::Resource(value) if value.get("resource").is_some() => block_of_kind("resource", value),
        Content::Resource(value) => block_of_kind("resource", &json!({"resource": value})),
        Content::Link(value) => block_of_kind("resource_link", value),
    }
}

/// Converts a part of a tool result like [`block`], and adds its MCP annotations (audience, priority). Text is fenced,
/// because clients render it as Markdown and a file must appear as it is.
pub(super) fn tool_output(content: &Content, annotations: Option<&Value>) -> acp::ContentBlock {
    let mut block = match content {
        Content::Text(text) if !text.is_empty() => acp::ContentBlock::Text(acp::TextContent::new(fence(text))),
        _ => block(content),
    };
    let annotations = annotations.and_then(|said| serde_json::from_value::<acp::Annotations>(said.clone()).ok());
    match &mut block {
        acp::ContentBlock::Text(text) => text.annotations = annotations,
        acp::ContentBlock::Image(image) => image.annotations = annotations,
        acp::ContentBlock::Audio(audio) => audio.annotations = annotations,
        // Links and resources contain their own annotations.
        _ => {}
    }
    block
}

/// Converts an MCP value to an ACP block of this kind; the two have the same shape. A value that does not fit becomes
/// text with its JSON.
fn block_of_kind(kind: &str, value: &Value) -> acp::ContentBlock {
    let mut object = value.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.insert("type".to_owned(), json!(kind));
    }
    serde_json::from_value(object).unwrap_or_else(|_| acp::ContentBlock::Text(acp::TextContent::new(value.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_prompted_is_replayed_as_it_was() {
        for block_json in [
            json!({"type": "text", "text": "hello"}),
            json!({"type": "image", "data": "aGk=", "mimeType": "image/png"}),
            json!({"type": "resource_link", "uri": "file:///a.rs", "name": "a.rs"}),
            json!({"type": "resource", "resource": {"uri": "file:///a.rs", "text": "fn a() {}", "mimeType": "text/x-rust"}}),
            json!({"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "aGk="}}),
        ] {
            let said: acp::ContentBlock = serde_json::from_value(block_json.clone()).unwrap();
            let ours = prompt(vec![said]).unwrap();
            assert_eq!(serde_json::to_value(block(&ours[0])).unwrap(), block_json);
        }
    }

    #[test]
    fn an_image_that_is_not_base64_is_refused() {
        for data in ["", "not base64!", "aGk", "data:image/png;base64,aGk="] {
            let image = json!({"type": "image", "data": data, "mimeType": "image/png"});
            let error = prompt(vec![serde_json::from_value(image).unwrap()]).unwrap_err();
            assert_eq!(i32::from(error.code), -32602, "{data}");
            assert!(json!(error).to_string().contains("not base64"), "{error:?}");
        }
    }

    #[test]
    fn an_image_has_the_type_of_its_bytes() {
        for (bytes, mime) in [(&b"\xff\xd8\xff\xe0"[..], "image/jpeg"), (b"unknown", "image/png")] {
            let image = json!({"type": "image", "data": STANDARD.encode(bytes), "mimeType": "image/png"});
            let contents = prompt(vec![serde_json::from_value(image).unwrap()]).unwrap();
            assert!(matches!(&contents[0], Content::Image { mime: found, .. } if found == mime), "{contents:?}");
        }
    }

    #[test]
    fn sound_and_silence_are_refused() {
        let audio = serde_json::from_value(json!({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"})).unwrap();
        assert_eq!(i32::from(prompt(vec![audio]).unwrap_err().code), -32602);
        assert_eq!(i32::from(prompt(vec![]).unwrap_err().code), -32602);
    }

    #[test]
    fn blank_text_is_a_prompt_only_beside_content() {
        let blank = json!({"type": "text", "text": " \n"});
        let link = json!({"type": "resource_link", "uri": "file:///a.rs", "name": "a.rs"});
        let read = |blocks: &[&Value]| {
            let blocks = blocks.iter().map(|block| serde_json::from_value((*block).clone()).unwrap());
            prompt(blocks.collect())
        };
        assert_eq!(i32::from(read(&[&blank, &blank]).unwrap_err().code), -32602);
        assert_eq!(read(&[&blank, &link]).unwrap().len(), 2);
    }
}
