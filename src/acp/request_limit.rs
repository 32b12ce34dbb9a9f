//! Limits the requests of a client that have no response yet. The SDK takes every line at once, and the task of a request
//! may wait for long.
//!
//! Invariant: notifications and responses of the client pass without a limit, so that a turn can end and get its answers.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use agent_client_protocol::{Agent, DynConnectTo, Lines, RawJsonRpcId, RawJsonRpcMessage, TransportFrame};
use futures::{SinkExt as _, Stream, StreamExt as _, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::errors;
use super::wire::ClientWriter;

/// Maximum number of requests of a connection without a response.
pub(super) const MAX_REQUESTS: usize = 1_024;
/// Maximum bytes of these requests.
pub(super) const MAX_REQUEST_BYTES: usize = 64 << 20;
/// A request of at most this size needs no room in bytes, so that large prompts do not block it.
const SMALL_REQUEST: usize = 64 << 10;
/// Seconds after which a client may send a refused request again.
const RETRY_AFTER: u64 = 1;

/// Connects the lines of a client and its writer. A request over a limit gets an error.
pub(super) fn transport(
    wire: &ClientWriter,
    lines: impl Stream<Item = io::Result<String>> + Send + 'static,
) -> DynConnectTo<Agent> {
    let taken: Arc<RequestLimit> = Arc::default();
    let (released, refused) = (Arc::clone(&taken), wire.injector());
    let lines = stream::unfold(Box::pin(lines), |mut lines| async {
        // The dispatch loop handles the line before. Its queue would grow while input is ready.
        tokio::task::yield_now().await;
        lines.next().await.map(|line| (line, lines))
    });
    let lines = lines.filter_map(move |line| {
        let admitted = match line {
            Ok(line) => match taken.count(&line) {
                None => Some(Ok(line)),
                Some(refusal) => {
                    refused.send_line(refusal);
                    None
                }
            },
            Err(error) => Some(Err(error)),
        };
        std::future::ready(admitted)
    });
    let responses = wire.sink().with(move |line: String| {
        released.release(&line);
        std::future::ready(io::Result::Ok(line))
    });
    DynConnectTo::new(Lines::new(responses, lines))
}

/// The requests without a response.
#[derive(Debug, Default)]
struct RequestLimit(Mutex<WaitingRequests>);

#[derive(Debug, Default)]
struct WaitingRequests {
    /// The sizes by id. A client may use an id twice.
    sizes: HashMap<RawJsonRpcId, Vec<usize>>,
    count: usize,
    bytes: usize,
}

impl RequestLimit {
    /// Counts a line that gets a response. If too many others have none, returns the response and does not count it.
    fn count(&self, line: &str) -> Option<String> {
        let id = response_id(line)?;
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_too_large = line.len() > SMALL_REQUEST && open.bytes + line.len() > MAX_REQUEST_BYTES;
        if open.count >= MAX_REQUESTS || is_too_large {
            let problem = "too many requests have no response yet; send it again later";
            let error = errors::invalid_request(problem).data(json!({"retryAfter": RETRY_AFTER}));
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
        }
        open.count += 1;
        open.bytes += line.len();
        open.sizes.entry(id).or_default().push(line.len());
        None
    }

    /// Counts the request no longer whose response the line is.
    fn release(&self, line: &str) {
        #[derive(Deserialize)]
        struct ResponseEnvelope {
            /// `None` also for the id `null`.
            id: Option<RawJsonRpcId>,
            method: Option<IgnoredAny>,
        }
        // Most lines are updates, which need not be parsed.
        if line.starts_with(r#"{"jsonrpc":"2.0","method":"#) {
            return;
        }
        let Ok(ResponseEnvelope { id, method: None }) = serde_json::from_str(line) else { return };
        let id = id.unwrap_or(RawJsonRpcId::Null);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sizes) = open.sizes.get_mut(&id) else { return };
        let size = sizes.pop();
        if sizes.is_empty() {
            open.sizes.remove(&id);
        }
        if let Some(size) = size {
            open.count -= 1;
            open.bytes -= size;
        }
    }
}

/// Returns the id of the response that the SDK sends to the line: `null` if the line is no message. `None` if it sends
/// none.
fn response_id(line: &str) -> Option<RawJsonRpcId> {
    match TransportFrame::parse_json(line) {
        TransportFrame::Single(RawJsonRpcMessage::Request(request)) => Some(request.id),
        TransportFrame::Malformed { .. } => (!is_broken_response(line)).then_some(RawJsonRpcId::Null),
        _ => None,
    }
}

/// Returns whether the SDK drops a line that is no message, because it looks like a response.
fn is_broken_response(line: &str) -> bool {
    let Ok(Value::Object(message)) = serde_json::from_str(line) else { return false };
    !message.contains_key("method") && (message.contains_key("result") || message.contains_key("error"))
}
