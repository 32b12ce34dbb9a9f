//! Commands of the server for this machine. The relay announces that it runs them in a sandbox, and takes the server's
//! terminal requests itself. The editor gets none of them.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{EditorRelay, INTERNAL_ERROR, RelayOutput};
use crate::acp::editor::{SANDBOX, SANDBOX_TERMINAL};
use crate::tool::editor::{TerminalExit, TerminalSandboxRequest};

/// A terminal request of the server, which the caller answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalCall {
    pub id: Value,
    pub method: String,
    pub params: Value,
    /// The folders of the session on this machine. The first is its working directory.
    pub folders: Vec<PathBuf>,
}

/// What the server asks for. The texts are ids of terminals.
#[derive(Debug)]
pub enum TerminalCallRequest {
    Create(Box<TerminalCreation>),
    Output(String),
    WaitForExit(String),
    Kill(String),
    Release(String),
}

/// A command that the server wants to run here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminalCreation {
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<TerminalVariable>,
    pub cwd: Option<PathBuf>,
    pub output_byte_limit: Option<u64>,
    #[serde(skip)]
    pub sandbox: Option<TerminalSandboxRequest>,
}

/// An environment variable of a command.
#[derive(Debug, Deserialize)]
pub struct TerminalVariable {
    pub name: String,
    pub value: String,
}

/// The answer to a request.
#[derive(Debug)]
pub enum TerminalReply {
    /// The id of the new terminal.
    Created(String),
    Output {
        text: String,
        truncated: bool,
        exit: Option<TerminalExit>,
    },
    Exit(TerminalExit),
    Done,
}

/// Why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TerminalCallRequestError {
    #[error("`{0}` is not a request that Skein knows")]
    Method(String),
    #[error("the request cannot be read: {0}")]
    Params(#[from] serde_json::Error),
}

fn exit_json(exit: &TerminalExit) -> Value {
    json!({"exitCode": exit.code, "signal": exit.signal})
}

impl TerminalCall {
    /// Returns what the server asks for. Fails if the call cannot be read.
    pub fn request(&self) -> Result<TerminalCallRequest, TerminalCallRequestError> {
        let terminal = || self.params["terminalId"].as_str().unwrap_or_default().to_owned();
        Ok(match self.method.as_str() {
            "terminal/create" => {
                let mut creation: TerminalCreation = serde_json::from_value(self.params.clone())?;
                let sandbox = self.params["_meta"].get(SANDBOX).cloned();
                creation.sandbox = sandbox.map(serde_json::from_value).transpose()?;
                TerminalCallRequest::Create(Box::new(creation))
            }
            "terminal/output" => TerminalCallRequest::Output(terminal()),
            "terminal/wait_for_exit" => TerminalCallRequest::WaitForExit(terminal()),
            "terminal/kill" => TerminalCallRequest::Kill(terminal()),
            "terminal/release" => TerminalCallRequest::Release(terminal()),
            other => return Err(TerminalCallRequestError::Method(other.to_owned())),
        })
    }

    /// Returns the message that answers the call.
    pub fn answer(&self, reply: &TerminalReply) -> String {
        let result = match reply {
            TerminalReply::Created(id) => json!({"terminalId": id}),
            TerminalReply::Output { text, truncated, exit } => {
                json!({"output": text, "truncated": truncated, "exitStatus": exit.as_ref().map(exit_json)})
            }
            TerminalReply::Exit(exit) => exit_json(exit),
            TerminalReply::Done => json!({}),
        };
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
