//! Implements one ACP session of an external agent: runs its turns, relays its updates and holds its terminals.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::advertised_options::AdvertisedOptions;
use super::call_ids::CallIds;
use super::connection::{AgentConnection, RpcError, lock};
use super::local::LocalEditor;
use super::prompt;
use super::services::OfferedServer;
use super::updates::{TextChunk, UpdateRelay, UpdateVerdict};
use super::valid;
use crate::adapter::export::BindingSource;
use crate::agents::{ExternalAgentSpec, ExternalSession, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::broker::Binding;
use crate::conversation::{Content, Usage};
use crate::tool::SessionContext;
use crate::tool::ask::Asker;
use crate::tool::editor::Terminal;

/// How long an agent may take to end a turn after `session/cancel`.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an agent may take to set an option.
const OPTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Bytes that may wait for the client or the store before the reader pauses.
const MAX_BACKLOG: usize = 4 << 20;

/// How often the reader checks whether the backlog has shrunk.
const POLL: Duration = Duration::from_millis(5);

/// Maximum number of checks whether an earlier session has released the id.
const MAX_LEAVE_POLLS: usize = 50;

/// The binding that decides the agent's requests, the asker for its user and the context of its session.
#[derive(Clone)]
pub(super) struct SessionBinding {
    pub(super) binding: Arc<Binding>,
    pub(super) asker: Arc<dyn Asker>,
    pub(super) session: Arc<SessionContext>,
}

/// One session of an external agent.
pub(super) struct AcpSession {
    who: ExternalAgentSpec,
    connection: Arc<AgentConnection>,
    local: LocalEditor,
    id: OnceLock<String>,
    remembers: AtomicBool,
    /// `None` if the agent is used as a model.
    binding: Option<Arc<Mutex<SessionBinding>>>,
    relay: Mutex<UpdateRelay>,
    /// True while the agent replays history that Skein already has.
    replaying: AtomicBool,
    advertised: Mutex<AdvertisedOptions>,
    changes: watch::Sender<u64>,
    turn: Arc<Mutex<CancellationToken>>,
    pub(super) calls: CallIds,
    pub(super) terminals: Mutex<HashMap<String, Arc<dyn Terminal>>>,
    /// Ids of the pages that the agent has asked the user to open.
    pub(super) pages: Mutex<HashSet<String>>,
    /// The MCP server that the agent was offered, kept until the process ends.
    offered_server: Mutex<Option<OfferedServer>>,
}

impl AcpSession {
    pub(super) fn new(
        who: ExternalAgentSpec,
        peer: Arc<AgentConnection>,
        local: LocalEditor,
        bound: Option<SessionBinding>,
    ) -> Arc<Self> {
        let face = Mutex::new(AdvertisedOptions::new(who.name.as_str(), &who.title));
        Arc::new(Self {
            who,
            connection: peer,
            local,
            id: OnceLock::new(),
            remembers: AtomicBool::new(false),
            binding: bound.map(|bound| Arc::new(Mutex::new(bound))),
            relay: Mutex::default(),
            replaying: AtomicBool::new(false),
            advertised: face,
            changes: watch::Sender::new(0),
            // The token starts cancelled: before its first prompt, an agent's requests are not served.
            turn: Arc::new(Mutex::new(inactive_token())),
            calls: CallIds::new(),
            terminals: Mutex::default(),
            pages: Mutex::default(),
            offered_server: Mutex::default(),
        })
    }

    pub(super) fn who(&self) -> &ExternalAgentSpec {
        &self.who
    }

    pub(super) fn local(&self) -> &LocalEditor {
        &self.local
    }

    pub(super) fn session_binding(&self) -> Option<SessionBinding> {
        self.binding.as_ref().map(|bound| lock(bound).clone())
    }

    /// Returns a source of the current binding, which keeps nothing else of this session alive. `None` if the session
    /// has no binding.
    pub(super) fn source(&self) -> Option<BindingSource> {
        let (bound, turn) = (Arc::clone(self.binding.as_ref()?), Arc::clone(&self.turn));
        let source = BindingSource::new(move || Arc::clone(&lock(&bound).binding));
        Some(source.in_turns(move || lock(&turn).clone()))
    }

    pub(super) fn keep(&self, handed: Option<OfferedServer>) {
        *lock(&self.offered_server) = handed;
    }

    pub(super) fn turn_cancel(&self) -> CancellationToken {
        lock(&self.turn).clone()
    }

    pub(super) fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        lock(&self.relay).notifier()
    }

    /// Registers the session under the id from the agent. Fails if another session has that id.
    pub(super) fn complete_opening(self: &Arc<Self>, id: &str, answer: &Value, remembers: bool) -> Result<(), String> {
        if !self.connection.register(id, self) {
            return Err("it gave two sessions the same id".to_owned());
        }
        lock(&self.advertised).apply_opening(answer);
        self.remembers.store(remembers, Ordering::Relaxed);
        drop(self.id.set(id.to_owned()));
        Ok(())
    }

    /// Reopens a session by `session/resume` or `session/load`. Drops the history that the agent replays, because Skein
    /// has it. Fails if the agent refuses, or if another session does not release the id.
    pub(super) async fn reopen(self: &Arc<Self>, method: &str, id: &str, params: Value) -> Result<Value, RpcError> {
        // The earlier session with this id may be about to close.
        let mut tries = 0;
        while !self.connection.register(id, self) {
            tries += 1;
            if tries > MAX_LEAVE_POLLS {
                return Err(RpcError::new(-32603, "another session here has it open"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Also cleans up if the caller drops this future.
        let deaf = ReplayGuard { session: self, id };
        self.replaying.store(true, Ordering::Relaxed);
        let answer = self.connection.request(method, params).await?;
        std::mem::forget(deaf);
        self.replaying.store(false, Ordering::Relaxed);
        Ok(answer)
    }

    /// Blocks the thread that reads the agent's output while the client or the store lags behind: the pipe fills, and
    /// the agent waits. Returns false if the turn or the process is ending; the caller then drops the update.
    pub(super) fn wait_for_room(&self) -> bool {
        loop {
            let notifier = self.notifier();
            if notifier.is_none_or(|notifier| notifier.backlog() <= MAX_BACKLOG) {
                return true;
            }
            if self.turn_cancel().is_cancelled() || self.connection.is_stopping() {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Applies an update to the advertised options, or relays it to the turn.
    pub(super) fn handle_update(&self, params: &RawValue) {
        let verdict = lock(&self.relay).admit(params.get().len());
        if verdict != UpdateVerdict::Passes {
            if let (UpdateVerdict::FirstDropped, Some(notifier)) = (verdict, self.notifier()) {
                notifier.status(StatusUpdate::notice(UpdateRelay::drop_notice(self.who.name.as_str())));
            }
            return;
        }
        let deaf = self.replaying.load(Ordering::Relaxed);
        if let Some(piece) = TextChunk::of(params) {
            if !deaf {
                lock(&self.relay).piece(piece);
            }
            return;
        }
        let Ok(mut params) = serde_json::from_str::<Value>(params.get()) else { return };
        let Some(update) = params.get_mut("update").filter(|update| update.is_object()) else { return };
        if !self.calls.rewrite(update) {
            return tracing::warn!(agent = %self.who.name, "dropped an update of a tool call that Skein issued");
        }
        self.show_our_terminals(update);
        let update = &params["update"];
        match update["sessionUpdate"].as_str() {
            Some("available_commands_update") => self.change(|face| face.set_commands(update)),
            Some("current_mode_update") => self.change(|face| face.set_mode(&update["currentModeId"])),
            Some("config_option_update") => self.change(|face| face.set_options(update)),
            _ if deaf => {}
            kind => {
                let kind = kind.unwrap_or_default().to_owned();
                match valid::update(params) {
                    Some((typed, told)) => lock(&self.relay).other(typed, told),
                    None => tracing::debug!(agent = %self.who.name, kind, "an update that the protocol does not know"),
                }
            }
        }
    }

    /// Replaces terminals of the [`LocalEditor`] by their output, because an editor does not know their ids.
    fn show_our_terminals(&self, update: &mut Value) {
        let contents = update.get_mut("content").and_then(Value::as_array_mut);
        for piece in contents.into_iter().flatten().filter(|piece| piece["type"] == "terminal") {
            let Some(id) = piece["terminalId"].as_str().filter(|id| id.starts_with(LocalEditor::PREFIX)) else {
                continue;
            };
            let terminal = lock(&self.terminals).get(id).cloned();
            let output = terminal.and_then(|terminal| terminal.output().now_or_never());
            let text = output.and_then(Result::ok).map(|output| output.text).unwrap_or_default();
            *piece = json!({"type": "content", "content": {"type": "text", "text": text}});
        }
    }

    /// Reports to the asker that the page `id`, which the user was asked to open, is done.
    pub(super) fn page_done(&self, id: &str) {
        if lock(&self.pages).remove(id)
            && let Some(bound) = self.session_binding()
        {
            bound.asker.page_done(&self.who.title, id);
        }
    }

    fn change(&self, change: impl FnOnce(&mut AdvertisedOptions)) {
        change(&mut lock(&self.advertised));
        self.changes.send_modify(|count| *count += 1);
    }

    /// Releases the terminals and the offered MCP server after the process has ended.
    pub(super) fn handle_exit(&self) {
        lock(&self.terminals).clear();
        // Processes that the agent left behind must not reach the MCP server any more.
        *lock(&self.offered_server) = None;
    }

    /// Runs one turn; implements [`ExternalSession::turn`].
    pub(super) async fn run(
        &self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &CancellationToken,
    ) -> TurnEnd {
        let end = |ending| TurnEnd { ending, usage: Usage::default() };
        let about = self.connection.about.get().cloned().unwrap_or_default();
        let blocks = match prompt::blocks(prompt, self.who.name.as_str(), &about["agentCapabilities"]) {
            Ok(blocks) => blocks,
            Err(why) => return end(StopReason::Failed { why }),
        };
        *lock(&self.turn) = cancel.child_token();
        lock(&self.relay).begin(Arc::clone(&notifier));
        let asking = self.connection.request("session/prompt", json!({"sessionId": self.id(), "prompt": blocks}));
        let answer = self.await_reply(asking, notifier.as_ref(), cancel).await;
        let ending = match answer {
            Some(Ok(answer)) if !cancel.is_cancelled() => {
                self.connection.health().record_success();
                self.ending(&answer)
            }
            Some(Err(error)) if !cancel.is_cancelled() => {
                self.connection.health().record_failure();
                StopReason::Failed { why: self.failure(error) }
            }
            Some(_) | None => StopReason::Cancelled,
        };
        let cancelled = ending == StopReason::Cancelled;
        let why = if cancelled { "the turn was cancelled" } else { "the agent did not tell its end" };
        lock(&self.relay).end(why, !cancelled);
        // Cancels the requests that still run or wait for the turn.
        lock(&self.turn).cancel();
        end(ending)
    }

    /// Waits for the reply. Sends `session/cancel` if the turn is cancelled, and notifies the user if the agent is
    /// silent for long. Returns `None` if the agent did not stop in time.
    async fn await_reply(
        &self,
        asking: impl Future<Output = Result<Value, RpcError>>,
        notifier: &dyn Notifier,
        cancel: &CancellationToken,
    ) -> Option<Result<Value, RpcError>> {
        tokio::pin!(asking);
        let stale = self.who.runtime.timeouts.stale.duration();
        loop {
            tokio::select! {
                biased;
                answer = &mut asking => return Some(answer),
                () = cancel.cancelled() => break,
                () = tokio::time::sleep(stale) => {
                    let silent = self.connection.health().silent(Instant::now()).unwrap_or_default();
                    if silent >= stale {
                        let text = format!("`{}` has said nothing for {} s; cancel if you do not want to wait", self.who.name, silent.as_secs());
                        notifier.status(StatusUpdate::notice(text));
                    }
                }
            }
        }
        self.connection.notify("session/cancel", json!({"sessionId": self.id()}));
        match tokio::time::timeout(STOP_TIMEOUT, asking).await {
            Ok(answer) => Some(answer),
            Err(_) => {
                // An agent that ignores `session/cancel` must not continue.
                tracing::warn!(agent = %self.who.name, "it did not stop on request and is ended");
                self.connection.stop();
                None
            }
        }
    }

    fn ending(&self, answer: &Value) -> StopReason {
        match answer["stopReason"].as_str() {
            Some("end_turn") => StopReason::EndTurn,
            Some("max_tokens") => StopReason::MaxTokens,
            Some("max_turn_requests") => StopReason::Exhausted {
                why: format!("`{}` asked its model as often as it may in a turn", self.who.name),
            },
            Some("refusal") => StopReason::Refusal,
            Some("cancelled") => StopReason::Cancelled,
            other => StopReason::Failed {
                why: format!("`{}` ended the turn in a way that ACP does not know: {other:?}", self.who.name),
            },
        }
    }

    fn failure(&self, error: RpcError) -> String {
        let name = &self.who.name;
        if error.is_process_exit() {
            return format!(
                "the agent `{name}` ended in the middle of the turn: {}. Its earlier changes remain",
                error.message
            );
        }
        let detail = error.data.as_ref().and_then(|data| data.as_str().or(data["details"].as_str()));
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        format!("the agent `{name}` failed: {}{detail}", error.message)
    }
}

/// Ends the replay and unregisters the session if it could not be reopened.
struct ReplayGuard<'a> {
    session: &'a AcpSession,
    id: &'a str,
}

impl Drop for ReplayGuard<'_> {
    fn drop(&mut self) {
        self.session.replaying.store(false, Ordering::Relaxed);
        self.session.connection.unregister(self.id, self.session);
    }
}

/// Returns a cancelled token, as a turn has that is over.
fn inactive_token() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

impl Drop for AcpSession {
    fn drop(&mut self) {
        let Some(id) = self.id.get() else { return };
        if !self.connection.unregister(id, self) {
            return;
        }
        let closes = self.connection.about.get().is_some_and(|about| {
            about.pointer("/agentCapabilities/sessionCapabilities/close").is_some_and(|close| !close.is_null())
        });
        if closes && self.connection.closed().is_none() {
            self.connection.tell("session/close", json!({"sessionId": id}));
        }
    }
}

/// The handle that a Skein session holds. The ACP session closes after the handle is dropped.
pub(super) struct AcpSessionHandle(pub(super) Arc<AcpSession>);

impl AcpSession {
    pub(super) fn id(&self) -> &str {
        self.id.get().map_or("", String::as_str)
    }
}

impl ExternalSession for AcpSessionHandle {
    fn id(&self) -> String {
        self.0.id().to_owned()
    }

    fn remembers(&self) -> bool {
        self.0.remembers.load(Ordering::Relaxed)
    }

    fn rebind(&self, binding: Arc<Binding>, asker: Arc<dyn Asker>) {
        if let Some(bound) = &self.0.binding {
            let mut bound = lock(bound);
            (bound.binding, bound.asker) = (binding, asker);
        }
    }

    fn turn<'a>(
        &'a self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, TurnEnd> {
        Box::pin(self.0.run(prompt, notifier, cancel))
    }

    fn options(&self) -> Vec<Value> {
        lock(&self.0.advertised).options()
    }

    fn commands(&self) -> Vec<Value> {
        lock(&self.0.advertised).commands()
    }

    fn choose(&self, option: String, value: Value) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let choosing = lock(&self.0.advertised).option_request(&option, value.clone());
            let choosing = choosing.ok_or_else(|| format!("`{}` has no option `{option}`", self.0.who.name))?;
            let mut params = choosing.params;
            params.insert("sessionId".to_owned(), json!(self.0.id()));
            let is_mode = params.contains_key("modeId");
            let asking = self.0.connection.request(choosing.method, Value::Object(params));
            let answer = tokio::time::timeout(OPTION_TIMEOUT, asking).await;
            let answer = answer.map_err(|_| format!("`{}` did not answer", self.0.who.name))?;
            let answer = answer.map_err(|error| format!("`{}` refused it: {}", self.0.who.name, error.message))?;
            self.0.change(|face| if is_mode { face.set_mode(&value) } else { face.set_options(&answer) });
            Ok(())
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        let mut changes = self.0.changes.subscribe();
        changes.mark_unchanged();
        changes
    }

    fn is_alive(&self) -> bool {
        self.0.connection.closed().is_none() && !self.0.connection.is_stopping()
    }
}
