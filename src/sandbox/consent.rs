//! The answer of a user who does not consent.

/// A refusal of the user, or of the approval level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ConsentRefusal {
    /// The reason, for the model.
    pub reason: String,
}
