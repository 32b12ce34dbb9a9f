//! A session that works for another, for a client that shows such sessions apart: announced in the other one, told under
//! its own id, and its end told in the other one.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;

use super::updates::Updates;
use super::wire::Wire;
use crate::agents::{Child, Ending, Event, Notifier, Status};

/// See the module.
pub(super) struct Subagent {
    wire: Wire,
    parent: Arc<str>,
    session: String,
    updates: Updates,
}

impl Subagent {
    pub(super) fn begun(parent: &Updates, child: &Child) -> Arc<Self> {
        let (wire, session) = parent.whom();
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
        self.wire.update(&self.parent, acp::SessionUpdate::SubagentUpdate(update));
    }
}

impl Notifier for Subagent {
    fn backlog(&self) -> usize {
        self.updates.backlog()
    }

    fn log(&self, event: Event) {
        if let Event::TurnEnded { end } = &event {
            let reason = match &end.ending {
                Ending::EndTurn | Ending::CallRefused { .. } => acp::IdleStopReason::EndTurn,
                Ending::MaxTokens => acp::IdleStopReason::MaxTokens,
                Ending::Exhausted { .. } => acp::IdleStopReason::MaxTurnRequests,
                Ending::Refusal => acp::IdleStopReason::Refusal,
                Ending::Cancelled => acp::IdleStopReason::Cancelled,
                Ending::Failed { why } => {
                    acp::ErrorStopReason::new().error(acp::Error::internal_error().data(why.clone())).into()
                }
            };
            let idle = acp::StateUpdate::Idle(acp::IdleStateUpdate::new().stop_reason(reason));
            self.tell(acp::SubagentUpdate::new(self.session.clone()).state(idle));
        }
        self.updates.log(event);
    }

    fn status(&self, status: Status) {
        // How full its window is says nothing about that of the parent.
        if !matches!(status, Status::Usage { .. }) {
            self.updates.status(status);
        }
    }
}
