//! Agents that send updates early, and agents that read no answers.

use super::*;
use crate::services::Environment;

/// Returns a connection without a process, and the lines that it sends.
fn connection() -> (Arc<AgentConnection>, mpsc::UnboundedReceiver<OutgoingLine>) {
    connection_with(SecretValues::default())
}

fn connection_with(secrets: SecretValues) -> (Arc<AgentConnection>, mpsc::UnboundedReceiver<OutgoingLine>) {
    let (connection, lines, _) = AgentConnection::new(AgentName::new("helper"), 0, false, secrets, &TaskScope::new());
    (connection, lines)
}

fn receive(connection: &Arc<AgentConnection>, message: &Value) {
    assert_eq!(connection.receive(message.to_string().as_bytes()), LineVerdict::Message);
}

/// A session that records its updates.
#[derive(Default)]
struct Recorder(Mutex<Vec<Value>>);

impl SessionHandler for Recorder {
    fn wait_for_room(&self) -> bool {
        true
    }

    fn handle_update(&self, params: &RawValue) {
        lock(&self.0).push(serde_json::from_str(params.get()).unwrap());
    }

    fn admit_request(&self, _: &str, _: usize) -> Result<(), RpcError> {
        Ok(())
    }

    fn answer(
        self: Arc<Self>,
        method: String,
        _: Value,
        _: CancellationToken,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        panic!("the agent of this test does not call `{method}`")
    }

    fn page_done(&self, _: &str) {}

    fn handle_exit(&self) {}
}

#[test]
fn early_updates_over_the_limit_are_dropped() {
    let (connection, _lines) = connection();
    let opening = connection.begin_opening();
    let params = |number: usize| json!({"sessionId": "s", "number": number});
    let update = |number| json!({"jsonrpc": "2.0", "method": "session/update", "params": params(number)});
    (0..=MAX_EARLY).for_each(|number| receive(&connection, &update(number)));
    let session = Arc::new(Recorder::default());
    assert!(connection.register("s", &session));
    drop(opening);
    assert_eq!(*lock(&session.0), (0..MAX_EARLY).map(params).collect::<Vec<_>>());
}

#[test]
fn an_agent_that_leaves_too_many_refusals_unread_is_ended() {
    let (connection, mut lines) = connection();
    let request = |id: usize| receive(&connection, &json!({"jsonrpc": "2.0", "id": id, "method": "unknown"}));
    (0..MAX_REFUSALS).for_each(request);
    assert!(!connection.is_stopping());
    // The writer drops the permit of a line that it has written.
    let (_, permit) = lines.try_recv().unwrap();
    drop(permit);
    request(MAX_REFUSALS);
    assert!(!connection.is_stopping(), "the refusal that was written made room");
    request(MAX_REFUSALS + 1);
    assert!(connection.is_stopping());
}

#[test]
fn an_agent_whose_request_has_a_long_id_or_method_is_ended() {
    let fits = "x".repeat(MAX_REQUEST_NAME - 2);
    for (id, method) in [(format!("{fits}x"), "unknown".to_owned()), ("1".to_owned(), "x".repeat(MAX_REQUEST_NAME + 1))]
    {
        let (connection, mut lines) = connection();
        // The quotes count, too.
        receive(&connection, &json!({"jsonrpc": "2.0", "id": fits, "method": "unknown"}));
        assert!(lines.try_recv().is_ok() && !connection.is_stopping());
        receive(&connection, &json!({"jsonrpc": "2.0", "id": id, "method": method}));
        assert!(lines.try_recv().is_err() && connection.is_stopping());
    }
}

#[test]
fn early_updates_have_a_limit_in_bytes() {
    let (connection, _lines) = connection();
    let opening = connection.begin_opening();
    let half = "x".repeat(MAX_EARLY_BYTES / 2);
    for text in [half.as_str(), half.as_str(), "short"] {
        let params = json!({"sessionId": "s", "text": text});
        receive(&connection, &json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }
    let session = Arc::new(Recorder::default());
    assert!(connection.register("s", &session));
    drop(opening);
    let kept: Vec<_> = lock(&session.0).iter().map(|params| params["text"].as_str().unwrap().len()).collect();
    assert_eq!(kept, [half.len(), "short".len()], "the second one has no room");
}

/// A session that answers every request.
struct Answerer;

impl SessionHandler for Answerer {
    fn wait_for_room(&self) -> bool {
        true
    }

    fn handle_update(&self, _: &RawValue) {}

    fn admit_request(&self, _: &str, _: usize) -> Result<(), RpcError> {
        Ok(())
    }

    fn answer(
        self: Arc<Self>,
        _: String,
        _: Value,
        _: CancellationToken,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async { Ok(json!("the answer")) })
    }

    fn page_done(&self, _: &str) {}

    fn handle_exit(&self) {}
}

#[tokio::test]
async fn further_requests_are_refused_while_answers_are_unread() {
    let (connection, mut lines) = connection();
    let session = Arc::new(Answerer);
    assert!(connection.register("s", &session));
    let request = |id: usize| {
        let params = json!({"sessionId": "s"});
        receive(&connection, &json!({"jsonrpc": "2.0", "id": id, "method": "terminal/output", "params": params}));
    };
    (0..MAX_CLIENT_REQUESTS).for_each(request);
    let mut permits = Vec::new();
    for _ in 0..MAX_CLIENT_REQUESTS {
        let (line, permit) = lines.recv().await.unwrap();
        assert!(line.contains(r#""result":"the answer""#), "{line}");
        permits.push(permit);
    }
    request(MAX_CLIENT_REQUESTS);
    let (line, _permit) = lines.recv().await.unwrap();
    assert!(line.contains("read the answers first"), "{line}");
    // The writer drops the permit of a line that it has written.
    drop(permits);
    request(MAX_CLIENT_REQUESTS + 1);
    let (line, _permit) = lines.recv().await.unwrap();
    assert!(line.contains(r#""result":"the answer""#), "{line}");
}

/// Returns the id of the next request that a connection sends.
async fn next_request(lines: &mut mpsc::UnboundedReceiver<OutgoingLine>) -> Value {
    let (line, _) = lines.recv().await.unwrap();
    serde_json::from_str::<Value>(&line).unwrap()["id"].take()
}

#[tokio::test]
async fn replies_of_an_agent_repeat_no_secret() {
    let secrets = Environment::new([("KEY".into(), "canary-5d1f0c".into())]).secrets_in("${env:KEY}");
    let (connection, mut lines) = connection_with(secrets);
    let greet = async {
        let id = next_request(&mut lines).await;
        let about = json!({"agentInfo": {"name": "of canary-5d1f0c"}, "protocolVersion": 1});
        receive(&connection, &json!({"jsonrpc": "2.0", "id": id, "result": about}));
    };
    let (about, ()) = tokio::join!(connection.initialize(json!({})), greet);
    assert_eq!(about, Ok(json!({"agentInfo": {"name": "of ${env:KEY}"}, "protocolVersion": 1})));
    let refuse = async {
        let id = next_request(&mut lines).await;
        let error = json!({"code": -1, "message": "no canary-5d1f0c", "data": {"details": ["canary-5d1f0c"]}});
        receive(&connection, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
    };
    let (refused, ()) = tokio::join!(connection.request("session/prompt", json!({})), refuse);
    let data = Some(json!({"details": ["${env:KEY}"]}));
    assert_eq!(refused, Err(RpcError { code: -1, message: "no ${env:KEY}".to_owned(), data }));
}
