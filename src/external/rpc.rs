//! Defines errors of JSON-RPC requests, and the client methods that an external agent may call.

use serde_json::Value;

/// All client methods that Skein implements.
pub(super) const CLIENT_METHODS: [&str; 9] = [
    "fs/read_text_file",
    "fs/write_text_file",
    "terminal/create",
    "terminal/output",
    "terminal/wait_for_exit",
    "terminal/kill",
    "terminal/release",
    "session/request_permission",
    "elicitation/create",
];

/// The client method that writes a file.
pub(super) const WRITE_METHOD: &str = "fs/write_text_file";
/// Client methods that use an existing terminal. Skein neither stores nor shows such a request.
pub(super) const TERMINAL_METHODS: [&str; 4] =
    ["terminal/output", "terminal/wait_for_exit", "terminal/kill", "terminal/release"];

/// The error reply to a request, or the reason why no reply arrived.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl RpcError {
    /// Code of [`RpcError::process_exit`]; the protocol does not define it.
    const PROCESS_EXIT: i64 = 1;

    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn process_exit(reason: impl Into<String>) -> Self {
        Self::new(Self::PROCESS_EXIT, reason)
    }

    /// Returns true if the process has ended, so that no reply can arrive.
    pub(super) fn is_process_exit(&self) -> bool {
        self.code == Self::PROCESS_EXIT
    }
}
