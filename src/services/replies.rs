//! Matches unreadable answers of an MCP server to their requests, so that each request fails at once instead of
//! after its time limit.
//!
//! Invariant: a line that does not look like a JSON-RPC answer, such as a banner, fails no request.

use std::collections::{HashSet, VecDeque};

use rmcp::RoleClient;
use rmcp::model::{ClientNotification, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use serde_json::{Value, json};

/// The requests that a server has not answered yet.
#[derive(Debug, Default)]
pub(super) struct PendingRequests(HashSet<RequestId>);

impl PendingRequests {
    /// Tracks a message to the server.
    pub(super) fn note_request(&mut self, message: &TxJsonRpcMessage<RoleClient>) {
        match message {
            JsonRpcMessage::Request(request) => {
                self.0.insert(request.id.clone());
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.0.remove(id);
                }
            }
            _ => {}
        }
    }

    /// Tracks a message from the server.
    pub(super) fn note_answer(&mut self, message: &RxJsonRpcMessage<RoleClient>) {
        match message {
            JsonRpcMessage::Response(response) => {
                self.0.remove(&response.id);
            }
            JsonRpcMessage::Error(error) => {
                if let Some(id) = &error.id {
                    self.0.remove(id);
                }
            }
            _ => {}
        }
    }

    /// Returns errors for the requests that an unreadable line was meant to answer.
    pub(super) fn fail_requests(&mut self, line: &[u8], reason: &str) -> VecDeque<RxJsonRpcMessage<RoleClient>> {
        let failed = requests_of(line, &self.0);
        self.0.retain(|id| !failed.contains(id));
        failed.iter().filter_map(|id| serde_json::from_value(error_for(id, reason)).ok()).collect()
    }
}

/// Returns a JSON-RPC error for an unreadable answer.
pub(super) fn error_for(id: &RequestId, reason: &str) -> Value {
    let message = format!("the answer of the server cannot be read: {reason}");
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": message}})
}

/// Returns the pending requests that an unreadable line may have been meant to answer.
pub(super) fn requests_of(line: &[u8], pending: &HashSet<RequestId>) -> Vec<RequestId> {
    let all = || pending.iter().cloned().collect();
    match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(message)) if message.contains_key("method") => Vec::new(),
        Ok(Value::Object(message)) => match message.get("id").map(|id| serde_json::from_value::<RequestId>(id.clone()))
        {
            Some(Ok(id)) => pending.get(&id).cloned().into_iter().collect(),
            // The line answers some request without a usable id.
            _ if message.contains_key("result") || message.contains_key("error") => all(),
            _ => Vec::new(),
        },
        Ok(_) => Vec::new(),
        Err(_) => {
            let text = String::from_utf8_lossy(line);
            let is_message = text.trim_start().starts_with('{') && text.contains("\"jsonrpc\"");
            if !is_message || text.contains("\"method\"") {
                return Vec::new();
            }
            match ids_in(&text).find_map(|id| pending.get(&id).cloned()) {
                Some(id) => vec![id],
                None => all(),
            }
        }
    }
}

/// Returns the value after each `"id":` in a text that is not valid JSON.
fn ids_in(text: &str) -> impl Iterator<Item = RequestId> {
    text.match_indices("\"id\"").filter_map(|(at, name)| {
        let rest = text[at + name.len()..].trim_start().strip_prefix(':')?.trim_start();
        if let Some(quoted) = rest.strip_prefix('"') {
            return Some(RequestId::String(quoted.split_once('"')?.0.into()));
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
        rest[..digits].parse().ok().map(RequestId::Number)
    })
}

/// Reads a line of a server while two requests wait, for the fuzzer. Returns the number of errors, and of the requests
/// that no longer wait because of them.
#[cfg(any(test, fuzzing))]
pub fn count_failures(line: &[u8]) -> (usize, usize) {
    let waiting = HashSet::from([RequestId::Number(1), RequestId::String("x".into())]);
    let mut pending = PendingRequests(waiting.clone());
    if let Ok(message) = serde_json::from_slice::<RxJsonRpcMessage<RoleClient>>(line) {
        pending.note_answer(&message);
        return (0, 0);
    }
    let errors = pending.fail_requests(line, "a reason").len();
    (errors, waiting.len() - pending.0.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_an_answer_fails_a_request() {
        let pending = HashSet::from([RequestId::Number(3), RequestId::String("x".into())]);
        let failed = |line: &str| {
            let mut failed: Vec<_> = requests_of(line.as_bytes(), &pending).iter().map(ToString::to_string).collect();
            failed.sort();
            failed
        };
        for banner in [
            "Server listening on stdio",
            "{not JSON}",
            "[1, 2]",
            "{}",
            r#"{"level": "info", "id": 9}"#,
            r#"{"jsonrpc": "2.0", "method": "notifications/progress", "params""#,
            r#"{"jsonrpc": "2.0", "id": 9, "result": 1, "error": 2}"#,
        ] {
            assert_eq!(failed(banner), Vec::<String>::new(), "{banner}");
        }
        for line in [
            r#"{"jsonrpc": "2.0", "id": 3}"#,
            r#"{"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "te"#,
            r#"{"jsonrpc": "2.0", "result": {"id": 7, oops}, "id": 3}"#,
        ] {
            assert_eq!(failed(line), ["3"], "{line}");
        }
        assert_eq!(failed(r#"{"jsonrpc": "2.0", "id": "x", "result": nonsense}"#), ["x"]);
        assert_eq!(failed(r#"{"jsonrpc": "2.0", "result": {"content""#), ["3", "x"], "it may be either");
    }
}
