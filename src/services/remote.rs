//! Connects to an MCP server with rmcp's client, and adds limits, a reason when the connection ends, and
//! cancellation that reaches the server.

mod client;
mod connect_error;
mod lists;
mod supervisor;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientConfig, ClientRequest, ErrorCode,
    GetPromptRequest, GetPromptRequestParams, InputResponses, ProtocolVersion, ReadResourceRequest,
    ReadResourceRequestParams, RequestMetaObject, ServerResult, SubscriptionFilter,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, PeerRequestOptions, RunningServiceCancellationToken};
use rmcp::transport::IntoTransport;
use rmcp::{ClientHandler as _, ErrorData, Peer, RoleClient, ServiceError as RmcpError};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::{CallError, ServiceConnection};
use super::content;
use super::eras::{Era, EraChoice};
use super::http::with_causes;
use super::requirement_offers::RequirementOffers;
use super::stdio::WireFailure;
use crate::answer_limit::AnswerLimit;
use crate::process::ProcessGroup;
use crate::sandbox::CurrentGate;
use crate::task::TaskScope;
use crate::tool::{CallContext, Catalog, ToolCall, ToolOutcome};
use client::questions;
pub(super) use client::{McpClient, Owner};
pub(super) use connect_error::ConnectError;
use connect_error::{is_misunderstood, plainly};
use supervisor::{start_failure, supervise};

/// Maximum number of times that a server may ask for input before it answers a request.
const MAX_ROUNDS: usize = 10;
/// Error code of a call for which the user must visit a page first.
const PAGE_FIRST: i32 = -32042;
/// Time for a server to exit by itself, after its input or its output is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);
/// The same for a server that Skein stops: it ends within a second of its session.
const STOP_GRACE: Duration = Duration::from_millis(350);
/// Time to deliver a notification to a server.
const TELLING: Duration = Duration::from_millis(500);
/// Time for a server to answer the question for its versions. Some servers ignore requests that they do not know.
const PROBE_TIME: Duration = Duration::from_secs(2);

pub(super) struct McpConnection {
    peer: Peer<RoleClient>,
    client: McpClient,
    instructions: Option<String>,
    pid: Option<u32>,
    /// Ends the client; the supervisor task then ends the process.
    stop: Mutex<Option<RunningServiceCancellationToken>>,
    /// Cancelled if Skein stops the service; the supervisor task then waits less for the process.
    stopping: CancellationToken,
    /// The reason why the wire broke, if it is known.
    failure: WireFailure,
    /// The supervisor task sends the reason once, when client and process have ended.
    closed: watch::Receiver<Option<String>>,
    /// Set if the server also speaks the newer era.
    choice: Option<EraChoice>,
    /// True once the choice was revised.
    outdated: AtomicBool,
}

impl McpConnection {
    /// Performs the handshake in the server's era and supervises the connection until it ends. `group` and the
    /// connection end together. `gate`: the time to answer does not run while the user is asked about a host.
    pub(super) async fn connect<T, E, A>(
        client: McpClient,
        transport: T,
        era: Era,
        group: Option<(ProcessGroup, WireFailure)>,
        gate: Option<&CurrentGate>,
        scope: &TaskScope,
    ) -> Result<Self, ConnectError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let lifecycle = match era {
            Era::Unknown | Era::Slow => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::V_2025_11_25),
            },
            Era::Handshake => ClientLifecycleMode::Initialize,
        };
        let pid = group.as_ref().map(|(group, _)| group.id());
        let failure = group.as_ref().map(|(_, failure)| failure.clone()).unwrap_or_default();
        let unread = failure.clone();
        let transport = AnswerLimit::new(transport.into_transport(), move |reason: &str| unread.set(reason.to_owned()));
        let starting = client.clone().serve_with_lifecycle(transport, lifecycle);
        let started = match era {
            Era::Unknown => {
                let started = match gate {
                    Some(gate) => gate.limit(PROBE_TIME, starting).await,
                    None => tokio::time::timeout(PROBE_TIME, starting).await.ok(),
                };
                started.ok_or(ConnectError::Mute)?
            }
            Era::Slow | Era::Handshake => starting.await,
        };
        let running = match started {
            Ok(running) => running,
            Err(error) if era == Era::Unknown && is_misunderstood(&error) => return Err(ConnectError::OlderEra),
            Err(error) => return Err(ConnectError::Handshake { reason: start_failure(&plainly(&error), group).await }),
        };
        let peer = running.peer().clone();
        let instructions = peer.peer_info().and_then(|info| info.instructions.clone());
        let stop = Mutex::new(Some(running.cancellation_token()));
        let (closing, closed) = watch::channel(None);
        let group = group.map(|(group, _)| group);
        let stopping = scope.cancelled().child_token();
        scope.spawn(supervise(running, group, failure.clone(), closing, stopping.clone()));
        scope.spawn(subscribe(peer.clone(), client.clone(), scope.cancelled().clone()));
        let outdated = AtomicBool::new(false);
        Ok(Self { peer, client, instructions, pid, stop, stopping, failure, closed, choice: None, outdated })
    }

    /// Adds the choice of the older era, which an error of the server may revise.
    pub(super) fn with_choice(mut self, choice: EraChoice) -> Self {
        self.choice = Some(choice);
        self
    }

    /// Keeps the offers to the server until the connection has ended.
    pub(super) fn hold(&self, offers: RequirementOffers, scope: &TaskScope) {
        if offers.is_empty() {
            return;
        }
        let mut closed = self.closed.clone();
        scope.spawn(async move {
            // The supervisor task sends the reason or drops its end.
            drop(closed.wait_for(Option::is_some).await);
            drop(offers);
        });
    }

    /// Asks a server of the newer era whether it also accepts the older handshake.
    pub(super) async fn accepts_handshake(&self) -> bool {
        // Skein's own servers ask as the newer era does, and let in only one connection.
        let is_skein = self
            .peer
            .peer_info()
            .is_some_and(|info| info.server_info.as_ref().is_some_and(|server| server.name == "skein"));
        if !is_newer(&self.peer) || is_skein {
            return false;
        }
        let ClientConfig { client_info, capabilities, .. } = self.client.get_info();
        let meta = RequestMetaObject::with_client_context(ProtocolVersion::V_2026_07_28, client_info, capabilities);
        match tokio::time::timeout(PROBE_TIME, self.peer.discover(meta)).await {
            Ok(Ok(server)) => server.supported_versions.iter().any(ProtocolVersion::has_initialize),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn give_up(&self) {
        if let Some(token) = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take() {
            token.cancel();
        }
    }

    /// Waits after the wire broke until the reason is known, for a limited time.
    async fn death(&self) -> CallError {
        let mut closed = self.closed.clone();
        let reason = tokio::time::timeout(GRACE * 4, closed.wait_for(Option::is_some)).await;
        let reason = reason.ok().and_then(Result::ok).and_then(|reason| reason.clone());
        CallError::Died(reason.unwrap_or_else(|| "the connection was lost".to_owned()))
    }

    async fn explain(&self, error: RmcpError) -> CallError {
        match error {
            RmcpError::McpError(error) => CallError::Refused(error.message.into_owned()),
            RmcpError::Timeout { .. } => CallError::TimedOut,
            RmcpError::Cancelled { .. } => CallError::Cancelled,
            RmcpError::TransportSend(error) => {
                // A process that no longer reads its input is about to exit, and its status gives the reason. For
                // an HTTP server there is no process; the service reconnects.
                if self.pid.is_none() {
                    self.failure.set(with_causes(error.error.as_ref()));
                }
                self.give_up();
                self.death().await
            }
            RmcpError::TransportClosed => self.death().await,
            other => CallError::Refused(other.to_string()),
        }
    }

    /// Sends a request and waits for its answer. If the server asks for input first, asks the user and sends the
    /// request again with the input, which is how servers of the newer era ask. A request is sent again only after
    /// the server asked for input or for the visit of a page.
    async fn request(
        &self,
        make: impl Fn(Option<InputResponses>, Option<String>) -> ClientRequest,
        context: &CallContext,
        limit: Duration,
    ) -> Result<Result<ServerResult, RmcpError>, CallError> {
        let (mut responses, mut state, mut pages) = (None, None, Vec::new());
        for _ in 0..MAX_ROUNDS {
            let required = match self.round(make(responses.take(), state.take()), context, limit).await? {
                Ok(ServerResult::InputRequiredResult(required)) => required,
                // A server of the older era reports with this error that it has done nothing, because the user must
                // visit a page first.
                Err(RmcpError::McpError(error)) if error.code.0 == PAGE_FIRST => {
                    let visited = questions::visit_pages(&self.client, error.data.as_ref(), context).await;
                    if visited.is_empty() {
                        return Ok(Err(RmcpError::McpError(error)));
                    }
                    pages.extend(visited);
                    continue;
                }
                answer => {
                    questions::finish_pages(&self.client, &pages, context);
                    return Ok(answer);
                }
            };
            let requests = required.input_requests.unwrap_or_default();
            let (said, visited) = questions::answers(&self.client, requests, context).await?;
            (responses, state) = (Some(said), required.request_state);
            pages.extend(visited);
        }
        Err(CallError::Refused(format!("it asked for input {MAX_ROUNDS} times without an answer")))
    }

    /// Sends one request and waits for its answer.
    async fn round(
        &self,
        request: ClientRequest,
        context: &CallContext,
        limit: Duration,
    ) -> Result<Result<ServerResult, RmcpError>, CallError> {
        // rmcp's own time limit is not used: after it rmcp waits until the server has received the cancellation.
        let sending = self.peer.send_request_with_option(request, self.options(context));
        let sending = tokio::time::timeout(limit, sending);
        let handle = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(CallError::Cancelled),
            sent = sending => match sent {
                // The server does not read its input; whether it has seen the request is unknown.
                Err(_) => return Err(CallError::TimedOut),
                Ok(Err(error)) => return Err(self.explain(error).await),
                Ok(Ok(handle)) => handle,
            },
        };
        let id = handle.id.clone();
        let listening = self.client.listen(&handle.progress_token, &id, context);
        let answer = handle.await_response();
        tokio::pin!(answer);
        loop {
            let (reason, error) = tokio::select! {
                biased;
                () = context.cancel.cancelled() => ("the turn was cancelled", CallError::Cancelled),
                answer = &mut answer => return Ok(answer),
                // Activity restarts the time limit, and so does the answer to a question of a call inside this one.
                () = listening.wait_for_activity() => continue,
                () = context.wait_for_answer() => continue,
                () = tokio::time::sleep(limit) => {
                    if listening.is_asking() || context.waits_for_user() {
                        continue;
                    }
                    ("it took too long", CallError::TimedOut)
                }
            };
            let cancelled = CancelledNotificationParam::new(Some(id), Some(reason.to_owned()));
            // Best effort: the server may be gone or may not read its input.
            drop(tokio::time::timeout(TELLING, self.peer.notify_cancelled(cancelled)).await);
            return Err(error);
        }
    }

    /// Returns the metadata of a request in the newer era: the client capabilities for it, and the log level.
    #[expect(deprecated, reason = "servers still log")]
    fn options(&self, context: &CallContext) -> PeerRequestOptions {
        let options = PeerRequestOptions::no_options();
        if !is_newer(&self.peer) {
            return options;
        }
        let mut meta = RequestMetaObject::new();
        meta.set_client_capabilities(self.client.capabilities(context.asker().is_some()));
        meta.set_log_level(rmcp::model::LoggingLevel::Info);
        options.with_meta(meta)
    }

    async fn outcome(&self, call: ToolCall, limit: Duration) -> Result<ToolOutcome, CallError> {
        let params = CallToolRequestParams::new(call.tool.as_str().to_owned()).with_arguments(call.arguments);
        let make = |responses: Option<InputResponses>, state: Option<String>| {
            let mut params = params.clone();
            (params.input_responses, params.request_state) = (responses, state);
            ClientRequest::CallToolRequest(CallToolRequest::new(params))
        };
        match self.request(make, &call.context, limit).await? {
            Ok(ServerResult::CallToolResult(result)) => Ok(content::outcome(result)),
            Ok(_) => Err(CallError::Refused("its answer is not the result of a tool call".to_owned())),
            Err(RmcpError::McpError(error)) => Ok(self.refusal(&error)),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Returns the outcome of a call that the server refused. A server of both eras answers a tool call with "invalid
    /// request" if the tool needs the newer era, so the next start uses that era. The call is not repeated, because it
    /// may have run in part.
    fn refusal(&self, error: &ErrorData) -> ToolOutcome {
        let reason = self.client.hide_secrets(&error.message);
        let needs_newer_era = error.code == ErrorCode::INVALID_REQUEST;
        let Some(choice) = self.choice.as_ref().filter(|_| needs_newer_era) else {
            return ToolOutcome::error(reason);
        };
        choice.revise();
        self.outdated.store(true, Ordering::Relaxed);
        let version = ProtocolVersion::V_2026_07_28;
        let advice = format!("From now on skein speaks MCP {version} with the service: repeat the call");
        ToolOutcome::error(format!("{reason}. {advice}"))
    }
}

impl ServiceConnection for McpConnection {
    fn instructions(&self) -> Option<String> {
        self.instructions.clone()
    }

    fn generation(&self) -> u64 {
        self.client.generation()
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.client.changes())
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>> {
        Box::pin(self.list())
    }

    fn call(&self, call: ToolCall, limit: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>> {
        Box::pin(self.outcome(call, limit))
    }

    fn read_resource(
        &self,
        uri: String,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let make = |responses: Option<InputResponses>, state: Option<String>| {
                let mut params = ReadResourceRequestParams::new(uri.clone());
                (params.input_responses, params.request_state) = (responses, state);
                ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
            };
            match self.request(make, &context, limit).await? {
                Ok(ServerResult::ReadResourceResult(result)) => Ok(content::json(&result)),
                Ok(_) => Err(CallError::Refused("its answer is not a resource".to_owned())),
                Err(error) => Err(self.explain(error).await),
            }
        })
    }

    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let make = |responses: Option<InputResponses>, state: Option<String>| {
                let mut params = GetPromptRequestParams::new(name.clone()).with_arguments(arguments.clone());
                (params.input_responses, params.request_state) = (responses, state);
                ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
            };
            match self.request(make, &context, limit).await? {
                Ok(ServerResult::GetPromptResult(result)) => Ok(content::json(&result)),
                Ok(_) => Err(CallError::Refused("its answer is not a prompt".to_owned())),
                Err(error) => Err(self.explain(error).await),
            }
        })
    }

    fn closed(&self) -> Option<String> {
        if self.peer.is_transport_closed() {
            Some(self.closed.borrow().clone().unwrap_or_else(|| "the connection was lost".to_owned()))
        } else {
            self.closed.borrow().clone()
        }
    }

    fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    fn pid(&self) -> Option<u32> {
        self.pid
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.stopping.cancel();
            let mut closed = self.closed.clone();
            // The supervisor always ends: each of its steps has a time limit.
            drop(closed.wait_for(Option::is_some).await);
        })
    }
}

/// Dropping the connection ends it and its process.
impl Drop for McpConnection {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

/// Returns whether the server needs no handshake. Each request then carries the client capabilities.
fn is_newer(peer: &Peer<RoleClient>) -> bool {
    peer.peer_info().is_some_and(|info| !info.protocol_version.has_initialize())
}

/// Subscribes to list changes. A server of the newer era reports them only to subscribers.
async fn subscribe(peer: Peer<RoleClient>, client: McpClient, ending: CancellationToken) {
    let Some(info) = peer.peer_info().filter(|_| is_newer(&peer)) else { return };
    let capabilities = &info.capabilities;
    let said = |changes: Option<bool>| changes.filter(|changes| *changes);
    let mut filter = SubscriptionFilter::new();
    filter.tools_list_changed = said(capabilities.tools.as_ref().and_then(|tools| tools.list_changed));
    filter.prompts_list_changed = said(capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed));
    filter.resources_list_changed = said(capabilities.resources.as_ref().and_then(|all| all.list_changed));
    if filter == SubscriptionFilter::new() {
        return;
    }
    let listening = async {
        match peer.listen(filter).await {
            Ok(mut subscription) => {
                while let Ok(Some(_)) = subscription.next().await {
                    client.mark_changed();
                }
            }
            Err(error) => {
                let error = client.hide_secrets(&error.to_string());
                tracing::info!(service = %client.service, error, "changes of its lists are not received");
            }
        }
    };
    tokio::select! {
        () = ending.cancelled() => {}
        () = listening => {}
    }
}
