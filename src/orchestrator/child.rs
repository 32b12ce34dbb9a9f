//! Forwards the events of a child session to its parent. Tool calls become calls of the parent, text becomes progress
//! of the delegating call, and permission requests become requests of the parent.

use std::sync::{Arc, OnceLock, Weak};

use futures::future::BoxFuture;

use crate::agents::{Event, Notifier, StatusUpdate, notify_native};
use crate::conversation::ToolUse;
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationResponse};
use crate::tool::{Activity, CallContext, CallProgress};

/// Receives the events of a child session and forwards them to its parent.
#[derive(Clone)]
pub(super) struct ChildNotifier {
    /// Notifier of the parent turn that delegated the work. Dead after that turn ends, while background work continues.
    pub(super) parent: Option<Weak<dyn Notifier>>,
    /// Context of the call that delegated the work.
    pub(super) call: CallContext,
    /// The mode that works, as `agent/mode`.
    pub(super) who: String,
    /// Notifier that shows the child as a separate session, if the client supports that.
    pub(super) apart: Option<Arc<dyn Notifier>>,
}

impl ChildNotifier {
    fn parent(&self) -> Option<Arc<dyn Notifier>> {
        self.parent.as_ref()?.upgrade()
    }

    fn id(&self, id: &str) -> String {
        inner_id(&self.call, id)
    }
}

/// Prefixes a call id with the id of the delegating call. This keeps the calls of several children and of the parent
/// distinct.
fn inner_id(outer: &CallContext, id: &str) -> String {
    format!("{}.{id}", outer.id.as_deref().unwrap_or_default())
}

impl Notifier for ChildNotifier {
    fn backlog(&self) -> usize {
        let of = |notifier: &Arc<dyn Notifier>| notifier.backlog();
        self.apart.as_ref().map_or(0, of).max(self.parent().as_ref().map_or(0, of))
    }

    fn log(&self, event: Event) {
        if let Some(apart) = &self.apart {
            apart.log(event.clone());
        }
        let Some(parent) = self.parent() else { return };
        match event {
            Event::External { events, streamed, .. } => {
                // `apart` has already received the original event.
                let only_parent = Self { apart: None, ..self.clone() };
                notify_native(&only_parent, events, streamed);
            }
            Event::ToolStarted { call, by } => {
                let by = Some(by.map_or_else(|| self.who.clone(), |service| format!("{}: {service}", self.who)));
                parent.log(Event::ToolStarted { call: ToolUse { id: self.id(&call.id), ..call }, by });
            }
            Event::ToolEnded { id, name, outcome, activity } => {
                // The visible to-do list is the parent's.
                let activity = activity.into_iter().filter(|activity| !matches!(activity, Activity::TodoList(_)));
                parent.log(Event::ToolEnded { id: self.id(&id), name, outcome, activity: activity.collect() });
            }
            Event::Message { .. }
            | Event::Compacted { .. }
            | Event::TurnEnded { .. }
            | Event::ExternalSessionOpened { .. }
            | Event::Undone { .. } => {}
        }
    }

    fn status(&self, status: StatusUpdate) {
        if let Some(apart) = &self.apart {
            apart.status(status.clone());
        }
        match (status, self.parent()) {
            (StatusUpdate::Text(text) | StatusUpdate::ExternalChunk { text, thought: false, .. }, _) => {
                self.call.report(Activity::Progress(CallProgress { progress: 0.0, total: None, message: Some(text) }));
            }
            (StatusUpdate::ToolActivity { id, activity }, Some(parent))
                if !matches!(activity, Activity::TodoList(_)) =>
            {
                parent.status(StatusUpdate::ToolActivity { id: self.id(&id), activity });
            }
            (StatusUpdate::Notice(notice), Some(parent)) => {
                parent.status(StatusUpdate::notice(format!("{}: {}", self.who, notice.text)));
            }
            (
                StatusUpdate::ToolActivity { .. }
                | StatusUpdate::Notice(_)
                | StatusUpdate::Title(_)
                | StatusUpdate::Thought(_)
                | StatusUpdate::ExternalChunk { .. }
                | StatusUpdate::Usage { .. },
                _,
            ) => {}
        }
    }
}

/// Forwards requests to the parent's asker and adds who asks.
pub(super) struct ChildAsker {
    pub(super) asker: Arc<dyn Asker>,
    pub(super) call: CallContext,
    pub(super) who: String,
    /// Id of the child session. Set after the child has been created.
    pub(super) session: Arc<OnceLock<String>>,
}

impl ChildAsker {
    /// Names a service of the child for the parent's user.
    fn name_in_parent(&self, by: &str) -> String {
        format!("{by} of {}", self.who)
    }
}

impl Asker for ChildAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        let apart = self.session.get().cloned().zip(question.call.clone());
        let call = question.call.map(|id| inner_id(&self.call, &id).into());
        let by = question.by.or_else(|| Some(self.who.clone()));
        self.asker.ask(PermissionRequest { call, by, apart, ..question })
    }

    fn choose(&self, choosing: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        let apart = self.session.get().cloned();
        let own = choosing.parent_call.as_deref().unwrap_or(&choosing.call);
        let parent_call = Some(inner_id(&self.call, own));
        let title = format!("{}: {}", self.who, choosing.title);
        self.asker.choose(ExternalPermissionRequest { apart, parent_call, title, ..choosing })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        let call = question.call.map(|id| inner_id(&self.call, &id).into());
        let by = self.name_in_parent(&question.by);
        self.asker.elicit(Elicitation { by, call, ..question })
    }

    fn page_done(&self, by: &str, id: &str) {
        self.asker.page_done(&self.name_in_parent(by), id);
    }
}
