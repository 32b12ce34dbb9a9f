//! Follows the events of a session that another replica may write.

use std::time::Duration;

use tokio::sync::watch;

use super::{SessionStore, StoredEvent};
use crate::store::{ListenHub, StoreError};

/// How long a reader waits for a notification before it looks for events anyway.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Events that are read at once.
const MAX_EVENTS: usize = 1_000;

/// Reads the events of a session as they are written: each once and in order, also if notifications are lost.
#[derive(Debug)]
pub struct EventFollower {
    store: SessionStore,
    id: String,
    /// The number of the last event that was returned.
    after: u64,
    news: watch::Receiver<u64>,
}

impl SessionStore {
    /// Follows a session, beginning after the event `after`.
    pub fn follow(&self, id: &str, after: u64, hub: &ListenHub) -> EventFollower {
        EventFollower { store: self.clone(), id: id.to_owned(), after, news: hub.subscribe(id) }
    }
}

impl EventFollower {
    /// Waits for events after those that it returned before. Fails if the store cannot be read; the next call tries
    /// again.
    pub async fn next(&mut self) -> Result<Vec<StoredEvent>, StoreError> {
        loop {
            // Before the events are read: news that arrive meanwhile lead to another look.
            self.news.mark_unchanged();
            let events = self.store.events_after(&self.id, self.after, MAX_EVENTS).await?;
            if let Some(last) = events.last() {
                self.after = last.seq;
                return Ok(events);
            }
            // The hub may have ended, or the notification was lost: then it polls.
            let changed = async {
                if self.news.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            drop(tokio::time::timeout(POLL_INTERVAL, changed).await);
        }
    }
}
