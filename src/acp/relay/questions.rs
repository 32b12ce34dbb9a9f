//! Questions of the server to the editor. A question has one id for the editor, and another one on each connection.

use serde_json::{Value, json};

use super::EditorRelay;

/// A request of the server to the editor.
#[derive(Debug)]
pub(super) struct EditorQuestion {
    /// Its id on this connection. `None` if it came on a lost one.
    server_id: Option<Value>,
    method: String,
    params: Value,
}

/// An answer of the editor to a question.
#[derive(Debug)]
pub(super) struct SentAnswer {
    method: String,
    params: Value,
    answer: Value,
    /// The connection to which it was sent is lost, or there was none.
    is_lost: bool,
}

impl EditorRelay {
    /// Notes that the connection is lost: open questions arrive again, and answers may not have arrived.
    pub(super) fn lose_questions(&mut self) {
        self.questions.values_mut().for_each(|question| question.server_id = None);
        self.answers.iter_mut().for_each(|sent| sent.is_lost = true);
        // Only questions to the user are asked again.
        self.questions.retain(|_, question| is_asked_again(&question.method));
    }

    /// Forwards the answer of the editor to a question. Drops the answer if the
    /// question is withdrawn.
    pub(super) fn forward_answer(&mut self, id: &Value, mut message: Value) {
        let Some(question) = id.as_u64().and_then(|id| self.questions.remove(&id)) else { return };
        let EditorQuestion { server_id, method, params } = question;
        let is_lost = server_id.is_none();
        if let Some(server_id) = server_id {
            message["id"] = server_id;
            self.send(&message);
        }
        if is_asked_again(&method) {
            self.answers.push(SentAnswer { method, params, answer: message, is_lost });
        }
    }

    /// Passes a question on to the editor, unless the editor has it already.
    pub(super) fn receive_question(&mut self, message: &Value) {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let (server_id, params) = (message["id"].clone(), message["params"].clone());
        if is_asked_again(&method) {
            let is_same = |known: &str, other: &Value| known == method && question_key(other) == question_key(&params);
            let open = self
                .questions
                .values_mut()
                .find(|open| open.server_id.is_none() && is_same(&open.method, &open.params));
            if let Some(open) = open {
                open.server_id = Some(server_id);
                return;
            }
            let sent = self.answers.iter_mut().find(|sent| sent.is_lost && is_same(&sent.method, &sent.params));
            if let Some(sent) = sent {
                sent.is_lost = false;
                sent.answer["id"] = server_id;
                let answer = sent.answer.clone();
                return self.send(&answer);
            }
        }
        let id = self.next_question;
        self.next_question += 1;
        self.show(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        self.questions.insert(id, EditorQuestion { server_id: Some(server_id), method, params });
    }

    pub(super) fn withdraw_question(&mut self, server_id: &Value) {
        let open = self.questions.iter().find(|(_, question)| question.server_id.as_ref() == Some(server_id));
        if let Some(id) = open.map(|(id, _)| *id) {
            self.withdraw(id);
        }
    }

    fn withdraw(&mut self, id: u64) {
        self.questions.remove(&id);
        let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}});
        self.show(cancel.to_string());
    }

    /// Withdraws questions that a lost connection left open, and forgets the answers of the turn.
    pub(super) fn end_turn(&mut self, session: &str) {
        let is_left =
            |question: &EditorQuestion| question.server_id.is_none() && question.params["sessionId"] == session;
        let left: Vec<u64> = self.questions.iter().filter(|(_, open)| is_left(open)).map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| self.withdraw(id));
        self.answers.retain(|sent| sent.params["sessionId"] != session);
    }
}

/// Returns true for questions that the server asks again on another connection.
fn is_asked_again(method: &str) -> bool {
    matches!(method, "session/request_permission" | "elicitation/create")
}

/// Returns what identifies a question on all connections.
fn question_key(params: &Value) -> Value {
    let mut key = params.clone();
    // A call that only the question shows has another id each time.
    if key["toolCall"]["toolCallId"].as_str().is_some_and(|id| id.starts_with("asked")) {
        key["toolCall"]["toolCallId"] = Value::Null;
    }
    if let Some(fields) = key.as_object_mut() {
        fields.retain(|name, _| name != "elicitationId");
    }
    key
}
