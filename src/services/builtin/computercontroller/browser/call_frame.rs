//! Runs the work of one call: while it runs, the page may ask the user about hosts. Between calls it may not.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::PageError;
use super::page_events::{PageEvents, PageFacts};
use super::program::ChromiumProcess;
use crate::network::RemoteHost;
use crate::sandbox::RunningSandbox;
use crate::sandbox::proxy::{HostAnswer, HostGate, HostQuestion, HostRecord, HostRuling};
use crate::tool::CallContext;

/// Time for one call, without questions to the user.
const CALL_LIMIT: Duration = Duration::from_secs(75);

/// Documents in one call, after which the page counts as hostile. Twenty actions can each lead through a redirect.
const MAX_DOCUMENTS: u64 = 50;

/// Decides for a page while no call runs: rules and the approval level count, and nothing is asked.
struct IdleGate(Arc<dyn HostGate>);

impl HostGate for IdleGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        self.0.rule(host)
    }

    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer> {
        self.0.settle(host)
    }

    fn ask(&self, _question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        Box::pin(async { HostAnswer::Unavailable("the page wanted it after the call had ended".to_owned()) })
    }

    fn record(&self, record: &HostRecord) {
        self.0.record(record);
    }
}

/// Lets the page ask the user until this is dropped.
pub(super) struct CallFrame {
    sandbox: Arc<RunningSandbox>,
    events: Arc<PageEvents>,
    gate: Arc<dyn HostGate>,
}

impl Drop for CallFrame {
    fn drop(&mut self) {
        self.sandbox.gate().set(Arc::new(IdleGate(Arc::clone(&self.gate))));
    }
}

impl CallFrame {
    pub(super) fn begin(process: &ChromiumProcess, gate: Arc<dyn HostGate>) -> Self {
        process.sandbox.gate().set(Arc::clone(&gate));
        Self { sandbox: Arc::clone(&process.sandbox), events: Arc::clone(&process.events), gate }
    }

    /// Runs work within the time of a call. The time stops while the user is asked.
    pub(super) async fn run<T>(
        &self,
        call: &CallContext,
        work: impl Future<Output = Result<T, PageError>>,
    ) -> Result<T, PageError> {
        let before = self.events.facts().documents;
        let leads_on = |facts: &PageFacts| facts.documents.saturating_sub(before) > MAX_DOCUMENTS;
        let result = tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(PageError::Refused("the call was cancelled".to_owned())),
            // A page with endless dialogs answers nothing else, and one that always leaves is never loaded.
            is_restless = self.events.wait_until(Duration::MAX, leads_on) => {
                if is_restless {
                    return Err(PageError::Ended(format!("the page led to more than {MAX_DOCUMENTS} others by itself")));
                }
                None
            }
            result = self.sandbox.gate().limit(CALL_LIMIT, work) => result,
        };
        match (result, self.events.facts().end) {
            (_, Some(end)) => Err(PageError::Ended(end.to_string())),
            (Some(result), None) => result,
            (None, None) => {
                Err(PageError::Ended(format!("the page did not respond within {} s", CALL_LIMIT.as_secs())))
            }
        }
    }
}
