//! Forwards the messages of an editor to a server elsewhere, over connections that may be lost: lines in, lines out.
//!
//! After a lost connection the relay initializes again, loads the editor's sessions and shows what the editor missed.
//! The caller connects and carries the messages.
//!
//! Invariant: each update reaches the editor once and in order, however many connections it takes. Each request of the
//! editor gets one response.

mod ledger;
mod questions;
mod reconnect;
mod terminals;

pub use terminals::{TerminalCall, TerminalCallRequest, TerminalCallRequestError, TerminalCreation, TerminalReply};

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::errors::BUSY;
use super::updates::TURN_ENDED;
use ledger::SessionLedger;
use questions::{EditorQuestion, SentAnswer};
use reconnect::TurnOutcome;

/// Error code of a request whose outcome is unknown.
const INTERNAL_ERROR: i64 = -32603;
/// Largest message that the server takes.
const MAX_MESSAGE: usize = 16 << 20;
/// Bytes of the editor's lines that wait for a connection.
const MAX_HELD: usize = 32 << 20;

/// A message that the caller must send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayOutput {
    Editor(String),
    Server(String),
    /// A request of the server that the caller answers, not the editor.
    Terminal(TerminalCall),
    /// The server refuses the editor. No further connection can help.
    Refused(String),
}

/// The state between an editor and the connections to its server.
#[derive(Debug, Default)]
pub struct EditorRelay {
    link: LinkState,
    /// Parameters of the editor's `initialize`.
    initialize: Option<Value>,
    /// Lines of the editor that wait for a connection.
    held: VecDeque<String>,
    held_bytes: usize,
    /// Requests of the editor without a response, in order.
    pending: Vec<EditorRequest>,
    sessions: BTreeMap<String, RelaySession>,
    /// Requests of the server that the editor has not answered, by the id that the editor knows.
    questions: BTreeMap<u64, EditorQuestion>,
    /// Answers of the editor that a lost connection may not have delivered.
    answers: Vec<SentAnswer>,
    next_question: u64,
    next_request: u64,
    /// The caller runs the commands of the server.
    runs_terminals: bool,
    output: Vec<RelayOutput>,
}

/// How far a connection is.
#[derive(Debug, Default, PartialEq, Eq)]
enum LinkState {
    #[default]
    Lost,
    /// The relay has initialized again and waits for the response with this id.
    Initializing(String),
    /// Some sessions are loading.
    Loading,
    Ready,
}

/// A request of the editor.
#[derive(Debug)]
struct EditorRequest {
    id: Value,
    method: String,
    params: Value,
    line: String,
    /// A prompt whose turn was started on a lost connection: its end arrives as a notification.
    adopted: bool,
    /// The session before the request, which a failed load leaves as it was.
    before: Option<RelaySession>,
}

/// A session that is open in the editor.
#[derive(Debug, Clone, Default)]
struct RelaySession {
    /// Parameters to load it again.
    params: Value,
    ledger: SessionLedger,
    /// A load of the session that the relay waits for.
    loading: Option<SessionReload>,
}

#[derive(Debug, Clone)]
struct SessionReload {
    /// The id of the relay's request.
    id: String,
    purpose: LoadPurpose,
    /// The messages of the session that arrived since then.
    messages: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadPurpose {
    /// The connection was lost.
    Reconnect,
    /// The editor resumes the session: it wants no replay, but the relay must know the past.
    Resume,
}

impl EditorRelay {
    /// Returns true if no request of the editor waits for a response.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.held.is_empty()
    }

    /// Begins with a new connection. Returns what must be sent.
    pub fn connect(&mut self) -> Vec<RelayOutput> {
        match self.initialize.clone() {
            Some(params) => {
                let pending = self.pending.iter().find(|request| request.method == "initialize");
                // The server's first response is for the editor if the editor still waits for it.
                let id = match pending.map(|request| request.id.clone()) {
                    Some(id) => {
                        self.link = LinkState::Initializing(id.to_string());
                        id
                    }
                    None => {
                        let id = self.own_id();
                        self.link = LinkState::Initializing(json!(id).to_string());
                        json!(id)
                    }
                };
                self.send_request(&id, "initialize", &params);
            }
            None => self.make_ready(),
        }
        self.take_output()
    }

    /// Ends a connection that is lost.
    pub fn disconnect(&mut self) {
        self.link = LinkState::Lost;
        self.lose_questions();
        for session in self.sessions.values_mut() {
            session.loading = None;
        }
    }

    /// Takes a line of the editor. Returns what must be sent.
    pub fn receive_from_editor(&mut self, line: &str) -> Vec<RelayOutput> {
        // Until the sessions are back, everything waits.
        match self.link {
            LinkState::Ready => self.forward_to_server(line),
            _ => self.hold(line),
        }
        self.take_output()
    }

    /// Takes a message of the server. Returns what must be sent.
    pub fn receive_from_server(&mut self, text: &str) -> Vec<RelayOutput> {
        match serde_json::from_str::<Value>(text) {
            Ok(message) if message.is_object() => match (message.get("method"), message.get("id")) {
                (Some(_), _) => self.receive_call(message, text),
                (None, Some(id)) => self.receive_response(id, &message, text),
                (None, None) => self.show(text.to_owned()),
            },
            _ => self.show(text.to_owned()),
        }
        self.take_output()
    }

    /// Cancels the turns of the editor's prompts, because the editor is gone. Returns what must be sent.
    pub fn cancel_turns(&mut self) -> Vec<RelayOutput> {
        let prompts = self.pending.iter().filter(|request| request.method == "session/prompt");
        let ids: Vec<Value> = prompts.map(|request| request.params["sessionId"].clone()).collect();
        for id in ids {
            self.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": id}}));
        }
        self.take_output()
    }

    /// Answers everything that is open with an error, because there will be no connection any more.
    pub fn give_up(&mut self, problem: &str) -> Vec<RelayOutput> {
        self.held_bytes = 0;
        let held: Vec<_> = self.held.drain(..).filter_map(|line| serde_json::from_str::<Value>(&line).ok()).collect();
        let held =
            held.iter().filter(|message| message.get("method").is_some()).filter_map(|message| message.get("id"));
        let ids: Vec<_> = self.pending.drain(..).map(|request| request.id).chain(held.cloned()).collect();
        ids.iter().for_each(|id| self.fail(id, problem));
        self.take_output()
    }

    fn take_output(&mut self) -> Vec<RelayOutput> {
        std::mem::take(&mut self.output)
    }

    fn show(&mut self, line: String) {
        self.output.push(RelayOutput::Editor(line));
    }

    fn send(&mut self, message: &Value) {
        self.output.push(RelayOutput::Server(message.to_string()));
    }

    fn send_request(&mut self, id: &Value, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn respond(&mut self, id: &Value, result: &Value) {
        self.show(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    }

    fn fail(&mut self, id: &Value, problem: &str) {
        let error = json!({"code": INTERNAL_ERROR, "message": problem});
        self.show(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
    }

    /// Returns an id that no request of the editor has.
    fn own_id(&mut self) -> String {
        self.next_request += 1;
        format!("skein-connect-{}", self.next_request)
    }

    // Lines of the editor.

    fn forward_to_server(&mut self, line: &str) {
        if line.len() > MAX_MESSAGE {
            return self.refuse_line(line);
        }
        let message = match serde_json::from_str::<Value>(line) {
            Ok(message) if message.is_object() => message,
            // The server says what is wrong.
            _ => return self.output.push(RelayOutput::Server(line.to_owned())),
        };
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        match (message["method"].as_str(), message.get("id").filter(|id| !id.is_null())) {
            (Some(method), Some(id)) => self.forward_request(id.clone(), method.to_owned(), params, line),
            (Some("$/cancel_request"), None) => self.forward_cancel(&params, line),
            (None, Some(id)) => self.forward_answer(&id.clone(), message),
            _ => self.output.push(RelayOutput::Server(line.to_owned())),
        }
    }

    /// Refuses a line that the server would not take. It would close the connection, and each one after it.
    fn refuse_line(&mut self, line: &str) {
        let message = serde_json::from_str::<Value>(line).unwrap_or_default();
        let problem = format!("the message has {} bytes; the server takes at most {MAX_MESSAGE}", line.len());
        match (message.get("method"), message.get("id")) {
            (Some(_), Some(id)) => self.fail(&id.clone(), &problem),
            (None, Some(id)) => {
                let error = json!({"code": INTERNAL_ERROR, "message": problem});
                self.forward_answer(&id.clone(), json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            _ => {}
        }
    }

    fn forward_request(&mut self, id: Value, method: String, params: Value, line: &str) {
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let mut before = None;
        let mut is_sent = false;
        match method.as_str() {
            "initialize" => {
                let mut announced = params.clone();
                self.announce_terminals(&mut announced);
                is_sent = announced != params;
                if is_sent {
                    self.send_request(&id, "initialize", &announced);
                }
                self.initialize = Some(announced);
            }
            "session/load" => {
                let fresh = RelaySession { params: load_params(&session, &params), ..RelaySession::default() };
                before = self.sessions.insert(session, fresh);
            }
            "session/resume" => {
                let own = self.own_id();
                let load = load_params(&session, &params);
                self.send_request(&json!(own), "session/load", &load);
                is_sent = true;
                let loading = SessionReload { id: own, purpose: LoadPurpose::Resume, messages: Vec::new() };
                let fresh = RelaySession { params: load, loading: Some(loading), ..RelaySession::default() };
                before = self.sessions.insert(session, fresh);
            }
            "session/prompt" => {
                // A second prompt of a busy session is refused and leaves no trace.
                let is_busy = self.prompt_of(&session).is_some();
                if let Some(session) = self.sessions.get_mut(&session).filter(|_| !is_busy) {
                    session.ledger.add_prompt(&params["prompt"]);
                }
            }
            _ => {}
        }
        if !is_sent {
            self.output.push(RelayOutput::Server(line.to_owned()));
        }
        self.pending.push(EditorRequest { id, method, params, line: line.to_owned(), adopted: false, before });
    }

    /// Forwards the withdrawal of a request. The server does not know a prompt that came on a lost connection by its id.
    fn forward_cancel(&mut self, params: &Value, line: &str) {
        let adopted = self.pending.iter().find(|request| request.id == params["requestId"] && request.adopted);
        match adopted.map(|request| request.params["sessionId"].clone()) {
            Some(id) => self.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": id}})),
            None => self.output.push(RelayOutput::Server(line.to_owned())),
        }
    }

    // Messages of the server.

    fn receive_call(&mut self, message: Value, text: &str) {
        let session = message["params"]["sessionId"].as_str().unwrap_or_default();
        if let Some(loading) = self.sessions.get_mut(session).and_then(|session| session.loading.as_mut()) {
            return loading.messages.push(message);
        }
        let method = message["method"].as_str().unwrap_or_default();
        match (method, message.get("id")) {
            (_, Some(_)) if self.take_terminal_call(&message) => {}
            (_, Some(_)) => self.receive_question(&message),
            ("session/update", None) => self.receive_update(message, text),
            (TURN_ENDED, None) => self.receive_end(&message, text),
            ("$/cancel_request", None) => self.withdraw_question(&message["params"]["requestId"]),
            _ => self.show(text.to_owned()),
        }
    }

    fn receive_update(&mut self, mut message: Value, text: &str) {
        let id = message["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        let is_prompting = self.prompt_of(&id).is_some();
        // Child sessions are not loaded again, so nothing of them arrives twice.
        let Some(session) = self.sessions.get_mut(&id) else { return self.show(text.to_owned()) };
        let update = &message["params"]["update"];
        match session.ledger.accept(update, is_prompting) {
            Some(shown) if shown == *update => self.show(text.to_owned()),
            Some(shown) => {
                message["params"]["update"] = shown;
                self.show(message.to_string());
            }
            None => {}
        }
    }

    /// Answers the editor's prompt with the end of a turn. The end of another client's turn is passed on.
    fn receive_end(&mut self, message: &Value, text: &str) {
        let params = &message["params"];
        let session = params["sessionId"].as_str().unwrap_or_default();
        match self.prompt_of(session).filter(|at| self.pending[*at].adopted) {
            Some(at) => {
                let end = TurnOutcome::of_end(params);
                self.finish_prompt(at, &end);
            }
            None => self.show(text.to_owned()),
        }
    }

    /// Responds to a prompt whose turn has ended.
    fn finish_prompt(&mut self, at: usize, end: &TurnOutcome) {
        let request = self.pending.remove(at);
        self.end_turn(request.params["sessionId"].as_str().unwrap_or_default());
        match (&end.stop_reason, &end.problem) {
            (Some(reason), _) => self.respond(&request.id, &json!({"stopReason": reason})),
            (None, Some(problem)) => self.fail(&request.id, problem),
            (None, None) => self.fail(
                &request.id,
                "the connection to the server was lost, and the turn ended before it was back; its outcome is unknown",
            ),
        }
    }

    fn receive_response(&mut self, id: &Value, message: &Value, text: &str) {
        if self.link == LinkState::Initializing(id.to_string()) {
            if self.pending.iter().all(|request| request.id != *id) {
                return self.finish_initialize(message);
            }
            self.finish_request(id, message, text);
            return self.load_sessions();
        }
        let loading = self.sessions.iter().find(|(_, session)| {
            session.loading.as_ref().is_some_and(|loading| id.as_str() == Some(loading.id.as_str()))
        });
        match loading.map(|(session, _)| session.clone()) {
            Some(session) => self.finish_load(&session, message),
            None => self.finish_request(id, message, text),
        }
    }

    /// Passes on the response to a request of the editor, and notes what it changes.
    fn finish_request(&mut self, id: &Value, message: &Value, text: &str) {
        let Some(at) = self.pending.iter().position(|request| request.id == *id) else {
            return self.show(text.to_owned());
        };
        if self.pending[at].adopted {
            // A prompt was sent again while its turn was running already.
            if message["error"]["data"]["reason"] == BUSY {
                return;
            }
        }
        let request = self.pending.remove(at);
        let session = request.params["sessionId"].as_str().unwrap_or_default();
        let is_done = message.get("result").is_some();
        match request.method.as_str() {
            "session/new" if is_done => self.add_session(&message["result"]["sessionId"], &request.params, None),
            "session/fork" if is_done => {
                let past = self.sessions.get(session).map(|source| source.ledger.clone());
                self.add_session(&message["result"]["sessionId"], &request.params, past);
            }
            "session/load" if !is_done => self.restore(session, request.before),
            "session/close" | "session/delete" if is_done => {
                self.sessions.remove(session);
            }
            // The refusal of a second prompt ends nothing.
            "session/prompt" if self.prompt_of(session).is_none() => self.end_turn(session),
            _ => {}
        }
        self.show(text.to_owned());
    }

    fn add_session(&mut self, id: &Value, params: &Value, past: Option<SessionLedger>) {
        let Some(id) = id.as_str() else { return };
        let ledger = past.unwrap_or_default();
        self.sessions.insert(id.to_owned(), RelaySession { params: load_params(id, params), ledger, loading: None });
    }

    /// Puts a session back as it was before a request that failed.
    fn restore(&mut self, id: &str, before: Option<RelaySession>) {
        match before {
            Some(before) => drop(self.sessions.insert(id.to_owned(), before)),
            None => drop(self.sessions.remove(id)),
        }
    }

    /// Keeps a line until there is a connection. Beyond [`MAX_HELD`], a request gets an error, and other lines are lost.
    fn hold(&mut self, line: &str) {
        if self.held_bytes + line.len() <= MAX_HELD {
            self.held_bytes += line.len();
            return self.held.push_back(line.to_owned());
        }
        let message = serde_json::from_str::<Value>(line).unwrap_or_default();
        match (message.get("method"), message.get("id")) {
            (Some(_), Some(id)) => {
                let held = MAX_HELD >> 20;
                self.fail(id, &format!("the server is away, and {held} MiB of messages wait: send it again later"));
            }
            _ => tracing::warn!(bytes = line.len(), "a message for a server that is away is dropped"),
        }
    }

    fn make_ready(&mut self) {
        self.link = LinkState::Ready;
        self.held_bytes = 0;
        while let Some(line) = self.held.pop_front() {
            self.forward_to_server(&line);
        }
    }

    /// Returns the position of the editor's prompt of a session.
    fn prompt_of(&self, session: &str) -> Option<usize> {
        self.request_of("session/prompt", session)
    }

    fn request_of(&self, method: &str, session: &str) -> Option<usize> {
        let is_it = |request: &EditorRequest| request.method == method && request.params["sessionId"] == session;
        self.pending.iter().position(is_it)
    }
}

/// Returns the parameters that load a session, from those that opened it.
fn load_params(id: &str, params: &Value) -> Value {
    let mut load = json!({"sessionId": id, "cwd": params["cwd"], "mcpServers": params["mcpServers"]});
    if let Some(folders) = params.get("additionalDirectories") {
        load["additionalDirectories"] = folders.clone();
    }
    if load["mcpServers"].is_null() {
        load["mcpServers"] = json!([]);
    }
    load
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
