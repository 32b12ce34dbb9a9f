//! Sends requests to the editor. No request outlives the call or the editor's time limit.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::tool::CallContext;
use crate::tool::editor::{Editor, EditorError};

use crate::services::builtin::answer::ToolRefusal;

/// The reason why the editor gave no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the call was cancelled")]
    Cancelled,
    /// The editor may still carry out the request.
    #[error("the editor gave no answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error(transparent)]
    Failed(#[from] EditorError),
}

impl NoAnswer {
    /// Returns the reason, so that the caller can fall back to the disk. Fails if the call was cancelled.
    pub(super) fn unless_cancelled(self) -> Result<Self, ToolRefusal> {
        match self {
            NoAnswer::Cancelled => Err(ToolRefusal::new("the call was cancelled; nothing was done")),
            NoAnswer::Silent(_) | NoAnswer::Failed(_) => Ok(self),
        }
    }
}

pub(super) async fn ask<'a, T>(
    call: &CallContext,
    editor: &'a dyn Editor,
    question: impl FnOnce(&'a dyn Editor) -> BoxFuture<'a, Result<T, EditorError>>,
) -> Result<T, NoAnswer> {
    let patience = editor.patience();
    tokio::select! {
        // Checked in this order, so that no request starts after the call has ended.
        biased;
        () = call.cancel.cancelled() => Err(NoAnswer::Cancelled),
        answer = async { tokio::time::timeout(patience, question(editor)).await } => match answer {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(NoAnswer::Silent(patience)),
        },
    }
}
