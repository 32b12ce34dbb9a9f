//! Prepares the start of a call that is permitted.

use super::BoundTool;
use crate::tool::{CallContext, ServiceError};

/// Keeps the state of the files if the call may change some, and waits until this process may start it. Fails if the call
/// is cancelled, or another process has taken over the session.
pub(super) async fn prepare_call(tool: &BoundTool, context: &CallContext) -> Result<(), ServiceError> {
    if let Some(keeper) = context.session.keeper.get().filter(|_| tool.may_change_files()) {
        keeper.before_change().await;
    }
    let Some(permit) = context.session.work_permit.get() else { return Ok(()) };
    let admitted = tokio::select! {
        biased;
        () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
        admitted = permit.admit() => admitted,
    };
    admitted.map_err(|refusal| {
        tracing::info!(session = context.session.id, %refusal, "a call is not started");
        ServiceError::Cancelled
    })
}
