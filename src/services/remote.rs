//! An MCP server on the other side of a wire: the rmcp client with what it lacks, namely limits, a reason when
//! it ends, and cancellation that reaches the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientCapabilities, ClientConfig,
    ClientRequest, GetPromptRequestParams, GetPromptResponse, Implementation, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ServerResult,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, PeerRequestOptions,
    RunningService, RunningServiceCancellationToken,
};
use rmcp::transport::IntoTransport;
use rmcp::{ClientHandler, Peer, RoleClient, ServiceError as RmcpError};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::connection::{CallError, Connection};
use super::content;
use super::stdio::Failure;
use crate::ids::ServiceName;
use crate::process::Group;
use crate::task::Scope;
use crate::tool::{Activity, CallContext, Catalog, Progress, ToolCall, ToolOutcome};

/// A server that pages for ever must not be followed for ever.
const MAX_PAGES: usize = 50;
const MAX_ITEMS: usize = 2_000;
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
pub(super) enum Unconnected {
    /// The server knows the newer question but speaks only older versions: it must be greeted anew.
    OlderEra,
    Failed(String),
}

pub(super) struct Remote {
    peer: Peer<RoleClient>,
    client: Client,
    instructions: Option<String>,
    pid: Option<u32>,
    /// Ends the client; the supervisor then ends the process.
    stop: Mutex<Option<RunningServiceCancellationToken>>,
    /// Why it was given up, if it was.
    failure: Failure,
    /// Written by the supervisor, once, when everything is gone.
    closed: watch::Receiver<Option<String>>,
}

impl Remote {
    /// Performs the handshake, in whichever era the server speaks, and watches over the connection until it
    /// ends. A `group` dies with the connection, and the connection with it.
    pub(super) async fn connect<T, E, A>(
        service: ServiceName,
        transport: T,
        era: Era,
        group: Option<(Group, Failure)>,
        scope: &Scope,
    ) -> Result<Self, Unconnected>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let client = Client { service, progress: Arc::default(), generation: Arc::default() };
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
                return Err(Unconnected::OlderEra);
            }
            Err(error) => return Err(Unconnected::Failed(start_failure(&plainly(&error), group).await)),
        };
        let peer = running.peer().clone();
        let instructions = peer.peer_info().and_then(|info| info.instructions.clone());
        let stop = Mutex::new(Some(running.cancellation_token()));
        let (closing, closed) = watch::channel(None);
        let group = group.map(|(group, _)| group);
        scope.spawn(supervise(running, group, failure.clone(), closing, scope.cancelled().clone()));
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

    async fn list(&self) -> Result<Catalog, CallError> {
        let capabilities = self.peer.peer_info().map(|info| info.capabilities.clone()).unwrap_or_default();
        let mut catalog = Catalog::default();
        // Each list ends at the limits; a server that repeats a cursor would be followed for ever.
        macro_rules! pages {
            ($list:ident, $items:ident, $into:expr) => {{
                let mut cursor = None;
                for page in 0.. {
                    let request = PaginatedRequestParams::default().with_cursor(cursor.clone());
                    let result = match self.peer.$list(Some(request)).await {
                        Ok(result) => result,
                        Err(error) => return Err(self.explain(error).await),
                    };
                    let items: &mut Vec<_> = $into;
                    items.extend(result.$items.into_iter().take(MAX_ITEMS.saturating_sub(items.len())).map(Convert::convert));
                    let next = result.next_cursor;
                    if next.is_none() || next == cursor || page + 1 == MAX_PAGES || items.len() == MAX_ITEMS {
                        if next.is_some() {
                            tracing::warn!(service = %self.client.service, list = stringify!($list), "a list without end was cut off");
                        }
                        break;
                    }
                    cursor = next;
                }
            }};
        }
        if capabilities.tools.is_some() {
            pages!(list_tools, tools, &mut catalog.tools);
        }
        if capabilities.prompts.is_some() {
            pages!(list_prompts, prompts, &mut catalog.prompts);
        }
        if capabilities.resources.is_some() {
            pages!(list_resources, resources, &mut catalog.resources);
            // Optional, and some servers with resources answer that they do not know the method.
            if let Ok(result) = self.peer.list_resource_templates(None).await {
                catalog.templates =
                    result.resource_templates.into_iter().take(MAX_ITEMS).map(Convert::convert).collect();
            }
        }
        Ok(catalog)
    }

    async fn request(&self, call: ToolCall, limit: Duration) -> Result<ToolOutcome, CallError> {
        let params = CallToolRequestParams::new(call.tool.as_str().to_owned()).with_arguments(call.arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        // rmcp has a time limit of its own, but past it waits until the server has heard that it is over.
        let sending = self.peer.send_request_with_option(request, PeerRequestOptions::no_options());
        let sending = tokio::time::timeout(limit, sending);
        let handle = tokio::select! {
            biased;
            () = call.context.cancel.cancelled() => return Err(CallError::Cancelled),
            sent = sending => match sent {
                // It does not read its input; whether it has seen the call cannot be known.
                Err(_) => return Err(CallError::TimedOut),
                Ok(Err(error)) => return Err(self.explain(error).await),
                Ok(Ok(handle)) => handle,
            },
        };
        let id = handle.id.clone();
        let listening = self.client.listen(&handle.progress_token, &call.context);
        let answer = handle.await_response();
        tokio::pin!(answer);
        let answer = loop {
            let (reason, error) = tokio::select! {
                biased;
                () = call.context.cancel.cancelled() => ("the user cancelled", CallError::Cancelled),
                answer = &mut answer => break answer,
                // The time begins again.
                () = listening.heard.notified() => continue,
                () = tokio::time::sleep(limit) => ("it took too long", CallError::TimedOut),
            };
            let cancelled = CancelledNotificationParam::new(Some(id), Some(reason.to_owned()));
            // The server may be gone, or deaf; it was told if it is neither.
            drop(tokio::time::timeout(TELLING, self.peer.notify_cancelled(cancelled)).await);
            return Err(error);
        };
        drop(listening);
        match answer {
            Ok(ServerResult::CallToolResult(result)) => Ok(content::outcome(result)),
            Ok(ServerResult::InputRequiredResult(_)) => {
                Err(CallError::Refused("it asks for input, and nobody can be asked here".to_owned()))
            }
            Ok(_) => Err(CallError::Refused("its answer is not the result of a tool call".to_owned())),
            Err(RmcpError::McpError(error)) => Ok(ToolOutcome::error(error.message.into_owned())),
            Err(error) => Err(self.explain(error).await),
        }
    }
}

impl Connection for Remote {
    fn instructions(&self) -> Option<String> {
        self.instructions.clone()
    }

    fn generation(&self) -> u64 {
        self.client.generation.load(Ordering::Relaxed)
    }

    fn catalog(&self) -> BoxFuture<'_, Result<Catalog, CallError>> {
        Box::pin(self.list())
    }

    fn call(&self, call: ToolCall, limit: Duration) -> BoxFuture<'_, Result<ToolOutcome, CallError>> {
        Box::pin(self.request(call, limit))
    }

    fn read_resource(&self, uri: String, context: CallContext) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            // Dropping the request cancels it at the server.
            let request = self.peer.read_resource_once(ReadResourceRequestParams::new(uri));
            match until_cancelled(&context, request).await? {
                Ok(ReadResourceResponse::Complete(result)) => Ok(content::json(&result)),
                Ok(_) => Err(CallError::Refused("it asks for input, and nobody can be asked here".to_owned())),
                Err(error) => Err(self.explain(error).await),
            }
        })
    }

    fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
        context: CallContext,
    ) -> BoxFuture<'_, Result<Value, CallError>> {
        Box::pin(async move {
            let request = self.peer.get_prompt_once(GetPromptRequestParams::new(name).with_arguments(arguments));
            match until_cancelled(&context, request).await? {
                Ok(GetPromptResponse::Complete(result)) => Ok(content::json(&result)),
                Ok(_) => Err(CallError::Refused("it asks for input, and nobody can be asked here".to_owned())),
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
impl Drop for Remote {
    fn drop(&mut self) {
        self.give_up();
    }
}

async fn until_cancelled<T>(context: &CallContext, future: impl Future<Output = T>) -> Result<T, CallError> {
    tokio::select! {
        biased;
        () = context.cancel.cancelled() => Err(CallError::Cancelled),
        done = future => Ok(done),
    }
}

/// Waits for the end of the connection, sees that the process is gone, and says why.
async fn supervise(
    running: RunningService<RoleClient, Client>,
    mut group: Option<Group>,
    failure: Failure,
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

async fn end(mut group: Group, failure: &Failure) -> String {
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

async fn start_failure(error: &str, group: Option<(Group, Failure)>) -> String {
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

/// What we are to the server: a client that offers nothing, listens to progress, and notes changes.
#[derive(Clone)]
struct Client {
    service: ServiceName,
    progress: Listeners,
    generation: Arc<AtomicU64>,
}

/// Who hears of progress, and what wakes the call that waits for it.
type Listeners = Arc<Mutex<HashMap<ProgressToken, (CallContext, Arc<Notify>)>>>;

/// Hands progress to a call until it is dropped.
struct Listening {
    listeners: Listeners,
    token: ProgressToken,
    heard: Arc<Notify>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
    }
}

impl Client {
    fn listen(&self, token: &ProgressToken, context: &CallContext) -> Listening {
        let heard = Arc::new(Notify::new());
        let listener = (context.clone(), Arc::clone(&heard));
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), listener);
        Listening { listeners: Arc::clone(&self.progress), token: token.clone(), heard }
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        // A shared connection cannot tell which session a question of the server belongs to, so it is offered
        // no way to ask.
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("skein", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let listener =
            self.progress.lock().unwrap_or_else(PoisonError::into_inner).get(&params.progress_token).cloned();
        if let Some((context, heard)) = listener {
            heard.notify_one();
            context.report(Activity::Progress(Progress {
                progress: params.progress,
                total: params.total,
                message: params.message,
            }));
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed();
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed();
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed();
    }
}

/// One item of an MCP list as a catalog keeps it.
trait Convert<T> {
    fn convert(self) -> T;
}

impl Convert<crate::tool::ToolSpec> for rmcp::model::Tool {
    fn convert(self) -> crate::tool::ToolSpec {
        content::spec(self)
    }
}

macro_rules! kept_as_json {
    ($($item:ty),*) => {$(
        impl Convert<Value> for $item {
            fn convert(self) -> Value {
                content::json(&self)
            }
        }
    )*};
}
kept_as_json!(rmcp::model::Prompt, rmcp::model::Resource, rmcp::model::ResourceTemplate);
