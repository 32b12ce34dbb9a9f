//! Reports child sessions to a client that supports subagents. The parent session announces the start and the end of a
//! child session; updates in between are sent under the id of the child.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;

use super::super::wire::ClientWriter;
use super::Updates;
use crate::agents::{ChildSession, Event, Notifier, StatusUpdate, StopReason};

/// A notifier that sends the events of one child session to the client.
pub(super) struct Subagent {
    wire: ClientWriter,
    parent: Arc<str>,
    session: String,
    updates: Updates,
}

impl Subagent {
    pub(super) fn start(parent: &Updates, child: &ChildSession) -> Arc<Self> {
        let (wire, session) = parent.target();
        let this =
            Self { wire, parent: session, session: child.session.clone(), updates: parent.of_child(&child.session) };
        let running = acp::StateUpdate::Running(acp::RunningStateUpdate::new());
        this.tell(
            acp::SubagentUpdate::new(child.session.clone())
                .title(child.mode.clone())
                .description(child.task.clone())
                .state(running),
        );
        Arc::new(this)
    }

    fn tell(&self, update: acp::SubagentUpdate) {
        self.wire.send_update(&self.parent, acp::SessionUpdate::SubagentUpdate(update));
    }
}

impl Notifier for Subagent {
    fn backlog(&self) -> usize {
        self.updates.backlog()
    }

    fn log(&self, event: Event) {
        if let Event::TurnEnded { end } = &event {
            let reason = match &end.ending {
                StopReason::EndTurn | StopReason::CallRefused { .. } => acp::IdleStopReason::EndTurn,
                StopReason::MaxTokens => acp::IdleStopReason::MaxTokens,
                StopReason::Exhausted { .. } => acp::IdleStopReason::MaxTurnRequests,
                StopReason::Refusal => acp::IdleStopReason::Refusal,
                StopReason::Cancelled => acp::IdleStopReason::Cancelled,
                StopReason::Failed { why, .. } => {
                    acp::ErrorStopReason::new().error(acp::Error::internal_error().data(why.clone())).into()
                }
            };
            let idle = acp::StateUpdate::Idle(acp::IdleStateUpdate::new().stop_reason(reason));
            self.tell(acp::SubagentUpdate::new(self.session.clone()).state(idle));
        }
        self.updates.log(event);
    }

    fn status(&self, status: StatusUpdate) {
        // The usage of the child's context window does not apply to the parent's.
        if !matches!(status, StatusUpdate::Usage { .. }) {
            self.updates.status(status);
        }
    }
}
