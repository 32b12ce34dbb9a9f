//! Messages about sessions of other replicas reach them, and answers find their way back.

use super::*;

fn request(id: &str, method: &str, session: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"sessionId": session}}).to_string()
}

/// A client whose session `s1` is on the replica behind link 7.
fn forwarded() -> SessionForwards {
    let mut forwards = SessionForwards::default();
    let load = request("1", "session/load", "s1");
    assert_eq!(forwards.destination(&load), ClientRoute::Owner("s1".to_owned()));
    forwards.forward(7, "s1", &load);
    assert_eq!(forwards.receive(7, r#"{"jsonrpc":"2.0","id":"1","result":{}}"#).unwrap().matches("\"1\"").count(), 1);
    forwards
}

#[test]
fn only_messages_about_the_session_go_elsewhere() {
    let mut forwards = forwarded();
    for text in [
        request("2", "session/prompt", "other"),
        request("3", "session/new", "s1x"),
        r#"{"jsonrpc":"2.0","id":"x","result":{}}"#.to_owned(),
        "no JSON".to_owned(),
        "[]".to_owned(),
    ] {
        assert_eq!(forwards.destination(&text), ClientRoute::Here, "{text}");
    }
    let prompt = request("4", "session/prompt", "s1");
    assert_eq!(forwards.destination(&prompt), ClientRoute::Elsewhere(7, prompt.clone()));
    let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}).to_string();
    assert_eq!(forwards.destination(&cancel), ClientRoute::Elsewhere(7, cancel.clone()));
    let withdraw = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"4"}}"#;
    assert_eq!(forwards.destination(withdraw), ClientRoute::Elsewhere(7, withdraw.to_owned()));
    assert!(forwards.receive(7, r#"{"jsonrpc":"2.0","id":"4","result":{}}"#).is_some());
    assert_eq!(forwards.destination(withdraw), ClientRoute::Here, "it has its response");
}

#[test]
fn a_load_looks_for_the_owner_again() {
    let mut forwards = forwarded();
    let load = request("5", "session/load", "s1");
    assert_eq!(forwards.destination(&load), ClientRoute::Owner("s1".to_owned()));
    forwards.keep_here("s1");
    assert_eq!(forwards.destination(&request("6", "session/prompt", "s1")), ClientRoute::Here);
}

#[test]
fn a_replica_hears_what_the_client_said_at_first() {
    let mut forwards = SessionForwards::default();
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"x":[2]}}"#;
    assert_eq!(forwards.destination(hello), ClientRoute::Here);
    let sent: Value = serde_json::from_str(&forwards.initialize()).unwrap();
    assert_eq!(sent["params"], json!({"protocolVersion": 1, "x": [2]}));
    let answer = json!({"jsonrpc": "2.0", "id": sent["id"], "result": {}}).to_string();
    assert_eq!(forwards.receive(7, &answer), None, "the client has its own");
}

#[test]
fn answers_to_questions_get_the_id_of_the_replica() {
    let mut forwards = forwarded();
    let mut ids = Vec::new();
    for link in [7, 8] {
        let question = json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": {}});
        let shown: Value = serde_json::from_str(&forwards.receive(link, &question.to_string()).unwrap()).unwrap();
        ids.push(shown["id"].clone());
    }
    assert_ne!(ids[0], ids[1], "both replicas have a request 1");
    let withdrawn = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#;
    let shown: Value = serde_json::from_str(&forwards.receive(8, withdrawn).unwrap()).unwrap();
    assert_eq!(shown["params"]["requestId"], ids[1]);
    assert_eq!(forwards.receive(8, withdrawn), None, "once");
    let answer = json!({"jsonrpc": "2.0", "id": ids[0], "result": {"x": 1}}).to_string();
    let ClientRoute::Elsewhere(7, sent) = forwards.destination(&answer) else { panic!("it is for link 7") };
    assert_eq!(serde_json::from_str::<Value>(&sent).unwrap(), json!({"jsonrpc": "2.0", "id": 1, "result": {"x": 1}}));
    assert_eq!(forwards.destination(&answer), ClientRoute::Here, "a second answer is for nobody");
}

#[test]
fn a_lost_replica_interrupts_the_turn() {
    let mut forwards = forwarded();
    forwards.destination(&request("9", "session/prompt", "s1"));
    let question = json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": {}}).to_string();
    forwards.receive(7, &question);
    let lines = forwards.lose(7);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("turn interrupted") && lines[0].contains("\"9\""), "{lines:?}");
    assert!(lines[1].contains("$/cancel_request"), "{lines:?}");
    assert!(forwards.lose(7).is_empty());
    assert_eq!(forwards.receive(7, r#"{"jsonrpc":"2.0","id":"9","result":{}}"#), None, "one response only");
    assert_eq!(forwards.destination(&request("10", "session/prompt", "s1")), ClientRoute::Here);
}

#[test]
fn updates_pass_and_the_shutdown_of_a_replica_does_not() {
    let mut forwards = forwarded();
    let update = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1"}}"#;
    assert_eq!(forwards.receive(7, update).as_deref(), Some(update));
    assert_eq!(forwards.receive(7, r#"{"jsonrpc":"2.0","method":"_skein/shutdown","params":{}}"#), None);
}
