//! Sends a browser the news of sessions that another replica runs.

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::feeds::StreamSender;
use crate::store::EventFollower;

/// The pause after the store could not be read.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Sends an update for new events of a session, until the stream ends or `ended` is cancelled. The page reads the events
/// by their numbers, so an update too many does no harm.
pub(super) async fn send_changes(
    mut follower: EventFollower,
    session: String,
    stream: StreamSender,
    ended: CancellationToken,
) {
    loop {
        let events = tokio::select! {
            biased;
            () = ended.cancelled() => return,
            events = follower.next() => events,
        };
        match events {
            Ok(_) => {
                if !stream.send(json!({"kind": "changed", "session": session})) {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, session, "the session cannot be followed at the moment");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}
