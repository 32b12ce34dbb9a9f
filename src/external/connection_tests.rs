//! Agents that send updates early, and agents that read no answers.

use super::*;

/// Returns a connection without a process, and the lines that it sends.
fn connection() -> (Arc<AgentConnection>, mpsc::UnboundedReceiver<OutgoingLine>) {
    let (connection, lines, _) = AgentConnection::new(AgentName::new("helper"), 0, false, &TaskScope::new());
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
