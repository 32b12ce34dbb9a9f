//! Ends the connection to a server that sends requests and does not read their answers. rmcp keeps a task for
//! each such answer.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::RoleClient;
use rmcp::model::JsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio_util::sync::CancellationToken;

use crate::services::stdio::WireFailure;

/// Maximum number of answers that a server has not read.
const MAX_UNREAD: usize = 1_024;
/// Maximum bytes of these answers. A single one may be larger.
const MAX_UNREAD_BYTES: usize = 32 << 20;

/// A transport that ends if too many answers wait.
pub(super) struct AnswerLimit<T> {
    transport: T,
    unread: Arc<Mutex<UnreadAnswers>>,
    /// Cancelled when a limit is reached.
    exceeded: CancellationToken,
    failure: WireFailure,
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

impl<T> AnswerLimit<T> {
    /// Sets `failure` when the limit ends the connection.
    pub(super) fn new(transport: T, failure: WireFailure) -> Self {
        Self { transport, unread: Arc::default(), exceeded: CancellationToken::new(), failure }
    }

    /// Counts a message if it is an answer. Ends the connection if too many wait.
    fn count(&self, message: &TxJsonRpcMessage<RoleClient>) -> Option<UnreadAnswer> {
        if !matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)) {
            return None;
        }
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

impl<T: Transport<RoleClient>> Transport<RoleClient> for AnswerLimit<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let answer = self.count(&item);
        let (sending, exceeded) = (self.transport.send(item), self.exceeded.clone());
        async move {
            let Some(_answer) = answer else { return sending.await };
            // The connection ends, so that no answer is necessary.
            exceeded.run_until_cancelled(sending).await.unwrap_or(Ok(()))
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let received = self.exceeded.run_until_cancelled(self.transport.receive()).await;
        received.unwrap_or_else(|| {
            self.failure.set("it sends requests and does not read the answers".to_owned());
            None
        })
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.transport.close().await
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
    use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _};
    use rmcp::transport::async_rw::AsyncRwTransport;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    use super::*;

    /// Sends pings with ids of this length to a client until it ends the connection. Returns their number.
    async fn flood(id_length: usize) -> (usize, WireFailure) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reading, mut writing) = tokio::io::split(theirs);
        let failure = WireFailure::default();
        let (from_server, to_server) = tokio::io::split(ours);
        let transport = AsyncRwTransport::new_client(from_server, to_server);
        let limited = AnswerLimit::new(transport, failure.clone());
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
        (sent, failure)
    }

    #[tokio::test]
    async fn a_server_that_reads_no_answers_is_cut_off() {
        let (sent, failure) = flood(0).await;
        assert!((MAX_UNREAD..100_000).contains(&sent), "{sent}");
        assert_eq!(failure.take().as_deref(), Some("it sends requests and does not read the answers"));
    }

    #[tokio::test]
    async fn unread_answers_have_a_limit_in_bytes() {
        let (sent, failure) = flood(1 << 20).await;
        assert!((30..200).contains(&sent), "{sent}");
        assert!(failure.take().is_some());
    }
}
