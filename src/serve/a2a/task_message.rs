//! Messages of A2A clients: prompts, and answers to questions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::A2aError;
use crate::conversation::Content;
use crate::network::restore_integers;

/// A message of a client. Unknown fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskMessage {
    #[serde(default)]
    message_id: String,
    pub(super) context_id: Option<String>,
    pub(super) task_id: Option<String>,
    #[serde(default)]
    role: String,
    #[serde(default)]
    parts: Vec<TaskPart>,
}

/// A part of a message, with one of `text`, `raw`, `url` and `data`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskPart {
    text: Option<String>,
    /// Bytes in base64.
    raw: Option<String>,
    url: Option<String>,
    data: Option<Value>,
    filename: Option<String>,
    #[serde(default)]
    media_type: String,
}

impl TaskMessage {
    /// Fails if the message lacks what every message has.
    pub(super) fn check(&self) -> Result<(), A2aError> {
        if self.message_id.is_empty() {
            return Err(A2aError::params("`message.messageId` is missing"));
        }
        if self.role != "ROLE_USER" {
            return Err(A2aError::params("`message.role` must be `ROLE_USER`"));
        }
        if self.parts.is_empty() {
            return Err(A2aError::params("`message.parts` is empty"));
        }
        Ok(())
    }

    /// Returns the message as a prompt. Fails if a part cannot be used.
    pub(super) fn prompt(&self) -> Result<Vec<Content>, A2aError> {
        self.parts.iter().map(TaskPart::to_content).collect()
    }

    /// Returns the message as the answer to a question: its data, or its text.
    pub(super) fn answer(&self) -> String {
        match self.parts.iter().find_map(|part| part.data.as_ref()) {
            Some(data) => restore_integers(data.clone()).to_string(),
            None => self.parts.iter().filter_map(|part| part.text.as_deref()).collect(),
        }
    }
}

impl TaskPart {
    fn to_content(&self) -> Result<Content, A2aError> {
        match (&self.text, &self.raw, &self.url, &self.data) {
            (Some(text), None, None, None) => Ok(Content::Text(text.clone())),
            (None, Some(raw), None, None) => self.media(raw),
            (None, None, Some(url), None) => {
                let name = self.filename.as_deref().unwrap_or(url);
                Ok(Content::Link(json!({"name": name, "uri": url, "mimeType": self.media_type})))
            }
            (None, None, None, Some(data)) => Ok(Content::Text(restore_integers(data.clone()).to_string())),
            _ => Err(A2aError::params("a part must have one of `text`, `raw`, `url` and `data`")),
        }
    }

    /// Converts bytes: an image, a sound or a text.
    fn media(&self, raw: &str) -> Result<Content, A2aError> {
        let mime = self.media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let bytes = STANDARD.decode(raw).map_err(|_| A2aError::params("`raw` is not base64"))?;
        let data = raw.to_owned();
        match mime.split('/').next() {
            Some("image") => Ok(Content::Image { mime, data }),
            Some("audio") => Ok(Content::Audio { mime, data }),
            Some("text") => {
                let text = String::from_utf8(bytes).map_err(|_| A2aError::params("a text is not UTF-8"))?;
                Ok(Content::Text(text))
            }
            _ => Err(A2aError::content_type(format!("`{mime}` is not accepted as `raw`; send text, images or sound"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(parts: Value) -> TaskMessage {
        serde_json::from_value(json!({"messageId": "m", "role": "ROLE_USER", "parts": parts})).unwrap()
    }

    #[test]
    fn parts_become_content() {
        let parts = json!([
            {"text": "a"},
            {"raw": "Yg==", "mediaType": "text/plain; charset=utf-8"},
            {"raw": "AAAA", "mediaType": "image/png"},
            {"data": {"n": 1}},
            {"url": "https://example.org/x", "filename": "x"},
        ]);
        let link = json!({"name": "x", "uri": "https://example.org/x", "mimeType": ""});
        let expected = vec![
            Content::text("a"),
            Content::text("b"),
            Content::Image { mime: "image/png".to_owned(), data: "AAAA".to_owned() },
            Content::text(r#"{"n":1}"#),
            Content::Link(link),
        ];
        assert_eq!(message(parts).prompt().ok(), Some(expected));
        for wrong in [
            json!([{}]),
            json!([{"text": "a", "url": "https://example.org"}]),
            json!([{"raw": "?", "mediaType": "image/png"}]),
            json!([{"raw": "AAAA", "mediaType": "application/zip"}]),
        ] {
            assert!(message(wrong.clone()).prompt().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_the_data_or_the_text() {
        assert_eq!(message(json!([{"text": "all"}, {"text": "ow"}])).answer(), "allow");
        assert_eq!(message(json!([{"text": "here:"}, {"data": {"n": 1.0}}])).answer(), r#"{"n":1}"#);
    }

    #[test]
    fn a_message_has_an_id_a_role_and_parts() {
        let checked = |message: Value| serde_json::from_value::<TaskMessage>(message).unwrap().check().is_ok();
        assert!(checked(json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]})));
        assert!(!checked(json!({"role": "ROLE_USER", "parts": [{"text": "a"}]})));
        assert!(!checked(json!({"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "a"}]})));
        assert!(!checked(json!({"messageId": "m", "role": "ROLE_USER"})));
    }
}
