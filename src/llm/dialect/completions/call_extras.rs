//! Keeps what a provider sends with a call of Gemini and requires back with it: the signature of the call.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The signature of a call, as the provider writes it. It is stored as JSON.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct CallExtras {
    /// A field of the call, at Google.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) extra_content: Option<Value>,
    /// An entry of a list in the message, at OpenRouter. It names the id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_detail: Option<Value>,
}

impl CallExtras {
    /// Returns the extras that were stored as JSON, for a call that has this id now. Empty if the text is something else.
    pub(super) fn parse(text: &str, call_id: &str) -> Self {
        let mut extras: Self = serde_json::from_str(text).unwrap_or_default();
        if let Some(Value::Object(detail)) = &mut extras.reasoning_detail {
            detail.insert("id".to_owned(), Value::from(call_id));
        }
        extras
    }

    /// Returns the extras as JSON. Empty if there are none.
    pub(super) fn to_text(&self) -> String {
        let is_empty = self.extra_content.is_none() && self.reasoning_detail.is_none();
        if is_empty { String::new() } else { serde_json::to_string(self).unwrap_or_default() }
    }
}
