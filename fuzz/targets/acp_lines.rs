//! Lines of ACP: no reader loses a byte or holds more than its limit. What Skein understands of a client's request, it
//! understands again. What an external agent reports reaches the client in a form that it can read.

use serde_json::{Value, json};
use skein::acp::{IncomingMessage, read_lines, read_request};
use skein::external::read_update;
use skein::services::LineReader;

const MAX_LINE: usize = 64;

pub(super) fn run(data: &[u8]) {
    check_agent_lines(data);
    for line in read_lines(data) {
        assert!(!line.contains('\n'), "{line:?} is one line");
        let message = IncomingMessage::parse(&line);
        assert!(!message.is_initialize() || !message.opens_session(), "{line:?} is one kind of request");
        if let Ok(value) = serde_json::from_str::<Value>(&line) {
            check_request(&value);
            check_update(value);
        }
    }
}

/// Reads the lines of an external agent or a service.
fn check_agent_lines(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut joined = Vec::new();
    runtime.block_on(async {
        let mut reader = LineReader::new(data, MAX_LINE);
        loop {
            match reader.next().await {
                Ok(Some(line)) => {
                    assert!(!line.contains(&b'\n') && line.len() <= MAX_LINE, "{line:?}");
                    joined.extend_from_slice(&line);
                }
                Ok(None) => break,
                // The reader of a slice has all bytes at once. So a line that is too long is read whole.
                Err(_) => joined.extend(reader.take_partial()),
            }
        }
    });
    let expected: Vec<u8> = data.iter().copied().filter(|byte| *byte != b'\n').collect();
    assert_eq!(joined, expected, "no byte is lost");
}

/// What Skein understands of a request stays the same when it is decoded again.
fn check_request(request: &Value) {
    let method = request["method"].as_str().unwrap_or_default();
    if let Some(understood) = read_request(method, request["params"].clone()) {
        assert_eq!(read_request(method, understood.clone()), Some(understood), "{method}");
    }
}

/// What goes on to the client is valid, so it would pass again unchanged.
fn check_update(params: Value) {
    if let Some(told) = read_update(params) {
        let mut again = told.clone();
        again["sessionId"] = json!("s");
        assert_eq!(read_update(again), Some(told));
    }
}
