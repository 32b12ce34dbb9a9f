//! Converts the end of a turn to the protocol's stop reason.

use agent_client_protocol::v1::schema as acp;

use crate::agents::StopReason;
use crate::session::TurnFailure;

/// Returns the stop reason of a turn in the protocol's terms. Fails with the reason if the turn failed.
pub(super) fn stop_reason(ending: &StopReason) -> Result<acp::StopReason, TurnFailure> {
    Ok(match ending {
        StopReason::EndTurn | StopReason::CallRefused { .. } => acp::StopReason::EndTurn,
        StopReason::MaxTokens => acp::StopReason::MaxTokens,
        StopReason::Exhausted { .. } => acp::StopReason::MaxTurnRequests,
        StopReason::Refusal => acp::StopReason::Refusal,
        StopReason::Cancelled => acp::StopReason::Cancelled,
        StopReason::Failed { why, .. } => return Err(TurnFailure(why.clone())),
    })
}
