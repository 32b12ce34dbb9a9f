//! Answers malformed messages of an MCP client. The MCP library drops lines that it cannot read, and the client would
//! wait for an answer.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc::{Receiver, Sender};

/// Methods with a parameter that every request must have.
const REQUIRED: [(&str, &str); 3] = [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")];

/// Passes the client's lines on to `server` until the input ends. Sends an error to `replies` for a malformed one.
pub(super) async fn check(
    input: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    replies: Sender<Vec<u8>>,
) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line).await {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        let sent = match error_for(&line) {
            Some(error) => replies.send(format!("{error}\n").into_bytes()).await.is_ok(),
            None => server.write_all(&line).await.is_ok(),
        };
        // The server has ended.
        if !sent {
            return;
        }
    }
}

/// Passes the server's lines on to `replies`, so that they do not mix with errors.
pub(super) async fn copy(server: impl AsyncRead + Unpin, replies: Sender<Vec<u8>>) {
    let mut server = BufReader::new(server);
    loop {
        let mut line = Vec::new();
        match server.read_until(b'\n', &mut line).await {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        if replies.send(line).await.is_err() {
            return;
        }
    }
}

/// Writes lines to the client until there are no more, or the client has disconnected.
pub(super) async fn write(mut lines: Receiver<Vec<u8>>, mut output: impl AsyncWrite + Unpin) {
    while let Some(line) = lines.recv().await {
        if output.write_all(&line).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

/// Returns the answer to a line that is not JSON, or to a request without its parameters. `None` for other lines.
fn error_for(line: &[u8]) -> Option<Value> {
    let text = line.trim_ascii();
    if text.is_empty() {
        return None;
    }
    let message: Value = match serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)) {
        Ok(message) => message,
        Err(error) => return Some(answer(&Value::Null, -32700, &format!("the line is not JSON: {error}"))),
    };
    let id = message.get("id")?;
    let method = message["method"].as_str()?;
    let (_, parameter) = REQUIRED.iter().find(|(name, _)| *name == method)?;
    let given = message["params"][*parameter].is_string();
    (!given).then(|| answer(id, -32602, &format!("`{method}` needs the parameter `{parameter}`")))
}

fn answer(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_lines_get_the_error_of_the_protocol() {
        for (line, code, id) in [
            ("{nope", -32700, json!(null)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#, -32602, json!(1)),
            (r#"{"jsonrpc":"2.0","id":"a","method":"resources/read"}"#, -32602, json!("a")),
        ] {
            let error = error_for(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((&error["error"]["code"], &error["id"]), (&json!(code), &id), "{line}");
        }
        for line in [
            "",
            "\n",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert_eq!(error_for(line.as_bytes()), None, "{line}");
        }
    }
}
