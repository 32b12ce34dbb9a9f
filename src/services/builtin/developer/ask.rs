//! Questions to the editor: none is waited for longer than the editor asks for, nor after the call has ended.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::tool::CallContext;
use crate::tool::editor::{Editor, EditorError};

use crate::services::builtin::answer::ToolRefusal;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the call was cancelled")]
    Cancelled,
    /// It may still do what it was asked for.
    #[error("the editor gave no answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error(transparent)]
    Failed(#[from] EditorError),
}

impl NoAnswer {
    /// For those who help themselves then, unless nobody waits for them any more.
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
        // In this order: after the end of the call nothing is begun.
        biased;
        () = call.cancel.cancelled() => Err(NoAnswer::Cancelled),
        answer = async { tokio::time::timeout(patience, question(editor)).await } => match answer {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(NoAnswer::Silent(patience)),
        },
    }
}
