//! Finds out why Gemini gave no complete answer, which genai does not say.

use std::sync::{Arc, OnceLock};

use genai::ModelIden;
use genai::chat::{ChatOptions, ChatStreamEvent, StopReason, StreamEnd};
use serde_json::{Value, json};

/// The field with the reason why a prompt was blocked, in Gemini's answers and in the errors made here.
pub(super) const BLOCK_REASON: &str = "blockReason";

/// The reason why the prompt was blocked, once it has arrived.
#[derive(Clone, Default)]
pub(super) struct PromptBlock(Arc<OnceLock<String>>);

impl PromptBlock {
    /// Returns the options with a reader of the reason.
    pub(super) fn watch(&self, options: ChatOptions) -> ChatOptions {
        let reason = Arc::clone(&self.0);
        options.with_raw_frame_fn(move |_, frame| {
            if let Some(found) = block_reason(frame.data) {
                drop(reason.set(found));
            }
        })
    }

    /// Replaces the end of an answer to a blocked prompt by an error with the reason.
    pub(super) fn explain(
        &self,
        event: genai::Result<ChatStreamEvent>,
        model: &ModelIden,
    ) -> genai::Result<ChatStreamEvent> {
        let is_end = matches!(event, Ok(ChatStreamEvent::End(_)) | Err(genai::Error::ChatResponse { .. }));
        match self.0.get().filter(|_| is_end) {
            Some(reason) => {
                let body = json!({BLOCK_REASON: reason});
                Err(genai::Error::ChatResponse { model_iden: model.clone(), body })
            }
            None => event,
        }
    }
}

fn block_reason(frame: &str) -> Option<String> {
    // Nearly all frames are text, and are not parsed twice.
    let value: Value = frame.contains(BLOCK_REASON).then(|| serde_json::from_str(frame).ok())??;
    Some(value["promptFeedback"][BLOCK_REASON].as_str()?.to_owned())
}

/// Returns why an answer is not complete. `None` if it is.
pub(super) fn find_break(end: &StreamEnd) -> Option<String> {
    match &end.captured_stop_reason {
        // genai also reports an end when the connection was lost.
        None => Some("the connection was lost before the answer was complete".to_owned()),
        // Such as MALFORMED_FUNCTION_CALL.
        Some(StopReason::Other(reason)) => Some(format!("it broke off: {reason}")),
        Some(_) => None,
    }
}
