//! Commands of the server for this machine. The relay announces that it runs them in a sandbox, and takes the server's
//! terminal requests itself. The editor gets none of them.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{EditorRelay, INTERNAL_ERROR, RelayOutput};
use crate::acp::editor::SANDBOX_TERMINAL;

/// A terminal request of the server, which the caller answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalCall {
    pub id: Value,
    pub method: String,
    pub params: Value,
    /// The folders of the session on this machine. The first is its working directory.
    pub folders: Vec<PathBuf>,
}

impl TerminalCall {
    /// Returns the message that answers the call.
    pub fn answer(&self, result: &Value) -> String {
        json!({"jsonrpc": "2.0", "id": self.id, "result": result}).to_string()
    }

    /// Returns the message that refuses the call.
    pub fn refuse(&self, problem: &str) -> String {
        let error = json!({"code": INTERNAL_ERROR, "message": problem});
        json!({"jsonrpc": "2.0", "id": self.id, "error": error}).to_string()
    }
}

impl EditorRelay {
    /// Creates a relay whose caller runs the commands of the server.
    pub fn with_terminals() -> Self {
        Self { runs_terminals: true, ..Self::default() }
    }

    /// Adds to the parameters of `initialize` that commands run here in a sandbox.
    pub(super) fn announce_terminals(&self, params: &mut Value) {
        if !self.runs_terminals || !params.is_object() {
            return;
        }
        let capabilities = &mut params["clientCapabilities"];
        if !capabilities.is_object() {
            *capabilities = json!({});
        }
        capabilities["terminal"] = json!(true);
        if !capabilities["_meta"].is_object() {
            capabilities["_meta"] = json!({});
        }
        capabilities["_meta"][SANDBOX_TERMINAL] = json!(true);
    }

    /// Takes a terminal request of the server. Returns false if the message is another request.
    pub(super) fn take_terminal_call(&mut self, message: &Value) -> bool {
        let method = message["method"].as_str().unwrap_or_default();
        if !self.runs_terminals || !method.starts_with("terminal/") {
            return false;
        }
        let params = message["params"].clone();
        let session = params["sessionId"].as_str().and_then(|id| self.sessions.get(id));
        let folders = session.map(|session| folders(&session.params)).unwrap_or_default();
        let call = TerminalCall { id: message["id"].clone(), method: method.to_owned(), params, folders };
        self.output.push(RelayOutput::Terminal(call));
        true
    }
}

/// Returns the folders that the editor gave a session.
fn folders(params: &Value) -> Vec<PathBuf> {
    let additional = params["additionalDirectories"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all = std::iter::once(&params["cwd"]).chain(additional);
    all.filter_map(Value::as_str).map(PathBuf::from).collect()
}
