//! Limits the requests of an MCP client or server that have no answer, and the answers that it has not read. rmcp keeps a
//! task for each of them.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{CancelledNotification, ErrorData, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::task::TaskScope;

/// Maximum number of requests that wait for an answer. A further one is refused.
const MAX_REQUESTS: usize = 1_024;
/// Maximum number of answers that the other side has not read. It must read one before Skein reads more.
const MAX_UNREAD: usize = 1_024;
/// Maximum bytes of these answers, with the same effect. A single one may be larger.
const MAX_UNREAD_BYTES: usize = 32 << 20;
/// How long the other side may read no answer after one of these limits is reached.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// A transport that reads no more while too many answers wait, and ends if the other side reads none of them.
pub(crate) struct AnswerLimit<T, F> {
    transport: T,
    /// Requests of the other side without an answer.
    requests: HashSet<RequestId>,
    /// Sends refusals.
    refusals: TaskScope,
    unread: Arc<UnreadAnswers>,
    /// Cancelled when the other side has read nothing for too long.
    stalled: CancellationToken,
    report: F,
}

/// Answers that the transport has not sent yet.
#[derive(Debug)]
struct UnreadAnswers {
    size: Mutex<AnswerSize>,
    /// Notified when one was sent.
    sent: Notify,
}

#[derive(Debug)]
struct AnswerSize {
    count: usize,
    bytes: usize,
    /// When a limit was reached, or the last answer was sent.
    progress: Instant,
}

impl AnswerSize {
    fn has_room(&self) -> bool {
        self.count <= MAX_UNREAD && (self.bytes <= MAX_UNREAD_BYTES || self.count <= 1)
    }
}

impl UnreadAnswers {
    fn size(&self) -> MutexGuard<'_, AnswerSize> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while a limit is reached. Returns false if the other side reads nothing for too long.
    async fn wait_for_room(&self) -> bool {
        loop {
            let sent = self.sent.notified();
            let (has_room, progress) = {
                let size = self.size();
                (size.has_room(), size.progress)
            };
            if has_room {
                return true;
            }
            if timeout_at(progress + STALL_LIMIT, sent).await.is_err() {
                return false;
            }
        }
    }
}

/// An answer until it is sent.
struct UnreadAnswer {
    unread: Arc<UnreadAnswers>,
    bytes: usize,
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        let mut size = self.unread.size();
        size.count -= 1;
        size.bytes -= self.bytes;
        size.progress = Instant::now();
        drop(size);
        self.unread.sent.notify_waiters();
    }
}

impl<T, F> AnswerLimit<T, F> {
    /// Calls `report` with the reason when the connection ends because the other side reads nothing.
    pub(crate) fn new(transport: T, report: F) -> Self {
        let size = Mutex::new(AnswerSize { count: 0, bytes: 0, progress: Instant::now() });
        let unread = Arc::new(UnreadAnswers { size, sent: Notify::new() });
        let (requests, refusals, stalled) = (HashSet::new(), TaskScope::new(), CancellationToken::new());
        Self { transport, requests, refusals, unread, stalled, report }
    }

    /// Counts a message if it is an answer.
    fn count<R: ServiceRole>(&mut self, message: &TxJsonRpcMessage<R>) -> Option<UnreadAnswer> {
        let id = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => return None,
        };
        id.map(|id| self.requests.remove(id));
        let mut counter = SizeCounter(0);
        // A message that is no JSON is not sent either.
        serde_json::to_writer(&mut counter, message).ok()?;
        let SizeCounter(bytes) = counter;
        let mut size = self.unread.size();
        let had_room = size.has_room();
        size.count += 1;
        size.bytes += bytes;
        if had_room {
            size.progress = Instant::now();
        }
        Some(UnreadAnswer { unread: Arc::clone(&self.unread), bytes })
    }
}

impl<R, T, F> Transport<R> for AnswerLimit<T, F>
where
    R: ServiceRole,
    T: Transport<R>,
    F: FnMut(&str) + Send,
{
    type Error = T::Error;

    fn send(&mut self, item: TxJsonRpcMessage<R>) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answer = self.count::<R>(&item);
        let (sending, stalled) = (self.transport.send(item), self.stalled.clone());
        async move {
            let _unread_until_then = answer;
            // The connection ends, so that no message is necessary.
            stalled.run_until_cancelled(sending).await.unwrap_or(Ok(()))
        }
    }

    /// rmcp drops this future and calls again when something else happens, so no message is held over an `await`.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        // One task of rmcp reads messages and takes answers. It reads what has arrived before the other tasks make
        // answers, so a flood of requests would make ever more tasks.
        tokio::task::yield_now().await;
        loop {
            if !self.unread.wait_for_room().await {
                self.stalled.cancel();
                (self.report)("it sends requests and does not read the answers");
                return None;
            }
            let message = self.transport.receive().await?;
            match admit::<R>(&message, &mut self.requests) {
                MessageAdmission::Pass => return Some(message),
                MessageAdmission::Skip => tracing::debug!("a request has the id of one that has no answer yet"),
                MessageAdmission::Refuse(id) => {
                    let problem = format!("more than {MAX_REQUESTS} requests wait for an answer; send it again later");
                    let refusal = self.send(JsonRpcMessage::error(ErrorData::internal_error(problem, None), Some(id)));
                    self.refusals.spawn(async move { drop(refusal.await) });
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.transport.close().await
    }
}

/// What happens to a message of the other side.
enum MessageAdmission {
    Pass,
    /// There can be no answer, because an earlier request has the same id and no answer yet.
    Skip,
    Refuse(RequestId),
}

/// Notes a request, or the end of one that a message cancels.
fn admit<R: ServiceRole>(message: &RxJsonRpcMessage<R>, requests: &mut HashSet<RequestId>) -> MessageAdmission {
    match message {
        JsonRpcMessage::Request(request) if requests.contains(&request.id) => return MessageAdmission::Skip,
        JsonRpcMessage::Request(request) if requests.len() >= MAX_REQUESTS => {
            return MessageAdmission::Refuse(request.id.clone());
        }
        JsonRpcMessage::Request(request) => drop(requests.insert(request.id.clone())),
        JsonRpcMessage::Notification(notification) => {
            let cancelled: Result<CancelledNotification, _> = notification.notification.clone().try_into();
            let id = cancelled.ok().and_then(|cancelled| cancelled.params.request_id);
            id.map(|id| requests.remove(&id));
        }
        JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
    }
    MessageAdmission::Pass
}

/// Counts what is written to it.
struct SizeCounter(usize);

impl Write for SizeCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rmcp::ServerHandler;
    use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, serve_server};
    use rmcp::transport::async_rw::AsyncRwTransport;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    use super::*;

    /// Sends pings with ids of this length to a client until it ends the connection. Returns their number and the
    /// reason.
    async fn flood(id_length: usize) -> (usize, String) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reading, mut writing) = tokio::io::split(theirs);
        let (reporting, reasons) = mpsc::channel();
        let (from_server, to_server) = tokio::io::split(ours);
        let transport = AsyncRwTransport::new_client(from_server, to_server);
        let limited = AnswerLimit::new(transport, move |reason: &str| reporting.send(reason.to_owned()).unwrap());
        let mut lines = BufReader::new(reading).lines();
        let greet = async {
            let hello: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                "serverInfo": {"name": "test", "version": "1"}});
            let answer = json!({"jsonrpc": "2.0", "id": hello["id"], "result": result});
            writing.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        };
        let (client, ()) = tokio::join!(().serve_with_lifecycle(limited, ClientLifecycleMode::Initialize), greet);
        let client = client.unwrap();
        let mut sent = 0;
        while sent < 200_000 {
            if writing.write_all(ping(format!("{}{sent}", "0".repeat(id_length))).as_bytes()).await.is_err() {
                break;
            }
            sent += 1;
        }
        drop(client.waiting().await);
        (sent, reasons.try_recv().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_reads_no_answers_is_cut_off() {
        let (sent, reason) = flood(0).await;
        assert!((MAX_UNREAD..100_000).contains(&sent), "{sent}");
        assert_eq!(reason, "it sends requests and does not read the answers");
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_have_a_limit_in_bytes() {
        let (sent, _) = flood(1 << 20).await;
        assert!((30..200).contains(&sent), "{sent}");
    }

    fn ping(id: impl Into<Value>) -> String {
        let id = id.into();
        json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string() + "\n"
    }

    struct PingServer;

    impl ServerHandler for PingServer {}

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_all_answers() {
        const LARGE: usize = 1 << 20;
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reading, mut writing) = tokio::io::split(theirs);
        let (from_client, to_client) = tokio::io::split(ours);
        let limited = AnswerLimit::new(AsyncRwTransport::new_server(from_client, to_client), |reason: &str| {
            panic!("{reason}");
        });
        let hello = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let number = 3 * MAX_UNREAD_BYTES / LARGE;
        let ask = async {
            writing.write_all(format!("{hello}\n{ready}\n").as_bytes()).await.unwrap();
            for id in 0..number {
                writing.write_all(ping(format!("{}{id}", "0".repeat(LARGE))).as_bytes()).await.unwrap();
            }
        };
        let read = async {
            let mut lines = BufReader::new(reading).lines();
            for answer in 0..=number {
                tokio::time::sleep(STALL_LIMIT / 4).await;
                assert!(lines.next_line().await.unwrap().is_some(), "answer {answer}");
            }
        };
        let serve = async { serve_server(PingServer, limited).await.unwrap().waiting().await.unwrap() };
        tokio::select! {
            _ = serve => panic!("the connection ended"),
            ((), ()) = async { tokio::join!(ask, read) } => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_over_the_limit_is_refused() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let (from_client, to_client) = tokio::io::split(ours);
        let mut limited = AnswerLimit::new(AsyncRwTransport::new_server(from_client, to_client), |_: &str| {});
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}});
        let mut input = (0..MAX_REQUESTS + 1).map(ping).collect::<String>();
        input += &format!("{cancelled}\n{}{}", ping(1), ping("last"));
        theirs.write_all(input.as_bytes()).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..MAX_REQUESTS + 2 {
            match limited.receive().await.unwrap() {
                JsonRpcMessage::Request(request) => ids.push(request.id),
                JsonRpcMessage::Notification(_) => ids.push(RequestId::String("cancelled".into())),
                other => panic!("{other:?}"),
            }
        }
        let mut expected: Vec<_> = (0..MAX_REQUESTS as i64).map(RequestId::Number).collect();
        expected.extend(["cancelled", "last"].map(|id| RequestId::String(id.into())));
        assert!(ids == expected, "the request over the limit, and the second one with its id, do not pass: {ids:?}");
        let refusal = BufReader::new(theirs).lines().next_line().await.unwrap().unwrap();
        let refusal: Value = serde_json::from_str(&refusal).unwrap();
        assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&json!(MAX_REQUESTS), &json!(-32603)), "{refusal}");
    }
}
