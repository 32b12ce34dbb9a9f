//! Agents whose messages wait for the client, and agents that send too many requests in a turn.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use tokio::sync::mpsc::UnboundedReceiver;

use super::super::process::{LineVerdict, OutgoingLine};
use super::*;
use crate::agents::{Event, ExternalAgentSpec};
use crate::external::updates::{MAX_REQUEST_BYTES, MAX_REQUESTS, MAX_UPDATE, MAX_WRITE};
use crate::ids::AgentName;
use crate::manifest::AcpRuntime;
use crate::principal::Principal;
use crate::process::ProcessScope;
use crate::services::SecretValues;
use crate::task::TaskScope;

/// A client that has not read some bytes. Counts what it receives.
#[derive(Default)]
struct SlowClient {
    unread: AtomicUsize,
    received: AtomicUsize,
}

impl Notifier for SlowClient {
    fn log(&self, _: Event) {}

    fn status(&self, _: StatusUpdate) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    fn backlog(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }
}

/// An agent without a process, in its session `s`.
struct Agent {
    connection: Arc<AgentConnection>,
    session: Arc<AcpSession>,
    client: Arc<SlowClient>,
    answers: UnboundedReceiver<OutgoingLine>,
}

impl Agent {
    fn in_turn() -> Self {
        let (tasks, name) = (TaskScope::new(), AgentName::new("helper"));
        let (connection, answers, _) = AgentConnection::new(name.clone(), 0, false, SecretValues::default(), &tasks);
        let (principal, runtime) = (Principal::local(), AcpRuntime::default());
        let spec = ExternalAgentSpec { name, principal, title: "Helper".to_owned(), runtime, sandbox: None };
        let (environment, processes) = (BTreeMap::new(), ProcessScope::default());
        let local = LocalEditor { reaper: None, environment, tasks, processes, sandbox: None };
        let session = AcpSession::new(Arc::clone(&connection), ClientContext::new(spec, local, None));
        session.complete_opening("s", &json!({}), false).unwrap();
        let agent = Self { connection, session, client: Arc::default(), answers };
        agent.begin_turn();
        agent
    }

    fn begin_turn(&self) {
        self.session.client.begin_turn(&CancellationToken::new());
        lock(&self.session.client.relay).begin(Arc::clone(&self.client) as Arc<dyn Notifier>, None);
    }

    /// Sends a request whose params have this size, and returns the answer.
    async fn request(&mut self, method: &str, size: usize) -> String {
        let line = message(Some(1), method, &params(size));
        assert_eq!(self.connection.receive(line.as_bytes()), LineVerdict::Message);
        self.answers.recv().await.unwrap().0
    }
}

fn message(id: Option<u64>, method: &str, params: &Value) -> String {
    match id {
        Some(id) => json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        None => json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string(),
    }
}

fn params(size: usize) -> Value {
    let rest = json!({"sessionId": "s", "text": ""}).to_string().len();
    json!({"sessionId": "s", "text": "x".repeat(size.saturating_sub(rest))})
}

#[tokio::test]
async fn an_agent_waits_for_a_client_that_does_not_read() {
    let mut agent = Agent::in_turn();
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hello"}});
    let update = message(None, "session/update", &json!({"sessionId": "s", "update": chunk}));
    let request = message(Some(1), "fs/read_text_file", &params(0));
    for line in [update, request] {
        agent.client.unread.store(MAX_BACKLOG + 1, Ordering::Relaxed);
        let connection = Arc::clone(&agent.connection);
        let mut reading = tokio::task::spawn_blocking(move || connection.receive(line.as_bytes()));
        let waited = tokio::time::timeout(20 * POLL, &mut reading).await;
        assert!(waited.is_err(), "the client has read nothing");
        agent.client.unread.store(MAX_BACKLOG, Ordering::Relaxed);
        assert_eq!(reading.await.unwrap(), LineVerdict::Message);
    }
    assert_eq!(agent.client.received.load(Ordering::Relaxed), 1, "the update");
    let (answer, _permit) = agent.answers.recv().await.unwrap();
    assert!(answer.contains("there is no method `fs/read_text_file`"), "{answer}");
}

#[tokio::test]
async fn an_external_agent_makes_a_limited_number_of_requests() {
    let mut agent = Agent::in_turn();
    for _ in 0..MAX_REQUESTS {
        let answer = agent.request("fs/read_text_file", 0).await;
        assert!(answer.contains("there is no method"), "{answer}");
    }
    let answer = agent.request("fs/read_text_file", 0).await;
    assert!(answer.contains("a turn has at most 5000 requests"), "{answer}");
    let answer = agent.request("terminal/output", 0).await;
    assert!(answer.contains("there is no method"), "a terminal can always be used: {answer}");
    agent.begin_turn();
    let answer = agent.request("fs/read_text_file", 0).await;
    assert!(answer.contains("there is no method"), "{answer}");
}

#[tokio::test]
async fn requests_have_a_limit_in_bytes() {
    let mut agent = Agent::in_turn();
    let answer = agent.request("session/request_permission", MAX_UPDATE + 1).await;
    assert!(answer.contains("at most 4 MiB"), "{answer}");
    for _ in 0..MAX_REQUEST_BYTES / MAX_UPDATE {
        let answer = agent.request("session/request_permission", MAX_UPDATE).await;
        assert!(answer.contains(r#""outcome":"cancelled""#), "{answer}");
    }
    let answer = agent.request("session/request_permission", 100).await;
    assert!(answer.contains("with at most 64 MiB"), "{answer}");
    // Files and terminals stay usable.
    for (method, size) in [("fs/write_text_file", MAX_WRITE), ("terminal/kill", 0)] {
        let answer = agent.request(method, size).await;
        assert!(answer.contains("there is no method"), "{answer}");
    }
    let answer = agent.request("fs/write_text_file", MAX_WRITE + 1).await;
    assert!(answer.contains("at most 16 MiB"), "{answer}");
}
