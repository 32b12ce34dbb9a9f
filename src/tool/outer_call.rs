//! Connects a call to the call of a service during which it is made. A service makes such calls on the services that it
//! requires.
//!
//! Invariant: an inner call that a sink has seen begin also ends there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::{CallContext, ToolOutcome};
use crate::ids::ServiceName;

/// The call that a service works on while it makes another one.
#[derive(Clone)]
pub(super) struct OuterCall {
    /// The service that makes the inner call.
    service: ServiceName,
    context: CallContext,
}

/// A call that a service makes while it works on another one.
#[derive(Debug, Clone, PartialEq)]
pub struct InnerCall {
    /// As models would see it: `service__tool`.
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// The services that make the call for one another, the first caller first.
    pub chain: Vec<ServiceName>,
}

/// Receives the calls that services make inside a call of the session.
pub trait InnerCallSink: Send + Sync {
    /// Returns the number under which the call ends.
    fn begin(&self, call: InnerCall) -> usize;

    fn end(&self, number: usize, outcome: ToolOutcome);
}

/// An inner call that a sink has seen begin. Without an outcome, it ends as cancelled.
pub struct OpenInnerCall {
    sink: Arc<dyn InnerCallSink>,
    number: usize,
    outcome: Option<ToolOutcome>,
}

impl OpenInnerCall {
    /// Ends the call.
    pub fn end(mut self, outcome: &ToolOutcome) {
        self.outcome = Some(outcome.clone());
    }
}

impl Drop for OpenInnerCall {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        self.sink.end(self.number, outcome.unwrap_or_else(|| ToolOutcome::error("the call was cancelled")));
    }
}

impl std::fmt::Debug for OpenInnerCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenInnerCall({})", self.number)
    }
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

    /// Sets the receiver of the calls that services make inside this one.
    #[must_use]
    pub fn with_inner_calls(mut self, sink: Arc<dyn InnerCallSink>) -> Self {
        self.inner_calls = Some(sink);
        self
    }

    /// Reports this call to the sink of the outermost call, if a service makes it inside another one. `None` if no service
    /// does, or there is no sink.
    pub fn begin_inner(&self, tool: &str, arguments: &Map<String, Value>) -> Option<OpenInnerCall> {
        let sink = Arc::clone(self.outer_calls().last()?.context.inner_calls.as_ref()?);
        let call = InnerCall { tool: tool.to_owned(), arguments: arguments.clone(), chain: self.chain() };
        let number = sink.begin(call);
        Some(OpenInnerCall { sink, number, outcome: None })
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

    #[derive(Default)]
    struct Heard(std::sync::Mutex<Vec<String>>);

    impl InnerCallSink for Heard {
        fn begin(&self, call: InnerCall) -> usize {
            let mut heard = self.0.lock().unwrap();
            let chain: Vec<_> = call.chain.iter().map(ToString::to_string).collect();
            heard.push(format!("{} by {}", call.tool, chain.join(", ")));
            heard.len()
        }

        fn end(&self, number: usize, outcome: ToolOutcome) {
            self.0.lock().unwrap().push(format!("{number}: {}", outcome.all_text()));
        }
    }

    #[test]
    fn the_outermost_call_hears_of_every_inner_one() {
        let heard = Arc::new(Heard::default());
        let outer = context().with_inner_calls(Arc::clone(&heard) as Arc<dyn InnerCallSink>);
        assert!(outer.begin_inner("a__b", &Map::new()).is_none(), "the model makes this one");
        assert!(context().inner(ServiceName::new("a")).begin_inner("b__c", &Map::new()).is_none(), "nobody listens");
        let inner = outer.inner(ServiceName::new("a"));
        let first = inner.begin_inner("b__c", &Map::new()).expect("a call");
        let second = inner.inner(ServiceName::new("b")).begin_inner("c__d", &Map::new()).expect("a call");
        drop(second);
        first.end(&ToolOutcome::text("done"));
        let expected = ["b__c by a", "c__d by a, b", "2: the call was cancelled", "1: done"];
        assert_eq!(*heard.0.lock().unwrap(), expected);
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
