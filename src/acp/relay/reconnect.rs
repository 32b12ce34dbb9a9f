//! What happens after a lost connection: the relay loads the editor's sessions and continues its requests.

use serde_json::{Value, json};

use super::{EditorRelay, EditorRequest, LinkState, LoadPurpose, RelayOutput, SessionReload};
use crate::acp::updates::{TURN_ENDED, TURN_STATE};

impl EditorRelay {
    pub(super) fn finish_initialize(&mut self, message: &Value) {
        match message["error"]["message"].as_str() {
            Some(problem) => self.output.push(RelayOutput::Refused(problem.to_owned())),
            None => self.load_sessions(),
        }
    }

    /// Loads the editor's sessions on a new connection.
    pub(super) fn load_sessions(&mut self) {
        self.link = LinkState::Loading;
        let ids: Vec<String> = self.sessions.keys().cloned().collect();
        for id in ids {
            let own = self.own_id();
            let resumes = self.request_of("session/resume", &id).is_some();
            let purpose = if resumes { LoadPurpose::Resume } else { LoadPurpose::Reconnect };
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            session.loading = Some(SessionReload { id: own.clone(), purpose, messages: Vec::new() });
            let params = session.params.clone();
            self.send_request(&json!(own), "session/load", &params);
        }
        self.finish_loading();
    }

    /// Shows what the editor missed of a session, and continues its requests.
    pub(super) fn finish_load(&mut self, id: &str, message: &Value) {
        let Some(loading) = self.sessions.get_mut(id).and_then(|session| session.loading.take()) else { return };
        let resume = self.request_of("session/resume", id);
        if let Some(error) = message.get("error") {
            self.fail_session(id, error);
            return self.finish_loading();
        }
        let is_update = |message: &Value| message["method"] == "session/update";
        let (updates, others): (Vec<Value>, Vec<Value>) = loading.messages.into_iter().partition(is_update);
        let updates: Vec<Value> = updates.into_iter().map(|mut message| message["params"]["update"].take()).collect();
        let is_prompting = self.prompt_of(id).is_some();
        let Some(session) = self.sessions.get_mut(id) else { return };
        match loading.purpose {
            LoadPurpose::Resume => session.ledger.swallow(&updates),
            LoadPurpose::Reconnect => {
                for update in session.ledger.reconcile(&updates, is_prompting) {
                    let params = json!({"sessionId": id, "update": update});
                    self.output.push(RelayOutput::Editor(
                        json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string(),
                    ));
                }
            }
        }
        // A load of the editor, if it has not had its response.
        let load = resume.or_else(|| self.request_of("session/load", id));
        if let Some(at) = load {
            let request = self.pending.remove(at);
            self.respond(&request.id, &message["result"]);
        }
        // Otherwise the editor resumes the session, and its prompt was sent on this connection.
        if self.link == LinkState::Loading {
            self.go_on_with_prompt(id, &TurnOutcome::of_load(&message["result"]), &others);
        }
        for message in others {
            let text = message.to_string();
            self.receive_call(message, &text);
        }
        self.finish_loading();
    }

    /// Decides what became of a prompt that was sent on a lost connection.
    fn go_on_with_prompt(&mut self, id: &str, state: &TurnOutcome, messages: &[Value]) {
        let Some(at) = self.prompt_of(id) else { return };
        let ends = messages.iter().any(|message| message["method"] == TURN_ENDED);
        let has_prompt = self.sessions.get(id).is_some_and(|session| session.ledger.has_received_prompt());
        let text = self.pending[at].params["prompt"][0]["text"].as_str().unwrap_or_default().trim_start().to_owned();
        if ends || state.is_running {
            self.pending[at].adopted = true;
        } else if has_prompt {
            self.finish_prompt(at, state);
        } else if text.is_empty() || text.starts_with('/') {
            // Commands leave no trace in the history.
            self.finish_prompt(at, &TurnOutcome::default());
        } else {
            // If the server has it nevertheless, it refuses this one as the second and shows the end of the first.
            self.pending[at].adopted = true;
            let line = self.pending[at].line.clone();
            self.output.push(RelayOutput::Server(line));
        }
    }

    /// Ends a session that cannot be loaded again. Its requests get the error.
    fn fail_session(&mut self, id: &str, error: &Value) {
        let is_of_session = |request: &EditorRequest| {
            let is_repeated = matches!(request.method.as_str(), "session/prompt" | "session/load" | "session/resume");
            is_repeated && request.params["sessionId"] == id
        };
        let (failed, kept) = std::mem::take(&mut self.pending).into_iter().partition(is_of_session);
        self.pending = kept;
        let failed: Vec<EditorRequest> = failed;
        self.end_turn(id);
        self.sessions.remove(id);
        for request in failed {
            self.show(json!({"jsonrpc": "2.0", "id": request.id, "error": error}).to_string());
            if let Some(before) = request.before {
                self.sessions.insert(id.to_owned(), before);
            }
        }
    }

    /// Once no session is loading, repeats requests and takes the lines that waited.
    fn finish_loading(&mut self) {
        let is_loading = self.sessions.values().any(|session| session.loading.is_some());
        if is_loading || self.link != LinkState::Loading {
            return;
        }
        let mut at = 0;
        while at < self.pending.len() {
            let request = &self.pending[at];
            let (method, line) = (request.method.clone(), request.line.clone());
            if request.method == "session/prompt" {
                at += 1;
            } else if is_repeatable(&method) {
                self.output.push(RelayOutput::Server(line));
                at += 1;
            } else {
                let request = self.pending.remove(at);
                self.fail(
                    &request.id,
                    &format!(
                        "the connection to the server was lost before it answered `{method}`; it may have happened, so \
                         Skein does not repeat it"
                    ),
                );
            }
        }
        self.make_ready();
    }
}

/// What is known about the last turn of a session.
#[derive(Debug, Default)]
pub(super) struct TurnOutcome {
    pub(super) is_running: bool,
    pub(super) stop_reason: Option<String>,
    pub(super) problem: Option<String>,
}

impl TurnOutcome {
    /// Reads the state from the response to a load.
    fn of_load(result: &Value) -> Self {
        let turn = &result["_meta"][TURN_STATE];
        Self { is_running: turn["running"] == true, ..Self::of_end(turn) }
    }

    /// Reads the end of a turn.
    pub(super) fn of_end(params: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self { is_running: false, stop_reason: text(&params["stopReason"]), problem: text(&params["error"]["message"]) }
    }
}

/// Returns true for requests that have the same effect if the server gets them twice.
fn is_repeatable(method: &str) -> bool {
    matches!(
        method,
        "session/list" | "session/set_mode" | "session/set_config_option" | "session/close" | "authenticate" | "logout"
    )
}
