//! Connects a call to the call of a service during which it is made. A service makes such calls on the services that it
//! requires.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::CallContext;
use crate::ids::ServiceName;

/// The call that a service works on while it makes another one.
#[derive(Clone)]
pub(super) struct OuterCall {
    /// The service that makes the inner call.
    service: ServiceName,
    context: CallContext,
}

/// The open questions to the user that belong to a call or to calls inside it.
#[derive(Debug, Default)]
pub(super) struct InnerQuestions {
    open: AtomicUsize,
    /// Notified when a question is closed; the task that waits for the outer call listens.
    closed: Notify,
}

/// Counts a question as open until dropped.
#[derive(Debug)]
pub struct InnerQuestion {
    counts: Vec<Arc<InnerQuestions>>,
}

impl Drop for InnerQuestion {
    fn drop(&mut self) {
        for count in &self.counts {
            count.open.fetch_sub(1, Ordering::Relaxed);
            count.closed.notify_one();
        }
    }
}

impl CallContext {
    /// Returns the context of a call that `service` makes while it works on this call. The inner call has no id and no
    /// view of the messages: the model did not make it.
    #[must_use]
    pub fn inner(&self, service: ServiceName) -> Self {
        let mut inner = Self::new(Arc::clone(&self.session));
        inner.outer = Some(Arc::new(OuterCall { service, context: self.clone() }));
        inner
    }

    /// Returns the services that make this call for one another, the first caller first. Empty if a model, an agent or
    /// a client makes it.
    pub fn chain(&self) -> Vec<ServiceName> {
        let mut chain: Vec<_> = self.outer_calls().map(|outer| outer.service.clone()).collect();
        chain.reverse();
        chain
    }

    /// Registers a question to the user, so that the time limits of the outer calls do not run.
    pub fn open_question(&self) -> InnerQuestion {
        let counts: Vec<_> = self.outer_calls().map(|outer| Arc::clone(&outer.context.questions)).collect();
        for count in &counts {
            count.open.fetch_add(1, Ordering::Relaxed);
        }
        InnerQuestion { counts }
    }

    /// Returns whether a call inside this one waits for the user.
    pub fn waits_for_user(&self) -> bool {
        self.questions.open.load(Ordering::Relaxed) > 0
    }

    /// Waits until a question of a call inside this one is closed.
    pub async fn wait_for_answer(&self) {
        self.questions.closed.notified().await;
    }

    /// Returns the calls during which this one is made, the innermost first.
    fn outer_calls(&self) -> impl Iterator<Item = &OuterCall> {
        std::iter::successors(self.outer.as_deref(), |outer| outer.context.outer.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::SessionContext;

    fn context() -> CallContext {
        CallContext::new(SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into()))
    }

    #[test]
    fn a_chain_names_the_first_caller_first() {
        let outer = context().with_id("c1");
        let inner = outer.inner(ServiceName::new("scheduling")).inner(ServiceName::new("calendar"));
        let chain: Vec<_> = inner.chain().iter().map(ToString::to_string).collect();
        assert_eq!(chain, ["scheduling", "calendar"]);
        assert_eq!((outer.chain().len(), inner.id.as_deref()), (0, None));
    }

    #[test]
    fn an_open_question_stops_the_time_of_every_outer_call() {
        let first = context();
        let second = first.inner(ServiceName::new("a"));
        let third = second.inner(ServiceName::new("b"));
        let question = third.open_question();
        assert!(first.waits_for_user() && second.waits_for_user() && !third.waits_for_user());
        drop(question);
        assert!(!first.waits_for_user() && !second.waits_for_user());
    }
}
