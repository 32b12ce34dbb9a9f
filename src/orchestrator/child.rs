//! What happens in a session that works for another, told in the other one: its calls as calls there, its words as the
//! progress of the call that handed the work over, its questions as questions of that session.

use std::sync::{Arc, OnceLock, Weak};

use futures::future::BoxFuture;

use crate::agents::{Event, Notifier, StatusUpdate, notify_native};
use crate::broker::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::conversation::ToolUse;
use crate::tool::elicit::{Elicitation, ElicitationResponse};
use crate::tool::{Activity, CallContext, CallProgress};

/// Hears a child and tells its parent.
#[derive(Clone)]
pub(super) struct ChildNotifier {
    /// Of the turn in which the work was handed over; gone with it, while work in the background goes on.
    pub(super) parent: Option<Weak<dyn Notifier>>,
    /// Of the call that handed the work over.
    pub(super) call: CallContext,
    /// Who works, as `agent/mode`.
    pub(super) who: String,
    /// Whoever hears of the child apart.
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

/// Calls of several children cannot be mistaken for each other, nor for the parent's own.
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
            Event::External { means, heard, .. } => {
                // Whoever hears it apart has heard it as it came.
                let only_parent = Self { apart: None, ..self.clone() };
                notify_native(&only_parent, means, heard);
            }
            Event::ToolStarted { call, by } => {
                let by = by.or_else(|| Some(self.who.clone()));
                parent.log(Event::ToolStarted { call: ToolUse { id: self.id(&call.id), ..call }, by });
            }
            Event::ToolEnded { id, name, outcome, activity } => {
                // The plan that is shown is the parent's.
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
            (StatusUpdate::Notice(text), Some(parent)) => {
                parent.status(StatusUpdate::Notice(format!("{}: {text}", self.who)));
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

/// Asks whoever is asked in the parent, saying who wants to know.
pub(super) struct ChildAsker {
    pub(super) asker: Arc<dyn Asker>,
    pub(super) call: CallContext,
    pub(super) who: String,
    /// The child's own, when it is known.
    pub(super) session: Arc<OnceLock<String>>,
}

impl ChildAsker {
    /// A service of the child, in the parent.
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
        let own = choosing
            .call
            .clone()
            .or_else(|| Some(choosing.request.get("toolCall")?.get("toolCallId")?.as_str()?.to_owned()));
        let call = own.map(|id| inner_id(&self.call, &id));
        let title = format!("{}: {}", self.who, choosing.title);
        self.asker.choose(ExternalPermissionRequest { apart, call, title, ..choosing })
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
