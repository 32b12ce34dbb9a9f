//! Keeps a client within the limits of its token in a session that another token of its principal opened: what it sees,
//! and which questions it answers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;

use super::connection::ClientSession;
use super::updates::Updates;
use crate::agents::{ChildSession, Event, Notifier, StatusUpdate, TurnEnd};
use crate::manifest::ApprovalLevel;
use crate::principal::SessionGrant;
use crate::project::ClientPorts;
use crate::session::{Session, SessionViewer, TurnFailure};
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationResponse};

/// Returns the viewer of a client: one that shows nothing while its token does not admit the session's mode.
pub(super) fn viewer(open: &ClientSession) -> Arc<dyn SessionViewer> {
    let updates = Arc::clone(&open.viewer);
    if open.session.is_of_token(&open.grant) {
        return updates;
    }
    Arc::new(LimitedViewer { updates, session: Arc::downgrade(&open.session), grant: open.grant.clone() })
}

/// Returns the ports of a client. A client whose token may not consent to calls is not asked about those of others; it
/// gives no answer within `timeout`.
pub(super) fn ports(open: &ClientSession, ports: ClientPorts, timeout: Duration) -> ClientPorts {
    let can_consent = open.grant.limits().admits_approval(ApprovalLevel::Ask);
    if open.session.is_of_token(&open.grant) || can_consent {
        return ports;
    }
    ClientPorts { asker: Arc::new(FormAsker { asker: ports.asker, timeout }), ..ports }
}

/// A viewer for the client of another token than that of the session.
struct LimitedViewer {
    updates: Arc<Updates>,
    /// Weak, so that a viewer does not keep the session open.
    session: Weak<Session>,
    grant: SessionGrant,
}

impl LimitedViewer {
    /// Returns the updates. `None` while the token does not admit the session's mode.
    fn updates(&self) -> Option<&Updates> {
        let session = self.session.upgrade()?;
        session.admits_client(&self.grant).then_some(&*self.updates)
    }
}

impl Notifier for LimitedViewer {
    fn log(&self, event: Event) {
        if let Some(updates) = self.updates() {
            updates.log(event);
        }
    }

    fn status(&self, status: StatusUpdate) {
        if let Some(updates) = self.updates() {
            updates.status(status);
        }
    }

    fn child(&self, child: &ChildSession) -> Option<Arc<dyn Notifier>> {
        self.updates()?.child(child)
    }

    fn backlog(&self) -> usize {
        self.updates.backlog()
    }
}

impl SessionViewer for LimitedViewer {
    fn replay(&self, events: &[Event], is_running: bool) {
        if let Some(updates) = self.updates() {
            updates.replay(events, is_running);
        }
    }

    fn follow(&self, events: &[Event]) {
        if let Some(updates) = self.updates() {
            updates.follow(events);
        }
    }

    fn end_turn(&self, end: Result<&TurnEnd, &TurnFailure>) {
        if let Some(updates) = self.updates() {
            updates.end_turn(end);
        }
    }
}

/// An asker that passes on elicitations and never consents to a call.
struct FormAsker {
    asker: Arc<dyn Asker>,
    /// How long another client has to answer.
    timeout: Duration,
}

impl Asker for FormAsker {
    fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async {
            tokio::time::sleep(self.timeout).await;
            PermissionResponse::Unavailable
        })
    }

    fn choose(&self, _: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(async {
            tokio::time::sleep(self.timeout).await;
            None
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        self.asker.elicit(question)
    }

    fn page_done(&self, by: &str, id: &str) {
        self.asker.page_done(by, id);
    }
}
