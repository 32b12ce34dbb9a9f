//! Connects the console with all open sessions, also with those of other clients.

use std::sync::Arc;

use super::feeds::FeedTable;
use super::requests::OpenRequests;
use crate::acp::{SessionObserver, SharedSession};
use crate::session::Session;
use crate::tool::ask::Asker;

/// What the console knows of the open sessions of a server. It is their observer.
#[derive(Debug, Default)]
pub struct ConsoleHub {
    pub(super) feeds: FeedTable,
    pub(super) requests: Arc<OpenRequests>,
}

impl SessionObserver for ConsoleHub {
    fn asker(&self, session: &Arc<Session>) -> Arc<dyn Asker> {
        self.requests.asker(session)
    }

    fn session_opened(&self, open: &Arc<SharedSession>) {
        self.feeds.follow(open);
    }
}
