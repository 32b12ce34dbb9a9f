//! Answers malformed messages of an MCP client. The MCP library drops lines that it cannot read, and the client would
//! wait for an answer.
//!
//! Invariant: at most [`MAX_LINE`] bytes of a line are in memory.

use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc::{Receiver, Sender};

/// Maximum length of a line of the client, in bytes. The MCP library drops longer ones.
const MAX_LINE: usize = 16 << 20;
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;
/// Capacity of the buffer that stays for the next line.
const KEPT_BUFFER: usize = 64 << 10;

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
        line.shrink_to(KEPT_BUFFER);
        let decision = match read_line(&mut input, &mut line).await {
            LineRead::Whole => decide(&line),
            LineRead::TooLong => {
                let problem = format!("the line is longer than {} MiB", MAX_LINE >> 20);
                LineDecision::Refuse(answer(&Value::Null, INVALID_REQUEST, &problem))
            }
            LineRead::End => return,
        };
        let sent = match decision {
            LineDecision::Pass => server.write_all(&line).await.is_ok(),
            LineDecision::Ignore => true,
            LineDecision::Refuse(error) => replies.send(format!("{error}\n").into_bytes()).await.is_ok(),
        };
        // The server has ended.
        if !sent {
            return;
        }
    }
}

/// What was read of the input.
#[derive(Debug, PartialEq, Eq)]
enum LineRead {
    Whole,
    /// The line was longer than [`MAX_LINE`], and is skipped.
    TooLong,
    /// The input has ended or failed.
    End,
}

/// Reads the next line, with its end, into an empty buffer.
async fn read_line(input: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> LineRead {
    let mut is_too_long = false;
    loop {
        let (used, is_end) = match input.fill_buf().await {
            Ok([]) | Err(_) if is_too_long => return LineRead::TooLong,
            Ok([]) | Err(_) => return if line.is_empty() { LineRead::End } else { LineRead::Whole },
            Ok(part) => {
                let newline = part.iter().position(|byte| *byte == b'\n');
                let used = newline.map_or(part.len(), |place| place + 1);
                is_too_long = is_too_long || line.len() + used > MAX_LINE;
                if !is_too_long {
                    line.extend_from_slice(&part[..used]);
                }
                (used, newline.is_some())
            }
        };
        input.consume(used);
        if is_end {
            return if is_too_long { LineRead::TooLong } else { LineRead::Whole };
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

/// What happens to a line of the client.
#[derive(Debug, PartialEq)]
enum LineDecision {
    /// The server gets it.
    Pass,
    /// Neither the server nor the client gets anything.
    Ignore,
    /// The client gets this error.
    Refuse(Value),
}

/// Refuses a line that is no message, and a request without its parameters.
fn decide(line: &[u8]) -> LineDecision {
    let text = line.trim_ascii();
    if text.is_empty() {
        return LineDecision::Pass;
    }
    let message: Value = match serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)) {
        Ok(message) => message,
        Err(error) => {
            let problem = format!("the line is not JSON: {error}");
            return LineDecision::Refuse(answer(&Value::Null, PARSE_ERROR, &problem));
        }
    };
    let id = message.get("id");
    if let Some(problem) = problem_of(&message) {
        // JSON-RPC forbids an answer to a notification, and the MCP library answers a malformed one.
        if id.is_none() && message["method"].is_string() {
            tracing::debug!(problem, "a malformed notification of the client");
            return LineDecision::Ignore;
        }
        let shown = id.filter(|id| id.is_string() || id.is_number()).unwrap_or(&Value::Null);
        return LineDecision::Refuse(answer(shown, INVALID_REQUEST, problem));
    }
    missing_parameter(&message).map_or(LineDecision::Pass, LineDecision::Refuse)
}

/// Returns the answer to a request without its parameters. `None` for other messages.
fn missing_parameter(message: &Value) -> Option<Value> {
    let (id, method) = (message.get("id")?, message["method"].as_str()?);
    let (_, parameter) = REQUIRED.iter().find(|(name, _)| *name == method)?;
    let given = message["params"][*parameter].is_string();
    (!given).then(|| answer(id, INVALID_PARAMS, &format!("`{method}` needs the parameter `{parameter}`")))
}

/// Returns why a value is no request, notification or response that the MCP library can read.
fn problem_of(message: &Value) -> Option<&'static str> {
    let Some(fields) = message.as_object() else { return Some("a message is a JSON object, without a batch") };
    let Some(method) = fields.get("method") else {
        // An answer to a response could be answered again, without an end.
        let is_response = fields.contains_key("result") || fields.contains_key("error");
        return (!is_response).then_some("a message needs `method`, `result` or `error`");
    };
    if !method.is_string() {
        return Some("`method` is not a string");
    }
    if fields.get("jsonrpc").is_none_or(|version| version != "2.0") {
        return Some("`jsonrpc` is not \"2.0\"");
    }
    if fields.get("id").is_some_and(|id| !id.is_string() && !is_integer(id)) {
        return Some("`id` is not a string or an integer");
    }
    let has_params = fields.get("params").is_none_or(|params| params.is_object() || params.is_null());
    (!has_params).then_some("`params` is not an object")
}

/// Returns whether a number is an integer for the MCP library, which also takes `1.0`. A larger number in float form may
/// stand for several integers.
fn is_integer(number: &Value) -> bool {
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    number.is_i64() || number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() < MAX_EXACT)
}

fn answer(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn malformed_lines_get_the_error_of_the_protocol() {
        for (line, code, id) in [
            ("{nope", -32700, json!(null)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#, -32602, json!(1)),
            (r#"{"jsonrpc":"2.0","id":"a","method":"resources/read"}"#, -32602, json!("a")),
            (r#"{"jsonrpc":"2.0","id":"m5","method":5}"#, -32600, json!("m5")),
            (r#"{"jsonrpc":"2.0","id":7}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":[]}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"1.0","id":7,"method":"tools/list"}"#, -32600, json!(7)),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}"#, -32600, json!(1.5)),
            (r#"{"jsonrpc":"2.0","id":1e16,"method":"tools/list"}"#, -32600, json!(1e16)),
            (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600, json!(null)),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]"#, -32600, json!(null)),
            ("7", -32600, json!(null)),
            ("{}", -32600, json!(null)),
            (r#"{"jsonrpc":"2.0","method":5}"#, -32600, json!(null)),
        ] {
            let LineDecision::Refuse(error) = decide(line.as_bytes()) else { panic!("{line}") };
            assert_eq!((&error["error"]["code"], &error["id"]), (&json!(code), &id), "{line}");
        }
        for line in [
            "",
            "\n",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no JSON"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}"#,
            r#"{"jsonrpc":"2.0","id":1.0,"method":"ping"}"#,
        ] {
            assert_eq!(decide(line.as_bytes()), LineDecision::Pass, "{line}");
        }
    }

    #[test]
    fn a_malformed_notification_gets_no_answer() {
        for line in [
            r#"{"jsonrpc":"2.0","method":"$/progress","params":[1]}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}"#,
            r#"{"method":"$/setTrace"}"#,
        ] {
            assert_eq!(decide(line.as_bytes()), LineDecision::Ignore, "{line}");
        }
    }

    #[tokio::test]
    async fn a_line_of_a_client_that_is_too_long_gets_an_error() {
        let line = |length: usize| tokio::io::repeat(b'x').take(length as u64);
        let ping = &b"\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n"[..];
        let input = line(3 * MAX_LINE).chain(ping).chain(line(MAX_LINE + 1));
        let mut passed = Vec::new();
        let (replies, mut answers) = tokio::sync::mpsc::channel(8);
        check(input, &mut passed, replies).await;
        assert_eq!(passed, ping[1..]);
        for _ in 0..2 {
            let error: Value = serde_json::from_slice(&answers.recv().await.unwrap()).unwrap();
            assert_eq!((&error["error"]["code"], &error["id"]), (&json!(-32600), &Value::Null), "{error}");
        }
        assert_eq!(answers.recv().await, None);

        let (mut input, mut buffer) = (BufReader::new(line(3 * MAX_LINE)), Vec::new());
        assert_eq!(read_line(&mut input, &mut buffer).await, LineRead::TooLong);
        assert!(buffer.capacity() <= 2 * MAX_LINE, "{}", buffer.capacity());
        let (mut input, mut buffer) = (BufReader::new(line(MAX_LINE)), Vec::new());
        assert_eq!(read_line(&mut input, &mut buffer).await, LineRead::Whole);
        assert_eq!(buffer.len(), MAX_LINE);
    }
}
