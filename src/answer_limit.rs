//! Limits the requests of an MCP client or server that have no answer, and ends the connection if it does not read the
//! answers. rmcp keeps a task for each request and for each answer.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{CancelledNotification, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio_util::sync::CancellationToken;

/// Maximum number of requests that wait for an answer. Further messages are not read until then.
const MAX_REQUESTS: usize = 1_024;
/// Maximum number of answers that the other side has not read.
const MAX_UNREAD: usize = 1_024;
/// Maximum bytes of these answers. A single one may be larger.
const MAX_UNREAD_BYTES: usize = 32 << 20;

/// A transport that ends if too many answers wait.
pub(crate) struct AnswerLimit<T, F> {
    transport: T,
    /// Requests of the other side without an answer.
    requests: HashSet<RequestId>,
    unread: Arc<Mutex<UnreadAnswers>>,
    /// Cancelled when a limit is reached.
    exceeded: CancellationToken,
    report: F,
}

/// Answers that the transport has not sent yet.
#[derive(Debug, Default)]
struct UnreadAnswers {
    count: usize,
    bytes: usize,
}

/// An answer until it is sent.
struct UnreadAnswer {
    unread: Arc<Mutex<UnreadAnswers>>,
    bytes: usize,
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        let mut unread = lock(&self.unread);
        unread.count -= 1;
        unread.bytes -= self.bytes;
    }
}

impl<T, F> AnswerLimit<T, F> {
    /// Calls `report` with the reason when a limit ends the connection.
    pub(crate) fn new(transport: T, report: F) -> Self {
        let (requests, unread, exceeded) = (HashSet::new(), Arc::default(), CancellationToken::new());
        Self { transport, requests, unread, exceeded, report }
    }

    /// Counts a message if it is an answer. Ends the connection if too many wait.
    fn count<R: ServiceRole>(&mut self, message: &TxJsonRpcMessage<R>) -> Option<UnreadAnswer> {
        let id = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => return None,
        };
        id.map(|id| self.requests.remove(id));
        let mut size = SizeCounter(0);
        // A message that is no JSON is not sent either.
        serde_json::to_writer(&mut size, message).ok()?;
        let SizeCounter(bytes) = size;
        let mut unread = lock(&self.unread);
        unread.count += 1;
        unread.bytes += bytes;
        if unread.count > MAX_UNREAD || (unread.bytes > MAX_UNREAD_BYTES && unread.count > 1) {
            self.exceeded.cancel();
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
        let (sending, exceeded) = (self.transport.send(item), self.exceeded.clone());
        async move {
            let Some(_answer) = answer else { return sending.await };
            // The connection ends, so that no answer is necessary.
            exceeded.run_until_cancelled(sending).await.unwrap_or(Ok(()))
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        let Self { transport, requests, exceeded, report, .. } = self;
        let next = async {
            // One task of rmcp reads messages and takes answers. It reads what has arrived before the other tasks make
            // answers, so a flood of requests would make ever more tasks.
            tokio::task::yield_now().await;
            loop {
                if requests.len() >= MAX_REQUESTS {
                    // rmcp calls this again after it has taken an answer.
                    std::future::pending::<()>().await;
                }
                let message = transport.receive().await?;
                if note_request::<R>(&message, requests) {
                    return Some(message);
                }
            }
        };
        exceeded.run_until_cancelled(next).await.unwrap_or_else(|| {
            report("it sends requests and does not read the answers");
            None
        })
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.transport.close().await
    }
}

/// Adds a request to those without an answer, or removes the one that a message cancels. Returns false for a request whose
/// id another one has, because it could not be answered.
fn note_request<R: ServiceRole>(message: &RxJsonRpcMessage<R>, requests: &mut HashSet<RequestId>) -> bool {
    match message {
        JsonRpcMessage::Request(request) => requests.insert(request.id.clone()),
        JsonRpcMessage::Notification(notification) => {
            let cancelled: Result<CancelledNotification, _> = notification.notification.clone().try_into();
            let id = cancelled.ok().and_then(|cancelled| cancelled.params.request_id);
            id.map(|id| requests.remove(&id));
            true
        }
        JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => true,
    }
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

fn lock(unread: &Mutex<UnreadAnswers>) -> MutexGuard<'_, UnreadAnswers> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rmcp::model::ServerResult;
    use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _};
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
            let id = format!("{}{sent}", "0".repeat(id_length));
            let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
            if writing.write_all(format!("{ping}\n").as_bytes()).await.is_err() {
                break;
            }
            sent += 1;
        }
        drop(client.waiting().await);
        (sent, reasons.try_recv().unwrap())
    }

    #[tokio::test]
    async fn a_server_that_reads_no_answers_is_cut_off() {
        let (sent, reason) = flood(0).await;
        assert!((MAX_UNREAD..100_000).contains(&sent), "{sent}");
        assert_eq!(reason, "it sends requests and does not read the answers");
    }

    #[tokio::test]
    async fn unread_answers_have_a_limit_in_bytes() {
        let (sent, _) = flood(1 << 20).await;
        assert!((30..200).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_over_the_limit_waits_for_an_answer() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let (from_client, to_client) = tokio::io::split(ours);
        let mut limited = AnswerLimit::new(AsyncRwTransport::new_server(from_client, to_client), |_: &str| {});
        let request = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}});
        // The second request with the same id could not be answered.
        let mut messages = vec![request(0), request(0), cancelled];
        messages.extend((0..=MAX_REQUESTS).map(request));
        for message in messages {
            theirs.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }
        let mut next = async || tokio::time::timeout(Duration::from_secs(1), limited.receive()).await;
        for number in 0..MAX_REQUESTS + 2 {
            assert!(next().await.is_ok_and(|message| message.is_some()), "message {number}");
        }
        assert!(next().await.is_err(), "a further request waits");
        let answer = JsonRpcMessage::response(ServerResult::empty(()), RequestId::Number(7));
        limited.send(answer).await.unwrap();
        let Some(JsonRpcMessage::Request(last)) = limited.receive().await else { panic!("the last request") };
        assert_eq!(last.id, RequestId::Number(MAX_REQUESTS as i64));
    }
}
