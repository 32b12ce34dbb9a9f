//! Two tokens of one principal in one session, and what ends with a token: each client stays within its own limits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve_acp::{Socket, initialize, root};
use crate::support::Sandbox;
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{PATIENCE, Server, bearer, eventually, token};

const UNKNOWN: &str = "aaaaaaaaaaaaaaaaaaaa";

fn start(sandbox: &Sandbox, model: &ScriptedModel) -> Server {
    Server::launch(model.offered_to(sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"])))
}

/// Writes a file, and then says so.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| match has_result(request) {
        true => Answer::Says(vec!["done".to_owned()]),
        false => {
            let arguments = json!({"path": "new.txt", "content": "new\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
    })
}

fn load(sandbox: &Sandbox, session: &str) -> Value {
    json!({"sessionId": session, "cwd": root(sandbox), "mcpServers": []})
}

fn prompt(session: &str) -> Value {
    json!({"sessionId": session, "prompt": [{"type": "text", "text": "write it"}]})
}

fn option(session: &str, id: &str, value: &str) -> Value {
    json!({"sessionId": session, "configId": id, "value": value})
}

/// A client that has initialized its connection.
async fn connect(server: &Server, token: &str) -> Socket {
    let mut socket = Socket::connect(server, token).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    socket
}

fn revoke(sandbox: &Sandbox, token: &str) {
    let id = token.split('_').nth(1).expect("an id").to_owned();
    assert_eq!(sandbox.skein(&["token", "revoke", &id]).code, 0);
}

/// The error of an answer, with the id of the session replaced.
fn error_about(answer: &Value, session: &str) -> String {
    assert!(answer["error"].is_object(), "{answer}");
    answer["error"].to_string().replace(session, UNKNOWN)
}

/// Waits until the server has no running turn.
fn wait_for_end_of_turns(server: &Server, token: &str) {
    let turns = || server.get("/metrics", token).body.contains("skein_sessions{state=\"running\"} 0\n");
    eventually("no turn is running", turns);
}

#[tokio::test]
async fn a_token_ends_its_turns_without_a_connection() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("half an answer"));
    let server = start(&sandbox, &model);
    let root = root(&sandbox);
    let (revoked, other) = (token(&sandbox, "a", &["--root", &root]), token(&sandbox, "a", &["--root", &root]));
    let mut socket = connect(&server, &revoked).await;
    let opened = socket.ask(1, "session/new", json!({"cwd": root, "mcpServers": []})).await;
    let session = opened["result"]["sessionId"].as_str().expect("a session").to_owned();
    socket.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt(&session)})).await;
    socket.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    drop(socket);
    let connections = || server.get("/metrics", &other).body.contains("skein_connections{kind=\"acp_websocket\"} 0\n");
    eventually("the connection is gone", connections);
    let metrics = server.get("/metrics", &other).body;
    assert!(metrics.contains("skein_sessions{state=\"running\"} 1\n"), "the turn outlasts its connection: {metrics}");
    revoke(&sandbox, &revoked);
    let begun = Instant::now();
    wait_for_end_of_turns(&server, &other);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // The turn is stored, and another token of the principal goes on with the session.
    let mut socket = connect(&server, &other).await;
    socket.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": load(&sandbox, &session)})).await;
    socket.wait(|message| message.to_string().contains("half an answer")).await;
    assert!(socket.answer(1).await["result"].is_object());
}

/// The turn belongs to the token that asked for it, also in a session of another token.
#[tokio::test]
async fn a_turn_ends_with_the_token_that_began_it() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("half an answer"));
    let server = start(&sandbox, &model);
    let root = root(&sandbox);
    let (opener, guest) = (token(&sandbox, "a", &["--root", &root]), token(&sandbox, "a", &["--root", &root]));
    let mut first = Socket::connect(&server, &opener).await;
    let session = first.session(&sandbox).await;
    let mut second = connect(&server, &guest).await;
    assert!(second.ask(1, "session/load", load(&sandbox, &session)).await["result"].is_object());
    second.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt(&session)})).await;
    first.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    drop(second);
    revoke(&sandbox, &guest);
    let ended = first.wait(|message| message["method"] == "_skein/turn_ended").await;
    assert_eq!(ended["params"]["stopReason"], "cancelled");
    assert!(first.ask(2, "session/list", json!({})).await["result"].is_object(), "the other token is still valid");
    // The end of the token that opened a session closes the session for the others.
    let mut third = connect(&server, &token(&sandbox, "a", &["--root", &root])).await;
    assert!(third.ask(1, "session/load", load(&sandbox, &session)).await["result"].is_object());
    revoke(&sandbox, &opener);
    assert_eq!(first.close_code().await, 1008);
    let refused = third.ask(2, "session/prompt", prompt(&session)).await;
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    assert!(third.ask(3, "session/load", load(&sandbox, &session)).await["result"].is_object(), "it opens again");
}

#[tokio::test]
async fn a_prompt_has_the_stricter_level_of_both_tokens() {
    let sandbox = Sandbox::new();
    let model = writer();
    let server = start(&sandbox, &model);
    let root = root(&sandbox);
    let opener = token(&sandbox, "a", &["--root", &root]);
    let guest = token(&sandbox, "a", &["--root", &root, "--approval", "read-only", "--turns", "1", "--sessions", "1"]);
    let mut first = Socket::connect(&server, &opener).await;
    let session = first.session(&sandbox).await;
    assert!(
        first.ask(2, "session/set_config_option", option(&session, "approval", "auto")).await["result"].is_object()
    );
    let mut second = connect(&server, &guest).await;
    let loaded = second.ask(1, "session/load", load(&sandbox, &session)).await;
    let levels = loaded["result"]["configOptions"].to_string();
    assert!(levels.contains("read-only") && !levels.contains("\"value\":\"auto\""), "{levels}");
    let looser = second.ask(2, "session/set_config_option", option(&session, "approval", "auto")).await;
    assert_eq!(looser["error"]["code"], -32602, "{looser}");
    let new = second.ask(3, "session/new", json!({"cwd": root, "mcpServers": []})).await;
    assert!(new["error"].is_object(), "the session counts for both tokens: {new}");
    let ended = second.ask(4, "session/prompt", prompt(&session)).await;
    assert!(ended["result"].is_object(), "{ended}");
    assert!(!sandbox.path("project/new.txt").exists(), "the token only reads");
    // The level of the session itself has not changed.
    let ended = first.ask(3, "session/prompt", prompt(&session)).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn");
    assert!(sandbox.path("project/new.txt").exists());
}

/// A token that may not consent is not asked about the calls of another token's turn.
#[tokio::test]
async fn a_token_that_only_reads_answers_no_question() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let root = root(&sandbox);
    let opener = token(&sandbox, "a", &["--root", &root, "--approval", "ask"]);
    let reader = token(&sandbox, "a", &["--root", &root, "--approval", "read-only"]);
    let mut first = Socket::connect(&server, &opener).await;
    let session = first.session(&sandbox).await;
    assert!(first.ask(2, "session/set_config_option", option(&session, "approval", "ask")).await["result"].is_object());
    let mut second = connect(&server, &reader).await;
    assert!(second.ask(1, "session/load", load(&sandbox, &session)).await["result"].is_object());
    first.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt(&session)})).await;
    let question = first.wait(|message| message["method"] == "session/request_permission").await;
    let answer = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    first.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": answer})).await;
    assert_eq!(first.answer(3).await["result"]["stopReason"], "end_turn");
    let next = second
        .wait(|message| message["method"] == "session/request_permission" || message["method"] == "_skein/turn_ended")
        .await;
    assert_eq!(next["method"], "_skein/turn_ended", "it sees the turn, and no question: {next}");
}

#[tokio::test]
async fn a_session_in_another_mode_does_not_exist_for_a_token() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &ScriptedModel::new(|request| Answer::Says(vec![asked(request)])));
    let root = root(&sandbox);
    let opener = token(&sandbox, "a", &["--root", &root]);
    let coder = token(&sandbox, "a", &["--root", &root, "--modes", "coding/*"]);
    let mut first = Socket::connect(&server, &opener).await;
    let session = first.session(&sandbox).await;
    assert!(first.ask(2, "session/prompt", prompt(&session)).await["result"].is_object());
    let mut second = connect(&server, &coder).await;
    let hidden = second.ask(1, "session/load", load(&sandbox, &session)).await;
    let unknown = second.ask(1, "session/load", load(&sandbox, UNKNOWN)).await;
    assert_eq!(error_about(&hidden, &session), error_about(&unknown, UNKNOWN));
    assert_eq!(second.ask(2, "session/list", json!({})).await["result"]["sessions"], json!([]));
    // In one of its modes the token joins the session, and chooses only among its modes.
    let mode = |mode: &str| json!({"sessionId": session, "modeId": mode});
    assert!(first.ask(3, "session/set_mode", mode("coding/qa")).await["result"].is_object());
    // The switch is stored a moment later.
    let begun = Instant::now();
    let loaded = loop {
        let loaded = second.ask(3, "session/load", load(&sandbox, &session)).await;
        if loaded["result"].is_object() || begun.elapsed() > PATIENCE {
            break loaded;
        }
    };
    let modes = loaded["result"]["modes"]["availableModes"].as_array().unwrap_or_else(|| panic!("{loaded}")).clone();
    assert!(modes.iter().all(|mode| mode["id"].as_str().unwrap().starts_with("coding/")), "{modes:?}");
    assert_eq!(second.ask(4, "session/set_mode", mode("goose/assistant")).await["error"]["code"], -32602);
    assert!(second.ask(5, "session/prompt", prompt(&session)).await["result"].is_object());
    // The other token leaves these modes: from now on, nothing of the session reaches this client.
    assert!(first.ask(4, "session/set_mode", mode("goose/assistant")).await["result"].is_object());
    let secret = json!({"sessionId": session, "prompt": [{"type": "text", "text": "the zebra is at noon"}]});
    assert!(first.ask(5, "session/prompt", secret).await["result"].is_object());
    let seen = second.ask_and_collect(6, "session/prompt", prompt(&session)).await;
    assert_eq!(seen.last().unwrap()["error"]["code"], -32002, "{seen:?}");
    assert!(!seen.iter().any(|message| message.to_string().contains("zebra")), "{seen:?}");
}

#[tokio::test]
async fn a_session_with_more_folders_is_not_joined() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &ScriptedModel::new(|_| Answer::Says(vec!["hello".to_owned()])));
    sandbox.write("other/secret.txt", "secret");
    let (root, other) = (root(&sandbox), sandbox.path("other").to_string_lossy().into_owned());
    let opener = token(&sandbox, "a", &["--root", &root, "--root", &other, "--client-services"]);
    let narrow = token(&sandbox, "a", &["--root", &root]);
    let wide = token(&sandbox, "a", &["--root", &root, "--root", &other]);
    let mut first = Socket::connect(&server, &opener).await;
    let session = first.session(&sandbox).await;
    assert!(first.ask(2, "session/prompt", prompt(&session)).await["result"].is_object());
    let mut second = connect(&server, &narrow).await;
    let refused = second.ask(1, "session/load", load(&sandbox, &session)).await;
    assert!(refused["error"]["message"].to_string().contains("reaches more than yours"), "{refused}");
    let mut third = connect(&server, &wide).await;
    assert!(third.ask(1, "session/load", load(&sandbox, &session)).await["result"].is_object());
    // When no other client shows the session, the token opens it within its own folders.
    for socket in [&mut first, &mut third] {
        socket.ask(8, "session/close", json!({"sessionId": session})).await;
    }
    assert!(second.ask(2, "session/load", load(&sandbox, &session)).await["result"].is_object());
    // A program that a client has brought is no longer reached by a token that may bring none.
    let servers = json!([{"name": "mine", "command": "/bin/true", "args": [], "env": []}]);
    let opened = first.ask(9, "session/new", json!({"cwd": root, "mcpServers": servers})).await;
    let session = opened["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{opened}")).to_owned();
    let refused = third.ask(2, "session/load", load(&sandbox, &session)).await;
    assert!(refused["error"].is_object(), "{refused}");
}

/// Over REST a token joins a session of another token within the same limits.
#[test]
fn a_run_joins_no_session_beyond_its_token() {
    let sandbox = Sandbox::new();
    let model = writer();
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let root = root(&sandbox);
    let asker = token(&sandbox, "a", &["--root", &root, "--approval", "ask"]);
    let reader = token(&sandbox, "a", &["--root", &root, "--approval", "read-only"]);
    let post = |token: &str, path: &str, body: &Value| {
        server.request("POST", path, &[("authorization", &bearer(token))], &body.to_string())
    };
    let input = json!([{"role": "user", "parts": [{"content": "write it"}]}]);
    let body = json!({"agent_name": "goose-assistant", "mode": "sync", "input": input});
    let waiting = post(&asker, "/runs", &body).json();
    assert_eq!(waiting["status"], "awaiting", "{waiting}");
    let path = format!("/runs/{}", waiting["run_id"].as_str().unwrap());
    let allow =
        json!({"mode": "sync", "await_resume": {"type": "message", "message": {"parts": [{"content": "allow"}]}}});
    assert_eq!(server.get(&path, &reader).status, 200, "both tokens see the run");
    assert_eq!(post(&reader, &path, &allow).status, 403, "one that only reads allows nothing");
    assert!(!sandbox.path("project/new.txt").exists());
    assert_eq!(post(&asker, &path, &allow).json()["status"], "completed");
    assert!(sandbox.path("project/new.txt").exists());
}
