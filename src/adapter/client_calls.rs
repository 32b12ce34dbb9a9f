//! Runs the calls of an MCP client, and puts the questions of tools and services to the client's user.
//!
//! Invariant: only the client that made a call answers its questions. A call ends with the request that it answers, or
//! when no answer comes in time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ElicitRequest, InputRequest, InputRequiredResult, InputResponses,
    ProgressNotificationParam,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call_results::{refusal, result};
use super::client_asker::{ElicitationSupport, McpAsker, PendingQuestion, in_rounds, response};
use crate::broker::Binding;
use crate::ids::random_uuid;
use crate::task::TaskScope;
use crate::tool::{CallContext, CallProgress, ServiceError, ToolOutcome};

/// Progress messages that are buffered for a slow client; when the buffer is full, further ones are dropped.
pub(super) const PROGRESS_BUFFER: usize = 64;
/// How long a question that was returned as the result of a request waits for the request with the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// The calls of the clients of one server. A cheap handle.
#[derive(Clone, Default)]
pub(super) struct ClientCalls(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Runs the calls and the timeouts of `suspended`.
    scope: TaskScope,
    /// Calls that wait for the client's answer, by the request state that the client returns with it.
    suspended: Mutex<HashMap<String, SuspendedCall>>,
}

/// A call that a client asks for.
pub(super) struct ClientCall {
    pub(super) binding: Arc<Binding>,
    /// The name of the tool in the binding.
    pub(super) tool: String,
    pub(super) request: CallToolRequestParams,
    pub(super) context: CallContext,
    /// Cancelled when the call must end.
    pub(super) end: CancellationToken,
}

/// A call on its own task. Dropping the handle cancels the call.
struct OpenCall {
    tool: String,
    progress: mpsc::Receiver<CallProgress>,
    questions: mpsc::UnboundedReceiver<PendingQuestion>,
    ended: oneshot::Receiver<Result<ToolOutcome, ServiceError>>,
    cancel: CancellationToken,
    _let_go: DropGuard,
}

struct SuspendedCall {
    call: OpenCall,
    asked: Vec<(String, PendingQuestion)>,
}

impl ClientCalls {
    /// Runs a call, or resumes the suspended one that the request has answers for. Returns its result, or the
    /// questions that the client must answer first.
    pub(super) async fn answer(
        &self,
        mut call: ClientCall,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let open = match call.request.request_state.take() {
            None => self.begin(call, ElicitationSupport::of(context.client_capabilities().unwrap_or_default())),
            Some(state) => {
                let SuspendedCall { call: open, asked } = self.take(&state, &call.tool)?;
                let responses = call.request.input_responses.take().unwrap_or_default();
                let open_questions = give_answers(asked, &responses);
                if !open_questions.is_empty() {
                    return Ok(self.suspend(open, open_questions).into());
                }
                open
            }
        };
        self.attend(open, context).await
    }

    /// Returns whether a call waits for an answer of the client.
    pub(super) fn has_suspended(&self) -> bool {
        !self.lock_suspended().is_empty()
    }

    /// Returns whether the call with this request state waits for an answer of the client.
    pub(super) fn is_suspended(&self, state: &str) -> bool {
        self.lock_suspended().contains_key(state)
    }

    /// Cancels all calls, and waits until they have ended.
    pub(super) async fn stop(&self) {
        self.lock_suspended().clear();
        self.0.scope.stop().await;
    }

    fn begin(&self, call: ClientCall, support: ElicitationSupport) -> OpenCall {
        let ClientCall { binding, tool, request, context, end } = call;
        let (asking, questions) = mpsc::unbounded_channel();
        let asker = McpAsker::new(None);
        asker.set_client(asking, support);
        let (heard, progress) = mpsc::channel(PROGRESS_BUFFER);
        let cancel = self.0.scope.cancelled().child_token();
        let context = context
            .with_cancel(cancel.clone())
            .with_client_asker(Arc::new(asker))
            // If the buffer is full, the client is slow and this message is dropped.
            .with_progress(move |progress| drop(heard.try_send(progress)));
        let (over, ended) = oneshot::channel();
        let (name, cancelled) = (tool.clone(), cancel.clone());
        self.0.scope.spawn(async move {
            let call = binding.call(&name, request.arguments.unwrap_or_default(), context);
            // Fails only if the handle was dropped.
            drop(over.send(cancel_at_end(call, &cancelled, &end).await));
        });
        OpenCall { tool, progress, questions, ended, _let_go: cancel.clone().drop_guard(), cancel }
    }

    /// Forwards progress and questions of a call until it ends. If the client takes questions as the result of its
    /// request, suspends the call at the first question.
    async fn attend(
        &self,
        mut call: OpenCall,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let token = context.meta.get_progress_token();
        let mut answering = FuturesUnordered::new();
        let ended = loop {
            tokio::select! {
                biased;
                () = context.ct.cancelled(), if !call.cancel.is_cancelled() => call.cancel.cancel(),
                Some(progress) = call.progress.recv() => {
                    if let Some(token) = &token {
                        let mut params = ProgressNotificationParam::new(token.clone(), progress.progress);
                        params.total = progress.total;
                        params.message = progress.message;
                        // The transport detects a client that has disconnected.
                        drop(context.peer.notify_progress(params).await);
                    }
                }
                Some(asked) = call.questions.recv() => {
                    if in_rounds(context) {
                        let mut asked = vec![asked];
                        asked.extend(std::iter::from_fn(|| call.questions.try_recv().ok()));
                        let keys = (1..).map(|number| format!("question_{number}"));
                        return Ok(self.suspend(call, keys.zip(asked).collect()).into());
                    }
                    answering.push(asked.put(&context.peer));
                }
                Some(()) = answering.next(), if !answering.is_empty() => {}
                ended = &mut call.ended => break ended,
            }
        };
        let outcome = ended.unwrap_or(Err(ServiceError::Cancelled));
        outcome.map(|outcome| CallToolResponse::Complete(result(outcome))).map_err(|error| refusal(&error))
    }

    /// Keeps a call until the client answers or [`ANSWER_TIMEOUT`] has passed. Returns its questions.
    fn suspend(&self, call: OpenCall, asked: Vec<(String, PendingQuestion)>) -> InputRequiredResult {
        let question = |asked: &PendingQuestion| InputRequest::Elicitation(ElicitRequest::new(asked.params.clone()));
        let requests = asked.iter().map(|(key, asked)| (key.clone(), question(asked))).collect();
        let state = random_uuid();
        let required = InputRequiredResult::new(Some(requests), Some(state.clone()));
        self.lock_suspended().insert(state.clone(), SuspendedCall { call, asked });
        let (calls, cancelled) = (self.clone(), self.0.scope.cancelled().clone());
        self.0.scope.spawn(async move {
            tokio::select! {
                biased;
                () = cancelled.cancelled() => {}
                () = tokio::time::sleep(ANSWER_TIMEOUT) => {}
            }
            // Dropping a call that was not resumed cancels it.
            drop(calls.lock_suspended().remove(&state));
        });
        required
    }

    /// Returns the call that waits for answers with this state. Fails if there is none, or it is of another tool.
    fn take(&self, state: &str, tool: &str) -> Result<SuspendedCall, ErrorData> {
        let mut suspended = self.lock_suspended();
        let is_of_tool = suspended.get(state).is_some_and(|waiting| waiting.call.tool == tool);
        let waiting = if is_of_tool { suspended.remove(state) } else { None };
        waiting.ok_or_else(|| ErrorData::invalid_params("no call waits for these answers: call the tool again", None))
    }

    fn lock_suspended(&self) -> MutexGuard<'_, HashMap<String, SuspendedCall>> {
        self.0.suspended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes the answers of a client on. Returns the questions that have none.
fn give_answers(asked: Vec<(String, PendingQuestion)>, responses: &InputResponses) -> Vec<(String, PendingQuestion)> {
    let mut open = Vec::new();
    for (key, asked) in asked {
        match response(responses, &key) {
            Some(said) => asked.answer(Some(said)),
            None => open.push((key, asked)),
        }
    }
    open
}

/// Runs a request. Cancels it when it must end, and waits until it has.
pub(super) async fn cancel_at_end<T>(
    request: impl Future<Output = T>,
    cancel: &CancellationToken,
    end: &CancellationToken,
) -> T {
    tokio::pin!(request);
    tokio::select! {
        biased;
        result = &mut request => return result,
        () = end.cancelled() => cancel.cancel(),
    }
    request.await
}

impl std::fmt::Debug for ClientCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCalls").field("suspended", &self.lock_suspended().len()).finish_non_exhaustive()
    }
}
