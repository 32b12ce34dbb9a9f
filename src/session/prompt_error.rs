//! Names the reasons why a turn cannot run.

use super::SessionError;
use crate::agents::CompactionError;
use crate::broker::BindError;
use crate::llm::LlmError;
use crate::manifest::PromptFileError;
use crate::principal::GrantError;
use crate::store::StoreError;

/// The reason why a turn, a compaction or an undo could not run or could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("the session is still busy with the prompt before; wait for its end, or cancel it")]
    Busy,
    #[error("a turn or a restore of this session runs in another process; wait for its end")]
    BusyElsewhere,
    #[error("{0}")]
    Misdirected(String),
    #[error("the prompt was not sent: {reason}")]
    HookRefusal { reason: String },
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Model(#[from] LlmError),
    #[error("the prompt of the mode cannot be filled in: {0}")]
    Prompt(#[source] PromptFileError),
    #[error("the history was not compacted: {0}")]
    NotCompacted(#[from] CompactionError),
    #[error("what happened could not be stored: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] SessionError),
    #[error(transparent)]
    Grant(#[from] GrantError),
}

impl PromptError {
    /// Returns true if the model has no key, which the user can fix with `skein configure`.
    pub fn is_missing_key(&self) -> bool {
        matches!(self, PromptError::Model(LlmError::MissingKey { .. }))
            || matches!(self, PromptError::Record(error) if error.is_missing_key())
    }
}
