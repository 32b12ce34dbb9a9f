//! Converts the content of messages to what a provider takes.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use genai::chat::{Binary, ContentPart};

use super::request_rules::RequestRules;
use crate::conversation::Content;

/// Converts content. A provider refuses a conversation with media that it does not take, and with it every later
/// request. So the model gets the type of such media as text.
pub(super) fn content_part(content: &Content, rules: &RequestRules) -> ContentPart {
    match content {
        Content::Text(text) | Content::Injected(text) => ContentPart::Text(text.clone()),
        Content::Image { mime, data } | Content::Audio { mime, data } => match rules.find_media_type(mime) {
            Some(mime) if !data.is_empty() && STANDARD.decode(data).is_ok() => {
                ContentPart::Binary(Binary::from_base64(mime, Arc::<str>::from(data.as_str()), None))
            }
            _ => ContentPart::Text(content.to_plain_text()),
        },
        Content::Resource(_) | Content::Link(_) => ContentPart::Text(content.to_plain_text()),
    }
}

#[cfg(test)]
mod tests {
    use genai::adapter::AdapterKind;

    use super::*;

    #[test]
    fn a_model_gets_the_media_that_it_takes() {
        use AdapterKind::{Anthropic, DeepSeek, Gemini, Mistral, OpenAI};
        for (mime, dialect, model, sent) in [
            ("image/png", Anthropic, "claude", Some("image/png")),
            ("IMAGE/JPG", Anthropic, "claude", Some("image/jpeg")),
            ("image/gif", OpenAI, "gpt-5", Some("image/gif")),
            ("image/gif", Gemini, "gemini-3-pro", None),
            ("image/svg+xml", OpenAI, "gpt-5", None),
            ("application/pdf", Anthropic, "claude", None),
            ("audio/wav", Anthropic, "claude", None),
            ("audio/x-wav", OpenAI, "gpt-audio", Some("audio/wav")),
            ("audio/mp3", OpenAI, "gpt-4o-audio-preview", Some("audio/mpeg")),
            ("audio/wav", OpenAI, "google/gemini-3-pro", Some("audio/wav")),
            ("audio/wav", OpenAI, "Qwen/Qwen3-Omni-30B", Some("audio/wav")),
            ("audio/wav", OpenAI, "gpt-5", None),
            ("audio/mpeg", OpenAI, "llama3.2", None),
            ("audio/ogg", OpenAI, "gpt-audio", None),
            ("audio/mpeg", Gemini, "gemini-3-pro", Some("audio/mp3")),
            ("audio/wav", Mistral, "voxtral-small", None),
            ("image/png", DeepSeek, "deepseek-flash", Some("image/png")),
            ("image/png", DeepSeek, "deepseek-v4-pro", None),
        ] {
            let (mime_type, data) = (mime.to_owned(), "aGk=".to_owned());
            let content = match mime.starts_with("audio/") {
                true => Content::Audio { mime: mime_type, data },
                false => Content::Image { mime: mime_type, data },
            };
            match (content_part(&content, &RequestRules::new(dialect, "provider:model", model, "")), sent) {
                (ContentPart::Binary(binary), Some(sent)) => assert_eq!(binary.content_type, sent),
                (ContentPart::Text(text), None) => assert_eq!(text, format!("({mime})")),
                (part, sent) => panic!("{mime} {model}: {part:?}, not {sent:?}"),
            }
        }
    }

    #[test]
    fn data_that_is_not_base64_is_not_sent() {
        let rules = RequestRules::new(AdapterKind::OpenAI, "openai:gpt-5", "gpt-5", "");
        for data in ["", "not base64!", "aGk"] {
            let image = Content::Image { mime: "image/png".to_owned(), data: data.to_owned() };
            let part = content_part(&image, &rules);
            assert!(matches!(&part, ContentPart::Text(text) if text == "(image/png)"), "{part:?}");
        }
    }
}
