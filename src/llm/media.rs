//! Converts the content of messages to what the dialect of a provider takes.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use genai::adapter::AdapterKind;
use genai::chat::{Binary, ContentPart};

use crate::conversation::Content;

/// Converts content. A provider refuses a conversation with media that it does not take, and with it every later
/// request. So the model gets the type of such media as text.
pub(super) fn content_part(content: &Content, dialect: AdapterKind) -> ContentPart {
    match content {
        Content::Text(text) | Content::Injected(text) => ContentPart::Text(text.clone()),
        Content::Image { mime, data } | Content::Audio { mime, data } => match find_type(mime, dialect) {
            Some(mime) if !data.is_empty() && STANDARD.decode(data).is_ok() => {
                ContentPart::Binary(Binary::from_base64(mime, Arc::<str>::from(data.as_str()), None))
            }
            _ => ContentPart::Text(content.to_plain_text()),
        },
        Content::Resource(_) | Content::Link(_) => ContentPart::Text(content.to_plain_text()),
    }
}

/// Returns the name by which the dialect knows a type of media. `None` if it does not take the type.
fn find_type(mime: &str, dialect: AdapterKind) -> Option<&'static str> {
    use AdapterKind::{Gemini, OpenAI};
    Some(match (mime.to_ascii_lowercase().as_str(), dialect) {
        ("image/gif", Gemini) => return None,
        ("image/png", _) => "image/png",
        ("image/jpeg" | "image/jpg", _) => "image/jpeg",
        ("image/gif", _) => "image/gif",
        ("image/webp", _) => "image/webp",
        ("audio/wav" | "audio/x-wav", OpenAI | Gemini) => "audio/wav",
        ("audio/mpeg" | "audio/mp3", OpenAI) => "audio/mpeg",
        ("audio/mpeg" | "audio/mp3", Gemini) => "audio/mp3",
        ("audio/ogg", Gemini) => "audio/ogg",
        ("audio/flac", Gemini) => "audio/flac",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_gets_the_media_that_it_takes() {
        use AdapterKind::{Anthropic, Gemini, OpenAI};
        for (mime, dialect, sent) in [
            ("image/png", Anthropic, Some("image/png")),
            ("IMAGE/JPG", Anthropic, Some("image/jpeg")),
            ("image/gif", OpenAI, Some("image/gif")),
            ("image/gif", Gemini, None),
            ("image/svg+xml", OpenAI, None),
            ("application/pdf", Anthropic, None),
            ("audio/wav", Anthropic, None),
            ("audio/x-wav", OpenAI, Some("audio/wav")),
            ("audio/ogg", OpenAI, None),
            ("audio/mpeg", Gemini, Some("audio/mp3")),
            ("audio/wav", AdapterKind::Mistral, None),
        ] {
            let (mime_type, data) = (mime.to_owned(), "aGk=".to_owned());
            let content = match mime.starts_with("audio/") {
                true => Content::Audio { mime: mime_type, data },
                false => Content::Image { mime: mime_type, data },
            };
            match (content_part(&content, dialect), sent) {
                (ContentPart::Binary(binary), Some(sent)) => assert_eq!(binary.content_type, sent),
                (ContentPart::Text(text), None) => assert_eq!(text, format!("({mime})")),
                (part, sent) => panic!("{mime} {dialect}: {part:?}, not {sent:?}"),
            }
        }
    }

    #[test]
    fn data_that_is_not_base64_is_not_sent() {
        for data in ["", "not base64!", "aGk"] {
            let image = Content::Image { mime: "image/png".to_owned(), data: data.to_owned() };
            let part = content_part(&image, AdapterKind::OpenAI);
            assert!(matches!(&part, ContentPart::Text(text) if text == "(image/png)"), "{part:?}");
        }
    }
}
