//! The reasons why a document cannot be read or changed.

use serde::{Deserialize, Serialize};

/// Why a document cannot be read or changed. Each message names what a model can do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentError {
    #[error("the file is damaged: {problem}; ask the user for another copy")]
    Damaged { problem: String },
    #[error("the file is encrypted; ask the user for a copy without a password")]
    Encrypted,
    #[error("the file is beyond the limits: {problem}")]
    TooLarge { problem: String },
    #[error("{problem}")]
    Unsupported { problem: String },
    /// The file is fine; the request does not fit it.
    #[error("{problem}")]
    Request { problem: String },
}

impl DocumentError {
    pub(super) fn damage(problem: impl Into<String>) -> Self {
        Self::Damaged { problem: problem.into() }
    }

    pub(super) fn too_large(problem: impl Into<String>) -> Self {
        Self::TooLarge { problem: problem.into() }
    }

    pub(super) fn no_support(problem: impl Into<String>) -> Self {
        Self::Unsupported { problem: problem.into() }
    }

    pub(super) fn request(problem: impl Into<String>) -> Self {
        Self::Request { problem: problem.into() }
    }
}
