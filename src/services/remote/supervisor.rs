//! Supervises a connection to an MCP server: ends its process with it, and finds out why it ended.

use std::time::Duration;

use rmcp::RoleClient;
use rmcp::service::RunningService;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::McpClient;
use super::{GRACE, STOP_GRACE};
use crate::process::ProcessGroup;
use crate::services::stdio::WireFailure;

/// Waits for the end of the connection, makes sure that the process has ended, and sends the reason.
pub(super) async fn supervise(
    running: RunningService<RoleClient, McpClient>,
    mut group: Option<ProcessGroup>,
    failure: WireFailure,
    closing: watch::Sender<Option<String>>,
    stopping: CancellationToken,
) {
    let stop = running.cancellation_token();
    let closed = running.waiting();
    tokio::pin!(closed);
    let exited = async {
        match &mut group {
            Some(group) => drop(group.wait().await),
            None => std::future::pending().await,
        }
    };
    let done = tokio::select! {
        biased;
        _ = &mut closed => true,
        () = stopping.cancelled() => false,
        () = exited => {
            // Other processes of the group may hold its output open. The last output is still in the pipe and is
            // read.
            if let Some(group) = &group {
                group.kill();
            }
            tokio::time::timeout(GRACE, &mut closed).await.is_ok()
        }
    };
    if !done {
        stop.cancel();
        drop(closed.await);
    }
    let reason = match group {
        None => failure.take().unwrap_or_else(|| "the connection was closed".to_owned()),
        Some(group) => end(group, &failure, if stopping.is_cancelled() { STOP_GRACE } else { GRACE }).await,
    };
    // Fails if the pool has dropped the connection, which is fine.
    drop(closing.send(Some(reason)));
}

async fn end(mut group: ProcessGroup, failure: &WireFailure, grace: Duration) -> String {
    let exited = tokio::time::timeout(grace, group.wait()).await;
    group.stop(grace).await;
    match (failure.take(), exited) {
        (Some(reason), _) => reason,
        (None, Ok(status)) => status,
        (None, Err(_)) => "it closed its output".to_owned(),
    }
}

/// Returns why a server ended before it had answered: `error`, or what its process says.
pub(super) async fn start_failure(error: &str, group: Option<(ProcessGroup, WireFailure)>) -> String {
    let Some((group, failure)) = group else { return error.to_owned() };
    let ended = end(group, &failure, GRACE).await;
    if ended.starts_with("exit") || ended.starts_with("signal") {
        match failure.last_stderr().await {
            Some(lines) => format!("it ended before it had answered ({ended}), and wrote: {lines}"),
            None => format!("it ended before it had answered ({ended}), without a word on stderr"),
        }
    } else if ended == "it closed its output" {
        error.to_owned()
    } else {
        ended
    }
}
