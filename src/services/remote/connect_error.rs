//! Why a connection to an MCP server failed, in plain words.

use rmcp::service::ClientInitializeError;

use super::PROBE_TIME;
use crate::services::http::{HttpSetupError, with_causes};
use crate::services::stdio::LaunchError;
use crate::tool::{RequirementError, ServiceError};

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::services) enum ConnectError {
    /// The server supports only older versions, or did not understand the question for its versions: the caller must
    /// connect again with the handshake.
    #[error("it speaks no version of MCP that skein speaks")]
    OlderEra,
    /// The server did not answer the question for its versions: the caller should try the handshake.
    #[error("it did not answer within {} s", PROBE_TIME.as_secs())]
    Mute,
    #[error(
        "it speaks only the HTTP+SSE transport of MCP 2024-11-05, which Skein does not speak; use the server's streamable \
         HTTP address, which often ends with /mcp instead of /sse"
    )]
    OldTransport,
    #[error("it is in this process")]
    InProcess,
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Http(#[from] HttpSetupError),
    #[error(transparent)]
    Requirement(#[from] RequirementError),
    #[error(transparent)]
    Required(#[from] ServiceError),
    #[error("{reason}")]
    Handshake { reason: String },
}

/// Returns whether a server has not understood the question for its versions. Servers of the older era answer it with
/// anything, and some exit, because they expect the handshake as the first message.
pub(super) fn is_misunderstood(error: &ClientInitializeError) -> bool {
    matches!(
        error,
        ClientInitializeError::NoCompatibleProtocolVersion { .. }
            | ClientInitializeError::ExpectedInitResult(_)
            | ClientInitializeError::ExpectedInitResponse(_)
            | ClientInitializeError::ConflictInitResponseId(..)
            | ClientInitializeError::UncorrelatedErrorResponse { .. }
            | ClientInitializeError::ConnectionClosed(_)
    )
}

/// Formats the error without rmcp's type names.
pub(super) fn plainly(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => with_causes(error.error.as_ref()),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => plainly(fallback),
        ClientInitializeError::JsonRpcError(error) => format!("it refused to begin: {}", error.message),
        other => other.to_string(),
    }
}
