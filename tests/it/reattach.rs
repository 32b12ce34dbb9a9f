//! `session/load` and `session/resume` of a running session attach to its turn: the client gets each update once and in
//! order, open questions again, and the end of the turn.

use std::sync::{Arc, Mutex, mpsc};

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, selected, spoken};
use crate::support::model::{Answer, ScriptedModel, has_result};

fn launch(sandbox: &Sandbox, model: &ScriptedModel) -> Acp {
    let mut client = Acp::launch(sandbox, model.offered_to(sandbox.command(&["acp", "-a", "coding"])));
    client.introduce(&json!({}));
    client
}

fn load(client: &mut Acp, session: &str) -> Value {
    let cwd = client.cwd();
    client.send("session/load", json!({"sessionId": session, "cwd": cwd, "mcpServers": []}))
}

fn wait_word(client: &mut Acp, mark: usize, word: &str) {
    client.wait(mark, word, |message| message["params"]["update"]["content"]["text"] == word);
}

/// Everything that the client was shown of a session: text of both sides, calls and their ends.
pub(crate) fn shown(updates: &[Value]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for update in updates {
        let (kind, last) = (update["sessionUpdate"].as_str().unwrap_or_default(), lines.last_mut());
        match kind {
            "user_message_chunk" | "agent_message_chunk" => {
                let text = update["content"]["text"].as_str().unwrap_or_default();
                match last.filter(|line| line.starts_with(kind)) {
                    Some(line) => line.push_str(text),
                    None => lines.push(format!("{kind}: {text}")),
                }
            }
            "tool_call" => lines.push(format!("call {}", update["toolCallId"])),
            "tool_call_update" if update["status"] == "completed" || update["status"] == "failed" => {
                lines.push(format!("{} {}", update["status"], update["toolCallId"]));
            }
            _ => {}
        }
    }
    lines
}

/// A model that calls a tool that needs consent, and then says three words, one at a time.
fn paced_model() -> (ScriptedModel, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel();
    let gate = Arc::new(Mutex::new(gate));
    let model = ScriptedModel::new(move |request| match has_result(request) {
        false => Answer::SaysAndCalls {
            text: "I write. ",
            tool: "developer__shell",
            arguments: json!({"command": "printf x >> made.txt"}),
        },
        true => {
            let pieces = ["one ", "two ", "three"].map(str::to_owned).into();
            Answer::Paced { pieces, go: Arc::clone(&gate) }
        }
    });
    (model, go)
}

const WHOLE: [&str; 5] = [
    "user_message_chunk: write it",
    "agent_message_chunk: I write. ",
    "call \"CALL\"",
    "\"completed\" \"CALL\"",
    "agent_message_chunk: one two three",
];

fn assert_whole(updates: &[Value]) {
    let lines = shown(updates);
    let call = lines.iter().find_map(|line| line.strip_prefix("call ")).expect("a call").trim_matches('"').to_owned();
    let lines: Vec<_> = lines.iter().map(|line| line.replace(&call, "CALL")).collect();
    assert_eq!(lines, WHOLE);
}

#[test]
fn a_loaded_running_session_shows_everything_once() {
    // The client loads the session while the question is open, and while the answer streams.
    for at_question in [true, false] {
        let sandbox = Sandbox::new();
        let (model, go) = paced_model();
        let mut client = launch(&sandbox, &model);
        let session = client.session();
        client.on("session/request_permission", |_| None);
        let start = client.mark();
        let prompt = client.begin(&session, "write it");
        let is_question = |message: &Value| message["method"] == "session/request_permission";
        let question = client.wait(start, "a question", is_question);
        let mut mark = start;
        if at_question {
            mark = client.mark();
            let loaded = load(&mut client, &session);
            client.result(&loaded);
            let again = client.wait(mark, "the question again", is_question);
            assert_ne!(again["id"], question["id"]);
            assert_eq!(again["params"]["toolCall"]["toolCallId"], question["params"]["toolCall"]["toolCallId"]);
            client.reply(&again["id"], selected("allow_once"));
        } else {
            client.reply(&question["id"], selected("allow_once"));
        }
        wait_word(&mut client, start, "one ");
        if !at_question {
            go.send(()).unwrap();
            wait_word(&mut client, start, "two ");
            mark = client.mark();
            let loaded = load(&mut client, &session);
            client.result(&loaded);
            go.send(()).unwrap();
        } else {
            go.send(()).unwrap();
            go.send(()).unwrap();
        }
        assert_eq!(client.ended(&prompt), "end_turn", "the prompt is answered, because its connection is still there");
        assert_whole(&client.updates(mark, &session));
        assert_eq!(std::fs::read_to_string(sandbox.path("project/made.txt")).unwrap(), "x", "the call ran once");
    }
}

#[test]
fn a_resumed_running_session_shows_only_what_follows() {
    let sandbox = Sandbox::new();
    let (model, go) = paced_model();
    let mut client = launch(&sandbox, &model);
    client.on_permission("allow_once");
    let session = client.session();
    let start = client.mark();
    let prompt = client.begin(&session, "write it");
    wait_word(&mut client, start, "one ");
    let mark = client.mark();
    let cwd = client.cwd();
    let resumed = client.send("session/resume", json!({"sessionId": session, "cwd": cwd, "mcpServers": []}));
    client.result(&resumed);
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(client.ended(&prompt), "end_turn");
    assert_eq!(spoken(&client.updates(mark, &session)), "two three");
}

#[test]
fn a_loaded_turn_refuses_prompts_and_can_be_cancelled() {
    let sandbox = Sandbox::new();
    let (model, _go) = paced_model();
    let mut client = launch(&sandbox, &model);
    client.on("session/request_permission", |_| None);
    let session = client.session();
    let start = client.mark();
    let prompt = client.begin(&session, "write it");
    client.wait(start, "a question", |message| message["method"] == "session/request_permission");
    let loaded = load(&mut client, &session);
    client.result(&loaded);
    let second = client.begin(&session, "another");
    assert!(client.answer(&second)["error"]["message"].as_str().unwrap().contains("still busy"));
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    assert!(!sandbox.path("project/made.txt").exists());
}
