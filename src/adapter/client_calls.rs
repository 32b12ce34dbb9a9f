//! Runs the requests of an MCP client for tools, resources and prompts, and puts the questions of tools and services to
//! the client's user. All of them are called calls here.
//!
//! Invariant: only the client that made a call answers its questions. A call ends with the request that it answers, or
//! when no answer comes in time. The number of calls that wait has a limit.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rmcp::model::{ElicitRequest, InputRequest, InputRequiredResult, InputResponses, ProgressNotificationParam};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call_results::refusal;
use super::client_asker::{ElicitationSupport, McpAsker, PendingQuestion, give_answers, in_rounds};
use super::suspension_slots::{PrincipalSlots, SuspensionSlot};
use super::suspensions::Suspensions;
use crate::task::TaskScope;
use crate::tool::{CallContext, CallProgress, ServiceError};

/// Progress messages that are buffered for a slow client; when the buffer is full, further ones are dropped.
const PROGRESS_BUFFER: usize = 64;

/// The calls with a result of this type of the clients of one server. A cheap handle.
pub(super) struct ClientCalls<T> {
    /// Runs the calls and the timers of `suspended`.
    scope: TaskScope,
    suspended: Suspensions<SuspendedCall<T>>,
}

impl<T> Clone for ClientCalls<T> {
    fn clone(&self) -> Self {
        Self { scope: self.scope.clone(), suspended: self.suspended.clone() }
    }
}

/// A call that a client asks for.
pub(super) struct ClientCall {
    /// What is called. The request with the answers must name the same.
    pub(super) target: String,
    /// The state of the call that the request has answers for. `None` if it begins a call.
    pub(super) state: Option<String>,
    pub(super) responses: Option<InputResponses>,
    pub(super) context: CallContext,
    /// Cancelled when the call must end.
    pub(super) end: CancellationToken,
}

/// The answer to the request of a client.
pub(super) enum ClientAnswer<T> {
    Complete(T),
    /// The client must answer these questions first.
    Questions(InputRequiredResult),
}

/// A call on its own task. Dropping the handle cancels the call.
struct OpenCall<T> {
    target: String,
    progress: mpsc::Receiver<CallProgress>,
    questions: mpsc::UnboundedReceiver<PendingQuestion>,
    ended: oneshot::Receiver<Result<T, ServiceError>>,
    cancel: CancellationToken,
    _let_go: DropGuard,
}

struct SuspendedCall<T> {
    call: OpenCall<T>,
    asked: Vec<(String, PendingQuestion)>,
}

impl<T: Send + 'static> ClientCalls<T> {
    pub(super) fn new(slots: PrincipalSlots) -> Self {
        let scope = TaskScope::new();
        Self { suspended: Suspensions::new(slots, scope.clone()), scope }
    }

    /// Runs a call with `run`, or resumes the suspended one that the request has answers for. Returns its result, or
    /// the questions that the client must answer first.
    pub(super) async fn answer<F>(
        &self,
        call: ClientCall,
        context: &RequestContext<RoleServer>,
        run: impl FnOnce(CallContext) -> F,
    ) -> Result<ClientAnswer<T>, ErrorData>
    where
        F: Future<Output = Result<T, ServiceError>> + Send + 'static,
    {
        let open = match &call.state {
            None => self.begin(call, ElicitationSupport::of(context.client_capabilities().unwrap_or_default()), run),
            Some(state) => {
                let (suspended, slot) = self.take(state, &call.target)?;
                let open_questions = give_answers(suspended.asked, &call.responses.unwrap_or_default());
                if !open_questions.is_empty() {
                    return self.suspend(suspended.call, open_questions, Some(slot));
                }
                suspended.call
            }
        };
        self.attend(open, context).await
    }

    /// Returns whether a call waits for an answer of the client.
    pub(super) fn has_suspended(&self) -> bool {
        !self.suspended.is_empty()
    }

    /// Returns whether the call with this request state waits for an answer of the client.
    pub(super) fn is_suspended(&self, state: &str) -> bool {
        self.suspended.contains(state)
    }

    /// Cancels all calls, and waits until they have ended.
    pub(super) async fn stop(&self) {
        self.suspended.clear();
        self.scope.stop().await;
    }

    fn begin<F>(&self, call: ClientCall, support: ElicitationSupport, run: impl FnOnce(CallContext) -> F) -> OpenCall<T>
    where
        F: Future<Output = Result<T, ServiceError>> + Send + 'static,
    {
        let ClientCall { target, context, end, .. } = call;
        let (asking, questions) = mpsc::unbounded_channel();
        let asker = McpAsker::new(None);
        asker.set_client(asking, support);
        let (listener, progress) = buffer_progress();
        let cancel = self.scope.cancelled().child_token();
        let context = context.with_cancel(cancel.clone()).with_client_asker(Arc::new(asker)).with_progress(listener);
        let (over, ended) = oneshot::channel();
        let (running, cancelled) = (run(context), cancel.clone());
        self.scope.spawn(async move {
            // Fails only if the handle was dropped.
            drop(over.send(cancel_at_end(running, &cancelled, &end).await));
        });
        OpenCall { target, progress, questions, ended, _let_go: cancel.clone().drop_guard(), cancel }
    }

    /// Forwards progress and questions of a call until it ends. If the client takes questions as the result of its
    /// request, suspends the call at the first question.
    async fn attend(
        &self,
        mut call: OpenCall<T>,
        context: &RequestContext<RoleServer>,
    ) -> Result<ClientAnswer<T>, ErrorData> {
        let token = context.meta.get_progress_token();
        // Cancelled when no question of the request needs an answer any more.
        let questions_over = context.ct.child_token();
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
                        // The client does not read the result of a call that it cancelled.
                        if call.cancel.is_cancelled() {
                            continue;
                        }
                        let mut asked = vec![asked];
                        asked.extend(std::iter::from_fn(|| call.questions.try_recv().ok()));
                        let keys = (1..).map(|number| format!("question_{number}"));
                        return self.suspend(call, keys.zip(asked).collect(), None);
                    }
                    answering.push(asked.put(&context.peer, &questions_over));
                }
                Some(()) = answering.next(), if !answering.is_empty() => {}
                ended = &mut call.ended => break ended,
            }
        };
        questions_over.cancel();
        while answering.next().await.is_some() {}
        let outcome = ended.unwrap_or(Err(ServiceError::Cancelled));
        outcome.map(ClientAnswer::Complete).map_err(|error| refusal(&error))
    }

    /// Keeps a call until the client answers or its time is over. Returns its questions. Fails if too many calls wait,
    /// and ends the call then.
    fn suspend(
        &self,
        call: OpenCall<T>,
        asked: Vec<(String, PendingQuestion)>,
        slot: Option<SuspensionSlot>,
    ) -> Result<ClientAnswer<T>, ErrorData> {
        let question = |asked: &PendingQuestion| InputRequest::Elicitation(ElicitRequest::new(asked.params.clone()));
        let requests = asked.iter().map(|(key, asked)| (key.clone(), question(asked))).collect();
        let state = self.suspended.keep(SuspendedCall { call, asked }, slot);
        let state = state.map_err(|error| ErrorData::invalid_request(error.to_string(), None))?;
        Ok(ClientAnswer::Questions(InputRequiredResult::new(Some(requests), Some(state))))
    }

    /// Returns the call that waits for answers with this state. Fails if there is none, or it is of another target.
    fn take(&self, state: &str, target: &str) -> Result<(SuspendedCall<T>, SuspensionSlot), ErrorData> {
        let problem = "no request waits for these answers: send it again without them";
        let taken = self.suspended.take(state, |waiting| waiting.call.target == target);
        taken.ok_or_else(|| ErrorData::invalid_params(problem, None))
    }
}

/// Returns a listener for the progress of a call, and the messages that it keeps for the client.
pub(super) fn buffer_progress() -> (impl Fn(CallProgress) + Send + Sync + 'static, mpsc::Receiver<CallProgress>) {
    let (buffer, messages) = mpsc::channel(PROGRESS_BUFFER);
    // If the buffer is full, the client is slow and this message is dropped.
    (move |progress| drop(buffer.try_send(progress)), messages)
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

impl<T> std::fmt::Debug for ClientCalls<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCalls").field("suspended", &self.suspended).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult};
    use rmcp::{ServerHandler, ServiceExt as _};
    use serde_json::{Value, json};
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::Instant;

    use super::*;
    use crate::adapter::client_asker::ANSWER_TIMEOUT;
    use crate::adapter::suspension_slots::SuspensionSlots;
    use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
    use crate::tool::{Activity, SessionContext};

    /// A server with a tool that asks the user when it is cancelled.
    #[derive(Clone)]
    struct LateServer {
        calls: ClientCalls<()>,
        began: mpsc::UnboundedSender<()>,
        answered: mpsc::UnboundedSender<ElicitationResponse>,
    }

    impl ServerHandler for LateServer {
        async fn call_tool(
            &self,
            _: CallToolRequestParams,
            context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            let session = SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into());
            let call = ClientCall {
                target: "ask".to_owned(),
                state: None,
                responses: None,
                context: CallContext::new(session),
                end: context.ct.clone(),
            };
            let (began, answered) = (self.began.clone(), self.answered.clone());
            let run = move |call: CallContext| async move {
                began.send(()).unwrap();
                call.cancel.cancelled().await;
                let kind = ElicitationKind::Fields(serde_json::Map::new());
                let question = Elicitation { by: "late".to_owned(), call: None, message: "Go on?".to_owned(), kind };
                answered.send(call.client_asker().unwrap().elicit(question).await).unwrap();
                Ok(())
            };
            match self.calls.answer(call, &context, run).await? {
                ClientAnswer::Complete(()) => Ok(CallToolResult::success(Vec::new()).into()),
                ClientAnswer::Questions(required) => Ok(required.into()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_does_not_wait_for_answers() {
        let calls = ClientCalls::new(SuspensionSlots::default().of("ana"));
        let (began, mut begun) = mpsc::unbounded_channel();
        let (answered, mut answers) = mpsc::unbounded_channel();
        let server = LateServer { calls: calls.clone(), began, answered };
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let serving = async move { drop(server.serve(theirs).await.unwrap().waiting().await) };
        let client = async move {
            let (read, mut to) = tokio::io::split(ours);
            let mut send = async |message: Value| to.write_all(format!("{message}\n").as_bytes()).await.unwrap();
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
            });
            let params = json!({"name": "ask", "_meta": meta});
            send(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})).await;
            begun.recv().await.unwrap();
            let time = Instant::now();
            let params = json!({"requestId": 1});
            send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await;
            assert_eq!(answers.recv().await, Some(ElicitationResponse::Unavailable));
            assert!(time.elapsed() < ANSWER_TIMEOUT, "{:?}", time.elapsed());
            assert!(!calls.has_suspended());
            drop(read);
        };
        tokio::select! {
            () = serving => panic!("the server has ended"),
            () = client => {}
        }
    }

    #[tokio::test]
    async fn progress_that_a_slow_client_has_no_room_for_is_dropped() {
        let calls = ClientCalls::new(SuspensionSlots::default().of("ana"));
        let session = SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into());
        let call = ClientCall {
            target: "tool".to_owned(),
            state: None,
            responses: None,
            context: CallContext::new(session),
            end: CancellationToken::new(),
        };
        let step = |number: usize| CallProgress { progress: 0.0, total: None, message: Some(number.to_string()) };
        let run = |context: CallContext| async move {
            (0..=PROGRESS_BUFFER).for_each(|number| context.report(Activity::Progress(step(number))));
            Ok(())
        };
        let mut open = calls.begin(call, ElicitationSupport::default(), run);
        // The client takes nothing before the call has ended.
        assert!(matches!((&mut open.ended).await, Ok(Ok(()))));
        let kept: Vec<_> = std::iter::from_fn(|| open.progress.try_recv().ok()).collect();
        assert_eq!(kept, (0..PROGRESS_BUFFER).map(step).collect::<Vec<_>>());
    }
}
