//! How the test server answers the first request of a client, with `--discover`.

use serde_json::{Value, json};

use super::{answer, complain, crash, refuse, send};

/// Answers the question for its versions. `how` is `newer`, `mute`, `exit`, the result in JSON, or `both` and
/// `both-newer`, with tools that ask only in the older or in the newer era. Without it the server is of the older era.
pub(crate) fn discover(how: Option<&str>, id: &Value, capabilities: &Value) {
    match how {
        None => refuse(id, -32601, "method not found: server/discover"),
        Some("newer") => answer(id, discovered(&["2026-07-28"], capabilities)),
        Some("both" | "both-newer") => answer(id, discovered(&["2026-07-28", "2025-11-25"], capabilities)),
        Some("mute") => {}
        Some("exit") => {
            complain("the first message must be `initialize`");
            crash();
        }
        Some(result) => {
            let result: Value = serde_json::from_str(result).unwrap_or_else(|_| json!(result));
            send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
        }
    }
}

fn discovered(versions: &[&str], capabilities: &Value) -> Value {
    let mut result = json!({"supportedVersions": versions, "capabilities": capabilities, "ttlMs": 0});
    result["cacheScope"] = json!("private");
    result["_meta"] = json!({"io.modelcontextprotocol/serverInfo": {"name": "skein-mcp-echo", "version": "0"}});
    result
}

/// The answer to the handshake of the older era.
pub(crate) fn initialize(id: &Value, capabilities: &Value) {
    let result = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "serverInfo": {"name": "skein-mcp-echo", "version": "0"},
        "instructions": "Call echo to hear yourself.",
    });
    answer(id, result);
}
