//! Implements one ACP session of an external agent: runs its turns, relays its updates and answers its requests.

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
use super::client_context::ClientContext;
use super::connection::{AgentConnection, SessionHandler};
use super::local::LocalEditor;
use super::rpc::RpcError;
use super::services::OfferedServer;
use super::updates::{TextChunk, UpdateRelay, UpdateVerdict};
use super::{client_methods, lock, login, prompt, valid};
use crate::agents::{ExternalOptionError, ExternalSession, MAX_BACKLOG, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::broker::Binding;
use crate::conversation::{Content, Usage};
use crate::tool::ask::Asker;

/// How long an agent may take to end a turn after `session/cancel`.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an agent may take to set an option.
const OPTION_TIMEOUT: Duration = Duration::from_secs(15);

/// How often the reader checks whether the backlog has shrunk.
const POLL: Duration = Duration::from_millis(5);

/// Maximum number of checks whether an earlier session has released the id.
const MAX_LEAVE_POLLS: usize = 50;

/// One session of an external agent.
pub(super) struct AcpSession {
    connection: Arc<AgentConnection>,
    /// Shared with the agent's requests.
    pub(super) client: ClientContext,
    id: OnceLock<String>,
    remembers: AtomicBool,
    /// True while the agent replays history that Skein already has.
    replaying: AtomicBool,
    advertised: Mutex<AdvertisedOptions>,
    changes: watch::Sender<u64>,
    /// The MCP server that the agent was offered, kept until the process ends.
    offered_server: Mutex<Option<OfferedServer>>,
}

/// An agent gave the id of an open session to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it gave two sessions the same id")]
pub(super) struct DuplicateSessionId;

impl AcpSession {
    pub(super) fn new(connection: Arc<AgentConnection>, client: ClientContext) -> Arc<Self> {
        let agent = &client.agent;
        let advertised = Mutex::new(AdvertisedOptions::new(agent.name.as_str(), &agent.title));
        Arc::new(Self {
            connection,
            client,
            id: OnceLock::new(),
            remembers: AtomicBool::new(false),
            replaying: AtomicBool::new(false),
            advertised,
            changes: watch::Sender::new(0),
            offered_server: Mutex::default(),
        })
    }

    pub(super) fn keep(&self, handed: Option<OfferedServer>) {
        *lock(&self.offered_server) = handed;
    }

    /// Registers the session under the id from the agent. Fails if another session has that id.
    pub(super) fn complete_opening(
        self: &Arc<Self>,
        id: &str,
        answer: &Value,
        remembers: bool,
    ) -> Result<(), DuplicateSessionId> {
        if !self.connection.register(id, self) {
            return Err(DuplicateSessionId);
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
        let guard = ReplayGuard { session: self, id };
        self.replaying.store(true, Ordering::Relaxed);
        let answer = self.connection.request(method, params).await?;
        std::mem::forget(guard);
        self.replaying.store(false, Ordering::Relaxed);
        Ok(answer)
    }

    /// Replaces terminals of the [`LocalEditor`] by their output, because an editor does not know their ids.
    fn show_our_terminals(&self, update: &mut Value) {
        let contents = update.get_mut("content").and_then(Value::as_array_mut);
        for piece in contents.into_iter().flatten().filter(|piece| piece["type"] == "terminal") {
            let Some(id) = piece["terminalId"].as_str().filter(|id| id.starts_with(LocalEditor::PREFIX)) else {
                continue;
            };
            let terminal = lock(&self.client.terminals).get(id).cloned();
            let output = terminal.and_then(|terminal| terminal.output().now_or_never());
            let text = output.and_then(Result::ok).map(|output| output.text).unwrap_or_default();
            *piece = json!({"type": "content", "content": {"type": "text", "text": text}});
        }
    }

    /// Counts an update of `bytes` bytes. Returns false if it exceeds the limits of the turn. Notifies the
    /// user of the first one.
    fn admit(&self, bytes: usize) -> bool {
        let verdict = lock(&self.client.relay).admit(bytes);
        if let (UpdateVerdict::FirstDropped, Some(notifier)) = (verdict, self.client.notifier()) {
            notifier.status(StatusUpdate::notice(UpdateRelay::drop_notice(self.client.agent.name.as_str())));
        }
        verdict == UpdateVerdict::Passes
    }

    fn change(&self, change: impl FnOnce(&mut AdvertisedOptions)) {
        change(&mut lock(&self.advertised));
        self.changes.send_modify(|count| *count += 1);
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
        let blocks = match prompt::blocks(prompt, self.client.agent.name.as_str(), &about["agentCapabilities"]) {
            Ok(blocks) => blocks,
            Err(error) => return end(StopReason::failure(error.to_string())),
        };
        self.client.begin_turn(cancel);
        let turn_span = self.client.binding().and_then(|bound| bound.session.turn_span());
        lock(&self.client.relay).begin(Arc::clone(&notifier), turn_span);
        let asking = self.connection.request("session/prompt", json!({"sessionId": self.id(), "prompt": blocks}));
        let answer = self.await_reply(asking, notifier.as_ref(), cancel).await;
        let ending = match answer {
            Some(Ok(answer)) if !cancel.is_cancelled() => {
                self.connection.health().record_success();
                self.ending(&answer)
            }
            Some(Err(error)) if !cancel.is_cancelled() => {
                self.connection.health().record_failure();
                StopReason::failure(self.failure(error))
            }
            Some(_) | None => StopReason::Cancelled,
        };
        let cancelled = ending == StopReason::Cancelled;
        let why = if cancelled { "the turn was cancelled" } else { "the agent did not tell its end" };
        lock(&self.client.relay).end(why, !cancelled);
        self.client.end_turn();
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
        let stale = self.client.agent.runtime.timeouts.stale.duration();
        loop {
            tokio::select! {
                biased;
                answer = &mut asking => return Some(answer),
                () = cancel.cancelled() => break,
                () = tokio::time::sleep(stale) => {
                    let silent = self.connection.health().silent(Instant::now()).unwrap_or_default();
                    if silent >= stale {
                        let text = format!("`{}` has said nothing for {} s; cancel if you do not want to wait", self.client.agent.name, silent.as_secs());
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
                tracing::warn!(agent = %self.client.agent.name, "it did not stop on request and is ended");
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
                why: format!("`{}` asked its model as often as it may in a turn", self.client.agent.name),
            },
            Some("refusal") => StopReason::Refusal,
            Some("cancelled") => StopReason::Cancelled,
            Some(other) => StopReason::failure(format!(
                "`{}` ended the turn with the stop reason `{}`, which ACP does not know",
                self.client.agent.name,
                self.connection.hide_secrets(other)
            )),
            None => StopReason::failure(format!("`{}` ended the turn without a stop reason", self.client.agent.name)),
        }
    }

    fn failure(&self, error: RpcError) -> String {
        let name = &self.client.agent.name;
        if error.is_process_exit() {
            return format!(
                "the agent `{name}` ended in the middle of the turn: {}. Its earlier changes remain",
                error.message
            );
        }
        if login::is_needed(&error) {
            let about = self.connection.about.get().cloned().unwrap_or_default();
            return login::login_error(name, error, &about).to_string();
        }
        let detail = error.data.as_ref().and_then(|data| data.as_str().or(data["details"].as_str()));
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        format!("the agent `{name}` failed: {}{detail}", error.message)
    }
}

impl SessionHandler for AcpSession {
    /// Blocks the thread that reads the agent's output while the client or the store lags behind: the pipe fills, and
    /// the agent waits. Returns false if the turn or the process is ending; the caller then drops the update.
    fn wait_for_room(&self) -> bool {
        loop {
            let notifier = self.client.notifier();
            if notifier.is_none_or(|notifier| notifier.backlog() <= MAX_BACKLOG) {
                return true;
            }
            if self.client.turn_cancel().is_cancelled() || self.connection.is_stopping() {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Applies an update to the advertised options, or relays it to the turn.
    fn handle_update(&self, params: &RawValue) {
        if !self.admit(params.get().len()) {
            return;
        }
        let replaying = self.replaying.load(Ordering::Relaxed);
        if let Some(piece) = TextChunk::of(params) {
            if !replaying {
                lock(&self.client.relay).piece(piece);
            }
            return;
        }
        let Ok(mut params) = serde_json::from_str::<Value>(params.get()) else { return };
        let Some(update) = params.get_mut("update").filter(|update| update.is_object()) else { return };
        if !self.client.calls.rewrite(update) {
            return tracing::warn!(agent = %self.client.agent.name, "dropped an update of a tool call that Skein issued");
        }
        self.show_our_terminals(update);
        let update = &params["update"];
        match update["sessionUpdate"].as_str() {
            Some("available_commands_update") => self.change(|options| options.set_commands(update)),
            Some("current_mode_update") => self.change(|options| options.set_mode(&update["currentModeId"])),
            Some("config_option_update") => self.change(|options| options.set_options(update)),
            _ if replaying => {}
            kind => {
                let kind = kind.unwrap_or_default().to_owned();
                match valid::update(params) {
                    Some((typed, told)) => lock(&self.client.relay).other(typed, told),
                    None => {
                        let kind = self.connection.hide_secrets(&kind);
                        tracing::debug!(agent = %self.client.agent.name, kind, "an update that the protocol does not know")
                    }
                }
            }
        }
    }

    fn admit_request(&self, method: &str, bytes: usize) -> Result<(), RpcError> {
        let reason = lock(&self.client.relay).count_request(method, bytes);
        reason.map_or(Ok(()), |reason| Err(RpcError::new(-32603, reason)))
    }

    fn answer(
        self: Arc<Self>,
        method: String,
        params: Value,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async move { client_methods::answer(&self.client, &method, params, &cancel).await })
    }

    fn page_done(&self, id: &str) {
        self.client.page_done(id);
    }

    /// Releases the terminals and the offered MCP server after the process has ended.
    fn handle_exit(&self) {
        lock(&self.client.terminals).clear();
        // Processes that the agent left behind must not reach the MCP server any more.
        *lock(&self.offered_server) = None;
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

impl Drop for AcpSessionHandle {
    /// Ends what the agent began after its last turn, if the Skein session is closed. A session that continues has
    /// another reason: its agent has ended, or its turns were undone.
    fn drop(&mut self) {
        let client = &self.0.client;
        if client.binding().is_some_and(|bound| bound.session.lifetime().has_ended()) {
            lock(&client.relay).end("the session was closed", false);
        }
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
        self.0.client.rebind(binding, asker);
    }

    fn turn<'a>(
        &'a self,
        prompt: Vec<Content>,
        notifier: Arc<dyn Notifier>,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, TurnEnd> {
        Box::pin(self.0.run(prompt, notifier, cancel))
    }

    fn finish_last_turn(&self) {
        lock(&self.0.client.relay).end("the turn had ended", true);
    }

    fn options(&self) -> Vec<Value> {
        lock(&self.0.advertised).options()
    }

    fn commands(&self) -> Vec<Value> {
        lock(&self.0.advertised).commands()
    }

    fn has_command(&self, name: &str) -> bool {
        lock(&self.0.advertised).commands().iter().any(|command| command["name"] == name)
    }

    fn choose(&self, option: String, value: Value) -> BoxFuture<'_, Result<(), ExternalOptionError>> {
        Box::pin(async move {
            let agent = || self.0.client.agent.name.clone();
            let choosing = lock(&self.0.advertised).option_request(&option, value.clone());
            let choosing = choosing.ok_or_else(|| ExternalOptionError::Unknown { agent: agent(), option })?;
            let mut params = choosing.params;
            params.insert("sessionId".to_owned(), json!(self.0.id()));
            let is_mode = params.contains_key("modeId");
            let asking = self.0.connection.request(choosing.method, Value::Object(params));
            let answer = tokio::time::timeout(OPTION_TIMEOUT, asking).await;
            let answer = answer.map_err(|_| ExternalOptionError::Timeout { agent: agent() })?;
            let answer =
                answer.map_err(|error| ExternalOptionError::Refused { agent: agent(), reason: error.message })?;
            self.0.change(|options| if is_mode { options.set_mode(&value) } else { options.set_options(&answer) });
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

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
