//! Logs the calls that services make on the services that they require, inside a call of the model.
//!
//! Invariant: such a call is logged to its end before the end of the call around it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::{Event, Notifier};
use crate::conversation::{Content, ToolUse};
use crate::tool::{InnerCall, InnerCallSink, ToolOutcome, truncate};

/// What is stored of a result. The service has all of it, and the model sees what the service makes of it.
const MAX_TEXT: usize = 4_000;

/// Logs the inner calls of one call as events of the session.
pub(super) struct InnerCallLog {
    notifier: Arc<dyn Notifier>,
    /// The id of the call around them.
    outer: String,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    last: usize,
    /// The tools of calls that have not ended, by number.
    open: BTreeMap<usize, String>,
    is_closed: bool,
}

impl InnerCallLog {
    pub(super) fn new(notifier: &Arc<dyn Notifier>, outer: &str) -> Arc<Self> {
        Arc::new(Self { notifier: Arc::clone(notifier), outer: outer.to_owned(), state: Mutex::default() })
    }

    /// Ends the calls that still run with `outcome`, because the call around them has ended. Later ones are not logged.
    pub(super) fn close(&self, outcome: &ToolOutcome) {
        let mut state = self.state();
        state.is_closed = true;
        for (number, name) in std::mem::take(&mut state.open) {
            self.log_end(number, name, outcome.clone());
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self, number: usize) -> String {
        format!("{}.{number}", self.outer)
    }

    fn log_end(&self, number: usize, name: String, outcome: ToolOutcome) {
        self.notifier.log(Event::ToolEnded { id: self.id(number), name, outcome, activity: Vec::new() });
    }
}

impl InnerCallSink for InnerCallLog {
    fn begin(&self, InnerCall { tool, arguments, chain }: InnerCall) -> usize {
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        if !state.is_closed {
            state.open.insert(number, tool.clone());
            let call = ToolUse::new(self.id(number), tool, Value::Object(arguments));
            let services: Vec<String> = chain.iter().map(ToString::to_string).collect();
            // The lock keeps the order: a call that has begun also ends before the log is closed.
            self.notifier.log(Event::ToolStarted { call, by: Some(services.join(" → ")) });
        }
        number
    }

    fn end(&self, number: usize, outcome: ToolOutcome) {
        let mut state = self.state();
        let Some(name) = state.open.remove(&number) else { return };
        let ToolOutcome { is_error, refused, .. } = outcome;
        let content = vec![Content::text(truncate(&outcome.all_text(), MAX_TEXT))];
        self.log_end(number, name, ToolOutcome { content, is_error, refused, ..ToolOutcome::default() });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::StatusUpdate;
    use super::*;
    use crate::ids::ServiceName;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Notifier for Heard {
        fn log(&self, event: Event) {
            self.0.lock().unwrap().push(match event {
                Event::ToolStarted { call, by } => format!("{} {} by {}", call.id, call.name, by.unwrap_or_default()),
                Event::ToolEnded { id, name, outcome, .. } => format!("{id} {name}: {}", outcome.refused),
                other => panic!("{other:?}"),
            });
        }

        fn status(&self, _: StatusUpdate) {}
    }

    fn inner(tool: &str) -> InnerCall {
        let chain = ["top", "middle"].map(ServiceName::new).to_vec();
        InnerCall { tool: tool.to_owned(), arguments: Map::new(), chain }
    }

    #[test]
    fn inner_calls_end_before_the_call_around_them() {
        let heard = Arc::new(Heard::default());
        let log = InnerCallLog::new(&(Arc::clone(&heard) as Arc<dyn Notifier>), "c1");
        let (first, second) = (log.begin(inner("notes__add")), log.begin(inner("notes__list")));
        log.end(first, ToolOutcome { refused: true, ..ToolOutcome::error("x".repeat(10_000)) });
        log.close(&ToolOutcome::cancelled());
        log.end(second, ToolOutcome::text("too late"));
        let late = log.begin(inner("notes__add"));
        log.end(late, ToolOutcome::text("too late"));
        let expected = [
            "c1.1 notes__add by top → middle",
            "c1.2 notes__list by top → middle",
            "c1.1 notes__add: true",
            "c1.2 notes__list: false",
        ];
        assert_eq!(*heard.0.lock().unwrap(), expected);
    }
}
