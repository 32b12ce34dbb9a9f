//! A client of `skein serve` whose connection is cut at any message of a turn: on a new connection it gets each update
//! once and in order, the open question again, and the end of the turn.

use std::sync::{Arc, Mutex, mpsc};

use serde_json::{Value, json};

use crate::reattach::shown;
use crate::serve_acp::{Socket, initialize, root};
use crate::support::Sandbox;
use crate::support::acp::selected;
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::serve::{Server, eventually, token};

const WORDS: [&str; 4] = ["one ", "two ", "three ", "four"];
/// How many words the model says only when it is told to.
const GATES: usize = WORDS.len() - 1;
const PROMPT: u64 = 9;
const LOAD: u64 = 1;

/// A model that calls a tool that needs consent, and then says words, one at a time.
fn paced_model() -> (ScriptedModel, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel();
    let gate = Arc::new(Mutex::new(gate));
    let model = ScriptedModel::new(move |request| match has_result(request) {
        false => Answer::SaysAndCalls {
            text: "I write. ",
            tool: "developer__shell",
            arguments: json!({"command": "printf x >> made.txt"}),
        },
        true => Answer::Paced { pieces: WORDS.map(str::to_owned).into(), go: Arc::clone(&gate) },
    });
    (model, go)
}

fn is_answer(message: &Value, id: u64) -> bool {
    message["id"] == id && message.get("method").is_none()
}

/// Allows the call, if the message is the question.
async fn allow(socket: &mut Socket, message: &Value) {
    if message["method"] == "session/request_permission" {
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": selected("allow_once")["result"]});
        socket.say(&answer).await;
    }
}

/// Whether the model waits after the word in this message.
fn is_gate(message: &Value) -> bool {
    let word = message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
    message["params"]["update"]["sessionUpdate"] == "agent_message_chunk" && WORDS[..GATES].contains(&word)
}

/// What the messages show of the session, with one name for the call.
fn shown_in(messages: &[Value]) -> Vec<String> {
    let updates = messages.iter().filter(|message| message["method"] == "session/update");
    let lines = shown(&updates.map(|message| message["params"]["update"].clone()).collect::<Vec<_>>());
    let call = lines.iter().find_map(|line| line.strip_prefix("call ")).unwrap_or("no call").to_owned();
    lines.iter().map(|line| line.replace(&call, "CALL")).collect()
}

/// How many requests the model got, without those for titles.
fn requests_of_turns(model: &ScriptedModel) -> usize {
    model.requests().iter().filter(|request| request["tools"].is_array()).count()
}

const WHOLE: [&str; 5] = [
    "user_message_chunk: write it",
    "agent_message_chunk: I write. ",
    "call CALL",
    "\"completed\" CALL",
    "agent_message_chunk: one two three four",
];

/// The first connection is cut after the first message of a turn, then after the second, and so on until the turn ends.
#[tokio::test]
async fn each_update_arrives_once_after_a_cut_at_any_message() {
    let sandbox = Sandbox::new();
    let (model, go) = paced_model();
    let command = sandbox.command(&["serve", "-a", "coding", "--listen", "127.0.0.1:0"]);
    let server = Server::launch(model.offered_to(command));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    for at in 1.. {
        assert!(at < 100, "a turn has an end");
        let mut first = Socket::connect(&server, &token).await;
        let session = first.session(&sandbox).await;
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": "write it"}]});
        first.say(&json!({"jsonrpc": "2.0", "id": PROMPT, "method": "session/prompt", "params": params})).await;
        let mut passed = 0;
        for _ in 0..at {
            let message = first.wait(|_| true).await;
            if is_answer(&message, PROMPT) {
                assert!(at > 8, "a turn has more messages than {at}");
                return;
            }
            allow(&mut first, &message).await;
            if is_gate(&message) {
                go.send(()).unwrap();
                passed += 1;
            }
        }
        // A cut before the server has read the prompt would lose it. A turn makes two requests with tools.
        eventually("the turn runs", || requests_of_turns(&model) > 2 * (at - 1));
        drop(first);
        let mut second = Socket::connect(&server, &token).await;
        second.say(&initialize()).await;
        second.answer(0).await;
        let params = json!({"sessionId": session, "cwd": root(&sandbox), "mcpServers": []});
        second.say(&json!({"jsonrpc": "2.0", "id": LOAD, "method": "session/load", "params": params})).await;
        let mut messages: Vec<Value> = Vec::new();
        let is_running = passed < GATES;
        loop {
            let message = second.wait(|_| true).await;
            allow(&mut second, &message).await;
            if is_answer(&message, LOAD) {
                assert!(message["result"].is_object(), "cut after {at}: {message}");
                // The turn still runs: its model waits.
                (passed..GATES).for_each(|_| go.send(()).unwrap());
            }
            let is_end = message["method"] == "_skein/turn_ended";
            messages.push(message);
            // A turn that has passed its last gate may end before the session is loaded.
            let is_loaded = messages.iter().any(|message| is_answer(message, LOAD));
            if is_end || (!is_running && is_loaded && shown_in(&messages) == WHOLE) {
                break;
            }
        }
        assert_eq!(shown_in(&messages), WHOLE, "cut after {at}");
        if is_running {
            let end = messages.last().unwrap();
            assert_eq!(
                (&end["params"]["sessionId"], &end["params"]["stopReason"]),
                (&json!(session), &json!("end_turn"))
            );
            assert!(end["params"]["usage"].is_object(), "cut after {at}: {end}");
        }
        let made = std::fs::read_to_string(sandbox.path("project/made.txt")).unwrap();
        assert_eq!(made.len(), at, "the call ran once, cut after {at}");
    }
}
