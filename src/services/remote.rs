//! An MCP server on the other side of a wire: the rmcp client with what it lacks, namely limits, a reason when
//! it ends, and cancellation that reaches the server.

mod client;
mod lists;
mod questions;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, GetPromptRequest,
    GetPromptRequestParams, InputResponses, ProtocolVersion, ReadResourceRequest, ReadResourceRequestParams,
    RequestMetaObject, ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, PeerRequestOptions, RunningService,
    RunningServiceCancellationToken,
};
use rmcp::transport::IntoTransport;
use rmcp::{Peer, RoleClient, ServiceError as RmcpError};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::{CallError, ServiceConnection};
use super::content;
use super::stdio::WireFailure;
use crate::process::ProcessGroup;
use crate::task::TaskScope;
use crate::tool::{CallContext, Catalog, ToolCall, ToolOutcome};
pub(super) use client::{McpClient, Owner};

/// A server that asks for ever must not be answered for ever.
const MAX_ROUNDS: usize = 10;
/// The error of a call that needs a page visited first.
const PAGE_FIRST: i32 = -32042;
/// How long a server has to end by itself once its input is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);
/// How long a server has to take a notification off the wire.
const TELLING: Duration = Duration::from_millis(500);

/// How a server wants to be greeted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// It is asked, and greeted as it answers.
    Unknown,
    /// With the older handshake.
    Handshake,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The server knows the newer question but speaks only older versions: it must be greeted anew.
    OlderEra,
    Failed(String),
}

pub(super) struct McpConnection {
    peer: Peer<RoleClient>,
    client: McpClient,
    instructions: Option<String>,
    pid: Option<u32>,
    /// Ends the client; the supervisor then ends the process.
    stop: Mutex<Option<RunningServiceCancellationToken>>,
    /// Why it was given up, if it was.
    failure: WireFailure,
    /// Written by the supervisor, once, when everything is gone.
    closed: watch::Receiver<Option<String>>,
}

impl McpConnection {
    /// Performs the handshake, in whichever era the server speaks, and watches over the connection until it
    /// ends. A `group` dies with the connection, and the connection with it.
    pub(super) async fn connect<T, E, A>(
        client: McpClient,
        transport: T,
        era: Era,
        group: Option<(ProcessGroup, WireFailure)>,
        scope: &TaskScope,
    ) -> Result<Self, ConnectError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let lifecycle = match era {
            Era::Unknown => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::V_2025_11_25),
            },
            Era::Handshake => ClientLifecycleMode::Initialize,
        };
        let pid = group.as_ref().map(|(group, _)| group.id());
        let failure = group.as_ref().map(|(_, failure)| failure.clone()).unwrap_or_default();
        let running = match client.clone().serve_with_lifecycle(transport, lifecycle).await {
            Ok(running) => running,
            Err(ClientInitializeError::NoCompatibleProtocolVersion { .. }) if era == Era::Unknown => {
                return Err(ConnectError::OlderEra);
            }
            Err(error) => return Err(ConnectError::Failed(start_failure(&plainly(&error), group).await)),
        };
        let peer = running.peer().clone();
        let instructions = peer.peer_info().and_then(|info| info.instructions.clone());
        let stop = Mutex::new(Some(running.cancellation_token()));
        let (closing, closed) = watch::channel(None);
        let group = group.map(|(group, _)| group);
        scope.spawn(supervise(running, group, failure.clone(), closing, scope.cancelled().clone()));
        scope.spawn(subscribe(peer.clone(), client.clone(), scope.cancelled().clone()));
        Ok(Self { peer, client, instructions, pid, stop, failure, closed })
    }

    fn give_up(&self) {
        if let Some(token) = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take() {
            token.cancel();
        }
    }

    /// The wire broke: waits until it is known why.
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
                // A process that takes no more input will soon be known to have ended, and how. A server behind
                // HTTP is connected to anew.
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

    /// Sends a request and waits for its answer. What the server wants to know before it answers is asked for, and the
    /// request sent again with it: that is how servers of the newer era ask, and the only way anything is sent twice.
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
                // So a server of the older era says that it has done nothing, because a page is to be visited first.
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
        Err(CallError::Refused(format!("it asked for input {MAX_ROUNDS} times without an answer of its own")))
    }

    /// One request and its answer.
    async fn round(
        &self,
        request: ClientRequest,
        context: &CallContext,
        limit: Duration,
    ) -> Result<Result<ServerResult, RmcpError>, CallError> {
        // rmcp has a time limit of its own, but past it waits until the server has heard that it is over.
        let sending = self.peer.send_request_with_option(request, self.options(context));
        let sending = tokio::time::timeout(limit, sending);
        let handle = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(CallError::Cancelled),
            sent = sending => match sent {
                // It does not read its input; whether it has seen the request cannot be known.
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
                () = context.cancel.cancelled() => ("the user cancelled", CallError::Cancelled),
                answer = &mut answer => return Ok(answer),
                // The time begins again.
                () = listening.wait_for_activity() => continue,
                () = tokio::time::sleep(limit) => {
                    if listening.is_asking() {
                        continue;
                    }
                    ("it took too long", CallError::TimedOut)
                }
            };
            let cancelled = CancelledNotificationParam::new(Some(id), Some(reason.to_owned()));
            // The server may be gone, or deaf; it was told if it is neither.
            drop(tokio::time::timeout(TELLING, self.peer.notify_cancelled(cancelled)).await);
            return Err(error);
        }
    }

    /// What a request of the newer era says beside itself: what may be asked because of it, and that logs are welcome.
    #[expect(deprecated, reason = "servers still log")]
    fn options(&self, context: &CallContext) -> PeerRequestOptions {
        let options = PeerRequestOptions::no_options();
        if !is_newer(&self.peer) {
            return options;
        }
        let mut meta = RequestMetaObject::new();
        meta.set_client_capabilities(self.client.capabilities(context.elicitor().is_some()));
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
            Err(RmcpError::McpError(error)) => Ok(ToolOutcome::error(error.message.into_owned())),
            Err(error) => Err(self.explain(error).await),
        }
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

    fn pid(&self) -> Option<u32> {
        self.pid
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.give_up();
            let mut closed = self.closed.clone();
            // The supervisor always ends: each of its steps has a limit.
            drop(closed.wait_for(Option::is_some).await);
        })
    }
}

/// A connection that nobody holds any more ends, and its process with it.
impl Drop for McpConnection {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// True if the server needs no handshake, and is told with every request what it may ask.
fn is_newer(peer: &Peer<RoleClient>) -> bool {
    peer.peer_info().is_some_and(|info| !info.protocol_version.has_initialize())
}

/// A server of the newer era says only to those who listen that its lists have changed.
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
            Err(error) => tracing::info!(service = %client.service, %error, "changes of its lists will not be heard"),
        }
    };
    tokio::select! {
        () = ending.cancelled() => {}
        () = listening => {}
    }
}

/// Waits for the end of the connection, sees that the process is gone, and says why.
async fn supervise(
    running: RunningService<RoleClient, McpClient>,
    mut group: Option<ProcessGroup>,
    failure: WireFailure,
    closing: watch::Sender<Option<String>>,
    ending: CancellationToken,
) {
    let stop = running.cancellation_token();
    let closed = running.waiting();
    tokio::pin!(closed);
    let exited = async {
        match &mut group {
            Some(group) => drop(group.wait().await),
            None => std::future::pending().await,
        }
    };
    let done = tokio::select! {
        biased;
        _ = &mut closed => true,
        () = ending.cancelled() => false,
        () = exited => {
            // Others of its group may hold its output open. What it said last is still in the pipe, and is read.
            if let Some(group) = &group {
                group.kill();
            }
            tokio::time::timeout(GRACE, &mut closed).await.is_ok()
        }
    };
    if !done {
        stop.cancel();
        drop(closed.await);
    }
    let reason = match group {
        None => failure.take().unwrap_or_else(|| "the connection was closed".to_owned()),
        Some(group) => end(group, &failure).await,
    };
    // Nobody listens any more if the pool has let go of it.
    drop(closing.send(Some(reason)));
}

async fn end(mut group: ProcessGroup, failure: &WireFailure) -> String {
    let exited = tokio::time::timeout(GRACE, group.wait()).await;
    group.stop(GRACE).await;
    match (failure.take(), exited) {
        (Some(reason), _) => reason,
        (None, Ok(status)) => status,
        (None, Err(_)) => "it closed its output".to_owned(),
    }
}

/// Without rmcp's names for its own parts.
fn plainly(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => with_causes(error.error.as_ref()),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => plainly(fallback),
        ClientInitializeError::JsonRpcError(error) => format!("it refused to begin: {}", error.message),
        other => other.to_string(),
    }
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn start_failure(error: &str, group: Option<(ProcessGroup, WireFailure)>) -> String {
    let Some((group, failure)) = group else { return error.to_owned() };
    let ended = end(group, &failure).await;
    if ended.starts_with("exit") || ended.starts_with("signal") {
        format!("it ended before it had answered ({ended}); its own words are in the log")
    } else if ended == "it closed its output" {
        error.to_owned()
    } else {
        ended
    }
}
